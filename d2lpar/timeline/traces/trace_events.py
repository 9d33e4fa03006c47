"""Spans as events of Chrome's Trace Event Format, with the categories that torch.profiler uses.

A process stands for a process of the program (a rank), a thread for one of its host threads or a
stream of a device. Spans are complete events ("X") in the categories of Kineto, which writes
torch.profiler's traces:

| span | category | name |
|---|---|---|
| dispatch | `cpu_op`, and in it `cuda_runtime` | its own; `cudaLaunchKernel`, `cudaMemcpyAsync` |
| wait | `cpu_op`, and in it `cuda_runtime` | its own; `cudaStreamSynchronize` |
| host, annotation (a named block) | `user_annotation` | its own |
| compute | `kernel` | its own |
| copy | `gpu_memcpy` | `Memcpy HtoD`, `DtoH` or `PtoP` |
| collective, send, recv | `kernel` | such as `ncclDevKernel_AllReduce`, `ncclDevKernel_SendRecv` |

What a device does has the `correlation` of the call that launched it, which is the `External id`
of the operation around that, and its `device` and `stream` where these have numbers. A dispatch
takes time, and at its end the device has got the work: so the call is its last part. What tensors
occupy is a counter ("C"). Arrows ("s" to "f") lead from a call to what it launched (`ac2g`), and
from a copy between devices to what its target does next (`copied`).

Sources: "Trace Event Format", Google, which Perfetto's documentation links to; Kineto's source
(libkineto/src/ActivityType.cpp, output_json.cpp). Timestamps are microseconds, here with three
decimals, so that times are whole nanoseconds.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from ..host_processes import Launch, rank_of
from ..spans import ANNOTATION, MemorySample, Span

COUNTER = "memory"
LAUNCH, COPIED = "ac2g", "copied"
WAITING_COPIES = 64  # for each target: how many arrows at most wait for their end
CALL_NS = 2700  # of a dispatch, the call of the driver's library: what `Host.launch_s` assumes
# What NCCL's kernels are called. What scatter and gather do is sent and received there, too.
NCCL = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast", "reduce": "Reduce", "all_to_all": "SendRecv", "gather": "SendRecv",
    "scatter": "SendRecv", "send": "SendRecv", "recv": "SendRecv", "barrier": "AllReduce",
}  # fmt: skip
_CATEGORIES = {
    "dispatch": "cpu_op", "wait": "cpu_op", "host": "user_annotation",
    "compute": "kernel", "collective": "kernel", "copy": "gpu_memcpy",
    ANNOTATION: "user_annotation",
}  # fmt: skip


class Events:
    """Turns the spans and samples of one file into events, one after the other; each is a line of
    JSON."""

    def __init__(self) -> None:
        self.processes: dict[str, int] = {}
        self.devices: dict[str, int] = {}
        self._places: dict[tuple[str, str, int | str], str] = {}
        self._arriving: dict[str, deque[tuple[Span, str]]] = {}
        self._arrows = 0

    def of_span(self, span: Span, process: str, launch: Launch | None) -> Iterator[str]:
        """The events of a span of `process`, which `launch` queued, with what must come before."""
        yield from self._announced(process, span.device, span.stream)
        place = self._places[process, span.device, span.stream]
        start, end = _ns(span.start_s), _ns(span.end_s)
        category, name = called(span)
        yield (
            f'{{"ph":"X","cat":{_quoted(category)},"name":{_quoted(name)},{place},'
            f'"ts":{start / 1e3},"dur":{(end - start) / 1e3},"args":{{{self._arguments(span)}}}}}'
        )
        if span.device == "host" and span.kind == "wait":
            yield _call("cudaStreamSynchronize", place, start, end, 0)
        if launch is not None:
            yield from self._launched(span, launch, place, start)
        if span.target or self._arriving:
            yield from self._arrivals(span, place)

    def of_sample(self, sample: MemorySample, process: str) -> Iterator[str]:
        """The event of a sample of memory, with what must come before it."""
        yield from self._announced(process)
        pid, ts = self.processes[process], _ns(sample.time_s) / 1e3
        name = json.dumps(f"{COUNTER} {sample.device}")
        yield (
            f'{{"ph":"C","name":{name},"pid":{pid},"tid":0,"ts":{ts},'
            f'"args":{{"bytes":{sample.bytes}}}}}'
        )

    def _launched(self, span: Span, launch: Launch, place: str, start: int) -> Iterator[str]:
        """The call that launched something on a device, and the arrow from there."""
        host = self._places.get((launch.process, "host", launch.host_thread))
        if host is None:
            return
        begin, until = _ns(launch.start_s), _ns(launch.end_s)
        begin = max(begin, until - CALL_NS)
        name = "cudaMemcpyAsync" if called(span)[0] == "gpu_memcpy" else "cudaLaunchKernel"
        yield _call(name, host, begin, until, span.correlation)
        yield _arrow("s", LAUNCH, span.correlation, host, begin)
        yield _arrow("f", LAUNCH, span.correlation, place, start)

    def _arrivals(self, span: Span, place: str) -> Iterator[str]:
        """Arrows from the copies to this device that were over when the span began."""
        if span.kind != "wait":
            waiting = self._arriving.get(span.device, deque())
            for copy in [copy for copy in waiting if copy[0].end_s <= span.start_s]:
                waiting.remove(copy)
                self._arrows += 1
                yield _arrow("s", COPIED, self._arrows, copy[1], _ns(copy[0].start_s))
                yield _arrow("f", COPIED, self._arrows, place, _ns(span.start_s))
        if span.target not in ("", span.device):
            # A copy that went to the host on its way to another device has not arrived there.
            through_host = self._arriving.get("host", deque())
            for first in [c for c in through_host if c[0].correlation == span.correlation != 0]:
                through_host.remove(first)
            waiting = self._arriving.setdefault(span.target, deque(maxlen=WAITING_COPIES))
            waiting.append((span, place))

    def _announced(
        self, process: str, device: str | None = None, stream: int | str = ""
    ) -> Iterator[str]:
        """Names and places of a process and a thread, if this is their first event.

        Perfetto tells threads apart by their number alone, so no two processes share one.
        """
        if process not in self.processes:
            pid = self.processes[process] = len(self.processes) + 1
            rank = rank_of(process)
            yield _metadata("process_name", pid, 0, {"name": process})
            index = {"sort_index": 0 if rank is None else rank + 1}
            yield _metadata("process_sort_index", pid, 0, index)
        if device is not None and (process, device, stream) not in self._places:
            pid, tid = self.processes[process], 1000 + len(self._places)
            self._places[process, device, stream] = f'"pid":{pid},"tid":{tid}'
            name = str(stream) if device == "host" else f"{device} stream {stream}"
            args = {"name": name, "device": device, "stream": stream}
            yield _metadata("thread_name", pid, tid, args)
            index = {"sort_index": _thread_index(device, stream, tid)}
            yield _metadata("thread_sort_index", pid, tid, index)

    def _arguments(self, span: Span) -> str:
        args = [f'"kind":{_quoted(span.kind)}']
        if called(span)[1] != span.name:
            args.append(f'"name":{_quoted(span.name)}')
        if span.device != "host":
            args.append(f'"device":{self._device_number(span.device)}')
            if isinstance(span.stream, int):
                args.append(f'"stream":{span.stream}')
        args += _amounts(span)
        if span.correlation:
            joined = "External id" if span.device == "host" else "correlation"
            args.append(f'"{joined}":{span.correlation}')
        if span.target:
            args.append(f'"target":{_quoted(span.target)}')
        if span.group:
            args.append(f'"Process Group Ranks":{_quoted(json.dumps(span.group))}')
        if span.after:
            args.append(f'"after":{json.dumps(span.after)}')
        return ",".join(args)

    def _device_number(self, device: str) -> int:
        number = self.devices.get(device)
        if number is None:
            found = re.search(r"(\d+)$", device)
            number = self.devices[device] = int(found[1]) if found else len(self.devices)
        return number


def called(span: Span) -> tuple[str, str]:
    """Category and name of a span's event."""
    category = _CATEGORIES.get(span.kind, span.kind)
    if span.device == "host":
        return category, span.name
    if span.kind == "collective" or (span.kind == "copy" and span.name in ("send", "recv")):
        return "kernel", f"ncclDevKernel_{NCCL.get(span.name, span.name)}"
    if span.kind != "copy":
        return category, span.name
    way = {"host": "DtoH", span.device: "HtoD"}.get(span.target, "PtoP")
    return category, f"Memcpy {way}"


def _amounts(span: Span) -> Iterator[str]:
    for name, amount, rate, scale in (
        ("bytes", span.bytes, "GB/s", 1e9), ("flops", span.flops, "TFLOP/s", 1e12),
    ):  # fmt: skip
        if amount:
            yield f'"{name}":{amount}'
            if span.duration_s:
                yield f'"{rate}":{amount / span.duration_s / scale:.4g}'


def _call(name: str, place: str, start: int, end: int, correlation: int) -> str:
    args = f'"correlation":{correlation}' if correlation else ""
    return (
        f'{{"ph":"X","cat":"cuda_runtime","name":"{name}",{place},'
        f'"ts":{start / 1e3},"dur":{(end - start) / 1e3},"args":{{{args}}}}}'
    )


def _metadata(name: str, pid: int, tid: int, args: dict) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _arrow(phase: str, what: str, number: int, place: str, ns: int) -> str:
    ends = ',"bp":"e"' if phase == "f" else ""  # in the slice around it, not in the next
    return (
        f'{{"ph":"{phase}","cat":"{what}","name":"{what}","id":{number},{place},'
        f'"ts":{ns / 1e3}{ends}}}'
    )


_quoted = lru_cache(4096)(json.dumps)


def _thread_index(device: str, stream: int | str, tid: int) -> int:
    """Where a thread stands: those of the host first, then the streams by device and number."""
    found = re.search(r"(\d+)$", device)
    if device == "host":
        return tid
    return 10**4 * (1 + int(found[1]) if found else 10**3) + (
        stream if isinstance(stream, int) else tid
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
