"""NCCL within one process, as `torch.cuda.nccl` has it: one thread launches on several devices.

A collective runs on the current stream of each of its devices, begins when all of them have come
that far, and occupies the links between them as long as `machines.collective_cost` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...races.vector_clock import join
from ...sim.clock import HostThread
from ...sim.collective_routes import Group
from ..machine.runtime import Runtime, current_runtime
from ..private import torch_operators, torch_tensors
from ..tensors.tensor import VirtualTensor, backing, layout_of, wrap

StreamKey = tuple[int, int]


def can_take(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether NCCL takes these: dense, contiguous, each on a virtual device of its own."""
    if not all(isinstance(tensor, VirtualTensor) for tensor in tensors):
        return False
    devices = {tensor.device for tensor in tensors}
    return len(devices) == len(tensors) and all(
        tensor.layout is torch.strided and tensor.is_contiguous() for tensor in tensors
    )


def broadcast(tensor: VirtualTensor, devices: Sequence[int]) -> list[VirtualTensor]:
    """A contiguous tensor on each of these other devices."""
    rt = current_runtime()
    received = [wrap(_copy_of_values(rt, tensor), rt.check_index(d)) for d in devices]
    everywhere = _current(rt, [tensor, *received])
    _run(rt, "broadcast", everywhere, tensor.nbytes, reads=[tensor], writes=received)
    return received


def reduce(tensors: Sequence[VirtualTensor], root: int) -> VirtualTensor:
    """The sum of contiguous tensors of different devices: a new one where `tensors[root]` is."""
    rt = current_runtime()
    total = _copy_of_values(rt, tensors[0])
    if not rt.shape_only:
        with torch_tensors.as_plain_tensors():
            for tensor in tensors[1:]:
                total.add_(backing(tensor))
    result = wrap(total, tensors[root].vgpu_index)
    at_root = [tensors[root], *(t for i, t in enumerate(tensors) if i != root)]
    _run(rt, "reduce", _current(rt, at_root), result.nbytes, reads=tensors, writes=[result])
    return result


def _current(rt: Runtime, tensors: Sequence[VirtualTensor]) -> list[StreamKey]:
    """The current streams of the devices of these."""
    return [(t.vgpu_index, rt.current_stream(t.vgpu_index)) for t in tensors]


def _copy_of_values(rt: Runtime, tensor: VirtualTensor) -> torch.Tensor:
    if rt.shape_only:
        return layout_of(tensor).empty()
    return torch_operators.to_copy(backing(tensor), device=rt.backing)


def _run(
    rt: Runtime,
    name: str,
    streams: Sequence[StreamKey],
    nbytes: int,
    *,
    reads: Sequence[VirtualTensor],
    writes: Sequence[VirtualTensor],
) -> None:
    """Put a collective of `nbytes` over these streams, the root's first, on the clock."""
    devices = [device for device, _ in streams]
    rt.check_in_use(*(t.vgpu_allocation for t in reads))
    _meet(rt, streams)
    for stream in streams:
        here = ([t for t in part if t.vgpu_index == stream[0]] for part in (reads, writes))
        rt.sanitizer.work(stream, *here)
    _meet(rt, streams)
    group = Group(rt.machine, devices)
    rt.host_threads.submit(devices[0], _launch, rt, name, group, streams, nbytes)
    for device in devices:
        rt.note_memory(device)


def _launch(
    host_thread: HostThread,
    rt: Runtime,
    name: str,
    group: Group,
    streams: Sequence[StreamKey],
    nbytes: int,
) -> None:
    """One launch for each device, by one host thread; the first on the clock waits for the last."""
    work = rt.clock.announce(group.seconds(name, nbytes), group.ports, len(streams))
    for stream in streams:
        rt.clock.join(host_thread, stream, work, name, nbytes=nbytes)


def _meet(rt: Runtime, streams: Sequence[StreamKey]) -> None:
    """What comes later on any of these streams comes after what all of them have queued so far."""
    known: dict[StreamKey, int] = {}
    for stream in streams:
        join(known, rt.order.release(stream))
    for stream in streams:
        rt.order.acquire(stream, known)


def build_version(theirs: Callable[[], tuple]) -> Callable[[], tuple]:
    """The version of the build's NCCL, or zeros: torch asks for it whenever it puts an error of a
    collective in words."""

    def version() -> tuple:
        try:
            return theirs()
        except AttributeError:  # a build for the CPU has none
            return (0, 0, 0)

    return version
