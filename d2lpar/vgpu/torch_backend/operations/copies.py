"""Copies between the host and virtual devices: the values really move, the time is modelled.

Copy engines reach page-locked memory only. To and from pageable memory the driver copies through a
buffer of its own, and the host, which does that, waits; so it does for copies that block.

What is small goes to a device with the command itself: "memory copies from host to device of a
memory block of 64 KB or less" are asynchronous (CUDA C++ Programming Guide, Asynchronous Concurrent
Execution), from whatever memory. So `non_blocking=True` pays there without pinning, as PyTorch's
tutorial "A guide on good usage of non_blocking and pin_memory()" (Moens 2024) says: 1000 tensors of
4 kB take 13.15 ms, with it 8.26 ms; pinned ones 13.28 and 8.16 ms. Of larger copies only the last
piece may be on its way when the call returns (CUDA Runtime API, API synchronization behavior). That
is left out here: 1000 tensors of 4 MB take 394 ms there, 316 ms with it, and here twice the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch

from ... import device_naming
from ...memory.pinned import PinnedBlock, block_of
from ...races import sync_debug
from ...races.vector_clock import Access
from ...sim.clock import HostThread
from ...sim.pricing.kernel_cost import traffic
from ...sim.staging import EMBEDDED_BYTES, through_buffer_s
from ..compiling import compiled
from ..compiling.fusion import Read
from ..cost import host_cost
from ..machine.runtime import Runtime, current_runtime, has_ended
from ..private import torch_operators, torch_tensors
from ..tensors import unknown_values
from ..tensors.tensor import VirtualTensor, backing, check_allocated, laid_out_alone, wrap


def to_copy(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """`aten::_to_copy`: a new tensor, perhaps on another device or of another type."""
    source = device_index(tensor)
    device: torch.device | None = kwargs.get("device")
    target = _target_index(device, source)
    options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "non_blocking")}
    options.pop("layout", None)
    non_blocking = bool(kwargs.get("non_blocking"))
    if device is not None and device.type == "meta":
        return torch_operators.to_copy(_shapes(tensor), **options, device=device)
    if target is None:
        host = _to_host(tensor, options, non_blocking)
        return host if device is None else host.to(device)
    rt = current_runtime()
    _check_in_use(rt, tensor)
    if rt.shape_only:
        values = _shapes(tensor).to(**options, copy=True) if options else _shapes(tensor).clone()
    else:
        values = torch_operators.to_copy(_values(tensor), **options, device=rt.backing)
    sources = None
    if isinstance(tensor, VirtualTensor) and source == target and compiled.current():
        sources = compiled.sources([tensor])
    result = wrap(values, rt.check_index(target), sources=sources)
    if source is None:
        check_capture(rt, target, tensor)
    _account_copy(rt, tensor, result, _size(result), non_blocking)
    return result


def copy_(
    target: torch.Tensor, source: torch.Tensor | complex, non_blocking: bool = False
) -> torch.Tensor:
    """`target.copy_(source)`, either of them on the host or on any virtual device.

    As in PyTorch's Copy.cu, another type is made before the way to a device, and after that back.
    """
    rt = current_runtime()
    if not isinstance(source, torch.Tensor):  # torch hands over a number as one
        source = torch.tensor(source)
    for host, other in ((source, target), (target, source)):
        if isinstance(other, VirtualTensor) and not isinstance(host, VirtualTensor):
            check_capture(rt, other.vgpu_index, host)
    if isinstance(target, VirtualTensor):  # what is left of a block may be read, and no more
        _check_in_use(rt, target, source)
    if rt.shape_only:
        if source.shape != target.shape:
            torch.empty(target.shape, device="meta").copy_(torch.empty(source.shape, device="meta"))
    else:
        begin_s = perf_counter()
        with torch_tensors.as_plain_tensors():
            _values(target).copy_(_values(source))
        rt.values_s += perf_counter() - begin_s
    sent = target if isinstance(target, VirtualTensor) else source
    _account_copy(rt, source, target, target.numel() * sent.element_size(), non_blocking)
    return target


def _check_in_use(rt: Runtime, *tensors: torch.Tensor) -> None:
    rt.check_in_use(*(t.vgpu_allocation for t in tensors if isinstance(t, VirtualTensor)))


def check_capture(rt: Runtime, device: int, host: torch.Tensor) -> None:
    """Refuse a copy that is captured from or to pageable memory of the host."""
    rt.captures.check_pinned((device, rt.current_stream(device)), block_of(host) is not None)


def device_index(tensor: torch.Tensor) -> int | None:
    """The number of a tensor's virtual device; None for the host."""
    return tensor.vgpu_index if isinstance(tensor, VirtualTensor) else None


def _target_index(device: torch.device | None, source: int | None) -> int | None:
    if device is None:
        return source
    if device.type != device_naming.TYPE:
        return None
    return current_runtime().current_device if device.index is None else device.index


def _to_host(tensor: torch.Tensor, options: dict[str, Any], non_blocking: bool) -> torch.Tensor:
    rt = current_runtime()
    values = _values(tensor)
    if values.is_meta or rt.shape_only:
        result = unknown(rt, values.shape, options.get("dtype") or values.dtype)
    else:
        result = torch_operators.to_copy(values, **options, device=torch.device("cpu"))
    if non_blocking:
        rt.pinned.lock(result, _size(tensor))
    if isinstance(tensor, VirtualTensor):
        check_capture(rt, tensor.vgpu_index, result)
    _account_copy(rt, tensor, result, _size(tensor), non_blocking, fresh=not non_blocking)
    return result


def unknown(rt: Runtime, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What the host sees of a tensor that has a shape only: NaN, or zero in types without NaN."""
    rt.unknown_reads += 1
    has_nan = dtype.is_floating_point or dtype.is_complex
    value = float("nan") if has_nan and not unknown_values.are_zero() else 0
    return torch.full((), value, dtype=dtype).expand(shape)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, VirtualTensor):
        return tensor
    check_allocated(tensor)
    return backing(tensor)


def _shapes(tensor: torch.Tensor) -> torch.Tensor:
    return laid_out_alone(tensor).empty()


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# --- accounting -----------------------------------------------------------------------------------


def _account_copy(
    rt: Runtime,
    source: torch.Tensor,
    target: torch.Tensor,
    nbytes: int,
    non_blocking: bool,
    *,
    fresh: bool = False,
) -> None:
    """Put a copy on the clock; the host side of one from a device may be `fresh` memory."""
    if not isinstance(source, VirtualTensor):
        assert isinstance(target, VirtualTensor), "one side of a copy is on a virtual device"
        _account_from_host(rt, source, target, nbytes, non_blocking)
        return
    start = source.vgpu_index
    if start >= rt.device_count or has_ended(source.vgpu_allocation.memory):
        return  # it is left from another machine, and no clock knows its own
    if not isinstance(target, VirtualTensor):
        _account_to_host(rt, source, target, nbytes, non_blocking, fresh=fresh)
    elif start == target.vgpu_index:
        stream = (start, rt.current_stream(start))
        rt.sanitizer.work(stream, [source], [target])
        account_within(rt, start, _size(source) + _size(target), [source, target])
    else:
        _account_between(rt, source, target, nbytes)


def _account_between(
    rt: Runtime, source: VirtualTensor, target: VirtualTensor, nbytes: int
) -> None:
    """As in PyTorch, the copy is the source's stream's, and each stream waits for the other."""
    start, end = ((t.vgpu_index, rt.current_stream(t.vgpu_index)) for t in (source, target))
    rt.order.acquire(start, rt.order.release(end))
    rt.sanitizer.work(start, [source], [target])
    rt.order.acquire(end, rt.order.release(start))
    account(rt, source.vgpu_index, target.vgpu_index, nbytes)


def _account_from_host(
    rt: Runtime, source: torch.Tensor, target: VirtualTensor, nbytes: int, non_blocking: bool
) -> None:
    index = target.vgpu_index
    access = rt.sanitizer.work((index, rt.current_stream(index)), (), [target])
    rt.host_copies.check(source, access, writes=False)
    block = block_of(source)
    through_buffer = block is None and (nbytes > EMBEDDED_BYTES or not non_blocking)
    wait = through_buffer or not non_blocking
    with sync_debug.called(_name(None, index)) if wait else nullcontext():
        if through_buffer:
            # The driver's buffer is small: what it holds must be on its way before it takes more.
            rt.synchronize_stream(index, access[0][1], "wait to copy from pageable memory")
        if block is None:
            _through_buffer(rt, index, nbytes)
        account(rt, None, index, nbytes, wait=wait)
    if block is not None and non_blocking:
        _note_host_copy(rt, source, block, access, writes=False)


def _account_to_host(
    rt: Runtime,
    source: VirtualTensor,
    target: torch.Tensor,
    nbytes: int,
    non_blocking: bool,
    *,
    fresh: bool,
) -> None:
    index = source.vgpu_index
    access = rt.sanitizer.work((index, rt.current_stream(index)), [source])
    rt.host_copies.check(target, access, writes=True)
    block = block_of(target)
    wait = block is None or not non_blocking
    with sync_debug.called(_name(index, None)) if wait else nullcontext():
        account(rt, index, None, nbytes, wait=wait)
    if block is None:
        _through_buffer(rt, index, nbytes, fresh=fresh)
    if block is not None and non_blocking:
        _note_host_copy(rt, target, block, access, writes=True)


def _through_buffer(rt: Runtime, index: int, nbytes: int, *, fresh: bool = False) -> None:
    """The host copies between pageable memory, perhaps fresh, and the driver's buffer."""
    seconds = through_buffer_s(rt.clock.machine, nbytes, fresh=fresh)
    rt.host_threads.submit(index, rt.clock.host_work, seconds, "copy through pinned buffer")


def _note_host_copy(
    rt: Runtime, host: torch.Tensor, block: PinnedBlock, access: Access, *, writes: bool
) -> None:
    """Watch host memory that a copy goes on using, and keep its block from being reused."""
    rt.host_copies.note(host, access, writes=writes)
    stream = access[0]

    def use(host_thread: HostThread) -> None:
        block.uses[stream] = rt.clock.record_event(host_thread, stream)

    if rt.pinned.owns(block):
        rt.host_threads.submit(stream[0], use)


def account(
    rt: Runtime, source: int | None, target: int | None, nbytes: int, *, wait: bool | None = None
) -> None:
    """Put a copy of `nbytes` between two devices (None: the host) on the clock.

    The host waits for copies from and to its own memory, unless `wait` says otherwise.
    """
    streams = [None if i is None else (i, rt.current_stream(i)) for i in (source, target)]
    device = source if target is None else target
    assert device is not None, "one side of a copy is on a virtual device"
    name = _name(source, target)
    rt.host_threads.submit(device, rt.clock.copy, *streams, nbytes, name)
    for index in (source, target):
        if index is not None:
            rt.note_memory(index)
    if wait or (wait is None and None in (source, target)):
        rt.synchronize_stream(device, rt.current_stream(device), f"wait for {name}")


def account_within(
    rt: Runtime, index: int, nbytes: int, tensors: Sequence[VirtualTensor] = ()
) -> None:
    """Put a kernel on the clock that reads and writes `nbytes` in all, of `tensors` the first and
    the second."""
    stream, region = (index, rt.current_stream(index)), compiled.current()
    if region is not None and tensors:
        region.fuse(rt, stream, "copy", [Read(tensors[0])], tensors[1:])
        return
    seconds = traffic(nbytes).seconds(rt.machine.accelerators[index])
    dispatch_s = host_cost.kernel_s(rt.machine.host, tensors)
    args = (stream, "copy", seconds, nbytes, 0, dispatch_s)
    rt.host_threads.submit(index, rt.clock.kernel, *args)


def _name(source: int | None, target: int | None) -> str:
    return f"copy {_place(source)} to {_place(target)}"


def _place(index: int | None) -> str:
    return "host" if index is None else device_naming.text(index)
