"""Automatic mixed precision: `torch.autocast("vgpu")` casts what `torch.autocast("cuda")` casts.

The three lists are those of torch's documentation, "CUDA Ops that can autocast to float16", "to
float32" and "that promote to the widest input type" (https://docs.pytorch.org/docs/stable/amp.html),
by the names of the operations that arrive at the dispatcher. A weight is cast once: autocast
remembers that until its outermost block ends, and holds the memory as long (`cached_cast` in
ATen/autocast_mode.cpp).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

import torch

from ...device_naming import TYPE
from ...patching import FOR_GOOD
from ..private import torch_modes
from ..tensors.tensor import VirtualTensor

KEY = "AutocastPrivateUse1"
DTYPES = (torch.float16, torch.bfloat16)

LOWER = """
    _convolution conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding convolution
    conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    cudnn_convolution cudnn_convolution_transpose _cudnn_rnn
    addbmm addmm addmv addr baddbmm bmm chain_matmul einsum linalg_multi_dot linalg_vecdot linear
    matmul mm mv prelu gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
"""
FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh softplus tan
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
    cumprod cumsum prod prod.dim_int sum sum.dim_IntList softmax.int log_softmax.int logsumexp
    layer_norm native_layer_norm group_norm linalg_matrix_norm linalg_vector_norm norm.Scalar
    norm.ScalarOpt_dim nuclear_norm nuclear_norm.dim renorm cdist dist pdist
    cosine_similarity binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss
    huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
WIDEST = """
    addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_put scatter_add stack tensordot
    vdot
"""


def kernels() -> list[torch.library.Library]:
    """The casting kernels; they live as long as the libraries returned."""
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, KEY)
    named = torch.library.Library("aten", "IMPL")
    policies = ((LOWER, _lower), (FLOAT32, _float32), (WIDEST, _widest))
    for names, policy in policies:
        for name in names.split():
            named.impl(name, _casting(_overload(name), policy), KEY)
    if torch_modes.casts_on_cuda("rms_norm"):  # recent builds do
        named.impl("rms_norm", _casting(_overload("rms_norm"), _float32), KEY)
    named.impl("binary_cross_entropy", _refuse_binary_cross_entropy, KEY)
    return [others, named]


class _Remembered(threading.local):
    """Weights that this thread has cast: by number and type, each with what became of it."""

    def __init__(self) -> None:
        self.casts: dict[tuple[int, torch.dtype], tuple[weakref.ref, torch.Tensor]] = {}


_remembered = _Remembered()


def replace_clearing() -> None:
    """Let `torch.clear_autocast_cache`, which ends each outermost block, clear this one, too."""
    clear = torch.clear_autocast_cache

    @functools.wraps(clear)
    def clear_autocast_cache() -> None:
        _remembered.casts.clear()
        clear()

    FOR_GOOD.set(torch, "clear_autocast_cache", clear_autocast_cache)


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _casting(op: torch._ops.OpOverload, policy: Callable) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        given = [*args, *kwargs.values()]
        dtype = policy(tensor.dtype for tensor in _eligible(given))
        cast = _cast(given, dtype)
        with torch.autocast(TYPE, enabled=False):
            return op(*cast[: len(args)], **dict(zip(kwargs, cast[len(args) :], strict=True)))

    return kernel


def _eligible(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors to cast among arguments, and within lists that are arguments."""
    for value in values:
        if _is_eligible(value):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _eligible(value)


def _cast(values: Iterable[object], dtype: torch.dtype) -> list[Any]:
    """The values, with such tensors cast."""
    found: list[Any] = []
    for value in values:
        if _is_eligible(value):
            found.append(_cast_weight(value) if _is_weight(value, dtype) else value.to(dtype))
        else:
            found.append(_cast(value, dtype) if isinstance(value, (list, tuple)) else value)
    return found


def _is_weight(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether what becomes of it is remembered."""
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype == torch.float32
        and dtype == torch.get_autocast_dtype(TYPE)
        and torch.is_autocast_cache_enabled()
    )


def _cast_weight(weight: torch.Tensor) -> torch.Tensor:
    dtype = torch.get_autocast_dtype(TYPE)
    key = id(weight), dtype
    known = _remembered.casts.get(key)
    if known is not None and known[0]() is weight:
        return known[1]
    if torch.is_inference_mode_enabled():  # it would be of no use outside
        return weight.to(dtype)
    with torch.enable_grad():
        cast = weight.to(dtype)
    _remembered.casts[key] = weakref.ref(weight), cast
    return cast


def _is_eligible(value: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(value, VirtualTensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _lower(_: Iterable[torch.dtype]) -> torch.dtype:
    return torch.get_autocast_dtype(TYPE)


def _float32(_: Iterable[torch.dtype]) -> torch.dtype:
    return torch.float32


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    found = set(dtypes)
    return torch.float32 if len(found) > 1 else next(iter(found), torch.float32)


def _refuse_binary_cross_entropy(*args: object, **kwargs: object) -> object:
    raise RuntimeError(
        "binary_cross_entropy is unsafe to autocast: its input is a probability, rounded already. "
        "Use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss)."
    )
