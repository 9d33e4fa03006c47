"""Copies between the host and virtual devices: the values really move, the time is modelled."""

from __future__ import annotations

import torch

from .cost import Cost
from .runtime import Runtime, runtime
from .tensor import VirtualTensor, backing, layout_of, wrap


def to_copy(tensor: torch.Tensor, **kwargs: object) -> torch.Tensor:
    """`aten::_to_copy`: a new tensor, perhaps on another device or of another type."""
    source = device_index(tensor)
    device = kwargs.get("device")
    target = _target_index(device, source)
    options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "non_blocking")}
    options.pop("layout", None)
    if target is None:
        host = _to_host(tensor, options, bool(kwargs.get("non_blocking")))
        return host.to(device)
    rt = runtime()
    if rt.shape_only:
        values = _shapes(tensor).to(**options, copy=True) if options else _shapes(tensor).clone()
    else:
        values = torch.ops.aten._to_copy(_values(tensor), **options, device=rt.backing)
    result = wrap(values, rt.check_index(target))
    _clock_copy(rt, source, target, result, tensor, bool(kwargs.get("non_blocking")))
    return result


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`target.copy_(source)`, either of them on the host or on any virtual device."""
    rt = runtime()
    if not rt.shape_only:
        _values(target).copy_(_values(source))
    _clock_copy(rt, device_index(source), device_index(target), target, source, non_blocking)
    return target


def device_index(tensor: torch.Tensor) -> int | None:
    """The number of a tensor's virtual device; None for the host."""
    return tensor._index if isinstance(tensor, VirtualTensor) else None


def _target_index(device: torch.device | None, source: int | None) -> int | None:
    if device is None:
        return source
    if device.type != "vgpu":
        return None
    return runtime().current_device if device.index is None else device.index


def _to_host(tensor: VirtualTensor, options: dict, non_blocking: bool) -> torch.Tensor:
    rt = runtime()
    values = backing(tensor)
    if values.is_meta or rt.shape_only:
        result = unknown(values.shape, options.get("dtype") or values.dtype)
    else:
        result = torch.ops.aten._to_copy(values, **options, device=torch.device("cpu"))
    if non_blocking:
        rt.pinned.mark(result)
    _clock_copy(rt, tensor._index, None, tensor, result, non_blocking)
    return result


def unknown(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What the host sees of a tensor that has a shape only: NaN, or zero in types without NaN."""
    floating = dtype.is_floating_point or dtype.is_complex
    return torch.full((), float("nan") if floating else 0, dtype=dtype).expand(shape)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return backing(tensor) if isinstance(tensor, VirtualTensor) else tensor


def _shapes(tensor: torch.Tensor) -> torch.Tensor:
    return layout_of(tensor).empty()


def _clock_copy(
    rt: Runtime,
    source: int | None,
    target: int | None,
    on_device: torch.Tensor,
    other: torch.Tensor,
    non_blocking: bool,
) -> None:
    """Account for a copy; the host waits unless it is asynchronous and its memory page-locked."""
    moved = [t.numel() * t.element_size() for t in (on_device, other)]
    if source == target:
        account_within(rt, source, sum(moved))
        return
    asynchronous = source is not None and target is not None
    if not asynchronous and non_blocking:
        asynchronous = _host_side(on_device, other) in rt.pinned
    account(rt, source, target, moved[0], wait=not asynchronous)


def account(
    rt: Runtime, source: int | None, target: int | None, nbytes: int, *, wait: bool | None = None
) -> None:
    """Put a copy of `nbytes` between two devices (None: the host) on the clock.

    The host waits for copies from and to its own memory, unless `wait` says otherwise.
    """
    streams = [None if i is None else (i, rt.current_stream(i)) for i in (source, target)]
    device = source if target is None else target
    name = f"copy {_place(source)} to {_place(target)}"
    rt.lanes.submit(device, rt.clock.copy, *streams, nbytes, name)
    if wait or (wait is None and None in (source, target)):
        rt.synchronize_stream(device, rt.current_stream(device), f"wait for {name}")


def account_within(rt: Runtime, index: int, nbytes: int) -> None:
    """Put a kernel on the clock that reads and writes `nbytes` in all."""
    seconds = Cost(0, nbytes, "float32").seconds(rt.machine.accelerators[index])
    stream = (index, rt.current_stream(index))
    rt.lanes.submit(index, rt.clock.kernel, stream, "copy", seconds, nbytes, 0)


def _host_side(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b if isinstance(a, VirtualTensor) else a


def _place(index: int | None) -> str:
    return "host" if index is None else f"vgpu:{index}"
