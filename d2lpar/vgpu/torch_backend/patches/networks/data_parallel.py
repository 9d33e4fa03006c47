"""`nn.DataParallel`: what torch has in C++ for CUDA, and threads for replicas."""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.cuda.comm
import torch.nn.parallel.comm
from torch.nn.parameter import is_lazy

from .... import device_naming
from ....device_naming import TYPE
from ....patching import FOR_GOOD
from ...comm import data_parallel_comm
from ...machine import runtime
from ...machine.host_threads import Notes
from ...module import streams
from ...private import torch_devices, torch_modules
from ...tensors.tensor import is_virtual
from ..threads import SameMachineThread

PACKAGE = os.path.join(str(Path(__file__).resolve().parents[4]), "")
_MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError)

Replica = Callable[..., object]
GetStream = Callable[[torch.device], torch.Stream | None]


def replace_parallel() -> None:
    """The primitives that exist in C++ for CUDA, and the question which devices are meant: asked
    for CUDA and MPS first, torch would overlook the virtual ones on a machine that has either."""
    for name in torch_modules.COMM_PRIMITIVES:
        ours = getattr(data_parallel_comm, name, data_parallel_comm.refuse_out)
        theirs = torch_modules.comm_primitive(name)
        torch_modules.set_comm_primitive(name, _for_virtual(ours, theirs))
    summed = _for_virtual(data_parallel_comm.reduce_add, torch.nn.parallel.comm.reduce_add)
    for module in (torch.nn.parallel.comm, torch.cuda.comm):
        FOR_GOOD.set(module, "reduce_add", summed)
    torch_modules.replace_device_type_query(_available_type)
    torch_apply = torch_modules.data_parallel.parallel_apply

    @functools.wraps(torch_apply)
    def parallel_apply(modules: Sequence[Replica], *args: Any, **kwargs: Any) -> object:
        if runtime.running() is None:
            return torch_apply(modules, *args, **kwargs)
        notes: list[Notes] = [deque() for _ in modules]
        _replicated(modules)
        try:
            return torch_apply([*map(_replica, modules, notes)], *args, **kwargs)
        finally:
            for noted in notes:
                runtime.current_runtime().host_threads.replay(noted)

    for module in (torch_modules.data_parallel, torch.nn.parallel):
        FOR_GOOD.set(module, "parallel_apply", parallel_apply)
    FOR_GOOD.set(
        *torch_devices.STREAM_OF_COPIES, _make_get_stream(getattr(*torch_devices.STREAM_OF_COPIES))
    )
    threads = types.SimpleNamespace(Thread=SameMachineThread, Lock=threading.Lock)
    module = sys.modules["torch.nn.parallel.parallel_apply"]
    FOR_GOOD.set(module, "threading", threads)
    FOR_GOOD.set(module, "ExceptionWrapper", _ReplicasError)


def _replicated(replicas: Sequence[Replica]) -> None:
    """Let the time pass in which torch has made them, module by module, in Python."""
    rt = runtime.current_runtime()
    made = sum(len([*r.modules()]) for r in replicas if isinstance(r, torch.nn.Module))
    rt.host_work(made * rt.machine.host.replica_s, "replicate")


def _available_type(torch_type: Callable[[], str | None]) -> str | None:
    return device_naming.naming().type if runtime.running() else torch_type()


def _make_get_stream(torch_get_stream: GetStream) -> GetStream:
    """The stream that copies to replicas use: torch keeps those of the first call's machine."""

    @functools.wraps(torch_get_stream)
    def get_stream(device: torch.device) -> torch.Stream | None:
        if device.type != TYPE:
            return torch_get_stream(device)
        index = streams.device_number(device)
        return streams.Stream.existing(index, runtime.current_runtime().background_stream(index))

    return get_stream


def _replica(module: Replica, notes: Notes) -> Replica:
    """`module`, noting its work instead of putting it on the clock, and under the autocast that is
    on here (torch hands on CUDA's only)."""
    enabled, dtype = torch.is_autocast_enabled(TYPE), torch.get_autocast_dtype(TYPE)

    def call(*args: object, **kwargs: object) -> object:
        with (
            runtime.current_runtime().host_threads.replica(notes),
            torch.autocast(TYPE, dtype=dtype, enabled=enabled),
        ):
            return module(*args, **kwargs)

    return call


class _ReplicasError(torch._utils.ExceptionWrapper):
    """The error of a replica, whose text has the frames that it has on CUDA: not the engine's."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        kind, error, trace = sys.exc_info() if exc_info is None else exc_info
        if error is not None and trace is not None:
            trace = _without_engine(error, trace)
        super().__init__((kind, error, trace), where)


def _without_engine(error: BaseException, trace: TracebackType) -> TracebackType:
    """The traceback without frames of this package, unless the error may be a mistake of its."""
    frames = [trace]
    while frames[-1].tb_next is not None:
        frames.append(frames[-1].tb_next)
    if isinstance(error, _MISTAKES) and _is_engine(frames[-1]):
        return trace
    kept = None
    for frame in reversed([f for f in frames if not _is_engine(f)]):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept or trace


def _is_engine(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(PACKAGE)


def _for_virtual(
    ours: Callable[..., object], theirs: Callable[..., object] | None
) -> Callable[..., object]:
    """Ours, but for what is on real devices; builds of torch for the CPU have nothing for these."""

    @functools.wraps(ours)
    def choose(
        tensors: torch.Tensor | Sequence[torch.Tensor], *args: object, **kwargs: object
    ) -> object:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        told = first is None or is_virtual(first) or is_lazy(first)
        real = first is not None and not told and first.device.type != "cpu"
        if theirs is not None and (real or runtime.running() is None):
            return theirs(tensors, *args, **kwargs)
        return ours(tensors, *args, **kwargs)

    return choose
