"""A bucket as communication hooks see it: what they may read and exchange, as `dist.GradBucket`."""

from __future__ import annotations

import torch
from torch import nn


class GradientBucket:
    """The gradients of `parameters` in one flat `buffer`: the `index`-th bucket of a pass."""

    def __init__(
        self, index: int, buffer: torch.Tensor, parameters: list[nn.Parameter], *, is_last: bool
    ) -> None:
        self._index, self._buffer, self._parameters = index, buffer, parameters
        self._is_last = is_last

    def index(self) -> int:
        """Its number; the first holds the gradients that come first."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """The gradients, flat."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Let a tensor of as many elements be the buffer."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """The gradients in the shapes of the parameters: views of the buffer."""
        parts = self._buffer.split([p.numel() for p in self._parameters])
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def parameters(self) -> list[nn.Parameter]:
        """Those whose gradients it has, in their order."""
        return list(self._parameters)

    def is_last(self) -> bool:
        """Whether it is the last of the pass."""
        return self._is_last
