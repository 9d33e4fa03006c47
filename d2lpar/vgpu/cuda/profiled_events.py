"""What a profile has seen, in simulated time: the events that torch's tables are made of, and the
trace file that it exports."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.autograd.profiler_util import FunctionEvent

from ...timeline import Span, Timeline
from ...timeline.host_processes import Owners
from ...timeline.spans import ANNOTATION, MemorySample
from ...timeline.trace_events import NCCL, called
from .lazy_init import shown_number
from .refusals import refusal

CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
_ATEN = {"copy": "copy_"}  # where kernels are called otherwise than operators


class OwnSpans(Timeline):
    """Of what a clock records, the spans of one process: what its host threads do and have queued.

    Kernels are another's that were queued before it began to record, and blocks that began before
    `begin_s` are not noted. Annotations are among its spans.
    """

    def __init__(self, clock: str, process: str, begin_s: float) -> None:
        super().__init__(clock)
        self.process, self.begin_s = process, begin_s
        self._owners = Owners()

    def add(self, span: Span) -> None:
        """Note a span, if it is one of the process."""
        if self._owners.of(span)[0] == self.process:
            super().add(span)

    def add_annotation(self, span: Span) -> None:
        """Note a block, if it is one of the process."""
        if span.start_s >= self.begin_s:
            self.add(span)

    def add_memory(self, sample: MemorySample) -> None:
        """Note what tensors occupy on a device that the process uses."""
        if self._owners.of_device(sample.device) == self.process:
            super().add_memory(sample)

    def devices_used(self) -> set[int]:
        """The numbers of the devices with spans."""
        return set(map(_number, self.accelerators))


def _number(device: str) -> int:
    return int(device.rpartition(":")[2])


class Profiled:
    """What takes the place of Kineto's results: spans from `begin_s` on, and entries of the trace's
    `metadata`, each as JSON."""

    def __init__(self, timeline: Timeline, begin_s: float, metadata: Mapping[str, str]) -> None:
        spans = sorted(timeline.spans, key=_outer_first)
        self.timeline = Timeline(timeline.clock, spans, list(timeline.memory))
        self._begin_s, self._metadata = begin_s, dict(metadata)

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
                events.append(self._of_host(number, span, thread, queued.get(span.correlation, [])))
        return events

    def _of_host(self, number: int, span: Span, thread: int, queued: list[Span]) -> FunctionEvent:
        note = span.kind == ANNOTATION
        event = FunctionEvent(
            number, _name_on_host(span), thread, *self._times_us(span), input_shapes=[], stack=[],
            use_device="cuda", is_user_annotation=note, flops=sum(s.flops for s in queued),
        )  # fmt: skip
        for each in queued:
            index = int(each.device.rpartition(":")[2])
            event.append_kernel(called(each)[1], index, each.duration_s * 1e6)
        return event

    def _of_device(self, number: int, span: Span) -> FunctionEvent:
        stream = span.stream if isinstance(span.stream, int) else 0
        return FunctionEvent(
            number, called(span)[1], stream, *self._times_us(span), input_shapes=[], stack=[],
            use_device="cuda", device_type=CUDA, device_index=shown_number(_number(span.device)),
            device_resource_id=stream, flops=0,
        )  # fmt: skip

    def _times_us(self, span: Span) -> tuple[float, float]:
        return (span.start_s - self._begin_s) * 1e6, (span.end_s - self._begin_s) * 1e6

    def save(self, path: str | os.PathLike[str], more: Mapping[str, str]) -> None:
        """Write the trace, with the metadata, and with `more` of it."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            self.timeline.save_trace(file)
            content = json.loads(file.read_text(encoding="utf-8"))
        content |= {name: json.loads(value) for name, value in {**self._metadata, **more}.items()}
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    experimental_event_tree = staticmethod(
        refusal(
            "the profiler's tree of events",
            "use torch.cuda.memory._record_memory_history() for memory, or d2lpar.record()",
        )
    )


def _outer_first(span: Span) -> tuple:
    return span.start_s, -span.end_s, span.kind != ANNOTATION


def _name_on_host(span: Span) -> str:
    """As PyTorch's profiler calls it."""
    if span.kind == "wait":
        return "cudaStreamSynchronize"
    if span.kind != "dispatch":
        return span.name
    if span.name in NCCL:
        return f"nccl:{span.name}"
    name = _ATEN.get(span.name, span.name)
    return f"aten::{name}" if hasattr(torch.ops.aten, name) else name
