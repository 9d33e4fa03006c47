"""Values of synchronised batch normalisation's kernels, which torch has for CUDA only.

Each function stands for an operation of the same arguments: see `KERNELS`. Shapes: inputs and their
gradients [batch, channels, ...], statistics [channels], of all ranks [ranks, channels], `counts`
[ranks]. What is summed up is float32 at least, as on CUDA. `torch.nn.SyncBatchNorm` calls them;
the formulas are those of Ioffe and Szegedy 2015, with sums over the batches of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten


def stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one rank's batch: the mean, and one over the standard deviation."""
    variance, mean = torch.var_mean(_summed(input), _all_but_channels(input), correction=0)
    return mean, (variance + eps).rsqrt()


def gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the batches of all ranks together; running statistics follow them in place."""
    counts = counts.to(mean.dtype).view(-1, 1)
    total = counts.sum()
    overall = (counts * mean).sum(0) / total
    squares = counts * (invstd.pow(-2) - eps + (mean - overall).square())
    variance = squares.sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(overall.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = squares.sum(0) / (total - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return overall, (variance + eps).rsqrt()


def gather_stats(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for batches of one size, `count` elements a channel."""
    counts = torch.full_like(mean[:, 0], count)
    return gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def elemt(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The normalised input, scaled and shifted."""
    scale = invstd if weight is None else invstd * weight
    result = (_summed(input) - _channels(mean, input)) * _channels(scale, input)
    if bias is not None:
        result = result + _channels(bias, input)
    return result.to(input.dtype)


def backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:
    """One rank's sums of the gradient, and of its products with the distance from the mean; with
    them, the gradients of scale and shift."""
    dims, gradient = _all_but_channels(input), _summed(grad_out)
    sum_dy = gradient.sum(dims)
    sum_dy_xmu = (gradient * (_summed(input) - _channels(mean, input))).sum(dims)
    kind = sum_dy.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd).to(kind) if weight_g else None,
        sum_dy.to(kind) if bias_g else None,
    )


def backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the input, from the sums over all ranks."""
    total = count.sum().to(sum_dy.dtype)
    slope = _channels(invstd.square() * sum_dy_xmu / total, input)
    distance = _summed(input) - _channels(mean, input)
    gradient = _summed(grad_out) - _channels(sum_dy / total, input) - distance * slope
    scale = invstd if weight is None else invstd * weight
    return (gradient * _channels(scale, input)).to(input.dtype)


KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    aten.batch_norm_stats.default: stats,
    aten.batch_norm_gather_stats_with_counts.default: gather_stats_with_counts,
    aten.batch_norm_gather_stats.default: gather_stats,
    aten.batch_norm_elemt.default: elemt,
    aten.batch_norm_backward_reduce.default: backward_reduce,
    aten.batch_norm_backward_elemt.default: backward_elemt,
}


def _summed(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _all_but_channels(input: torch.Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _channels(statistics: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Statistics in a shape that fits the input."""
    return statistics.view(1, -1, *[1] * (input.dim() - 2))
