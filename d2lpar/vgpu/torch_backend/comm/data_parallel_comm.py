"""What `torch.nn.parallel.comm` has in C++ for CUDA only: broadcast, scatter, gather; and sums.

As in torch's builds with NCCL (all of its wheels for Linux), parameters are broadcast and gradients
reduced by NCCL, in flat buffers; scatter and gather are copies. `without_nccl` takes the way of
builds without: copies from and to the first device, one after the other.

Devices are numbers, as the program counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...device_naming import TYPE, device
from ..cost.host_cost import native_views
from ..module.streams import device_number
from ..operations.copies import device_index
from ..private import torch_devices
from ..private.torch_tensors import flattened, in_order_of, pieces, unflattened
from ..tensors.tensor import VirtualTensor, separate
from . import comm_checks, nccl

HOST = -1
_blocks_without_nccl: list[object] = []  # which may end in another order than they began


@contextmanager
def without_nccl() -> Iterator[None]:
    """In this block `nn.DataParallel` works as in a build of torch without NCCL, such as Windows'.

    It sends the parameters to one device after the other, and adds gradients up on the first one.
    Values are the same. It holds for the whole process, as a build does.
    """
    _blocks_without_nccl.append(None)
    try:
        yield
    finally:
        _blocks_without_nccl.pop()


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """A tensor on each device; the one it is on already gets the tensor itself."""
    targets = [_device(d) for d in devices]
    others = [target.index for target in targets if not _is_on(tensor, target)]
    if not (others and _by_nccl([tensor]) and len(set(others)) == len(others)):
        return [tensor.to(target, non_blocking=True) for target in targets]
    assert isinstance(tensor, VirtualTensor), "NCCL takes tensors of virtual devices"
    received = iter(nccl.broadcast(tensor, others))
    return [tensor if _is_on(tensor, target) else next(received) for target in targets]


def refuse_out(*_: object) -> None:
    """What torch calls where a program gives `out`, which only its C++ fills."""
    raise NotImplementedError(
        "torch.cuda.comm fills no `out` on virtual GPUs: leave it out, and copy_() what is returned"
    )


def _by_nccl(tensors: Sequence[torch.Tensor]) -> bool:
    return not _blocks_without_nccl and nccl.can_take(tensors)


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Tensors of the first device on each, sent in flat buffers of about `buffer_size` bytes.

    The lists are in the order of `devices`; the tensors' own device gets the tensors themselves.
    What the others get shares buffers, and counts the writes to each tensor by itself. Raises
    RuntimeError for tensors that are elsewhere.
    """
    if not tensors:
        return [[] for _ in devices]
    comm_checks.initialized(tensors)
    if not all(_is_on(tensor, _device(devices[0])) for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    if _blocks_without_nccl:
        return [_copies(list(tensors), _device(d), buffer_size) for d in devices]
    received: list[list[torch.Tensor]] = [[] for _ in devices]
    for chunk in pieces(tensors, buffer_size):
        everywhere = _sent(chunk, lambda flat: broadcast(flat, devices))
        for parts, part in zip(received, everywhere, strict=True):
            parts += part
    return [
        list(tensors) if _is_on(tensors[0], _device(d)) else [*in_order_of(parts, tensors)]
        for d, parts in zip(devices, received, strict=True)
    ]


def _copies(
    tensors: list[torch.Tensor], device: torch.device, buffer_size: int
) -> list[torch.Tensor]:
    if _is_on(tensors[0], device):
        return tensors
    received: list[torch.Tensor] = []
    for chunk in pieces(tensors, buffer_size):
        (parts,) = _sent(chunk, lambda flat: [flat.to(device, non_blocking=True)])
        received += parts
    return list(in_order_of(received, tensors))


def _sent(
    chunk: Sequence[torch.Tensor], send: Callable[[torch.Tensor], Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Tensors of one type, on every device that `send` gives a flat tensor for."""
    with native_views():
        flat = flattened(chunk)
    flats = send(flat)
    with native_views():
        return [[separate(t) for t in unflattened(flat, chunk)] for flat in flats]


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> list[torch.Tensor]:
    """Chunks of a tensor along `dim`, one on each device, copied on `streams` where given."""
    comm_checks.scattered(devices, chunk_sizes)
    chunks = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split_with_sizes(list(chunk_sizes), dim)
    )
    places = [_device(d) for d in devices]
    return [
        _on_stream(_stream(streams, i, places[i]), _sent_to, chunk, places[i])
        for i, chunk in enumerate(chunks)
    ]


def _sent_to(chunk: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A chunk on a device, itself if it is there; gaps between its elements are not sent."""
    if _is_on(chunk, place):
        return chunk
    dense = chunk.is_contiguous() or (
        chunk.dim() == 4 and chunk.is_contiguous(memory_format=torch.channels_last)
    )
    return (chunk if dense else chunk.contiguous()).to(place, non_blocking=True)


def _stream(
    streams: Sequence[torch.Stream | None] | None, i: int, place: torch.device
) -> torch.Stream | None:
    stream = None if streams is None else streams[i]
    if stream is not None and torch_devices.device_of_stream(stream) != place.index:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {i} (was "
            f"{stream.device_index}) to match the device supplied at that index (expected "
            f"{place.index})"
        )
    return stream


def _on_stream(
    stream: torch.Stream | None,
    act: Callable[..., torch.Tensor],
    *args: object,
    **options: object,
) -> torch.Tensor:
    with torch.get_device_module(TYPE).stream(stream):
        return act(*args, **options)


def gather(
    tensors: Sequence[torch.Tensor], dim: int = 0, destination: int | None = None
) -> torch.Tensor:
    """The tensors, concatenated along `dim` on a device; -1 is the host."""
    comm_checks.gathered(tensors, dim)
    if destination == HOST:  # the host has to wait before it can go on
        return torch.cat([t.to("cpu") for t in tensors], dim)
    return torch.cat([t.to(_device(destination), non_blocking=True) for t in tensors], dim)


def reduce_add(inputs: Sequence[torch.Tensor], destination: object = None) -> torch.Tensor:
    """The sum of tensors of different devices, on `destination`.

    Raises RuntimeError if none of them is there.
    """
    place = _device(destination)
    comm_checks.summed(inputs)
    there = [tensor for tensor in inputs if _is_on(tensor, place)]
    if not there:
        raise RuntimeError(
            "reduce_add expects destination to be on the same GPU with one of the tensors: it is "
            f"{place}, and they are on {', '.join(sorted({str(t.device) for t in inputs}))}"
        )
    others = [tensor for tensor in inputs if tensor is not there[0]]
    if not others:
        return there[0]
    if _by_nccl(inputs):
        root = next(i for i, tensor in enumerate(inputs) if tensor is there[0])
        return nccl.reduce([t for t in inputs if isinstance(t, VirtualTensor)], root)
    total = there[0] + others[0].to(place, non_blocking=True)
    for other in others[1:]:
        total.add_(other.to(place, non_blocking=True))
    return total


def _device(named: object) -> torch.device:
    """The virtual device of a number, a name or (None) of the current one."""
    return device(device_number(named))  # type: ignore[arg-type]


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return device_index(tensor) == device.index
