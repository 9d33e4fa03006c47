"""What a timeline is made of: spans of work in rows, and samples of memory."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

ANNOTATION = "annotation"
Row = tuple[str, int | str]  # device, stream


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one resource.

    `device` is "host" or a device's name ("vgpu:0"), `stream` a stream's number (or a host thread's
    name), `kind` one of "compute", "copy", "collective", "dispatch" (the host queues an
    operation), "host" (it does something else) and "wait" (for a device); times are seconds on the
    timeline's clock; `bytes` were moved and `flops` computed.

    A timeline's annotations are spans, too, of kind "annotation": blocks of the program that it has
    named, on the host thread that ran them, around what they did.

    `correlation`, if not 0, joins a dispatch on the host with the kernels and copies that it
    queued, which have the same number. `target` is where a copy goes, "host" or a device's name.

    `group` are the ranks of a collective; of a send and its receive, who sends and who receives.
    `after` are the correlations of the work that this had to follow, as far as the clock knows: on
    a device the last of its stream and of the streams that it waited for by events, in a wait of
    the host what it waited for.

    `line` is where the program has asked for what a host does, as "train.py:12"; spans that differ
    by it alone are equal.
    """

    device: str
    stream: int | str
    kind: str
    name: str
    start_s: float
    end_s: float
    bytes: int = 0
    flops: int = 0
    correlation: int = 0
    target: str = ""
    group: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    line: str = field(default="", compare=False)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What the tensors on `device` occupy from `time_s` on, until its next sample."""

    device: str
    time_s: float
    bytes: int


def rows_of(spans: Collection[Span]) -> list[Row]:
    """The (device, stream) pairs from top to bottom: host, devices, links."""
    computing = {str(span.device) for span in spans if span.kind == "compute"}

    def place(row: Row) -> tuple[object, ...]:
        device, stream = map(str, row)
        is_host = re.match(r"host|cpu", device) is not None
        rank = 0 if is_host else 1 if device in computing else 2
        return rank, by_number(device), by_number(stream)

    return sorted({(span.device, span.stream) for span in spans}, key=place)


def by_number(text: str) -> list[tuple[int, str]]:
    """A sort key that puts vgpu:2 before vgpu:10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
