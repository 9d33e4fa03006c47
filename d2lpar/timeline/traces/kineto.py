"""Reading what torch.profiler saw: the events that its tracer Kineto exports, as spans.

The categories are those of Kineto's source (libkineto/src/ActivityType.cpp, output_json.cpp and
CuptiActivity.cpp). Only traces of the CPU were read from real runs so far; those of CUDA were
written by hand after that source.

On the host, the outermost operations count. An operation in which the CUDA runtime is asked for
work is a "dispatch", any other is work of the "host"; calls that block are a "wait", and split the
operation that they happen in. Blocks of `record_function` are annotations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ..spans import ANNOTATION, MemorySample, Span

NAMED = "user_annotation"
ON_HOST = ("cpu_op", "cuda_runtime", "cuda_driver")
ON_DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "compute"}
COLLECTIVE = re.compile(r"nccl.*Kernel|ncclDev", re.IGNORECASE)
COPY = re.compile(r"Memcpy (\w)to(\w)")  # of H(ost), D(evice), P(eer), A(rray)
BLOCKING = "Synchronize"  # of a device, a stream or an event
ENGINE = "autograd::engine::evaluate_function: "
CPU, CUDA = 0, 1  # c10::DeviceType


def is_kineto(content: dict) -> bool:
    """Whether a trace, as a dictionary, was written by torch.profiler."""
    return "schemaVersion" in content and "deviceProperties" in content


def read(content: dict) -> tuple[list[Span], list[MemorySample], list[Span]]:
    """The spans, the samples of memory and the annotations in a trace of torch.profiler, from
    time 0 on."""
    complete = [e for e in content["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    events = [e for e in complete if e.get("cat") in ON_HOST or e.get("cat") in ON_DEVICE]
    named = [e for e in complete if e.get("cat") == NAMED]
    sampled = [e for e in content["traceEvents"] if e.get("name") == "[memory]"]
    zero_ns = min(map(_start_ns, (*events, *sampled)), default=0)
    queued_by: dict[int, int] = {}
    threads = _host_threads(events)
    spans = list(_host_spans(threads, zero_ns, queued_by))
    spans += [_device_span(e, zero_ns, queued_by) for e in events if e["cat"] in ON_DEVICE]
    spans.sort(key=lambda span: span.start_s)
    memory = [_sample(e, zero_ns) for e in sampled if e["args"].get("Device Type") in (CPU, CUDA)]
    names = {tid: _thread(number) for number, tid in enumerate(threads)}
    annotations = [_annotation(e, names.get(e["tid"], _thread(0)), zero_ns) for e in named]
    return spans, memory, annotations


def _host_threads(events: list[dict]) -> dict[object, list[dict]]:
    """What host threads did, by their numbers; the first to do something comes first."""
    threads: dict[object, list[dict]] = defaultdict(list)
    for event in events:
        if event["cat"] in ON_HOST:
            threads[event["tid"]].append(event)
    return dict(sorted(threads.items(), key=_first_ns))


def _thread(number: int) -> str:
    return "main" if number == 0 else f"thread {number}"


def _annotation(event: dict, host_thread: str, zero_ns: int) -> Span:
    """A block, from time 0 on if it began before anything was done."""
    start_ns, end_ns = (max(ns, zero_ns) for ns in (_start_ns(event), _end_ns(event)))
    return _span("host", host_thread, ANNOTATION, event["name"], (start_ns, end_ns), zero_ns)


def _host_spans(
    threads: dict[object, list[dict]], zero_ns: int, queued_by: dict[int, int]
) -> Iterator[Span]:
    """Spans of all host threads; notes in `queued_by` which correlation each launch got."""
    for number, thread in enumerate(threads.values()):
        host_thread = _thread(number)
        thread.sort(key=lambda event: (_start_ns(event), -_end_ns(event)))
        for outermost, inner in _outermost(thread):
            yield from _pieces(outermost, inner, host_thread, zero_ns, queued_by)


def _first_ns(thread: tuple[object, list[dict]]) -> int:
    return min(map(_start_ns, thread[1]))


def _outermost(thread: list[dict]) -> Iterator[tuple[dict, list[dict]]]:
    """The events of a thread that lie in no other, each with those that lie in it."""
    outermost: dict | None = None
    inner: list[dict] = []
    for event in thread:
        if outermost is not None and _start_ns(event) < _end_ns(outermost):
            inner.append(event)
            continue
        if outermost is not None:
            yield outermost, inner
        outermost, inner = event, []
    if outermost is not None:
        yield outermost, inner


def _pieces(
    outermost: dict, inner: list[dict], host_thread: str, zero_ns: int, queued_by: dict[int, int]
) -> Iterator[Span]:
    """An operation and the waits in it, one after the other."""
    calls = [e for e in (outermost, *inner) if e["cat"] != "cpu_op"]
    waits = [e for e in calls if _blocks(e)]
    launches = [e for e in calls if not _blocks(e) and e["args"].get("correlation")]
    name = outermost["name"].removeprefix(ENGINE).removeprefix("aten::")
    at_ns = _start_ns(outermost)
    for wait in (*waits, None):
        until_ns = _end_ns(outermost) if wait is None else _start_ns(wait)
        if until_ns > at_ns:
            mine = [e for e in launches if at_ns <= _start_ns(e) < until_ns]
            correlation = _join(mine, queued_by)
            kind = "dispatch" if correlation else "host"
            yield _span("host", host_thread, kind, name, (at_ns, until_ns), zero_ns, correlation)
        if wait is not None:
            at_ns = _end_ns(wait)
            yield _span("host", host_thread, "wait", wait["name"], (until_ns, at_ns), zero_ns)


def _blocks(call: dict) -> bool:
    return call["cat"] != "cpu_op" and BLOCKING in call["name"]


def _join(launches: list[dict], queued_by: dict[int, int]) -> int:
    """One number for all that an operation queued: that of its first launch."""
    numbers = [e["args"]["correlation"] for e in launches]
    queued_by.update(dict.fromkeys(numbers, numbers[0] if numbers else 0))
    return numbers[0] if numbers else 0


def _device_span(event: dict, zero_ns: int, queued_by: dict[int, int]) -> Span:
    args = event["args"]
    device = f"cuda:{args.get('device', args.get('inDevice', event['pid']))}"
    kind = ON_DEVICE[event["cat"]]
    if kind == "compute" and COLLECTIVE.search(event["name"]):
        kind = "collective"
    correlation = args.get("correlation", 0)
    return _span(
        device,
        args.get("stream", event["tid"]),
        kind,
        event["name"],
        (_start_ns(event), _end_ns(event)),
        zero_ns,
        queued_by.get(correlation, correlation),
        nbytes=args.get("bytes", 0),
        target=_target(event, device) if kind == "copy" else "",
    )


def _target(event: dict, device: str) -> str:
    if "toDevice" in event["args"]:
        return f"cuda:{event['args']['toDevice']}"
    ends = COPY.search(event["name"])
    return "host" if ends and ends[2] == "H" else device


def _span(
    device: str,
    stream: int | str,
    kind: str,
    name: str,
    times_ns: tuple[int, int],
    zero_ns: int,
    correlation: int = 0,
    *,
    nbytes: int = 0,
    target: str = "",
) -> Span:
    start_s, end_s = ((ns - zero_ns) / 1e9 for ns in times_ns)
    return Span(device, stream, kind, name, start_s, end_s, nbytes, 0, correlation, target)


def _sample(event: dict, zero_ns: int) -> MemorySample:
    args = event["args"]
    device = "host" if args["Device Type"] == CPU else f"cuda:{args['Device Id']}"
    return MemorySample(device, (_start_ns(event) - zero_ns) / 1e9, args["Total Allocated"])


def _start_ns(event: dict) -> int:
    return round(event["ts"] * 1e3)


def _end_ns(event: dict) -> int:
    return _start_ns(event) + round(event["dur"] * 1e3)
