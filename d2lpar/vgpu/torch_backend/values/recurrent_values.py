"""Values of the kernels that torch has for CUDA only: cuDNN's whole sequences, and fused cells.

The CPU computes a sequence, and for the backward pass once more, by autograd: its kernel does not
say what it would have to keep. Half precision is computed in fp32 and rounded once, as cuDNN does
within a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...sim.pricing.recurrent_cost import GATES
from ..private import torch_modes, torch_recurrent
from ..private.torch_recurrent import Call
from .half_products import HALF

# Numbers that a step keeps of a unit for its backward pass: gates, states, and of a GRU what the
# reset gate multiplies.
_KEPT = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 6, "gru": 5}


# --- sequences ------------------------------------------------------------------------------------


def sequence(*args: Any) -> tuple[torch.Tensor, ...]:
    """`aten::_cudnn_rnn`: output, h, c, what is kept, weights in one piece (here none)."""
    call = Call.of(args)
    drawing = call.train and call.dropout and not call.input.is_meta
    state = _state() if drawing else None
    output, *states = _narrow(_compute(call, _wide(_tensors(call))), call.input.dtype)
    nothing = call.input.new_empty(0)
    kept = call.input.new_empty(_kept_bytes(call), dtype=torch.uint8)
    if state is not None:
        kept = torch.cat([state, kept[len(state) :]])
    return output, states[0], states[1] if len(states) > 1 else nothing, kept, nothing.clone()


def sequence_backward(*args: Any) -> tuple[Any, Any, Any, list[torch.Tensor]]:
    """`aten::_cudnn_rnn_backward`: gradients of the input, h, c and the weights.

    RuntimeError if the network was in evaluation mode, for which cuDNN keeps nothing.
    """
    call, gradients, (kept, wanted) = Call.of(args), args[7:10], args[20:]
    if not call.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    if call.input.is_meta:
        found = [*map(torch.empty_like, _tensors(call))]
    else:
        found = _differentiated(call, gradients, kept)
    of_input, of_h, *others = found
    of_c = others.pop(0) if call.cx is not None else call.input.new_empty(0)
    return of_input, of_h, of_c, others if wanted[3] else []


def _tensors(call: Call) -> list[torch.Tensor]:
    """What it has gradients for."""
    states = [call.hx] if call.cx is None else [call.hx, call.cx]
    return [call.input, *states, *call.weight]


def _compute(call: Call, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """On the CPU: output, h, and of an LSTM c."""
    input, *states = tensors[: len(tensors) - len(call.weight)]
    weights = tensors[len(states) + 1 :]
    _check(call)
    if input.is_meta:
        shape = (*input.shape[:-1], call.outputs * call.directions)
        return input.new_empty(shape), *map(torch.empty_like, states)
    network = torch_recurrent.network(call.kind)
    given = [states if call.kind == "lstm" else states[0], weights]
    has_biases = call.weight_stride0 >= 4
    options = [has_biases, call.num_layers, call.dropout, call.train, call.bidirectional]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections")  # which oneDNN lacks
        if call.batch_sizes:
            found = network.data(input, torch.tensor(call.batch_sizes), *given, *options)
        else:
            found = network.input(input, *given, *options, call.batch_first)
    results: Sequence[torch.Tensor] = found
    return results


def _check(call: Call) -> None:
    """RuntimeError for weights that do not fit: oneDNN would read beyond their end."""
    gates = GATES[call.kind] * call.hidden_size
    for number in range(call.num_layers * call.directions):
        layer, first = number // call.directions, number * call.weight_stride0
        features = call.directions * call.outputs if layer else call.input.shape[-1]
        for weight, columns in zip(call.weight[first:], (features, call.outputs), strict=False):
            if weight.shape != (gates, columns):
                raise RuntimeError(
                    f"a weight of layer {layer} has shape {tuple(weight.shape)}, and not "
                    f"{(gates, columns)}"
                )


def _differentiated(call: Call, gradients: Any, kept: torch.Tensor) -> list[torch.Tensor]:
    with _drawing_again(call, kept), torch_modes.differentiating():
        tensors = [tensor.detach().requires_grad_() for tensor in _wide(_tensors(call))]
        results = _compute(call, tensors)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=False) if g is not None]
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            tensors,
            [gradient.to(result.dtype) for result, gradient in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
    return _narrow([tensor.detach() for tensor in found], call.input.dtype)


def _kept_bytes(call: Call) -> int:
    """What the formulas of the backward pass read; what cuDNN keeps is not published."""
    units = call.rows * call.hidden_size * call.num_layers * call.directions
    return _KEPT[call.kind] * units * call.input.element_size() if call.train else 0


def _wide(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.float() if tensor.dtype in HALF else tensor for tensor in tensors]


def _narrow(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in tensors]


def _state() -> torch.Tensor:
    with torch_modes.unwatched():
        return torch.get_rng_state()


@contextmanager
def _drawing_again(call: Call, kept: torch.Tensor) -> Iterator[None]:
    """A block in which the random numbers are those that were drawn in the forward pass."""
    if not call.dropout:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(kept[: len(_state())].clone())
        yield


# --- cells ----------------------------------------------------------------------------------------


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`aten::_thnn_fused_lstm_cell`: h, c, and the gates [batch, 4 hidden] for the backward pass.

    Their order is in, forget, cell, out (Hochreiter and Schmidhuber 1997, as in `nn.LSTM`).
    """
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * cx + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of the gates, of c before the step, and of a bias."""
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    of_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_c = of_h * o * (1 - squashed**2)
    of_c = of_c if grad_cy is None else of_c + grad_cy
    of_in, of_forget, of_cell = of_c * g * i * (1 - i), of_c * cx * f * (1 - f), of_c * i
    parts = [of_in, of_forget, of_cell * (1 - g**2), of_h * squashed * o * (1 - o)]
    of_gates = torch.cat(parts, 1)
    return of_gates, of_c * f, of_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten::_thnn_fused_gru_cell`: h, and what the backward pass reads [batch, 5 hidden].

    Gates [batch, 3 hidden] are in the order reset, update, new (Cho et al. 2014, as in `nn.GRU`).
    """
    of_input = _with_bias(input_gates, input_bias).chunk(3, 1)
    of_hidden = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    r = (of_input[0] + of_hidden[0]).sigmoid()
    z = (of_input[1] + of_hidden[1]).sigmoid()
    n = (of_input[2] + r * of_hidden[2]).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, of_hidden[2]], 1)


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of both parts of the gates, of h before the step, and of the two biases."""
    r, z, n, hx, of_hidden = workspace.chunk(5, 1)
    of_new = grad_hy * (1 - z) * (1 - n**2)
    of_update = grad_hy * (hx - n) * z * (1 - z)
    of_reset = of_new * of_hidden * r * (1 - r)
    gates = [torch.cat([of_reset, of_update, last], 1) for last in (of_new, of_new * r)]
    biases = [of_gates.sum(0) if has_bias else None for of_gates in gates]
    return (*gates, grad_hy * z, *biases)


def _with_bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


KERNELS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    torch_recurrent.forward: sequence,
    torch_recurrent.backward: sequence_backward,
    torch_recurrent.lstm_cell: lstm_cell,
    torch_recurrent.lstm_cell_backward: lstm_cell_backward,
    torch_recurrent.gru_cell: gru_cell,
    torch_recurrent.gru_cell_backward: gru_cell_backward,
}
