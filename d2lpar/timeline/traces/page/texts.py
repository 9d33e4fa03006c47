"""What a reader sees of a timeline, in one place for translators."""

from __future__ import annotations

from ...spans import Row

STREAM = "stream {number}"
KINDS = {
    "compute": "compute", "copy": "copy", "dispatch": "dispatch", "host": "host",
    "collective": "collective", "wait": "wait",
}  # fmt: skip
PASSES = {
    "forward": "forward", "backward": "backward", "inputs": "input gradients",
    "weights": "weight gradients", "again": "forward again",
    "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "update": "update",
}  # fmt: skip
SUMMARY = "Timeline of {rows}: {spans} spans in {length}. {clock}."

# Why a span began only then: by the number that `page_data` gives the reason.
WHY = {
    "1": "waited for the host, which queued it only then",
    "2": "waited for the work before it on its stream: {name}",
    "3": "waited by an event for {name} on {row}",
    "4": "until this had ended: {name} on {row}",
}

VIEW = {
    "closer": "zoom in (W)",
    "wider": "zoom out (S)",
    "all": "show all (0)",
    "chain": "critical path",
    "chain_label": "show the chain of spans that explains the length (C)",
    "keys_label": "keys and mouse",
    "keys": (
        "Mouse: move over a span to read it, click to keep it, drag to sum up a range, Shift and "
        "drag to move, turn the wheel to zoom (after a click, or with Ctrl). Keys: W and S zoom, A "
        "and D move, arrows go from span to span, Enter goes to what a span waited for, F fits it, "
        "C shows the critical path, 0 shows all, Escape lets go."
    ),
    "hint": "Move over a span, or drag over a range. “?” lists keys.",
    "times": "at {start}, for {duration}",
    "line": "queued in {line}",
    "gap": ", which was {gap} before",
    "range": "{length}, from {from} to {to}",
    "device": "device",
    "idle": "idle",
    "sums": {
        "compute forward backward inputs weights again update": "compute",
        "copy": "copies",
        "collective all_gather reduce_scatter": "collectives",
        "dispatch host": "host's work",
        "wait": "waiting",
    },
    "bubble": "Accelerators idle (bubble): {part} of the range, on average.",
    "memory": "memory, to {most}",
    "why": WHY,
}


def row_name(row: Row) -> str:
    """What stands beside a row: "vgpu:0 · stream 0"."""
    device, stream = row
    if isinstance(stream, int):
        stream = STREAM.format(number=stream)
    return f"{device} · {stream}" if stream else device
