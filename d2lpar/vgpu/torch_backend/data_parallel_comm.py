"""What `nn.DataParallel` needs and torch has for CUDA only: broadcast, scatter, gather, sum.

As in torch's builds with NCCL (all of its wheels for Linux), parameters are broadcast and gradients
reduced by NCCL, in flat buffers; scatter and gather are copies. `without_nccl` takes the way of
builds without: copies from and to the first device, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch._utils import (
    _flatten_dense_tensors,
    _reorder_tensors_as,
    _take_tensors,
    _unflatten_dense_tensors,
)

from ..device_naming import TYPE, device
from . import nccl
from .copies import device_index
from .host_cost import native_views
from .tensor import VirtualTensor

BUFFER_BYTES = 10 * 2**20  # as in torch.nn.parallel.comm
_ways = {"nccl": True}


@contextmanager
def without_nccl() -> Iterator[None]:
    """In this block `nn.DataParallel` works as in a build of torch without NCCL, such as Windows'.

    It sends the parameters to one device after the other, and adds gradients up on the first one.
    Values are the same. It holds for the whole process, as a build does.
    """
    before, _ways["nccl"] = _ways["nccl"], False
    try:
        yield
    finally:
        _ways["nccl"] = before


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """A tensor on each device; the one it is on already gets the tensor itself."""
    targets = [_device(d) for d in devices]
    others = [target.index for target in targets if not _is_on(tensor, target)]
    if not (others and _by_nccl([tensor]) and len(set(others)) == len(others)):
        return tuple(tensor.to(target, non_blocking=True) for target in targets)
    assert isinstance(tensor, VirtualTensor), "NCCL takes tensors of virtual devices"
    received = iter(nccl.broadcast(tensor, others))
    return tuple(tensor if _is_on(tensor, target) else next(received) for target in targets)


def _by_nccl(tensors: Sequence[torch.Tensor]) -> bool:
    return _ways["nccl"] and nccl.can_take(tensors)


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[int],
    buffer_size: int = BUFFER_BYTES,
) -> list[list[torch.Tensor]]:
    """Tensors on each device, sent in flat buffers of about `buffer_size` bytes.

    The lists are in the order of `devices`; the tensors' own device gets the tensors themselves.
    """
    if not tensors or not _ways["nccl"]:
        return [_copies(list(tensors), _device(d), buffer_size) for d in devices]
    received: list[list[torch.Tensor]] = [[] for _ in devices]
    for chunk in _take_tensors(tensors, buffer_size):
        with native_views():
            flat = _flatten_dense_tensors(chunk)
        flats = broadcast(flat, devices)
        for parts, flat in zip(received, flats, strict=True):
            with native_views():
                parts += _unflatten_dense_tensors(flat, chunk)
    return [
        list(tensors) if _is_on(tensors[0], _device(d)) else [*_reorder_tensors_as(parts, tensors)]
        for d, parts in zip(devices, received, strict=True)
    ]


def _copies(
    tensors: list[torch.Tensor], device: torch.device, buffer_size: int
) -> list[torch.Tensor]:
    if not tensors or _is_on(tensors[0], device):
        return tensors
    received: list[torch.Tensor] = []
    for chunk in _take_tensors(tensors, buffer_size):
        with native_views():
            flat = _flatten_dense_tensors(chunk)
        flat = flat.to(device, non_blocking=True)
        with native_views():
            received += _unflatten_dense_tensors(flat, chunk)
    return list(_reorder_tensors_as(received, tensors))


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Chunks of a tensor along `dim`, one on each device, copied on `streams` where given."""
    chunks = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    outputs = []
    for i, chunk in enumerate(chunks):
        stream = streams[i] if streams is not None else None
        with torch.get_device_module(TYPE).stream(stream):
            outputs.append(chunk.contiguous().to(_device(devices[i]), non_blocking=True))
    return tuple(outputs)


def gather(
    tensors: Sequence[torch.Tensor], dim: int = 0, destination: int | None = None
) -> torch.Tensor:
    """The tensors, concatenated along `dim` on a device; -1 is the host."""
    if destination == -1:  # the host has to wait before it can go on
        return torch.cat([t.to("cpu") for t in tensors], dim)
    return torch.cat([t.to(_device(destination), non_blocking=True) for t in tensors], dim)


def reduce_add(inputs: Sequence[torch.Tensor], destination: int | None = None) -> torch.Tensor:
    """The sum of tensors of different devices, on `destination`; one of them must be there."""
    device = _device(destination)
    there = [tensor for tensor in inputs if _is_on(tensor, device)]
    if not there:
        found = ", ".join(str(tensor.device) for tensor in inputs)
        raise RuntimeError(f"reduce_add expects one of its inputs on {device}, not only {found}")
    others = [tensor for tensor in inputs if tensor is not there[0]]
    if not others:
        return there[0]
    if _by_nccl(inputs):
        root = next(i for i, tensor in enumerate(inputs) if tensor is there[0])
        return nccl.reduce([t for t in inputs if isinstance(t, VirtualTensor)], root)
    total = there[0] + others[0].to(device, non_blocking=True)
    for other in others[1:]:
        total.add_(other.to(device, non_blocking=True))
    return total


def _device(index: int | None) -> torch.device:
    if index is None:
        index = torch.get_device_module(TYPE).current_device()
    return device(index)


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return device_index(tensor) == device.index
