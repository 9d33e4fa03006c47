"""Which kernel of attention CUDA would choose: flash, memory-efficient, cuDNN, or math.

The rules are those of PyTorch 2.15 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) as its
wheels are built, with cuDNN 9.15.1 or newer: on Hopper and its successors cuDNN comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from ....machines.compute_capability import compute_capability
from ..machine import runtime
from ..private import torch_attention
from ..tensors.tensor import VirtualTensor

MATH, FLASH, EFFICIENT, CUDNN = range(4)  # as torch.nn.attention.SDPBackend numbers them

_HALF = (torch.float16, torch.bfloat16)
_MOST_HEADS_OF_CUDNN = 65535


class KernelSettings(NamedTuple):
    """What a program has allowed, and the order in which kernels are tried."""

    allowed: frozenset[int]
    order: tuple[int, ...]
    deterministic: bool


class Inputs(NamedTuple):
    """What the rules ask of a call: of queries, keys and values in this order."""

    shapes: tuple[torch.Size, ...]
    last_strides: tuple[int, ...]
    offsets: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    mask: torch.Size | None
    mask_stride: int
    mask_learns: bool
    dropout: float
    causal: bool
    grouped: bool
    learns: bool
    capability: tuple[int, int]


class Choice(NamedTuple):
    """The kernel (None if there is none), and why the others cannot be used."""

    kernel: int | None
    reasons: dict[str, str]


Rule = Callable[[Inputs], str | None]  # why not; None if nothing is in the way


def choose(inputs: Inputs) -> int:
    """The kernel for a call. RuntimeError with the reasons if a program allows none that could."""
    current = settings()
    if not current.allowed:
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found: the plain and all fused "
            "kernels are disabled; allow one by torch.nn.attention.sdpa_kernel"
        )
    choice = _choose(inputs, current)
    if choice.kernel is None:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in choice.reasons.items())
        raise RuntimeError(f"No available kernel. Aborting execution. Not used:\n{reasons}")
    return choice.kernel


def why_not(kernel: int, inputs: Inputs) -> str | None:
    """What keeps a call from a fused kernel; None if it could take it."""
    return _why_not(kernel, inputs, settings())


def settings() -> KernelSettings:
    """What `sdpa_kernel` and `torch.backends.cuda` have set."""
    allowed = (
        (MATH, torch.backends.cuda.math_sdp_enabled()),
        (FLASH, torch.backends.cuda.flash_sdp_enabled()),
        (EFFICIENT, torch.backends.cuda.mem_efficient_sdp_enabled()),
        (CUDNN, torch.backends.cuda.cudnn_sdp_enabled()),
    )
    return KernelSettings(
        frozenset(kernel for kernel, is_allowed in allowed if is_allowed),
        tuple(torch_attention.attention_order()),
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def inputs_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    grouped: bool,
) -> Inputs:
    """What the rules ask of the arguments of `F.scaled_dot_product_attention`."""
    three = (query, key, value)
    machine = runtime.current_runtime().machine
    index = query.vgpu_index if isinstance(query, VirtualTensor) else 0
    return Inputs(
        tuple(t.shape for t in three),
        tuple(t.stride(-1) for t in three),
        tuple(int(t.storage_offset()) for t in three),
        tuple(t.dtype for t in three),
        None if mask is None else mask.shape,
        1 if mask is None else mask.stride(-1),
        mask is not None and mask.requires_grad,
        dropout,
        causal,
        grouped,
        torch.is_grad_enabled() and any(t.requires_grad for t in three),
        compute_capability(machine.accelerators[index]),
    )


@lru_cache(maxsize=4096)
def _choose(inputs: Inputs, settings: KernelSettings) -> Choice:
    reasons: dict[str, str] = {}
    for kernel in _order(inputs.capability, settings.order):
        if kernel == MATH:
            if MATH in settings.allowed:
                return Choice(MATH, reasons)
            reasons["math"] = "it has been disabled"
            continue
        reason = _why_not(kernel, inputs, settings)
        if reason is None:
            return Choice(kernel, reasons)
        reasons[_NAMES[kernel]] = reason
    return Choice(None, reasons)


def _order(capability: tuple[int, int], order: tuple[int, ...]) -> list[int]:
    known = [kernel for kernel in order if kernel in (MATH, *_NAMES)]
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    if known != [FLASH, EFFICIENT, MATH, CUDNN] or capability[0] not in (9, 10) or deprioritized:
        return known
    return known if torch_attention.attention_order_is_set() else [CUDNN, *known[:-1]]


def _why_not(kernel: int, inputs: Inputs, settings: KernelSettings) -> str | None:
    if kernel not in settings.allowed:
        return "it has been disabled"
    if kernel == CUDNN and settings.deterministic:
        return "it is not deterministic"
    found = (rule(inputs) for rule in _RULES[kernel])
    return next((reason for reason in found if reason is not None), None)


# --- rules for all --------------------------------------------------------------------------------


def _four_dimensions(call: Inputs) -> str | None:
    if all(len(shape) == 4 for shape in call.shapes):
        return None
    return f"query, key and value must have 4 dimensions, not shapes {_text(call)}"


def _same_batch_and_heads(call: Inputs, *, same_groups: bool = True) -> str | None:
    (batch, heads, *_), (key_batch, key_heads, *_), (value_batch, value_heads, *_) = call.shapes
    if not batch == key_batch == value_batch:
        return f"query, key and value must have the same batch size, not shapes {_text(call)}"
    if call.grouped:
        if same_groups and key_heads != value_heads:
            return f"key and value must have the same number of heads, not shapes {_text(call)}"
        if key_heads and value_heads and not (heads % key_heads or heads % value_heads):
            return None
        return f"the heads of key and value must divide those of query: shapes {_text(call)}"
    if heads == key_heads == value_heads or (heads and key_heads == value_heads == 1):
        return None
    return (
        f"query, key and value must have the same number of heads, not shapes {_text(call)}: "
        "expand key and value, or pass enable_gqa=True"
    )


def _no_empty_sequence(call: Inputs) -> str | None:
    empty = 0 in (call.shapes[0][2], call.shapes[1][2])
    return f"sequences must not be empty: shapes {_text(call)}" if empty else None


def _last_stride_1(call: Inputs, *, single_is_free: bool = True) -> str | None:
    single = single_is_free and call.shapes[0][-1] == 1
    if (set(call.last_strides) == {1} or single) and call.mask_stride == 1:
        return None
    strides = ", ".join(map(str, (*call.last_strides, call.mask_stride)))
    return f"the last dimension of query, key, value and mask must have stride 1, not {strides}"


def _dtypes(call: Inputs, known: tuple[torch.dtype, ...]) -> str | None:
    if len(set(call.dtypes)) == 1 and call.dtypes[0] in known:
        return None
    found = ", ".join(map(str, call.dtypes))
    return f"query, key and value must be of one type of {', '.join(map(str, known))}, not {found}"


def _architecture(call: Inputs, first: tuple[int, int]) -> str | None:
    if first <= call.capability <= (12, 1):
        return None
    (major, minor), (first_major, first_minor) = call.capability, first
    return f"it needs compute capability {first_major}.{first_minor} to 12.1, not {major}.{minor}"


def _text(call: Inputs) -> str:
    return ", ".join(str([*shape]) for shape in call.shapes)


# --- flash ----------------------------------------------------------------------------------------


def _no_mask(call: Inputs) -> str | None:
    return None if call.mask is None else "it takes no attn_mask"


def _flash_head_size(call: Inputs) -> str | None:
    sizes = {shape[-1] for shape in call.shapes}
    if len(sizes) == 1 and max(sizes) <= 256:
        return None
    return f"query, key and value must have one head size of at most 256: shapes {_text(call)}"


def _flash_backward_of_large_heads(call: Inputs) -> str | None:
    small_cards = (8, 6) <= call.capability <= (8, 9) or (12, 0) <= call.capability <= (12, 1)
    size = call.shapes[0][-1]
    if not (call.learns and small_cards) or size <= 192 or (size > 224 and not call.dropout):
        return None
    return (
        f"it cannot train heads of size {size}, dropout {call.dropout}, on compute capability "
        f"{call.capability[0]}.{call.capability[1]}"
    )


def _square_if_causal(call: Inputs) -> str | None:
    queries, keys = call.shapes[0][-2], call.shapes[1][-2]
    if not call.causal or queries == keys:
        return None
    return f"is_causal needs as many queries as keys, not {queries} and {keys}"


def _flash_dtypes(call: Inputs) -> str | None:
    return _dtypes(call, _HALF if call.capability[0] >= 8 else _HALF[:1])


# --- memory-efficient -----------------------------------------------------------------------------


def alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """Numbers that the memory-efficient kernels load at once: sizes of heads are multiples."""
    major = capability[0]
    half = dtype in _HALF
    on_tensor_cores = major >= 8 or (major >= 7 and half)
    return max(4 if major >= 8 else 1, (8 if half else 4) if on_tensor_cores else 1)


def _efficient_head_size(call: Inputs) -> str | None:
    query, key, value = (shape[-1] for shape in call.shapes)
    step = alignment(call.dtypes[0], call.capability)
    if query == key and min(query, value) > 0 and not (query % step or value % step):
        return None
    return f"head sizes must be multiples of {step}, not those of shapes {_text(call)}"


def _efficient_offsets(call: Inputs) -> str | None:
    step = alignment(call.dtypes[0], call.capability)
    if call.capability[0] < 8 or not any(offset % step for offset in call.offsets):
        return None
    return f"storage offsets must be multiples of {step}, not {', '.join(map(str, call.offsets))}"


def _efficient_dtypes(call: Inputs) -> str | None:
    newer = (torch.bfloat16,) if call.capability[0] >= 8 else ()
    return _dtypes(call, (torch.float16, torch.float32, *newer))


# --- cuDNN ----------------------------------------------------------------------------------------


def _cudnn_mask(call: Inputs) -> str | None:
    if call.mask is None:
        return None
    (batch, heads, queries, _), keys = call.shapes[0], call.shapes[1][2]
    wanted = (batch, heads, queries, keys)[-len(call.mask) :]
    fits = len(call.mask) in (2, 4) and all(
        size in (1, whole) for size, whole in zip(call.mask, wanted, strict=True)
    )
    if fits and not call.mask_learns:
        return None
    return f"attn_mask must be [.., queries, keys] and learn nothing, not {[*call.mask]}"


def _cudnn_dropout(call: Inputs) -> str | None:
    if (16 * call.dropout).is_integer():
        return None
    return f"dropout_p must be a multiple of 1/16, not {call.dropout}"


def _cudnn_sizes(call: Inputs) -> str | None:
    (batch, heads, queries, size), (_, _, keys, _), (*_, value_size) = call.shapes
    most = 192 if (size, value_size) == (192, 128) and call.capability[0] in (9, 10) else 128
    if max(batch, heads) > _MOST_HEADS_OF_CUDNN:
        return f"batch size and heads must be at most {_MOST_HEADS_OF_CUDNN}: {_text(call)}"
    if max(size, value_size) > most or size % 8 or value_size % 8:
        return f"head sizes must be multiples of 8, at most {most}: shapes {_text(call)}"
    if keys == 1 or (queries == 1 and call.dropout):
        return f"sequences of length 1 are not supported: shapes {_text(call)}"
    return None


_NAMES = {FLASH: "flash", EFFICIENT: "memory-efficient", CUDNN: "cuDNN"}
_RULES: dict[int, tuple[Rule, ...]] = {
    FLASH: (
        _four_dimensions,
        _no_mask,
        _flash_head_size,
        lambda call: _architecture(call, (8, 0)),
        _flash_backward_of_large_heads,
        _square_if_causal,
        _flash_dtypes,
        _same_batch_and_heads,
        _no_empty_sequence,
        _last_stride_1,
    ),
    EFFICIENT: (
        lambda call: _architecture(call, (5, 0)),
        _four_dimensions,
        _efficient_head_size,
        _efficient_offsets,
        _no_empty_sequence,
        lambda call: _last_stride_1(call, single_is_free=False),
        _same_batch_and_heads,
        _efficient_dtypes,
    ),
    CUDNN: (
        _four_dimensions,
        _flash_dtypes,
        _cudnn_mask,
        lambda call: _architecture(call, (8, 0)),
        _cudnn_dropout,
        _no_empty_sequence,
        _last_stride_1,
        lambda call: _same_batch_and_heads(call, same_groups=False),
        _cudnn_sizes,
    ),
}
