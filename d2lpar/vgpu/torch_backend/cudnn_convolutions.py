"""cuDNN's convolutions, as programs call them by name: torch's own, which cost the same."""

from __future__ import annotations

import torch


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
    return torch.convolution(
        x, weight, None, stride, padding, dilation, True, output_padding, groups
    )
