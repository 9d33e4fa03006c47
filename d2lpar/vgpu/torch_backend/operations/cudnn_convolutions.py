"""cuDNN's convolutions, as programs call them by name: torch's own, which cost the same."""

from __future__ import annotations

import torch

from ....machines.compute_capability import compute_capability
from ..machine.runtime import current_runtime
from ..tensors.tensor import VirtualTensor

_BFLOAT16 = (8, 0)  # the first compute capability where cuDNN has such kernels


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> torch.Tensor:
    """`aten::cudnn_convolution`; there is one way to compute it, so the last three change none."""
    _check_type(x)
    no_padding = [0] * len(padding)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, no_padding, groups)


def convolution_transpose(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> torch.Tensor:
    """`aten::cudnn_convolution_transpose`, likewise."""
    _check_type(x)
    return torch.convolution(
        x, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def _check_type(x: torch.Tensor) -> None:
    """RuntimeError, in cuDNN's words, where the device has no kernel; by their general names,
    convolutions have one of torch's own."""
    if x.dtype is not torch.bfloat16 or not isinstance(x, VirtualTensor):
        return
    major, minor = compute_capability(current_runtime().machine.accelerators[x.vgpu_index])
    if (major, minor) < _BFLOAT16:
        raise RuntimeError(
            "GET was unable to find an engine to execute this computation: cuDNN computes bfloat16 "
            f"from compute capability 8.0 on, and {x.device} has {major}.{minor}. Call "
            "torch.nn.functional.conv2d, or use float16"
        )
