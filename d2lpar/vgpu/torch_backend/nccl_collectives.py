"""What `torch.cuda.nccl` has in C++: collectives of one process that write into tensors of its own.

Lists have a tensor for each device, and the order is that of NCCL's ranks. As with NCCL, the host
goes on at once; each device takes part on its current stream, or on that of `streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from . import torch_private
from .graph_capture import capturing
from .nccl import StreamKey, run
from .reduced_values import reduced
from .runtime import current_runtime
from .tensor import VirtualTensor, backing, check_allocated

_OPERATIONS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")  # by their numbers in NCCL
Tensors = Iterable[torch.Tensor]
Streams = Sequence[torch.Stream | None] | None


def all_reduce(
    inputs: Tensors,
    outputs: Tensors,
    op: int = 0,
    streams: Streams = None,
    comms: object = None,
) -> None:
    """Each of `outputs` is the reduced of all `inputs`, as large as one of them."""
    sources, targets = _checked(inputs), _checked(outputs)
    _check_pairs(sources, targets, 1, 1)
    _begin("all_reduce", sources, targets, streams, lambda given: [_total(op, given)] * len(given))


def reduce(
    inputs: Tensors,
    output: torch.Tensor,
    root: int = 0,
    op: int = 0,
    streams: Streams = None,
    comms: object = None,
) -> None:
    """`output`, on the device of `inputs[root]`, is the reduced of all."""
    sources, (target,) = _checked(inputs), _checked([output])
    _check_root(root, sources)
    _check_pairs([sources[root]], [target], 1, 1)
    _begin("reduce", sources, [target], streams, lambda given: [_total(op, given)], root)


def broadcast(
    tensors: Tensors, root: int = 0, streams: Streams = None, comms: object = None
) -> None:
    """All are what `tensors[root]` is."""
    everywhere = _checked(tensors)
    _check_root(root, everywhere)
    others = [tensor for i, tensor in enumerate(everywhere) if i != root]
    values = [everywhere[root]] * len(others)
    _begin("broadcast", everywhere, others, streams, lambda _: _flat_values(values), root)


def all_gather(
    inputs: Tensors, outputs: Tensors, streams: Streams = None, comms: object = None
) -> None:
    """Each of `outputs` is all `inputs`, one after the other."""
    sources, targets = _checked(inputs), _checked(outputs)
    _check_pairs(sources, targets, len(sources), 1)
    _begin("all_gather", sources, targets, streams, lambda given: [torch.cat(given)] * len(given))


def reduce_scatter(
    inputs: Tensors,
    outputs: Tensors,
    op: int = 0,
    streams: Streams = None,
    comms: object = None,
) -> None:
    """Each of `outputs` is its share of the reduced of all `inputs`."""
    sources, targets = _checked(inputs), _checked(outputs)
    _check_pairs(sources, targets, 1, len(sources))

    def shares(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(_total(op, given).chunk(len(given)))

    _begin("reduce_scatter", sources, targets, streams, shares)


def _begin(
    name: str,
    sources: list[VirtualTensor],
    targets: list[VirtualTensor],
    streams: Streams,
    compute: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    root: int = 0,
) -> None:
    """Compute what the targets are to be, and put the collective on the clock."""
    if capturing() is not None:
        raise NotImplementedError(
            f"torch.cuda.nccl.{name} in the capture of a CUDA graph is not emulated: call it "
            "outside, or use torch.distributed, whose collectives become part of graphs"
        )
    rt = current_runtime()
    keys = _keys(sources, streams)
    with torch_private.as_plain_tensors(), torch.no_grad():
        for target, values in zip(targets, compute(_flat_values(sources)), strict=True):
            if not rt.shape_only:
                backing(target).copy_(values.view(target.shape))
    order = [root, *(i for i in range(len(sources)) if i != root)]
    nbytes = max(tensor.nbytes for tensor in (*sources, *targets))
    run(rt, name, [keys[i] for i in order], nbytes, reads=sources, writes=targets)


def _keys(tensors: Sequence[VirtualTensor], streams: Streams) -> list[StreamKey]:
    """The device and the stream of each tensor's part."""
    if streams is not None and len(streams) != len(tensors):
        raise RuntimeError(
            f"number of streams is not equal to number of inputs: {len(streams)} streams, "
            f"{len(tensors)} tensors"
        )
    rt, devices = current_runtime(), [tensor.vgpu_index for tensor in tensors]
    given = [None] * len(devices) if streams is None else streams
    return [
        (device, rt.current_stream(device) if stream is None else stream.stream_id)
        for device, stream in zip(devices, given, strict=True)
    ]


def _flat_values(tensors: Sequence[VirtualTensor]) -> list[torch.Tensor]:
    return [backing(tensor).reshape(-1) for tensor in tensors]


def _total(op: int, given: Sequence[torch.Tensor]) -> torch.Tensor:
    if not 0 <= op < len(_OPERATIONS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(_OPERATIONS))
        raise RuntimeError(f"NCCL has no operation {op}: give one of {known}")
    return reduced(_OPERATIONS[op], given)


# --- what torch checks first ----------------------------------------------------------------------


def _checked(tensors: Tensors) -> list[VirtualTensor]:
    """The tensors of all devices: RuntimeError unless they are alike, and each on its own."""
    found: list[VirtualTensor] = []
    for tensor in tensors:
        if not isinstance(tensor, VirtualTensor) or tensor.layout is not torch.strided:
            raise RuntimeError(
                "input and output elements have to be cuda dense Tensors, not one of "
                f"{tensor.layout} on {tensor.device}"
            )
        if not tensor.is_contiguous():
            raise RuntimeError("input and output elements have to be contiguous: .contiguous()")
        check_allocated(tensor)
        found.append(tensor)
    if not found:
        raise RuntimeError("input sequence can't be empty")
    first, devices = found[0], {tensor.vgpu_index for tensor in found}
    if any(tensor.dtype != first.dtype for tensor in found):
        raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
    if any(tensor.numel() != first.numel() for tensor in found):
        raise RuntimeError("all inputs must have the same number of elements")
    if len(devices) < len(found):
        raise RuntimeError("inputs must be on unique devices")
    return found


def _check_root(root: int, tensors: Sequence[VirtualTensor]) -> None:
    if not 0 <= root < len(tensors):
        raise RuntimeError(f"invalid root: {root} of {len(tensors)} tensors")


def _check_pairs(
    sources: Sequence[VirtualTensor],
    targets: Sequence[VirtualTensor],
    larger: int,
    smaller: int,
) -> None:
    """RuntimeError unless each output goes with the input on its device, with `larger` / `smaller`
    times its elements."""
    if len(sources) != len(targets):
        raise RuntimeError(
            f"inputs and outputs sequences have to be of the same length, but got input of length "
            f"{len(sources)} and output of length {len(targets)}"
        )
    for source, target in zip(sources, targets, strict=True):
        if source.vgpu_index != target.vgpu_index:
            raise RuntimeError(
                f"input and output must be on the same device, not on {source.device} and "
                f"{target.device}"
            )
        if source.dtype != target.dtype:
            raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
        if source.numel() * larger != target.numel() * smaller:
            raise RuntimeError(
                f"output of {target.numel()} elements does not go with an input of "
                f"{source.numel()}: it needs {source.numel() * larger // smaller}"
            )
