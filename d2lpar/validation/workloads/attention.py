"""Attention by one kernel or by products, as its authors measure it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ...machines.hardware import Machine
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import DTYPES, filled, gpus, mean_s

_SDP = torch_attention.SDPBackend
BACKENDS = {
    "flash2": _SDP.FLASH_ATTENTION,
    "flash3": _SDP.CUDNN_ATTENTION,  # torch reaches it as cuDNN's, on H100 and later
    "cudnn": _SDP.CUDNN_ATTENTION,
    "efficient": _SDP.EFFICIENT_ATTENTION,
    "math": _SDP.MATH,
    "flex": None,  # compiled, with a mask of blocks
    "scores": None,  # the products and a softmax, as a program writes them
}
_BACKWARD = 2.5  # times the forward's FLOP: five products in place of two (Dao 2023)


def attention(p: Parameters, machine: Machine) -> SimulatedRun:
    """`batch` × `heads` × `sequence` × `head`, forward, backward or both, by one of `BACKENDS`.

    FLOP are 4 × batch × heads × sequence² × head forward, half of it if causal.
    """
    shape = tuple(p.integer(name) for name in ("batch", "heads", "sequence", "head"))
    batch, heads, sequence, head = shape
    causal, dtype = p.flag("causal", False), p.choice("dtype", DTYPES)
    forward, backward = p.choice(
        "direction",
        {"forward": (1, 0), "backward": (0, 1), "forward_backward": (1, 1)},
    )
    backend = p.choice("attention", BACKENDS)
    flops = 4 * batch * heads * sequence**2 * head * (forward + _BACKWARD * backward)
    flops = flops / 2 if causal else flops
    attend = _by_scores if p.text("attention") == "scores" else F.scaled_dot_product_attention
    kernels = nullcontext() if backend is None else torch_attention.sdpa_kernel(backend)
    with gpus(machine) as (gpu,), kernels:
        q, k, v = (
            filled(torch.empty(shape, dtype=dtype, device=gpu, requires_grad=bool(backward)))
            for _ in range(3)
        )
        dy = filled(torch.empty(shape, dtype=dtype, device=gpu))
        if p.text("attention") == "flex":
            attend = _by_flex(sequence, gpu)

        def both() -> None:
            y = attend(q, k, v, is_causal=causal)
            if backward:
                torch.autograd.grad(y, (q, k, v), dy)

        def only_forward() -> None:
            attend(q, k, v, is_causal=causal)

        seconds = mean_s(both)
        if not forward:
            seconds -= mean_s(only_forward)
    naive = Naive(flops / machine.accelerators[0].rate(p.text("dtype")))
    return SimulatedRun(seconds, flops=flops, naive=naive)


def _by_flex(sequence: int, device: torch.device) -> Callable[..., torch.Tensor]:
    """`flex_attention`, compiled, with a causal mask of blocks if it is asked for one."""
    causal = create_block_mask(_is_earlier, None, None, sequence, sequence, device)
    attend = torch.compile(flex_attention)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
        return attend(q, k, v, block_mask=causal if is_causal else None)

    return call


def _is_earlier(
    _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return query >= key


def _by_scores(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool
) -> torch.Tensor:
    """Attention that keeps its scores, masked by an addition."""
    batch, heads, sequence, head = q.shape
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    nothing = q.new_empty(1, 1, 1).expand(len(q), sequence, sequence)
    scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=head**-0.5)
    if is_causal:
        scores = scores + q.new_empty(sequence, sequence)
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, sequence, head)
