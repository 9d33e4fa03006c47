"""Bytes that an operation moves: what it reads of each argument, what it writes.

Most operations read all that they are given, and write all that they return. The others are named
here by kind: those that need a tensor for its shape only, those that write without reading, and
those that touch some rows or elements of a tensor, such as the lookup in a table of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch

from ...sim.pricing.memory_rates import ReadAgain
from ..private import torch_operators, torch_tensors

aten = torch.ops.aten
# What torch's dispatcher hands over: the operation's schema says of which types the arguments are.
Arguments = Sequence[Any]
Packet = torch_operators.Packet

# What memory hands over at least (NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to
# Global Memory"): an element without neighbours takes as much.
SECTOR_BYTES = 32
REUSED_BYTES = 2**19  # stay in the cache: a third of the smallest of the catalogue

_SHAPE_ONLY: dict[Packet, int] = {  # the number of the argument that is given for its shape or kind
    aten.batch_norm_gather_stats: 0,
    aten.batch_norm_gather_stats_with_counts: 0,
    aten.nll_loss_backward: 1,
    aten.nll_loss2d_backward: 1,
    aten.max_pool2d_with_indices_backward: 1,
    aten.max_pool3d_with_indices_backward: 1,
    aten.avg_pool2d_backward: 1,
    aten.avg_pool3d_backward: 1,
    torch_operators.adaptive_avg_pool2d_backward: 1,
    aten.adaptive_max_pool2d_backward: 1,
    aten.reflection_pad2d_backward: 1,
    aten.replication_pad2d_backward: 1,
    aten.log_sigmoid_backward: 2,  # a buffer that only the CPU's kernels use
}
_ONLY_WRITE = {
    *(aten.zero_, aten.fill_, aten.index_copy_, aten.index_fill_),
    *(aten.uniform_, aten.normal_, aten.bernoulli_, aten.exponential_, aten.random_),
    *(aten.log_normal_, aten.geometric_, aten.cauchy_),
}
_ADDED = {aten.addmm, aten.baddbmm, aten.addbmm, aten.addmv, aten.addr}
_ADDED_IN_PLACE = {aten.addmm_, aten.baddbmm_, aten.addbmm_, aten.addmv_, aten.addr_}
_PUT = {aten.index_put_, torch_operators.index_put_in_place, aten.put_}  # may add: argument 3


def size_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor that come from memory: fewer than its elements have, where these share
    their places, as in expanded tensors and in windows that overlap. What is repeated only after
    more than `REUSED_BYTES` of others comes from memory again."""
    if tensor.layout is not torch.strided:
        return sum(t.numel() * t.element_size() for t in torch_tensors.sparse_parts(tensor))
    count, each = tensor.numel(), tensor.element_size()
    if not count:
        return 0
    steps = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    if all(step for _, step in steps):
        return min(count, 1 + sum((n - 1) * step for n, step in steps)) * each
    count = 1
    for n, step in reversed(steps):
        if step or count * each > REUSED_BYTES:
            count *= n
    return count * each


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among arguments, and in their lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(value))
    return found


def moved_bytes(
    func: torch._ops.OpOverload, args: Arguments, kwargs: dict[str, object], outputs: object
) -> int:
    """Bytes read of the arguments, and written to those that change and to what is new."""
    schema = torch_operators.schema_of(func)
    only_written = _only_writes(func, args, kwargs)
    part = partly_moved(func, args, kwargs, outputs)
    total = 0
    for number, argument in enumerate(schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        size = sum(map(size_bytes, tensors_in([value])))
        if part is not None and number == part[0]:
            size = part[1]
        written = argument.alias_info is not None and argument.alias_info.is_write
        read = not written or not (argument.is_out or only_written)
        total += size * (written + read)
    if all(result.alias_info is None for result in schema.returns):
        made = tensors_in([outputs])
        is_buffered = func.overloadpacket is aten.log_sigmoid_forward
        total += sum(map(size_bytes, made[:1] if is_buffered else made))
    return total


def moved_again(
    func: torch._ops.OpOverload, args: Arguments, kwargs: dict[str, object], outputs: object
) -> ReadAgain | None:
    """What an operation reads, or changes, after it has done so once; None if that is nothing, or
    soon after it."""
    if (touched := _TOUCHED.get(func.overloadpacket)) is not None:
        added = torch_operators.schema_of(func).arguments[0].alias_info is not None
        times = 2 if added and not _only_writes(func, args, kwargs) else 1
        nbytes, of_one = touched(args, outputs) or 0, _in_unknown_order(func, args)
        return rows_again(nbytes, size_bytes(args[0]), of_one, times)
    return _read_for_each_part(func, args, outputs)


def rows_again(nbytes: int, whole: int, of_one: int, times: int = 1) -> ReadAgain | None:
    """The same of an operation that touches so many bytes of a `whole`, whose parts of `of_one`
    bytes it goes through in an order that nobody knows: until it comes back to a place in a part,
    it has seen all others, and written as much."""
    if nbytes <= whole or 2 * of_one <= REUSED_BYTES:
        return None
    return ReadAgain(times * (nbytes - whole), 2 * of_one)


def _read_for_each_part(
    func: torch._ops.OpOverload, args: Arguments, outputs: object
) -> ReadAgain | None:
    """What an operation by elements reads of smaller operands for each of the larger one's parts,
    such as a mask of [queries, keys] for each head."""
    if torch.Tag.pointwise not in func.tags or not isinstance(outputs, torch.Tensor):
        return None
    shape, operands = outputs.shape, tensors_in(args)
    whole = [t for t in (*operands, outputs) if t.shape == shape]
    of_element = sum(t.element_size() for t in whole)
    found = [_repeats(t, shape, of_element) for t in operands if t.numel() < prod(shape)]
    again = [(nbytes, since) for nbytes, since in found if since > REUSED_BYTES]
    if not again:
        return None
    return ReadAgain(sum(nbytes for nbytes, _ in again), max(since for _, since in again))


def _repeats(operand: torch.Tensor, shape: Sequence[int], of_element: int) -> tuple[int, int]:
    """Bytes of the operand that are read again, and those that are moved between: those of a part
    of the result, behind its first dimensions that the operand lacks."""
    own = [1] * (len(shape) - operand.dim()) + list(operand.shape)
    lacks = [mine < n for mine, n in zip(own, shape, strict=True)]
    first = lacks.index(True)
    last = next((i for i in range(first, len(shape)) if not lacks[i]), len(shape))
    times, each = prod(shape[first:last]), operand.element_size()
    since = prod(shape[last:]) * of_element + prod(own[last:]) * each
    return operand.numel() * each * (times - 1), since


def partly_moved(
    func: torch._ops.OpOverload, args: Arguments, kwargs: dict[str, object], outputs: object
) -> tuple[int, int] | None:
    """The number of the argument of which not all is read or written, and the bytes that are."""
    if (number := _shape_only(func, kwargs)) is not None:
        return number, 0
    touched = _TOUCHED.get(func.overloadpacket)
    part = touched(args, outputs) if touched else None
    return None if part is None else (0, min(part, size_bytes(args[0])))


def _shape_only(func: torch._ops.OpOverload, kwargs: dict[str, object]) -> int | None:
    name = torch_operators.schema_of(func).name
    if name.startswith("aten::new_") or (name.startswith("aten::") and name.endswith("_like")):
        return 0
    if func.overloadpacket in _ADDED and kwargs.get("beta") == 0:  # a product, added to nothing
        return 0
    return _SHAPE_ONLY.get(func.overloadpacket)


def _only_writes(func: torch._ops.OpOverload, args: Arguments, kwargs: dict[str, object]) -> bool:
    packet = func.overloadpacket
    if packet in _PUT:
        return len(args) < 4 or not args[3]
    if packet in _ADDED_IN_PLACE:
        return kwargs.get("beta") == 0
    return packet in _ONLY_WRITE or func in (aten.scatter_.src, aten.scatter_.value)


# --- some rows, some elements ---------------------------------------------------------------------

_Part = Callable[[Arguments, Any], "int | None"]  # bytes; None: all of it, as far as one can tell


def _in_unknown_order(func: torch._ops.OpOverload, args: Arguments) -> int:
    """Bytes of what indices order: what lies behind the dimensions before the first that they
    name, since the kernel goes through those one by one."""
    tensor, where = args[0], args[1]
    if func.overloadpacket in _ROW_BY_ROW:
        first = 1
    elif isinstance(where, int):
        first = where % max(tensor.dim(), 1)
    elif isinstance(where, (list, tuple)):
        first = next(i for i, index in enumerate(where) if index is not None)
    else:
        first = 0
    return prod(tensor.shape[first:]) * tensor.element_size()


def _runs(tensor: torch.Tensor, count: int, together: int) -> int:
    """Bytes of so many elements of which so many lie `together`."""
    run = max(together, 1) * tensor.element_size()
    return -(-count // max(together, 1)) * -(-run // SECTOR_BYTES) * SECTOR_BYTES


def _behind(tensor: torch.Tensor, along: int) -> int:
    """Elements that lie together, at each place along a dimension."""
    return prod(tensor.shape[along % max(tensor.dim(), 1) + 1 :])


def _rows_read(args: Arguments, outputs: torch.Tensor) -> int:
    table, along = args[:2]
    return _runs(table, outputs.numel(), _behind(table, along))


def _rows_changed(args: Arguments, _: object) -> int:
    table, along, index = args[:3]
    length = table.shape[along] if table.dim() else 1
    return _runs(table, table.numel() // max(length, 1) * index.numel(), _behind(table, along))


def _words(args: Arguments, _: object) -> int:
    table, words = args[:2]
    return _runs(table, words.numel() * table.shape[-1], table.shape[-1])


def _along(args: Arguments, _: object) -> int:
    """An element for each of the index: along another dimension than the last one, neighbours of
    the index lie beside each other."""
    tensor, along, index = args[:3]
    return _runs(tensor, index.numel(), min(_behind(tensor, along), index.shape[-1:].numel()))


def _scattered(args: Arguments, _: object) -> int:
    """An element for each of the index, of the classes' logits or of a flat tensor."""
    return _runs(args[0], args[1].numel(), 1)


def _indexed(args: Arguments, _: object) -> int | None:
    """What `tensor[indices]` names. How much a mask chooses is not known before it is read."""
    tensor, indices = args[:2]
    given = [(i, index) for i, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in given):
        return None
    count = prod(torch.broadcast_shapes(*[index.shape for _, index in given]))
    left = prod(n for i, n in enumerate(tensor.shape) if i not in dict(given))
    return _runs(tensor, count * left, _behind(tensor, given[-1][0]))


def _chosen(args: Arguments, outputs: torch.Tensor) -> int:
    """The same, read: by the result one knows how much a mask has chosen."""
    part = _indexed(args, outputs)
    return outputs.numel() * args[0].element_size() if part is None else part


_ROW_BY_ROW = {aten.nll_loss_forward, aten.nll_loss2d_forward}
_TOUCHED: dict[Packet, _Part] = {  # of the first argument
    aten.index_select: _rows_read,
    aten.gather: _along,
    aten.take: _scattered,
    aten.embedding: _words,
    torch_operators.embedding_bag: _words,
    torch_operators.embedding_bag_forward_only: _words,
    aten.index: _chosen,
    torch_operators.unsafe_index: _chosen,
    aten.nll_loss_forward: _scattered,
    aten.nll_loss2d_forward: _scattered,
    aten.index_copy_: _rows_changed,
    aten.index_add_: _rows_changed,
    aten.index_fill_: _rows_changed,
    aten.index_put_: _indexed,
    torch_operators.index_put_in_place: _indexed,
    aten.scatter_: _along,
    aten.scatter_add_: _along,
    aten.scatter_reduce_: _along,
    aten.put_: _scattered,
}
