"""Readings and machines as lines and tables of text, in units that one reads easily."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...timeline.formatting import binary_bytes_text, table
from ..hardware import Accelerator, Host, Link, Machine
from .readings import Reading

TITLES = {
    "matmul": "Products of square matrices, GFLOP/s, by side",
    "convolution": "Convolutions of 3 x 3, GFLOP/s, by channels",
    "memory": "Memory, GB/s, by working set (a copy reads and writes)",
    "dispatch": "Smallest operation, view, kernel: µs",
    "copy": "Copies: latency in µs, rate in GB/s",
    "threads": "A product of matrices, GFLOP/s, by threads",
}
CATALOGUE_TITLE = [
    *("machine", "fp32 TFLOP/s", "fp16", "memory GB/s", "GiB", "to host GB/s", "to peer"),
]
GENERATIONS = {
    "kepler": "NVIDIA Kepler (2012)",
    "maxwell": "NVIDIA Maxwell (2014)",
    "pascal": "NVIDIA Pascal (2016)",
    "volta": "NVIDIA Volta (2017)",
    "turing": "NVIDIA Turing (2018)",
    "ampere": "NVIDIA Ampere (2020)",
    "ada": "NVIDIA Ada Lovelace (2022)",
    "hopper": "NVIDIA Hopper (2022)",
    "blackwell": "NVIDIA Blackwell (2024)",
    "cdna3": "AMD CDNA 3 (2023)",
}
SCALES = {"FLOP/s": (1e9, "GFLOP/s"), "B/s": (1e9, "GB/s"), "s": (1e-6, "µs")}


def lines(readings: Sequence[Reading]) -> Iterable[str]:
    """One table for each device and probe."""
    for device in dict.fromkeys(r.device for r in readings):
        for probe, title in TITLES.items():
            chosen = [r for r in readings if r.device == device and r.probe == probe]
            if chosen:
                yield f"\n{device}: {title}"
                yield from _table(chosen) if len({r.size for r in chosen}) > 2 else _list(chosen)


def _table(readings: Sequence[Reading]) -> list[str]:
    """Sizes downwards, cases across."""
    cases = list(dict.fromkeys(r.case for r in readings))
    rows = [["", *cases]]
    for size in sorted({r.size for r in readings}):
        found = {r.case: r for r in readings if r.size == size}
        label = binary_bytes_text(size) if readings[0].probe == "memory" else str(size)
        rows.append([f"  {label}", *(_value(found[c]) if c in found else "-" for c in cases)])
    return table(rows)


def _list(readings: Sequence[Reading]) -> list[str]:
    named = [
        (r.case if r.probe != "threads" else f"{r.size} thread{'s'[: r.size - 1]}", r)
        for r in readings
    ]
    return table([[f"  {name}", _value(r), SCALES[r.unit][1]] for name, r in named])


def _value(reading: Reading) -> str:
    scale, _ = SCALES[reading.unit]
    return f"{_digits(reading.median / scale)} ±{100 * reading.spread:3.0f} %"


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _figure(value: float) -> str:
    """All the digits that sources print."""
    return f"{value:.4g}"


# --- Machines -------------------------------------------------------------------------------------


def catalogue_lines(machines: Iterable[Machine]) -> list[str]:
    """A table of machines: what they have, at their peaks, in one direction.

    Those of one generation of accelerators stand together under its name, the oldest first.
    """
    groups: dict[str, list[Machine]] = {name: [] for name in GENERATIONS}
    for machine in machines:
        groups.setdefault(machine.accelerators[0].architecture, []).append(machine)
    together = [machine for group in groups.values() for machine in group]
    title, *lines = table([CATALOGUE_TITLE, *map(_catalogue_row, together)])
    found = [title]
    for name, group in groups.items():
        heading = ["", GENERATIONS.get(name, "Others")] if group else []
        found += [*heading, *lines[: len(group)]]
        lines = lines[len(group) :]
    return found


def _catalogue_row(machine: Machine) -> list[str]:
    first = machine.accelerators[0]
    return [
        machine.name,
        *(_figure(first.rate(dtype) / 1e12) for dtype in ("float32", "float16")),
        _figure(first.memory_bytes_per_s / 1e9),
        f"{first.memory_bytes / 2**30:.0f}",
        _figure(machine.host_link.bytes_per_s / 1e9),
        _figure(machine.peer.bytes_per_s / 1e9) if machine.peer else "-",
    ]


def machine_lines(machine: Machine) -> list[str]:
    """Everything about one machine, with the sources of the figures."""
    lines = [machine.name, f"  source: {machine.source}"]
    if machine.notes:
        lines.append(f"  note: {machine.notes}")
    for accelerator in dict.fromkeys(a.name for a in machine.accelerators):
        alike = [a for a in machine.accelerators if a.name == accelerator]
        lines += _accelerator_lines(alike[0], len(alike))
    if machine.nodes > 1:
        lines.append(f"{machine.nodes} nodes of {machine.node_size} accelerators")
    shared = {
        "to the host": machine.uplink_shared_by,
        "to a peer": 1,
        "to other nodes": machine.network_shared_by or machine.node_size or 1,
    }
    links = (machine.host_link, machine.peer, machine.network)
    for (where, by), link in zip(shared.items(), links, strict=True):
        if link is not None:
            lines += _link_lines(where, link, by)
    if machine.peer is None and len(machine.accelerators) > 1:
        lines.append("to a peer: through the host")
    return [*lines, *_host_lines(machine.host)]


def _accelerator_lines(accelerator: Accelerator, count: int) -> list[str]:
    kind = "reached" if accelerator.measured else "peak"
    rates = ", ".join(
        f"{dtype} {_figure(rate / 1e12)}" for dtype, rate in accelerator.flops_per_s.items()
    )
    known = {
        "multiprocessors": accelerator.multiprocessors,
        "MiB of L2 cache": accelerator.l2_bytes and f"{accelerator.l2_bytes / 2**20:.3g}",
        "W": accelerator.power_w and f"{accelerator.power_w:.0f}",
    }
    about = [accelerator.architecture, *(f"{n} {unit}" for unit, n in known.items() if n)]
    return [
        ", ".join([f"{count} x {accelerator.name}", *filter(None, about)]),
        f"  {kind} TFLOP/s: {rates}",
        f"  memory: {accelerator.memory_bytes / 2**30:.3g} GiB, "
        f"{_figure(accelerator.memory_bytes_per_s / 1e9)} GB/s; "
        f"ridge at {_figure(accelerator.ridge_point())} FLOP/B in float32",
        f"  kernel latency: {accelerator.kernel_latency_s * 1e6:.3g} µs",
        f"  source: {accelerator.source}",
    ]


def _link_lines(where: str, link: Link, shared_by: int) -> list[str]:
    shared = f", shared by {shared_by}" if shared_by > 1 else ""
    return [
        f"{where}: {link.name}, {_figure(link.bytes_per_s / 1e9)} GB/s a direction, "
        f"latency {link.latency_s * 1e6:.3g} µs{shared}",
        f"  source: {link.source}",
    ]


def _host_lines(host: Host) -> list[str]:
    cores = f", {host.cores} cores" if host.cores else ""
    return [
        f"host: {host.name}{cores}; {host.dispatch_s * 1e6:.3g} µs to queue a kernel, "
        f"{host.view_s * 1e6:.3g} µs for a view",
        f"  source: {host.source}",
    ]
