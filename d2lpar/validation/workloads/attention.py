"""Attention by one kernel or by products, as its authors measure it."""

from __future__ import annotations

import torch
from torch.nn import attention as torch_attention
from torch.nn import functional as F

from ...machines.hardware import Machine
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import DTYPES, gpus, mean_s

_SDP = torch_attention.SDPBackend
BACKENDS = {
    "flash2": _SDP.FLASH_ATTENTION,
    "flash3": _SDP.CUDNN_ATTENTION,  # torch reaches it as cuDNN's, on H100 and later
    "cudnn": _SDP.CUDNN_ATTENTION,
    "efficient": _SDP.EFFICIENT_ATTENTION,
    "math": _SDP.MATH,
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
    with gpus(machine) as (gpu,), torch_attention.sdpa_kernel(backend):
        q, k, v = (
            torch.empty(shape, dtype=dtype, device=gpu, requires_grad=bool(backward))
            for _ in range(3)
        )
        dy = torch.empty(shape, dtype=dtype, device=gpu)

        def both() -> None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            if backward:
                torch.autograd.grad(y, (q, k, v), dy)

        def only_forward() -> None:
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        seconds = mean_s(both)
        if not forward:
            seconds -= mean_s(only_forward)
    naive = Naive(flops / machine.accelerators[0].rate(p.text("dtype")))
    return SimulatedRun(seconds, flops=flops, naive=naive)
