"""What happened, where and when: one list of spans that charts, figures and tests all read."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Protocol

from . import critical_chain, totals, whole_file
from .host_processes import process_of
from .inputs import NotNegative, checked
from .intervals import common_s, length_s, union
from .spans import MemorySample, Span
from .traces import chakra, trace
from .traces.page import page, page_data

COMMUNICATION = ("copy", "collective")
WORK = ("dispatch", "host")  # of a host; the rest of its time it waits
MEASURED = "measured"
STARTING_S = (
    10e-6  # assumed: the most between a real kernel's launch, or predecessor, and its start
)


class Profiler(Protocol):
    """What is asked of a `torch.profiler.profile`."""

    def export_chrome_trace(self, path: str) -> object:
        """Write a trace file. Raises RuntimeError the second time."""


@dataclass
class Timeline:
    """Spans in the order in which their times became known, and the clock that timed them.

    `clock` says where the times come from: "simulated on <machine>" or "measured". `memory` says
    what tensors occupied on each device. `annotations` are blocks that the program has named, such
    as by `record_function`: they lie around spans, and only trace files show them. `dropped` sums
    up the spans that went to a file: `summary` counts them, everything else sees the spans that are
    there.
    """

    clock: str
    spans: MutableSequence[Span] = field(default_factory=list)
    memory: MutableSequence[MemorySample] = field(default_factory=list)
    annotations: MutableSequence[Span] = field(default_factory=list)
    dropped: totals.Totals = field(default_factory=totals.Totals, repr=False)
    listeners: list[Callable[[Span], None]] = field(default_factory=list, repr=False, compare=False)
    # whether it is to be told what tensors occupy
    samples_memory: bool = field(default=True, repr=False, compare=False)

    def add(self, span: Span) -> None:
        """Note a span, and tell the listeners."""
        self.spans.append(span)
        for listener in self.listeners:
            listener(span)

    def add_dispatch(
        self, thread: str, name: str, start_s: float, end_s: float, correlation: int, line: str = ""
    ) -> None:
        """Note that a host thread has queued an operation, in a line of the program."""
        place = ("host", thread, "dispatch")
        self.add(Span(*place, name, start_s, end_s, correlation=correlation, line=line))

    def add_memory(self, sample: MemorySample) -> None:
        """Note what a device's tensors occupy from now on."""
        self.memory.append(sample)

    def add_annotation(self, span: Span) -> None:
        """Note a block that the program has named."""
        self.annotations.append(span)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    # --- parts ------------------------------------------------------------------------------

    def where(self, keep: Callable[[Span], bool]) -> Timeline:
        """The timeline of those spans for which `keep(span)` is true."""
        return Timeline(self.clock, [span for span in self.spans if keep(span)])

    def on(self, device: object, *kinds: str) -> Timeline:
        """The timeline of one device, optionally of some kinds of span only."""
        name = str(device)
        return self.where(lambda s: s.device == name and (not kinds or s.kind in kinds))

    def communication(self, device: object) -> Timeline:
        """The copies and collectives of one device, those that others send it included."""
        name = str(device)
        return self.where(lambda s: s.kind in COMMUNICATION and name in (s.device, s.target))

    @property
    def devices(self) -> list[str]:
        """The names of the devices with spans, the host first."""
        return sorted({span.device for span in self.spans}, key=lambda name: (name != "host", name))

    @property
    def accelerators(self) -> list[str]:
        """The names of the devices with spans, without the host."""
        return [name for name in self.devices if name != "host"]

    # --- times ------------------------------------------------------------------------------

    @property
    def start_s(self) -> float:
        """When the first span starts, 0 if there is none."""
        return min((span.start_s for span in self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        """When the last span ends, 0 if there is none."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def duration_s(self) -> float:
        """Seconds from the first start to the last end, the makespan."""
        return self.end_s - self.start_s

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one of the spans was under way."""
        return length_s(union(self.spans))

    def busy_fraction(self, device: object, *kinds: str) -> float:
        """Share of the whole timeline in which `device` worked, 0 to 1."""
        return self._share(self.on(device, *kinds).busy_s)

    def overlap_s(self, other: Timeline) -> float:
        """Seconds in which spans of both timelines were under way.

        `copies.overlap_s(compute) / copies.busy_s` is the share of copies that computing hides.
        """
        return common_s(union(self.spans), union(other.spans))

    def exposed_communication_s(self, device: object) -> float:
        """Seconds in which `device` sent or received and did not compute."""
        sent = self.communication(device)
        return sent.busy_s - sent.overlap_s(self.on(device, "compute"))

    def idle_s(self, device: object) -> float:
        """Seconds of the makespan in which `device` neither worked nor sent nor received.

        A host that waits is not idle: `on("host", "wait").busy_s` says for how long it waited.
        """
        own = [*self.on(device), *self.communication(device)]
        return self.duration_s - length_s(union(own))

    def bubble_fraction(self, device: object = None) -> float:
        """Share of the makespan in which `device` idled (None: mean of the accelerators), 0 to 1.

        For M micro-batches in K equal stages whose backward follows all forwards it is
        (K - 1) / (M + K - 1): Huang et al., "GPipe" (2019), section 2.3.
        """
        names = self.accelerators if device is None else [device]
        return fmean(self._share(self.idle_s(name)) for name in names) if names else 0.0

    def could_wait_for(self) -> dict[str, float]:
        """Seconds of the three things for which a step could wait: "host", "GPU" and "links".

        The host's are those of the busiest process, and the GPU's those of the busiest one. While
        GPUs, and processes, work at the same time, a step lasts at least as long as the largest of
        the three, and at most as long as their sum.
        """
        working = self.where(lambda s: s.device == "host" and s.kind in WORK)
        processes: dict[str, list[Span]] = {}
        for span in working:
            processes.setdefault(process_of(span.stream), []).append(span)
        computing = (self.on(name, "compute").busy_s for name in self.accelerators)
        return {
            "host": max((length_s(union(each)) for each in processes.values()), default=0.0),
            "GPU": max(computing, default=0.0),
            "links": self.where(lambda s: s.kind in COMMUNICATION).busy_s,
        }

    def _share(self, seconds: float) -> float:
        return seconds / self.duration_s if self.duration_s else 0.0

    # --- explanations -----------------------------------------------------------------------

    @checked
    def critical_path(self, *, slack_s: NotNegative | None = None) -> Timeline:
        """The chain of spans that explains when the last one ended, in the order of time.

        Before a span comes what it had to wait for: see `critical_chain.critical_path`. On measured
        timelines, which do not know all reasons, its stream and its dispatch come first unless
        they ended more than `slack_s` (10 µs; simulated: 0) before it started.
        """
        if slack_s is None:
            slack_s = STARTING_S if self.clock == MEASURED else 0.0
        return Timeline(self.clock, critical_chain.critical_path(self.spans, slack_s=slack_s))

    def summary(self, by: str = "kind") -> list[totals.Total]:
        """Count, seconds, share, bytes and FLOP of all spans by "kind", "name" or "device".

        Spans that were recorded and not kept count, too. The longest come first; seconds of spans
        side by side add up. Raises ValueError for another `by`.
        """
        return (totals.Totals(self.spans) + self.dropped).by(by)

    def table(self, by: str = "kind") -> str:
        """`summary` as text to print."""
        return totals.table(self.summary(by))

    # --- files ------------------------------------------------------------------------------

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace: a file for Perfetto, or a folder for Holistic Trace Analysis.

        https://ui.perfetto.dev opens a path that ends in .json or .json.gz (packed): one file, a
        process a rank. Any other path is a folder, made if need be, of a file a rank. `trace` and
        `trace_events` say what is in them. Raises OSError.
        """
        trace.save(path, self.clock, [*self.spans, *self.annotations], self.memory)

    def save_page(self, path: str | os.PathLike[str], *, title: str = "Timeline") -> None:
        """Write one HTML file in which one can zoom into the timeline and read its spans.

        It needs no kernel, no other file and no network, and can be sent to others. Raises
        ValueError if there is no span, OSError.
        """
        packed = page_data.packed(self.clock, self.spans, self.memory)
        whole_file.write(path, page.page(packed, title=title, note=self.clock))

    def open(self, path: str | os.PathLike[str] = "timeline.html") -> Path:
        """Write such a file and show it in a browser; returns where it is. Raises as `save_page`.

        Where there is no browser, as on a server, the file is written all the same.
        """
        self.save_page(path)
        file = Path(path).resolve()
        webbrowser.open(file.as_uri())
        return file

    def save_chakra(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write Chakra execution traces for ASTRA-sim, `path`.0.et and so on, one a rank.

        Returns their paths; `chakra` says what is in them. Raises ValueError for a timeline without
        the hosts' dispatches, or with a part of a run or of its ranks only; ImportError without the
        library `protobuf`; OSError.
        """
        return chakra.save(path, self.clock, self.spans)

    @classmethod
    def from_chrome_trace(cls, source: str | os.PathLike[str] | dict) -> Timeline:
        """The timeline in a trace file (or its content) that `save_trace` or torch.profiler wrote.

        Times are whole nanoseconds there. Raises ValueError if it is no such trace.
        """
        return cls(*trace.read(source))

    @classmethod
    def from_profiler(cls, profiler: Profiler) -> Timeline:
        """What a `torch.profiler.profile` that has ended saw, from time 0 on: see `kineto`.

        Raises ValueError if its trace was exported before, which works once only: read that file
        with `from_chrome_trace`.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            try:
                profiler.export_chrome_trace(path)
            except RuntimeError as error:
                raise ValueError(
                    "a profiler exports its trace once only, and this one has: read the file that "
                    "it wrote with Timeline.from_chrome_trace(path)"
                ) from error
            return cls.from_chrome_trace(path)
