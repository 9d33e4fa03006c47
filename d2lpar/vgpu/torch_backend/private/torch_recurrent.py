"""Recurrent networks: the operations of whole sequences that torch calls where it has cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_aten = torch.ops.aten
forward = _aten._cudnn_rnn.default
backward = _aten._cudnn_rnn_backward.default
lstm_cell = _aten._thnn_fused_lstm_cell.default
lstm_cell_backward = _aten._thnn_fused_lstm_cell_backward_impl.default
gru_cell = _aten._thnn_fused_gru_cell.default
gru_cell_backward = _aten._thnn_fused_gru_cell_backward.default

KINDS = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # by cuDNN's numbers


def network(kind: str) -> torch._ops.OpOverloadPacket:
    """What `nn.LSTM` and its kin call, for padded sequences (`input`) and packed ones (`data`)."""
    packet: torch._ops.OpOverloadPacket = getattr(_aten, kind)
    return packet


class Call(NamedTuple):
    """The arguments of `forward`, which those of `backward` include."""

    input: torch.Tensor
    weight: list[torch.Tensor]
    weight_stride0: int  # weights of a layer and direction
    weight_buf: torch.Tensor | None
    hx: torch.Tensor
    cx: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: list[int]  # of packed sequences, step by step
    dropout_state: torch.Tensor | None

    @classmethod
    def of(cls, args: Sequence[Any]) -> Call:
        """The call that the arguments of `forward` or `backward` belong to."""
        return cls(*args) if len(args) == len(cls._fields) else cls(*args[:6], *args[10:20])

    @property
    def kind(self) -> str:
        """A name of `KINDS`."""
        return KINDS[self.mode]

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.bidirectional else 1

    @property
    def outputs(self) -> int:
        """Size of the state that a step hands on, and of what it returns."""
        return self.proj_size or self.hidden_size

    @property
    def rows(self) -> int:
        """Inputs of all steps."""
        return self.input.numel() // self.input.shape[-1]

    @property
    def steps(self) -> int:
        """How long the longest sequence is."""
        return len(self.batch_sizes) or self.input.shape[1 if self.batch_first else 0]
