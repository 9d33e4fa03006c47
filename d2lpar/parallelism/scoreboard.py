"""The scoreboard of the course: one network, one box, one batch, several ways to train it.

Each lesson adds the ways that it teaches. The workload is always ResNet-50 of torchvision with 1000
classes, 120 images of 3 x 128 x 128 a step, float32, SGD: that of PyTorch's tutorial on model
parallelism. The box is `2x-v100-textbook`, the textbook's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files

import torch

from .. import machines
from ..plots import Picture
from ..plots.bar_panels import bar_panels
from ..timeline import Span, kept
from ..timeline.formatting import bytes_text, seconds_text
from ..timeline.printing import say
from ..vgpu import now_s, record, simulate

BOX = "2x-v100-textbook"
KEPT = "scoreboard"
FEW, MANY = 1, 3  # steps: what is more in the second run is two steps, without what comes before
# What each of n ranks sends, in parts of the bytes that a collective's span names.
SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,  # along a chain: all but the last
    "reduce": lambda n: (n - 1) / n,
}

ERROR_WAY = "the scoreboard has no row called {way!r}; it has {known}"

Train = Callable[[list[torch.device], int], object]


@dataclass(frozen=True)
class Row:
    """One way to train: seconds a step, bytes in the fullest memory, bytes that the GPUs send in
    a step, all together, and where the figures come from."""

    way: str
    step_s: float
    memory_bytes: float
    sent_bytes: float
    source: str

    def __str__(self) -> str:
        sent = bytes_text(self.sent_bytes) if self.sent_bytes else "nothing"
        return (
            f"{self.way}: {seconds_text(self.step_s)} per step, "
            f"{bytes_text(self.memory_bytes)} on the fullest GPU, "
            f"{sent} sent per step ({self.source})"
        )


def measure(way: str, train: Train, *, machine: machines.Named = BOX) -> Row:
    """Simulate `train(devices, steps)` on the box, print what it takes, and keep it as a row.

    `train` makes the network and takes that many steps on the devices that it is given. It runs
    twice, for one step and for three; half of the difference is a step. Only shapes are computed.
    """
    step_s, memory_bytes, sent_bytes = _simulated(train, machine)
    found = machines.machine(machine)
    return add(
        way, step_s=step_s, memory_bytes=memory_bytes, sent_bytes=sent_bytes,
        source=f"simulated on {found.name}",
    )  # fmt: skip


def add(way: str, *, step_s: float, memory_bytes: float, sent_bytes: float, source: str) -> Row:
    """Print a row and keep it, in the place of one that has its name.

    Raises ValueError for a time or a size that is negative or no number.
    """
    row = Row(way, float(step_s), float(memory_bytes), float(sent_bytes), source)
    if not (row.step_s > 0 and row.memory_bytes >= 0 and row.sent_bytes >= 0):
        raise ValueError(f"a row needs seconds > 0 and bytes >= 0, not {row!r}")
    kept.write(KEPT, way, {name: v for name, v in asdict(row).items() if name != "way"})
    say(str(row))
    return row


def rows() -> list[Row]:
    """All rows of the course, each as the reader's own run gave it, or else as it was recorded."""
    recorded = json.loads(files(__package__).joinpath("scoreboard.json").read_text("utf-8"))
    return [Row(way, **values) for way, values in (recorded | kept.read(KEPT)).items()]


def show(*more: Row, without: Collection[str] = ()) -> Picture:
    """A picture of all rows, the slowest first: time, memory and bytes sent.

    `more` are rows besides those that are kept. Ways in `without` are left out, such as those that
    a later lesson measures. Raises ValueError for a way that the board does not have.
    """
    shown = {row.way: row for row in (*rows(), *more)}
    for way in [without] if isinstance(without, str) else without:
        if way not in shown:
            raise ValueError(ERROR_WAY.format(way=way, known=", ".join(shown)))
        del shown[way]
    ordered = sorted(shown.values(), key=lambda row: -row.step_s)
    return bar_panels(
        [row.way for row in ordered],
        {
            "ms per step": [row.step_s * 1e3 for row in ordered],
            "GB on the fullest GPU": [row.memory_bytes / 1e9 for row in ordered],
            "MB sent per step": [row.sent_bytes / 1e6 for row in ordered],
        },
        note=_note(ordered),
        summary="ResNet-50, 120 images per step, trained in several ways",
    )


def _note(shown: Iterable[Row]) -> str:
    return "; ".join(sorted({row.source for row in shown}))


def _simulated(train: Train, machine: machines.Named) -> tuple[float, float, float]:
    """Seconds a step, the most bytes on one device, and bytes sent a step."""
    few, many = _run(train, FEW, machine), _run(train, MANY, machine)
    steps = MANY - FEW
    return (
        (many.length_s - few.length_s) / steps,
        many.memory_bytes,
        (many.sent_bytes - few.sent_bytes) / steps,
    )


@dataclass(frozen=True)
class _Run:
    length_s: float
    memory_bytes: int
    sent_bytes: float


def _run(train: Train, steps: int, machine: machines.Named) -> _Run:
    with simulate(machine) as devices, record() as timeline:
        begin_s = now_s(devices)
        train(devices, steps)
        length_s = now_s(devices) - begin_s
        module = torch.get_device_module(devices[0])
        memory_bytes = max(module.max_memory_allocated(device) for device in devices)
    sent_bytes = sum(_sent(span, len(devices)) for span in timeline.spans)
    return _Run(length_s, memory_bytes, sent_bytes)


def _sent(span: Span, devices: int) -> float:
    """Bytes that one device sends to others: by a copy, or in a collective. Those of DataParallel
    name no ranks: all devices take part."""
    if span.kind == "copy" and "host" not in (span.device, span.target):
        return span.bytes if span.target != span.device else 0
    if span.kind == "collective":
        ranks = len(span.group) or devices
        share = SENT.get(span.name.split(" ")[0])
        return span.bytes * (share(ranks) if share else 1.0)
    return 0
