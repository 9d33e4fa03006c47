"""Recurrent networks as on CUDA: cuDNN's one operation for a whole sequence.

Where a program has switched cuDNN off, for example for second derivatives, which it does not have,
they are made of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..private import torch_operators, torch_recurrent
from ..private.torch_recurrent import KINDS


def kernels() -> dict[str, Callable[..., object]]:
    """The kernels of `nn.RNN`, `nn.LSTM` and `nn.GRU`, by the names of aten."""
    found: dict[str, Callable[..., object]] = {}
    for kind in KINDS:
        network = torch_recurrent.network(kind)
        found[f"{kind}.input"] = partial(_run, kind, network.input, _padded)
        found[f"{kind}.data"] = partial(_run, kind, network.data, _packed)
    return found


def _run(
    kind: str, op: torch._ops.OpOverload, arranged: Callable[..., tuple], *args: Any
) -> object:
    """A network's outputs, its last h, and of an LSTM its last c."""
    if not (torch.backends.cudnn.enabled and args[0].is_floating_point()):
        return torch_operators.decompose(op, torch_operators.BY_OTHERS, args, {})
    return _sequence(kind, *arranged(*args))


def _padded(input: torch.Tensor, *others: Any) -> tuple:
    return input, [], *others


def _packed(data: torch.Tensor, batch_sizes: torch.Tensor, *others: Any) -> tuple:
    return data, batch_sizes.tolist(), *others, False


def _sequence(
    kind: str,
    input: torch.Tensor,
    batch_sizes: list[int],
    states: Any,
    weights: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    hx, cx = states if kind == "lstm" else (states, None)
    hidden = hx.shape[2] if cx is None else cx.shape[2]
    projected = 0 if hx.shape[2] == hidden else hx.shape[2]
    weights_of_layer = (4 if has_biases else 2) + (1 if projected else 0)
    network = (KINDS.index(kind), hidden, projected, num_layers)
    options = (batch_first, dropout, train, bidirectional, batch_sizes, None)
    results = torch_recurrent.forward(
        input, weights, weights_of_layer, None, hx, cx, *network, *options
    )
    return results[: 2 if cx is None else 3]
