"""Attention in torch: its operators, their order, and `flex_attention`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.attention

from ...patching import FOR_GOOD
from .torch_operators import _aten

choose_attention = _aten._fused_sdp_choice.default
multi_head_attention = _aten._native_multi_head_attention.default
encoder_layer = _aten._transformer_encoder_layer_fwd.default
plain_attention = _aten._scaled_dot_product_attention_math
attention_of_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
attention_of_cpu_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
flash_attention = _aten._scaled_dot_product_flash_attention.default
flash_attention_backward = _aten._scaled_dot_product_flash_attention_backward.default
efficient_attention = _aten._scaled_dot_product_efficient_attention.default
efficient_attention_backward = _aten._scaled_dot_product_efficient_attention_backward.default
cudnn_attention = _aten._scaled_dot_product_cudnn_attention.default
cudnn_attention_backward = _aten._scaled_dot_product_cudnn_attention_backward.default
attention_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order


def attention_order_is_set() -> bool:
    """Whether a program has set the order in which kernels of attention are tried."""
    return getattr(torch.nn.attention, "_is_sdp_priority_order_active", bool)()


_FLEX_OPERATOR = "torch._higher_order_ops.flex_attention"
FLEX_ATTENTION = "torch.nn.attention.flex_attention"  # a module that takes long to import


def replace_flex_attention(
    module: Any, function: Callable[..., object], *kinds: type[torch.Tensor]
) -> None:
    """Let a function carry out the operator `flex_attention`, gradients included, on tensors of
    some kinds, whatever their device is called."""
    operator, keys = module.flex_attention_hop, torch._C.DispatchKey
    operator.python_key_table.update(dict.fromkeys(kinds, function))
    operator.py_impl(keys.AutogradPrivateUse1)(function)
    operator.fallthrough(keys.AutocastPrivateUse1)  # type: ignore[attr-defined]
    check = module._validate_device
    FOR_GOOD.set(
        module,
        "_validate_device",
        lambda *three: None if isinstance(three[0], kinds) else check(*three),
    )


def flex_by_parts(*args: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the operator stands for: result, logarithms of sums and maxima of rows, to base 2."""
    return sys.modules[_FLEX_OPERATOR].math_attention(*args)


def permuted_like(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor in the order of memory that strides have, as `flex_attention` gives its result."""
    return sys.modules[_FLEX_OPERATOR]._permute_strides(tensor, strides)


def leaves_scores(score_mod: Callable[..., torch.Tensor]) -> bool:
    """Whether it is what `flex_attention` takes if it is given none."""
    return score_mod is sys.modules[FLEX_ATTENTION]._identity


def over_all(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of four numbers (batch, head, query, key) for all of four lists of them."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped = sys.modules[FLEX_ATTENTION]._vmap_for_bhqkv(function, prefix=())

    def call(*lists: torch.Tensor) -> torch.Tensor:
        with TransformGetItemToIndex():
            return mapped(*lists)

    return call


@contextmanager
def flex_is_compiled() -> Iterator[None]:
    """In the block `flex_attention` does not warn that nobody has compiled it."""
    flex, warning = sys.modules.get(FLEX_ATTENTION), "flex_attention_performance"
    if flex is None or warning in flex._WARNINGS_SHOWN:
        yield
        return
    flex._WARNINGS_SHOWN.add(warning)
    try:
        yield
    finally:
        flex._WARNINGS_SHOWN.discard(warning)
