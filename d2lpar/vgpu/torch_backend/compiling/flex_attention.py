"""`flex_attention`: one kernel in compiled code, separate operations elsewhere, as on CUDA.

Its functions say what becomes of a score (`score_mod`) and which scores count (`mask_mod`). They
are called on numbers of the processor, and what they use of a virtual GPU is replaced by its
values. The backward pass computes the scores again, so that neither pass keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ...device_naming import TYPE
from ...sim.pricing.attention_cost import FLEX, Attention, AttentionCost
from ..machine.runtime import current_runtime
from ..private import torch_attention
from ..tensors.tensor import VirtualTensor, backing, layout_of, wrap
from . import compiled

Function = Callable[..., torch.Tensor]

UNKNOWN_MASK = (
    "the mask of flex_attention depends on values that are not computed, as only shapes are: the "
    "kernel takes the time of most blocks that it may leave, perhaps of many more than it leaves"
)
_LARGE = {torch.bool: 1, torch.uint8: 100, torch.int8: 100, torch.int16: 2**14}
_MOST_SCORES = 2**24  # that are in memory at a time
_SAMPLED = 64  # blocks of queries, and of keys, that tell a mask without values


class _Call(NamedTuple):
    """What a call computes: see `torch.nn.attention.flex_attention`."""

    score_mod: Function
    block_mask: tuple
    scale: float

    def by_parts(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of queries, keys and values: the result, its rows' log2 of sums, and their maxima."""
        return torch_attention.flex_by_parts(
            *tensors, self.score_mod, self.block_mask[-1:], self.scale, {}
        )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Function,
    block_mask: tuple,
    scale: float,
    kernel_options: dict[str, object],
    score_mod_other_buffers: tuple = (),
    mask_mod_other_buffers: tuple = (),
) -> tuple[torch.Tensor, ...]:
    """The operator `flex_attention` for virtual GPUs: queries [batch, heads, queries, size], keys
    and values [batch, key_heads, keys, size] to the result and two numbers a row."""
    three = [query, key, value]
    if torch.is_autocast_enabled(TYPE):
        three = [t.to(torch.get_autocast_dtype(TYPE)) for t in three]
    mask_mod = _with(block_mask[-1], mask_mod_other_buffers)
    call = _Call(_with(score_mod, score_mod_other_buffers), (*block_mask[:-1], mask_mod), scale)
    with torch.autocast(TYPE, enabled=False):
        learnt = _learnt_by(call, query) if torch.is_grad_enabled() else []
        return _FlexAttention.apply(call, *three, *learnt)


def _with(function: Function, buffers: tuple) -> Function:
    return (lambda *args: function(*args, *buffers)) if buffers else function


class _FlexAttention(torch.autograd.Function):
    """Of a call, queries, keys, values, and what else the scores let learn."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = tensors[:3]
        ctx.call, ctx.is_fused = call, compiled.current() is not None
        found = _fused(call, query, key, value) if ctx.is_fused else _apart(call, tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(found[2])
        ctx.save_for_backward(*tensors, *found[:2])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        tensors, found = ctx.saved_tensors[:-2], ctx.saved_tensors[-2:]
        if grads[0] is None and grads[1] is None:
            return (None,) * (1 + len(tensors))
        pass_back = _fused_backward if ctx.is_fused else _apart_backward
        wanted = ctx.needs_input_grad[1:]
        gradients = pass_back(ctx.call, tensors, found, grads[:2])
        return None, *(g if w else None for g, w in zip(gradients, wanted, strict=True))


# --- by separate operations -----------------------------------------------------------------------


def _apart(call: _Call, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    query, key, value = tensors[:3]
    out, *sums = call.by_parts(query, key, value)
    return (torch_attention.permuted_like(out, query.stride()), *sums)


def _apart_backward(
    call: _Call,
    tensors: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    with torch.enable_grad():
        three = [t.detach().requires_grad_() for t in tensors[:3]]
        return _gradients(_apart(call, three), [*three, *tensors[3:]], grads)


def _gradients(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    given = [(r, g) for r, g in zip(results, grads, strict=False) if g is not None]
    outputs, cotangents = zip(*given, strict=True)
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


# --- by one kernel --------------------------------------------------------------------------------


def _fused(call: _Call, *three: torch.Tensor) -> tuple[torch.Tensor, ...]:
    query, _, value = three
    batch, heads, queries = query.shape[:3]
    values = [_values_of(t) for t in three]
    shapes = ((batch, heads, queries, value.shape[-1]), query.shape[:3], query.shape[:3])
    dtypes = (query.dtype, *[_of_sums(query)] * 2)
    found = [values[0].new_empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
    found[0] = torch_attention.permuted_like(found[0], query.stride())
    if not current_runtime().shape_only:
        for first, rows in _in_pieces(values):
            parts = _on_values(call, first, _Values()).by_parts(*rows)
            for whole, part in zip(found, parts, strict=True):
                whole[:, :, first : first + part.shape[2]] = part
    return tuple(_queue("flex_attention", call, three, found, backward=False))


def _fused_backward(
    call: _Call,
    tensors: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> Sequence[torch.Tensor | None]:
    gradients = [torch.zeros_like(_values_of(t)) for t in tensors]
    if not current_runtime().shape_only:
        _add_gradients(call, tensors, grads, gradients)
    reads = [*tensors, *found, *(g for g in grads if g is not None)]
    return _queue("flex_attention_backward", call, reads, gradients, backward=True)


def _add_gradients(
    call: _Call,
    tensors: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    gradients: list[torch.Tensor],
) -> None:
    """Compute the scores again, some queries at a time."""
    learnt = {id(t): _values_of(t).detach().requires_grad_() for t in tensors[3:]}
    given = [None if g is None else _values_of(g) for g in grads]
    for first, rows in _in_pieces([_values_of(t) for t in tensors[:3]]):
        last = first + rows[0].shape[2]
        with torch.enable_grad():
            three = [t.detach().requires_grad_() for t in rows]
            results = _on_values(call, first, _Values(learnt)).by_parts(*three)
            piece = [None if g is None else g[:, :, first:last] for g in given]
            parts = _gradients(results, [*three, *learnt.values()], piece)
        targets = [gradients[0][:, :, first:last], *gradients[1:]]
        for target, part in zip(targets, parts, strict=True):
            if part is not None:
                target += part


def _in_pieces(three: Sequence[torch.Tensor]) -> list[tuple[int, list[torch.Tensor]]]:
    """The first number and the tensors of as many queries as are computed at a time."""
    query, key, value = three
    in_a_row = query.shape[0] * query.shape[1] * key.shape[2]
    step = max(1, _MOST_SCORES // max(1, in_a_row))
    return [
        (first, [query[:, :, first : first + step], key, value])
        for first in range(0, query.shape[2], step)
    ]


def _on_values(call: _Call, first: int, mode: _Values) -> _Call:
    """The call for queries from `first` on; its functions are called on values."""

    def score_mod(score: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        batch, head, query, key = at
        with mode:
            return call.score_mod(score, batch, head, query + first, key)

    def mask_mod(batch: torch.Tensor, head: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        query, key = at
        with mode:
            return call.block_mask[-1](batch, head, query + first, key)

    return _Call(score_mod, (mask_mod,), call.scale)


def _queue(
    name: str,
    call: _Call,
    reads: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    *,
    backward: bool,
) -> list[VirtualTensor]:
    """Put one kernel on the clock; what it computes is on the device of what it reads."""
    rt = current_runtime()
    first = reads[0]
    assert isinstance(first, VirtualTensor), "torch calls this for tensors of virtual devices"
    index, region = first.vgpu_index, compiled.current()
    stream = (index, rt.current_stream(index))
    read = [t for t in reads if isinstance(t, VirtualTensor)]
    rt.check_in_use(*(t.vgpu_allocation for t in read))
    access = rt.sanitizer.work(stream, read)
    cost, host = AttentionCost(_work(call, reads, backward=backward)), rt.machine.host
    accelerator = rt.machine.accelerators[index]
    seconds = cost.seconds(accelerator)
    dispatch_s = host.compiled_s if region is None else region.dispatch_s(host, host.compiled_s)
    work = (stream, name, seconds, cost.bytes, cost.flops, dispatch_s)
    rt.host_threads.submit(index, rt.clock.kernel, *work, cost.engaged_s(accelerator, seconds))
    wrapped = []
    for result in results:
        known = (None, layout_of(result)) if rt.shape_only else (result, None)
        tensor = wrap(known[0], index, layout=known[1], stream=stream[1])
        tensor.vgpu_allocation.written = access
        if access is not None:
            tensor.vgpu_allocation.made = access[2]
        wrapped.append(tensor)
    rt.note_memory(index)
    return wrapped


def _values_of(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, VirtualTensor), "torch calls this for tensors of virtual devices"
    return backing(tensor)


def _of_sums(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _work(call: _Call, reads: Sequence[torch.Tensor], *, backward: bool) -> Attention:
    query, key, value = reads[:3]
    batch, heads, queries, size = query.shape
    shape = (batch, heads, key.shape[1], queries, key.shape[2], size, value.shape[-1])
    share, longest = _shares(call.block_mask, queries, key.shape[2])
    dtype = str(query.dtype).removeprefix("torch.")
    return Attention(FLEX, *shape, dtype, backward=backward, share=share, longest=longest)


# --- what the functions of a program use ----------------------------------------------------------


class _Values(TorchFunctionMode):
    """In its block virtual tensors are their values; `learnt` has those that autograd watches, by
    the identity of the tensor. `met` are the tensors that want gradients."""

    def __init__(self, learnt: dict[int, torch.Tensor] | None = None) -> None:
        super().__init__()
        self.met: dict[int, torch.Tensor] = {}
        self._learnt = learnt or {}

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = tree_map(self._value, args), tree_map(self._value, kwargs or {})
        device = kwargs.get("device")
        if isinstance(device, (str, torch.device)) and torch.device(device).type == TYPE:
            kwargs["device"] = current_runtime().backing
        return func(*args, **kwargs)

    def _value(self, value: object) -> object:
        if not isinstance(value, VirtualTensor):
            return value
        if value.requires_grad:
            self.met[id(value)] = value
        return self._learnt.get(id(value), backing(value))


class _Instead(_Values):
    """The same, but that 0, or a large number, stands for values that there are not."""

    def __init__(self, *, is_large: bool) -> None:
        super().__init__()
        self.is_needed = False
        self._is_large = is_large

    def _value(self, value: object) -> object:
        found = super()._value(value)
        if not isinstance(found, torch.Tensor) or not found.is_meta:
            return found
        self.is_needed = True
        number = _LARGE.get(found.dtype, 2**20) if self._is_large else 0
        return torch.tensor(number, dtype=found.dtype).expand(found.shape)


def _learnt_by(call: _Call, query: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that the function of scores uses and that want gradients."""
    if torch_attention.leaves_scores(call.score_mod):
        return []
    mode, one = _Values(), _values_of(query).new_zeros(1, 1, 1, 1)
    with torch.no_grad():
        _on_values(call, 0, mode).by_parts(one, one, one)
    return [*mode.met.values()]


def _shares(block_mask: tuple, queries: int, keys: int) -> tuple[float, float]:
    """Of all blocks, and of those of the row that has most, what the mask leaves."""
    *_, block_q, block_k, mask_mod = block_mask
    partial, whole = block_mask[2], block_mask[4]
    counts = [backing(t) for t in (partial, whole) if isinstance(t, VirtualTensor)]
    columns = -(-keys // block_k)
    if counts and not counts[0].is_meta:
        rows = torch.stack(counts).sum(0) / columns
        return float(rows.mean()), float(rows.max())
    return _sampled_shares(mask_mod, (queries, block_q), (keys, block_k))


def _sampled_shares(
    mask_mod: Function, queries: tuple[int, int], keys: tuple[int, int]
) -> tuple[float, float]:
    """The same by the first, middle and last numbers of some blocks, where there are no values: the
    most that is left if all that a mask depends on is 0, or all of it is large."""
    found = []
    for is_large in (False, True):
        mode = _Instead(is_large=is_large)
        try:
            found.append(_shares_in(mask_mod, mode, _samples(*queries), _samples(*keys)))
        except (IndexError, RuntimeError):  # no number of its own will do
            found.append((1.0, 1.0))
        if not mode.is_needed:
            break
        current_runtime().say_once(UNKNOWN_MASK)
    return max(found)


def _shares_in(
    mask_mod: Function, mode: _Values, queries: torch.Tensor, keys: torch.Tensor
) -> tuple[float, float]:
    call = _on_values(_Call(mask_mod, (mask_mod,), 1.0), 0, mode)
    every, none = torch_attention.over_all(call.block_mask[-1]), torch.zeros(1, dtype=torch.int32)
    with torch.no_grad():
        mask = every(none, none, queries.flatten(), keys.flatten())[0, 0]
    blocks = mask.unflatten(0, queries.shape).unflatten(2, keys.shape).any(3).any(1).float()
    return float(blocks.mean()), float(blocks.mean(1).max())


def _samples(length: int, block: int) -> torch.Tensor:
    """Three numbers of each of some blocks: [blocks, 3]."""
    count = -(-length // block)
    step = -(-count // _SAMPLED)
    first = torch.arange(0, count, step, dtype=torch.int32) * block
    last = (first + block - 1).clamp(max=length - 1)
    return torch.stack([first, (first + last) // 2, last], 1)
