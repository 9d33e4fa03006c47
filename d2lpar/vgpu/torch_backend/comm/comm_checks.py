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


def scattered(devices: Sequence[int], chunk_sizes: Sequence[int] | None) -> None:
    """RuntimeError without devices, or unless there are as many chunks."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )


def gathered(tensors: Sequence[torch.Tensor], dim: int) -> None:
    """RuntimeError for what cannot be concatenated along `dim`, IndexError if there is none."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    along = _dimension(tensors[0], dim)
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, VirtualTensor):
            raise RuntimeError(
                f"Expected all input tensors to be {naming().type.upper()} tensors, but tensor at "
                f"index {i} has device {tensor.device}"
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
