"""Cells of LSTM and GRU: torch takes it that every device other than the CPU has them fused."""

from __future__ import annotations

import torch


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`aten::_thnn_fused_lstm_cell` by single operations: hidden state, cell state, workspace.

    Gates [batch, 4 hidden] in the order in, forget, cell, out (Hochreiter and Schmidhuber 1997, as
    in `nn.LSTM`). Only the fused kernel's own backward would read the workspace.
    """
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates.new_empty(0)


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten::_thnn_fused_gru_cell` by single operations: hidden state, workspace.

    Gates [batch, 3 hidden] in the order reset, update, new (Cho et al. 2014, as in `nn.GRU`).
    """
    ir, iz, new = _with_bias(input_gates, input_bias).chunk(3, 1)
    hr, hz, hidden = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    new = (new + (ir + hr).sigmoid() * hidden).tanh()
    return new + (iz + hz).sigmoid() * (hx - new), input_gates.new_empty(0)


def _with_bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias
