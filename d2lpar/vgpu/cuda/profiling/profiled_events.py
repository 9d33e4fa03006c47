"""What a profile has seen, in simulated time: the events that torch's tables are made of, and the
trace file that it exports."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

import torch
from torch.autograd.profiler_util import FunctionEvent

from ....timeline import Span, Timeline
from ....timeline.host_processes import Owners
from ....timeline.spans import ANNOTATION, MemorySample
from ....timeline.traces.trace_events import NCCL, called
from ....timeline.whole_file import OutputFile
from ...device_naming import text
from ...memory.memory_history import Stack
from ...torch_backend.machine import op_details
from ...torch_backend.machine.op_details import OpDetails
from ..lazy_init import shown_number
from ..refusals import refusal
from .profiled_memory import MemoryChange, ProfiledMemory

CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
_NO_DETAILS = OpDetails()


class OwnSpans(Timeline):
    """Of what a clock records, the spans of one process: what its host threads do and have queued.

    Kernels are another's that were queued before it began to record, and blocks that began before
    `begin_s` are not noted. Annotations are among its spans.
    """

    def __init__(self, clock: str, process: str, begin_s: float) -> None:
        super().__init__(clock)
        self.process, self.begin_s = process, begin_s
        self.details: dict[int, OpDetails] = {}  # by the identity of the dispatch
        self.rests: list[tuple[Span, OpDetails]] = []  # after the last operations
        self._owners = Owners()

    def add(self, span: Span) -> None:
        """Note a span, if it is one of the process."""
        if self._owners.of(span)[0] == self.process:
            super().add(span)

    def add_dispatch(
        self, thread: str, name: str, start_s: float, end_s: float, correlation: int, line: str = ""
    ) -> None:
        """Note that an operation was queued, with its details, if the process has queued it."""
        number = len(self.spans)
        super().add_dispatch(thread, name, start_s, end_s, correlation, line)
        details = op_details.running()
        if details is not None and len(self.spans) > number:
            self.details[id(self.spans[number])] = details

    def end_of_memory(self, now_s: float, rest: OpDetails) -> None:
        """Note what has changed since the last operation, as it is recorded no more."""
        self.rests.append((Span("host", self.process, "host", "end", now_s, now_s), rest))

    def add_annotation(self, span: Span) -> None:
        """Note a block, if it is one of the process."""
        if span.start_s >= self.begin_s:
            self.add(span)

    def add_memory(self, sample: MemorySample) -> None:
        """Note what tensors occupy on a device that the process uses."""
        if self._owners.of_device(sample.device) == self.process:
            super().add_memory(sample)

    def has(self, device: int) -> bool:
        """Whether the process uses a device."""
        return self._owners.of_device(text(device)) == self.process

    def devices_used(self) -> set[int]:
        """The numbers of the devices with spans."""
        return set(map(_number, self.accelerators))


def _number(device: str) -> int:
    return int(device.rpartition(":")[2])


class Profiled:
    """What takes the place of Kineto's results: spans, and entries of the trace's `metadata`, each
    as JSON."""

    def __init__(self, spans: OwnSpans, metadata: Mapping[str, str]) -> None:
        ordered = sorted(spans.spans, key=_outer_first)
        self.timeline = Timeline(spans.clock, ordered, list(spans.memory))
        self._details, self._has_device = dict(spans.details), spans.has
        self._rests = list(spans.rests)
        self._begin_s, self._metadata = spans.begin_s, dict(metadata)

    def function_events(self, *, host: bool, device: bool) -> list[FunctionEvent]:
        """Events of the host, and of devices, as torch's own classes read them; µs."""
        threads: dict[tuple, int] = defaultdict(itertools.count(1).__next__)
        queued: dict[int, list[Span]] = defaultdict(list)
        for span in self.timeline.spans if device else ():
            if span.device != "host" and span.correlation:
                queued[span.correlation].append(span)
        events = []
        for number, span in enumerate(self.timeline.spans):
            thread = threads[span.device, span.stream]
            if span.device != "host" and device:
                events.append(self._of_device(number, span))
            elif span.device == "host" and host:
                events += self._of_host(number, span, thread, queued.get(span.correlation, []))
        for event in events:
            event.trace_name = event.name
        for change in self._changes() if host else ():  # which torch leaves out of traces
            thread = threads["host", change.host_thread]
            events.append(self._of_change(len(events), change, thread))
        return events

    def _changes(self) -> list[MemoryChange]:
        """Those of memory that are events of their own."""
        blocks = [span for span in self.timeline.spans if span.kind == ANNOTATION]
        return [*self._memory.made, *self._memory.outside(blocks)]

    def _of_host(
        self, number: int, span: Span, thread: int, queued: list[Span]
    ) -> Iterator[FunctionEvent]:
        details = self._details.get(id(span), _NO_DETAILS)
        block = span.kind == ANNOTATION
        memory = self._memory.within(span) if block else self._memory.of_operation(span)
        event = FunctionEvent(
            number, _name_on_host(span, details), thread, *self._times_us(span),
            input_shapes=details.shapes, stack=_lines(details.stack), use_device="cuda",
            is_user_annotation=block, flops=sum(s.flops for s in queued),
            device_memory_usage=memory,
        )  # fmt: skip
        for each in queued:
            index = int(each.device.rpartition(":")[2])
            event.append_kernel(called(each)[1], index, each.duration_s * 1e6)
        yield event
        if details.title:  # what c10d tells profilers itself, besides its operator
            yield FunctionEvent(
                number, details.title, thread, *self._times_us(span),
                input_shapes=details.shapes, stack=[], use_device="cuda", is_async=True,
            )  # fmt: skip

    def _of_change(self, number: int, change: MemoryChange, thread: int) -> FunctionEvent:
        when_us = (change.time_s - self._begin_s) * 1e6
        return FunctionEvent(
            number, change.name, thread, when_us, when_us, input_shapes=[], stack=[],
            use_device="cuda", device_memory_usage=change.nbytes,
        )  # fmt: skip

    @cached_property
    def _memory(self) -> ProfiledMemory:
        known = ((span, self._details.get(id(span))) for span in self.timeline.spans)
        found = [(span, details) for span, details in known if details is not None]
        return ProfiledMemory([*found, *self._rests], self._has_device)

    def _of_device(self, number: int, span: Span) -> FunctionEvent:
        stream = span.stream if isinstance(span.stream, int) else 0
        return FunctionEvent(
            number, called(span)[1], stream, *self._times_us(span), input_shapes=[], stack=[],
            use_device="cuda", device_type=CUDA, device_index=shown_number(_number(span.device)),
            device_resource_id=stream, flops=0,
        )  # fmt: skip

    def _times_us(self, span: Span) -> tuple[float, float]:
        start_us, end_us = (span.start_s - self._begin_s) * 1e6, (span.end_s - self._begin_s) * 1e6
        if span.start_s in self._memory.times_s and start_us < end_us:
            start_us = math.nextafter(start_us, math.inf)  # or torch would put the change into it
        return start_us, end_us

    def save(self, path: str | os.PathLike[str], more: Mapping[str, str]) -> None:
        """Write the trace, with the metadata, and with `more` of it; packed if `path` ends in .gz.

        Raises OSError, and then leaves what was there.
        """
        with closing(OutputFile(path)) as file:
            with file.named_in_errors():
                text = json.dumps(self._trace(more)).encode()
            packed = os.fspath(path).endswith(".gz")
            file.write_bytes(gzip.compress(text) if packed else text)

    def _trace(self, more: Mapping[str, str]) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            self.timeline.save_trace(file)
            content = json.loads(file.read_text(encoding="utf-8"))
        self._add_inputs(content["traceEvents"])
        return content | {
            name: json.loads(value) for name, value in {**self._metadata, **more}.items()
        }

    def _add_inputs(self, events: list[dict]) -> None:
        """Note what operations have taken, as torch's own traces do."""
        correlated = ((s.correlation, self._details.get(id(s))) for s in self.timeline.spans)
        known = {number: of_op for number, of_op in correlated if number and of_op is not None}
        for event in events:
            if event.get("cat") == "cpu_op":
                details = known.get(event["args"].get("External id"), _NO_DETAILS)
                if details.kinds:
                    event["args"] |= {"Input Dims": details.shapes, "Input type": details.kinds}

    experimental_event_tree = staticmethod(
        refusal(
            "the profiler's tree of events",
            "use torch.cuda.memory._record_memory_history() for memory, or d2lpar.record()",
        )
    )


def _outer_first(span: Span) -> tuple:
    return span.start_s, -span.end_s, span.kind != ANNOTATION


def _name_on_host(span: Span, details: OpDetails) -> str:
    """As PyTorch's profiler calls it."""
    if details.call:
        return f"c10d::{details.call}"
    if span.kind == "wait":
        return "cudaStreamSynchronize"
    if span.kind != "dispatch":
        return span.name
    if span.name.startswith("copy"):
        return "aten::copy_"
    if span.name in NCCL:
        return f"nccl:{span.name}"
    return f"aten::{span.name}" if hasattr(torch.ops.aten, span.name) else span.name


def _lines(stack: Stack) -> list[str]:
    """As PyTorch writes a stack, with files as they are imported."""
    if not stack:
        return []
    folders = sorted({os.path.join(os.path.abspath(path), "") for path in sys.path}, reverse=True)
    return [f"{_within(folders, code.co_filename)}({line}): {code.co_name}" for code, line in stack]


def _within(folders: list[str], file: str) -> str:
    return next((file.removeprefix(f) for f in folders if file.startswith(f)), file)
