"""What norms of images cost: of batches and of groups, by how these lie.

In a batch whose channels are first, each of them has one block of 512 threads, which goes through
its numbers twice (cuDNN's `bn_fw_tr_1C11` and `bn_bw_1C11`; PyTorch, aten/src/ATen/native/cuda/
Normalization.cuh). So 64 channels keep 64 multiprocessors busy, and these wait for memory most of
the time, with more bandwidth as long. Where channels are last, blocks share rows of all of them,
and traffic counts.

Measured on A100 and V100 (xwang233/code-snippet, 2021: batchnorm3d-channels-last, fp16, cuDNN 8.2;
syncbn-channels-last, fp32, PyTorch 1.8): 2 channels of 22.5 million numbers take 12.5 ms forward on
A100 and 12.2 on V100, where traffic alone would take 0.2 and 0.3, and 64 of them 15.7 and 23.8.
PyTorch's own kernels wait for number by number: 64 channels of 1.6 million for 2.1 ms on A100, and
1.9 for the sums of their gradients. Few channels, as last ones, take longer than is reckoned here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch

from ...sim.constants import NORM_BACKWARD_AT_ONCE, NORM_FORWARD_AT_ONCE
from ...sim.pricing.kernel_cost import Kernel
from .moved_bytes import Arguments, Packet, size_bytes

aten = torch.ops.aten

THREADS = 512  # of a block
_CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)


def batch_norm(args: Arguments, nbytes: int) -> list[Kernel]:
    """Means and deviations, and then the images once more; evaluated, these only."""
    x, weight, training = args[0], args[1], args[5]
    if not training or _has_channels_last(x):
        return [Kernel(0, nbytes)]
    if _is_cudnn(x, weight):
        return [_waiting(nbytes, 2 * ceil(_of_channel(x) / (THREADS * NORM_FORWARD_AT_ONCE)))]
    read = size_bytes(x)
    return [*stats(args, read), Kernel(0, nbytes - read)]


def batch_norm_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """Sums of the gradient and of its products with the images, and then both once more."""
    dy, x, weight, training = args[0], args[1], args[2], args[7]
    if _has_channels_last(x):
        return [Kernel(0, nbytes)]
    if training and _is_cudnn(x, weight):
        return [_waiting(nbytes, 4 * ceil(_of_channel(x) / (THREADS * NORM_BACKWARD_AT_ONCE)))]
    read = size_bytes(dy) + size_bytes(x)
    return [*backward_sums(args, read), Kernel(0, nbytes - read)]


def stats(args: Arguments, nbytes: int) -> list[Kernel]:
    """PyTorch's own means and deviations, by Welford's algorithm, number by number."""
    x = args[0]
    return [Kernel(0, nbytes) if _has_channels_last(x) else _one_by_one(nbytes, _of_channel(x))]


def backward_sums(args: Arguments, nbytes: int) -> list[Kernel]:
    """PyTorch's own sums of gradients, and of their products with the images."""
    return stats(args[1:], nbytes)


def group_norm(args: Arguments, nbytes: int) -> list[Kernel]:
    """As PyTorch's own batch norm; a block has a group of an image (group_norm_kernel.cu)."""
    x, channels, places, groups = args[0], args[4], args[5], args[6]
    read = size_bytes(x)
    return [_one_by_one(read, channels // groups * places), Kernel(0, nbytes - read)]


def group_norm_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """Sums for each channel of an image, and then gradients and images once more."""
    dy, x, places = args[0], args[1], args[7]
    read = size_bytes(dy) + size_bytes(x)
    return [_one_by_one(read, places), Kernel(0, nbytes - read)]


def _one_by_one(nbytes: int, numbers: int) -> Kernel:
    return _waiting(nbytes, ceil(numbers / THREADS))


def _waiting(nbytes: int, reads: int) -> Kernel:
    return Kernel(0, nbytes, serial_reads=reads, reads_own=True)


def _of_channel(x: torch.Tensor) -> int:
    return x.numel() // max(x.shape[1], 1)


def _has_channels_last(x: torch.Tensor) -> bool:
    """Rows of numbers have, too (`batch_norm_use_channels_last_kernels` in aten/src/ATen/native/
    cuda/Normalization.cu); a channel that is alone lies either way, and has one block."""
    return x.stride(1) == 1 and x.shape[1] > 1


def _is_cudnn(x: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Whether PyTorch asks cuDNN: `_batch_norm_impl_index` in aten/src/ATen/native/
    Normalization.cpp. Its weights are float32 where images are float16."""
    if weight is None or x.dim() < 3 or x.dtype not in _CUDNN_DTYPES:
        return False
    return x.dtype != torch.float16 or weight.dtype == torch.float32


# Kernels from an operation's arguments, and from its bytes with those that are read again.
IMAGE_NORMS: dict[Packet, Callable[[Arguments, int], list[Kernel]]] = {
    aten.native_batch_norm: batch_norm,
    aten.native_batch_norm_backward: batch_norm_backward,
    aten.batch_norm_stats: stats,
    aten.batch_norm_backward_reduce: backward_sums,
    aten.native_group_norm: group_norm,
    aten.native_group_norm_backward: group_norm_backward,
}
