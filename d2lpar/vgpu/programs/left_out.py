"""What simulated times do not hold, in words; it needs no torch, as the command line does not."""

from __future__ import annotations

from ...timeline.formatting import seconds_text


def left_out(loader_s: float, workers: int, ranks: int, simulated_s: float) -> str:
    """What simulated times do not hold, in a line: each rank's loader, which bounds them if its
    workers take longer, and what else the processor computes: steps of optimizers are in them."""
    beside = "what the CPU computes (optimizers aside), in the program's own Python or by torch"
    if not loader_s:
        return f"not in these times: {beside}"
    each_s = loader_s / ranks / max(workers, 1)
    by = f"{workers} workers" if workers > 1 else "1 worker" if workers else "the program itself"
    text = f"the loader, {seconds_text(each_s)} by {by} on this machine"
    if each_s > simulated_s:
        return f"not in these times: {text}, which is longer: GPUs would wait for it"
    return f"not in these times: {text}, beside which GPUs compute; and {beside}"
