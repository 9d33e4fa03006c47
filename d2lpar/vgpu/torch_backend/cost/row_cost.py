"""What operations cost that go by rows: norms, softmax, a classifier's loss, a table's gradient.

A block must have seen all of its row before it can write the first of it. Short rows stay in
registers or shared memory; longer ones are read again (PyTorch, aten/src/ATen/native/cuda:
layer_norm_kernel.cu, SoftMax.cu, PersistentSoftmax.cuh). Where one block has all of the work, or
every block goes through all rows, what counts is how often it must wait for memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod

import torch

from ...sim.pricing.kernel_cost import Kernel
from ...sim.pricing.memory_rates import ReadAgain
from ..private import torch_operators
from .moved_bytes import Arguments, Packet, size_bytes
from .sort_cost import by_digits

aten = torch.ops.aten
KernelsOf = Callable[[Arguments, int], list[Kernel]]  # from an operation's arguments and its bytes

NORM_BLOCKS = 16  # of 128 threads, on a multiprocessor of 2,048
SOFTMAX_BLOCKS = 2  # of 1,024 threads
LONGEST_OF_WARP, LONGEST_BYTES = 1024, 4096  # a row that a warp keeps in registers
WARP, WARPS = 32, 4  # threads of a warp, and warps of a block that has a warp for each row
FETCHED_BYTES = 16  # by one instruction
SHARED_BYTES = 48 * 1024  # that a block has without asking for more
UNSORTED_WORDS, WORDS_READS = 3072, 4
NO_REDUCTION, MEAN = 0, 1
LABELS_OF_THREAD = 16
LOSS_THREADS = 1024  # at most, of the block that adds up a batch's losses; 32 in PyTorch of 2024
_COLUMNS = 32  # of a block that sums the gradients of weights: GammaBetaBackwardCUDAKernel
# The number of the argument that says which gradients are wanted, the input's first.
WEIGHTS_WANTED = {aten.native_layer_norm_backward: 7, torch_operators.rms_norm_backward: 5}


# --- norms ----------------------------------------------------------------------------------------


def _norm(args: Arguments, nbytes: int) -> list[Kernel]:
    """The moments of a row, and then the row once more."""
    x, shape = args[:2]
    return [Kernel(0, nbytes, blocks=_count(x, prod(shape)), again=_norm_again([x], shape))]


def read_for_weights(packet: Packet, args: Arguments) -> int:
    """Bytes that a norm's backward pass reads once more for the gradients of its weights."""
    wanted = any(args[WEIGHTS_WANTED[packet]][1:])
    return sum(map(size_bytes, args[:2])) if wanted else 0


def _norm_backward(packet: Packet) -> KernelsOf:
    """The gradient of the input; those of the weights have a block for so many columns."""

    def kernels(args: Arguments, nbytes: int) -> list[Kernel]:
        gradient, x, shape = args[:3]
        width = prod(shape)
        again = _norm_again([gradient, x], shape)
        found = [Kernel(0, nbytes, blocks=_count(x, width), again=again)]
        if read := read_for_weights(packet, args):
            found.append(Kernel(0, read, blocks=math.ceil(width / _COLUMNS)))
        return found

    return kernels


def _norm_again(tensors: list[torch.Tensor], shape: Sequence[int]) -> ReadAgain:
    row_bytes = prod(shape) * sum(tensor.element_size() for tensor in tensors)
    return ReadAgain(sum(map(size_bytes, tensors)), row_bytes, NORM_BLOCKS)


def read_again(packet: Packet, args: Arguments) -> int:
    """Bytes of a second loop over what was read: batch norm needs means over the whole batch before
    it can begin to use it, group norm over a group, and gradients of a norm's weights are sums over
    all of its rows."""
    if packet in WEIGHTS_WANTED:
        return read_for_weights(packet, args)
    if packet is aten.native_group_norm or (packet is aten.native_batch_norm and args[5]):
        return size_bytes(args[0])
    if packet in (aten.native_batch_norm_backward, aten.native_group_norm_backward):
        return size_bytes(args[0]) + size_bytes(args[1])
    return 0


# --- softmax --------------------------------------------------------------------------------------


def _softmax(args: Arguments, nbytes: int) -> list[Kernel]:
    """Its maximum, its sum and its result need a row three times."""
    x, along = args[:2]
    fits = _fits_in_a_warp(x, along) or _fits_in_shared_memory(x, along)
    return [_by_rows(x, along, nbytes, 0 if fits else 2)]


def _log_softmax_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """The sum of a row of the gradient, and then the row once more."""
    gradient, _, along = args[:3]
    return [_by_rows(gradient, along, nbytes, 0 if _fits_in_a_warp(gradient, along) else 1)]


def _softmax_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """The same, of the products of gradient and output, which a kernel of their own writes."""
    gradient, output = args[:2]
    product = Kernel(0, 2 * size_bytes(gradient) + size_bytes(output))
    return [product, *_log_softmax_backward(args, nbytes)]


# --- the loss of a classifier ---------------------------------------------------------------------


def _loss(args: Arguments, nbytes: int) -> list[Kernel]:
    """A label, then the logarithm that it names, row after row."""
    _, labels, _, reduction = args[:4]
    return [Kernel(0, nbytes, serial_reads=2 * _turns(labels, reduction))]


def _loss_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """Zeros, and then one number for each label."""
    _, x, labels, _, reduction = args[:5]
    zeros = Kernel(0, size_bytes(x))
    return [zeros, Kernel(0, nbytes - zeros.bytes, serial_reads=_turns(labels, reduction))]


def _turns(labels: torch.Tensor, reduction: int) -> int:
    """How often the loop goes round of the one block that adds the losses of all rows (PyTorch,
    aten/src/ATen/native/cuda/Loss.cu, `nll_loss_threads`); losses by themselves have many."""
    if reduction == NO_REDUCTION or not labels.numel():
        return 0
    threads = 1 << round(math.log2(max(labels.numel() // LABELS_OF_THREAD, 1)))
    return math.ceil(labels.numel() / min(max(threads, WARP), LOSS_THREADS))


# --- losses by elements ---------------------------------------------------------------------------


def _cross_entropy_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """The gradient of each element's, which is divided then if it is of their mean (PyTorch,
    aten/src/ATen/native/cuda/Loss.cu)."""
    of_mean = len(args) < 5 or args[4] == MEAN
    return [Kernel(0, nbytes), *([Kernel(0, 2 * size_bytes(args[1]))] if of_mean else [])]


# --- the gradient of a table ----------------------------------------------------------------------


def _table_backward(args: Arguments, nbytes: int) -> list[Kernel]:
    """Zeros for all rows. Then each block goes through all words for its columns, 32 at a time; of
    more words the numbers are sorted first, so that each row is summed by one block (PyTorch,
    aten/src/ATen/native/cuda: Embedding.cu, EmbeddingBackwardKernel.cu).

    Measured on H100 (https://github.com/pytorch/pytorch/pull/137237, 2024), the first kernel takes
    1.6 µs for 32 words: it waits for words, gradient and row, and once for its other warps. Sorting
    4,096 words took 214 µs in all, of which the kernels here and what queues them explain 80;
    whether the rest is the host's is not known, and it is left out.
    """
    gradient, words, rows = args[:3]
    zeros = Kernel(0, rows * gradient.shape[-1] * gradient.element_size())
    summed_bytes = 2 * size_bytes(gradient)  # read, and added to rows
    if words.numel() <= UNSORTED_WORDS:
        turns = math.ceil(words.numel() / WARP)
        reads = WORDS_READS * turns
        return [zeros, Kernel(0, summed_bytes + size_bytes(words), serial_reads=reads)]
    sorting = by_digits(words.numel(), words.element_size())
    return [zeros, *sorting, *[Kernel(0, summed_bytes)] * 2]  # sums of parts of rows, and of these


# --- rows in general ------------------------------------------------------------------------------


def _by_rows(x: torch.Tensor, along: int, nbytes: int, times: int) -> Kernel:
    """A kernel that reads `x` so many `times` again."""
    row = _length(x, along)
    rows = _count(x, row)
    if _fits_in_a_warp(x, along):
        rows = math.ceil(rows / _rows_of_a_block(row))
    again = (
        ReadAgain(times * size_bytes(x), row * x.element_size(), SOFTMAX_BLOCKS) if times else None
    )
    return Kernel(0, nbytes, blocks=rows, again=again)


def _fits_in_a_warp(x: torch.Tensor, along: int) -> bool:
    row = _length(x, along)
    return _is_last(x, along) and row <= min(LONGEST_OF_WARP, LONGEST_BYTES // x.element_size())


def _rows_of_a_block(row: int) -> int:
    """Rows of up to 128 numbers come in pairs; those of less than a warp share one."""
    padded = 1 << max(row - 1, 0).bit_length()
    return WARPS * (WARP // min(padded, WARP)) * (2 if padded <= 4 * WARP else 1)


def _fits_in_shared_memory(x: torch.Tensor, along: int) -> bool:
    row_bytes = _length(x, along) * x.element_size()
    return _is_last(x, along) and row_bytes < SHARED_BYTES and row_bytes % FETCHED_BYTES == 0


def _is_last(x: torch.Tensor, along: int) -> bool:
    """Whether what a row is made of lies side by side."""
    return x.dim() == 0 or along % x.dim() == x.dim() - 1


def _length(x: torch.Tensor, along: int) -> int:
    return x.shape[along] if x.dim() else 1


def _count(x: torch.Tensor, row: int) -> int:
    return x.numel() // max(row, 1)


BY_ROWS: dict[Packet, KernelsOf] = {
    aten.native_layer_norm: _norm,
    torch_operators.rms_norm: _norm,
    **{packet: _norm_backward(packet) for packet in WEIGHTS_WANTED},
    torch_operators.softmax: _softmax,
    torch_operators.log_softmax: _softmax,
    torch_operators.softmax_backward: _softmax_backward,
    torch_operators.log_softmax_backward: _log_softmax_backward,
    aten.nll_loss_forward: _loss,
    aten.binary_cross_entropy_backward: _cross_entropy_backward,
    aten.embedding_dense_backward: _table_backward,
    aten.nll_loss_backward: _loss_backward,
}
