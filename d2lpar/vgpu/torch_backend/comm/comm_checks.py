"""What torch's C++ checks before it moves tensors between devices, in its words.

The texts are those of torch/csrc/cuda/comm.cpp: programs and tests look for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.parameter import is_lazy

from ...device_naming import naming
from ..tensors.tensor import VirtualTensor


def initialized(tensors: Sequence[torch.Tensor]) -> None:
    """ValueError for a parameter whose shape is not known yet, as torch has it for all its uses."""
    for tensor in tensors:
        if is_lazy(tensor):
            tensor.contiguous()


def broadcast_into(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
    """RuntimeError unless `out` are tensors of devices, shaped as `tensor`."""
    for i, target in enumerate(out):
        _output(i, target)
        if target.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {i} has shape "
                f"{list(target.shape)}"
            )


def scattered(devices: Sequence[int], chunk_sizes: Sequence[int] | None) -> None:
    """RuntimeError without devices, or unless there are as many chunks."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )


def scattered_into(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int) -> int:
    """The dimension, counted from the first. RuntimeError unless `out` divide `tensor` there."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    along = _dimension(tensor, dim)
    for i, target in enumerate(out):
        _output(i, target)
        if target.dim() != tensor.dim() or _but(target, along) != _but(tensor, along):
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {list(target.shape)}. Expected "
                f"same shape except for scatter dim {along} as the source tensor: "
                f"{list(tensor.shape)}"
            )
    total = sum(target.shape[along] for target in out)
    if total != tensor.shape[along]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {along} does not match the source "
            f"tensor size at dim {along}. Expected {tensor.shape[along]}, but got total size "
            f"{total}"
        )
    return along


def gathered(tensors: Sequence[torch.Tensor], dim: int, *, quote: str = "") -> int:
    """The dimension, counted from the first. RuntimeError for what cannot be concatenated there.

    `quote` is what torch puts around the name of a wrong device.
    """
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    along = _dimension(tensors[0], dim)
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, VirtualTensor):
            raise RuntimeError(
                f"Expected all input tensors to be {naming().type.upper()} tensors, but tensor at "
                f"index {i} has device {quote}{tensor.device}{quote}"
            )
        if tensor.dim() != tensors[0].dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {i} has {tensor.dim()} dimensions, (expected {tensors[0].dim()})"
            )
        if _but(tensor, along) != _but(tensors[0], along):
            expected = list(tensors[0].shape)
            expected[along] = tensor.shape[along]
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected "
                f"{expected}"
            )
    return along


def gathered_into(tensors: Sequence[torch.Tensor], out: torch.Tensor, along: int) -> None:
    """RuntimeError unless `out` has the shape of the others, concatenated."""
    expected = list(tensors[0].shape)
    expected[along] = sum(tensor.shape[along] for tensor in tensors)
    if list(out.shape) != expected:
        raise RuntimeError(
            f"Expected out tensor to have shape {expected}, but got {list(out.shape)}"
        )


def summed(inputs: Sequence[torch.Tensor]) -> None:
    """AssertionError for tensors of the host, ValueError unless all have the same shape."""
    for i, tensor in enumerate(inputs):
        if tensor.device.type == "cpu":
            raise AssertionError(
                f"reduce_add expects all inputs to be on GPUs, but input {i} is on CPU"
            )
        if tensor.shape != inputs[0].shape:
            got, expected = ("x".join(map(str, t.shape)) for t in (tensor, inputs[0]))
            raise ValueError(f"input {i} has invalid size: got {got}, but expected {expected}")


def _output(i: int, target: torch.Tensor) -> None:
    if not isinstance(target, VirtualTensor):
        raise RuntimeError(
            f"Expected all output tensors to be {naming().type.upper()} tensors, but output tensor "
            f"at index {i} has device '{target.device}'"
        )


def _dimension(tensor: torch.Tensor, dim: int) -> int:
    """A dimension, counted from the first. IndexError if there is none."""
    if not -tensor.dim() <= dim < max(tensor.dim(), 1):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-tensor.dim()}, "
            f"{tensor.dim() - 1}], but got {dim})"
        )
    return dim % max(tensor.dim(), 1)


def _but(tensor: torch.Tensor, dim: int) -> list[int]:
    """The shape without one dimension."""
    return [n for i, n in enumerate(tensor.shape) if i != dim]
