"""Timelines as files in Chrome's Trace Event Format, which https://ui.perfetto.dev opens.

A process stands for a device and a thread for a stream or host thread. Spans are complete events
("X"), what a device's memory holds is a counter ("C"). Arrows ("s" to "f") lead from a dispatch to
the kernel or copy that it queued, and from a copy between devices to what its target does next.
Source of the format: "Trace Event Format", Google, linked from Perfetto's documentation; its
timestamps are microseconds, here with three decimals, so that times are whole nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import Literal, TextIO

from . import kineto
from .spans import MemorySample, Span

COUNTER = "memory"
LAUNCH, COPIED = "launch", "copied"
WAITING_COPIES = 64  # for each target: how many arrows at most wait for their end


class Events:
    """Turns spans and samples into events, one after the other; each is a line of JSON.

    `joined`, if given, are the correlations of which both ends will come; others get no arrow.
    """

    def __init__(self, joined: Container[int] | None = None) -> None:
        self._joined = joined
        self._processes: dict[str, int] = {}
        self._places: dict[tuple[str, int | str], str] = {}
        self._arriving: dict[str, deque[Span]] = {}
        self._arrows = 0

    def of_span(self, span: Span) -> Iterator[str]:
        """The event of a span, with what must come before it and its arrows."""
        place = self._places.get((span.device, span.stream))
        if place is None:
            yield from self._announce(span.device, span.stream)
            place = self._places[span.device, span.stream]
        start, end = _ns(span.start_s), _ns(span.end_s)
        yield (
            f'{{"ph":"X","cat":{_quoted(span.kind)},"name":{_quoted(span.name)},{place},'
            f'"ts":{start / 1e3},"dur":{(end - start) / 1e3},"args":{{{_arguments(span)}}}}}'
        )
        if span.correlation and (self._joined is None or span.correlation in self._joined):
            phase = "s" if span.device == "host" else "f"
            yield _arrow(phase, LAUNCH, span.correlation, place, start)
        if span.target or self._arriving:
            yield from self._arrivals(span, place)

    def of_sample(self, sample: MemorySample) -> Iterator[str]:
        """The event of a sample of memory, with what must come before it."""
        if sample.device not in self._processes:
            yield from self._announce(sample.device)
        pid, ts = self._processes[sample.device], _ns(sample.time_s) / 1e3
        yield (
            f'{{"ph":"C","name":"{COUNTER}","pid":{pid},"tid":0,"ts":{ts},'
            f'"args":{{"bytes":{sample.bytes}}}}}'
        )

    def _arrivals(self, span: Span, place: str) -> Iterator[str]:
        """Arrows from the copies to this device that were over when the span began."""
        if span.kind != "wait":
            waiting = self._arriving.get(span.device, deque())
            for copy in [copy for copy in waiting if copy.end_s <= span.start_s]:
                waiting.remove(copy)
                self._arrows += 1
                source = self._places[copy.device, copy.stream]
                yield _arrow("s", COPIED, self._arrows, source, _ns(copy.start_s))
                yield _arrow("f", COPIED, self._arrows, place, _ns(span.start_s))
        if span.target not in ("", span.device):
            # A copy that went to the host on its way to another device has not arrived there.
            through_host = self._arriving.get("host", deque())
            for first in [c for c in through_host if c.correlation == span.correlation != 0]:
                through_host.remove(first)
            self._arriving.setdefault(span.target, deque(maxlen=WAITING_COPIES)).append(span)

    def _announce(self, device: str, stream: int | str | None = None) -> Iterator[str]:
        """Names and places of a process and a thread, before their first event.

        Perfetto tells threads apart by their number alone, so no two processes share one.
        """
        if device not in self._processes:
            pid = self._processes[device] = len(self._processes) + 1
            yield _metadata("process_name", pid, 0, {"name": device})
            yield _metadata("process_sort_index", pid, 0, {"sort_index": _device_rank(device)})
        if stream is not None:
            pid, tid = self._processes[device], 1000 + len(self._places)
            self._places[device, stream] = f'"pid":{pid},"tid":{tid}'
            name = f"stream {stream}" if isinstance(stream, int) else stream
            index = stream if isinstance(stream, int) else tid
            yield _metadata("thread_name", pid, tid, {"name": name, "stream": stream})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": index})


class TraceWriter:
    """A trace file that grows span by span; it is complete once it is closed."""

    def __init__(
        self, path: str | os.PathLike[str], clock: str, joined: Container[int] | None = None
    ) -> None:
        self._events = Events(joined)
        self._file: TextIO = _open(path, "wt")
        head = json.dumps(_head(clock))
        self._file.write(head.removesuffix("}") + ', "traceEvents": [')
        self._separator = "\n"

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, span: Span) -> None:
        """Write a span."""
        self._write(self._events.of_span(span))

    def add_memory(self, sample: MemorySample) -> None:
        """Write a sample of memory."""
        self._write(self._events.of_sample(sample))

    def close(self) -> None:
        """Write the end, without which the file is no JSON."""
        self._file.write("\n]}\n")
        self._file.close()

    def _write(self, events: Iterable[str]) -> None:
        for event in events:
            self._file.write(self._separator + event)
            self._separator = ",\n"


def save(
    path: str | os.PathLike[str],
    clock: str,
    spans: Collection[Span],
    memory: Iterable[MemorySample],
) -> None:
    """Write a trace file."""
    with TraceWriter(path, clock, _joined(spans)) as writer:
        for span in spans:
            writer.add(span)
        for sample in memory:
            writer.add_memory(sample)


def to_dict(clock: str, spans: Collection[Span], memory: Iterable[MemorySample]) -> dict:
    """What `save` writes, as one dictionary."""
    make = Events(_joined(spans))
    events = [event for span in spans for event in make.of_span(span)]
    events += [event for sample in memory for event in make.of_sample(sample)]
    return {**_head(clock), "traceEvents": json.loads(f"[{','.join(events)}]")}


def read(source: str | os.PathLike[str] | dict) -> tuple[str, list[Span], list[MemorySample]]:
    """Clock, spans and samples of a trace file, or of its content.

    Raises ValueError if the trace is neither one of `save` nor one of torch.profiler.
    """
    content = source
    if not isinstance(source, dict):
        with _open(source, "rt") as file:
            content = json.load(file)
    if not isinstance(content, dict) or "traceEvents" not in content:
        raise ValueError(f"{_short(source)} is no trace: it has no list named traceEvents")
    if "clock" in content.get("otherData", ()):
        return _read_own(content)
    if kineto.is_kineto(content):
        return ("measured", *kineto.read(content))
    raise ValueError(
        f"{_short(source)} was written neither by Timeline.save_trace nor by torch.profiler"
    )


def _read_own(content: dict) -> tuple[str, list[Span], list[MemorySample]]:
    devices: dict[int, str] = {}
    streams: dict[int, int | str] = {}
    spans, memory = [], []
    for event in content["traceEvents"]:
        args = event.get("args", {})
        if event["name"] == "process_name":
            devices[event["pid"]] = args["name"]
        elif event["name"] == "thread_name":
            streams[event["tid"]] = args["stream"]
        elif event["ph"] == "X":
            start, length = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
            spans.append(
                Span(
                    devices[event["pid"]], streams[event["tid"]], event["cat"], event["name"],
                    start / 1e9, (start + length) / 1e9, args.get("bytes", 0),
                    args.get("flops", 0), args.get("correlation", 0), args.get("target", ""),
                )
            )  # fmt: skip
        elif event["ph"] == "C":
            time_s = round(event["ts"] * 1e3) / 1e9
            memory.append(MemorySample(devices[event["pid"]], time_s, args["bytes"]))
    return content["otherData"]["clock"], spans, memory


def _head(clock: str) -> dict:
    return {"displayTimeUnit": "ns", "otherData": {"clock": clock, "written by": "d2lpar"}}


def _metadata(name: str, pid: int, tid: int, args: dict) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _arrow(phase: str, what: str, number: int, place: str, ns: int) -> str:
    ends = ',"bp":"e"' if phase == "f" else ""  # in the slice around it, not in the next
    return (
        f'{{"ph":"{phase}","cat":"{what}","name":"{what}","id":{number},{place},'
        f'"ts":{ns / 1e3}{ends}}}'
    )


def _arguments(span: Span) -> str:
    args = []
    if span.bytes:
        args.append(f'"bytes":{span.bytes}')
        if span.duration_s:
            args.append(f'"GB/s":{span.bytes / span.duration_s / 1e9:.4g}')
    if span.flops:
        args.append(f'"flops":{span.flops}')
        if span.duration_s:
            args.append(f'"TFLOP/s":{span.flops / span.duration_s / 1e12:.4g}')
    if span.correlation:
        args.append(f'"correlation":{span.correlation}')
    if span.target:
        args.append(f'"target":{_quoted(span.target)}')
    return ",".join(args)


_quoted = lru_cache(4096)(json.dumps)


def _joined(spans: Iterable[Span]) -> set[int]:
    """The correlations that have a dispatch and something that it queued."""
    ends: tuple[set[int], set[int]] = set(), set()
    for span in spans:
        ends[span.device == "host"].add(span.correlation)
    return ends[0] & ends[1] - {0}


def _device_rank(device: str) -> int:
    """Where a device stands: the host first, then the others by their numbers."""
    number = re.search(r"(\d+)$", device)
    return 0 if device == "host" else 1 + int(number[1]) if number else 10**6


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _open(path: str | os.PathLike[str], mode: Literal["rt", "wt"]) -> TextIO:
    if os.fspath(path).endswith(".gz"):
        return gzip.open(path, mode, encoding="utf-8", compresslevel=5)
    return open(path, mode, encoding="utf-8")


def _short(source: str | os.PathLike[str] | dict) -> str:
    return "this dictionary" if isinstance(source, dict) else repr(os.fspath(source))
