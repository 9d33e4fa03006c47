"""`torch.cuda.memory._record_memory_history` and its snapshots, for torch's memory visualiser; and
the allocator's settings while a program runs.

torch's own functions check arguments and write files, which are whole or as they were; here is what
they ask of C++. Times in the history are simulated, stacks are Python's, and addresses are made up
(`memory.snapshot`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ....timeline.whole_file import whole
from ...memory import allocator_settings, snapshot
from ...memory.caching_allocator import CachingAllocator
from ...memory.memory_history import HistoryOptions, MemoryHistory
from ...patching import Patches
from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.private import torch_profiler
from .. import lazy_init

WRITES = ("_dump_snapshot", "_save_segment_usage", "_save_memory_usage")


def install(patches: Patches) -> None:
    """Replace what torch.cuda.memory asks of C++; nothing is recorded after the block."""
    for name, ours in (
        ("record", _record),
        ("record_legacy", _record_legacy),
        ("snapshot", _snapshot),
        ("observe_oom", _observe_out_of_memory),
        ("settings", allocator_settings.choose),
    ):
        patches.set(*torch_profiler.MEMORY_HISTORY[name], ours)
    for name in WRITES:
        theirs = getattr(torch.cuda.memory, name)
        patches.replace(torch.cuda.memory, name, whole(theirs, "filename"))
    patches.at_end(_forget)


def _record(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Begin or (None) end to note what the allocators of all visible devices do."""
    if record_pinned_host_memory or not record_cuda:
        raise NotImplementedError(
            "_record_memory_history(record_pinned_host_memory=True) is not emulated: the history "
            "is that of devices. Leave it out"
        )
    _check("enabled", enabled, (None, "state", "all"))
    _check("context", context, (None, "state", "alloc", "all"))
    _check("stacks", stacks, ("python", "all"))
    most = None if max_entries >= sys.maxsize else max_entries
    options = HistoryOptions(enabled == "all", context, most, tuple(skip_actions))
    for memory in _memories():
        if enabled is None:
            memory.history = None
        elif memory.history is None:
            _start(memory, options)
        else:
            memory.history.go_on(options, clear=clear_history)


def _check(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise RuntimeError(f"{name} of _record_memory_history must be in {allowed}, not {value!r}")


def _record_legacy(
    enabled: bool,
    record_context: bool = True,
    max_entries: int = 1,
    record_context_of_all: bool = False,
    *others: object,
) -> None:
    """The form of torch 2.0: a number of entries more than 1 asks for events."""
    if not enabled:
        _record(None)
        return
    context = "all" if record_context_of_all else "state" if record_context else None
    _record("all" if max_entries > 1 else "state", context, max_entries=max_entries)


def _start(memory: CachingAllocator, options: HistoryOptions) -> None:
    seen_s = partial(current_runtime().host_threads.seen_s, memory.device)
    memory.history = MemoryHistory(options, seen_s)


def _forget() -> None:
    allocator_settings.choose(None)
    for memory in current_runtime().memories:
        memory.history, memory.on_out_of_memory = None, None


def _snapshot(pool: object = None) -> dict[str, Any]:
    """All that torch's snapshot has of devices."""
    shown = list(enumerate(_memories()))
    with_traces = not (isinstance(pool, tuple) and len(pool) == 3 and not pool[2])
    found = [
        {**segment, "device": number}
        for number, memory in shown
        for segment in snapshot.segments(memory)
    ]
    histories = [memory.history for _, memory in shown]
    traces = [h.entries() if h is not None and with_traces else [] for h in histories]
    for history in histories:
        if history is not None:
            history.snapshot_taken()
    return {
        "segments": found,
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": allocator_settings.text(),
            "expandable_segments": allocator_settings.is_expandable(),
        },
        "external_annotations": [],
    }


def _observe_out_of_memory(observer: Callable[[int, int, int, int], object]) -> None:
    """Call `observer(device, asked, allocated, free)`, in bytes, before memory runs out."""
    for number, memory in enumerate(_memories()):
        memory.on_out_of_memory = partial(_tell, observer, number, memory)


def _tell(
    observer: Callable[[int, int, int, int], object],
    number: int,
    memory: CachingAllocator,
    asked: int,
    free: int,
) -> None:
    observer(number, asked, memory.allocated_bytes, free)


def _memories() -> list[CachingAllocator]:
    memories = current_runtime().memories
    return [memories[i] for i in lazy_init.devices_here()]
