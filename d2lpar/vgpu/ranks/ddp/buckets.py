"""Buckets of gradients: which parameters share one, and the flat tensor that is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ....machines.gradient_buckets import assign_buckets

ParameterList = list[nn.Parameter]


class Bucket:
    """Parameters whose gradients are averaged as one flat tensor, of which each has a view."""

    def __init__(self, parameters: ParameterList, dtype: torch.dtype | None = None) -> None:
        first, sizes = parameters[0], [p.numel() for p in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=dtype or first.dtype, device=first.device)
        self.views = self._parts_of(self.flat, parameters)
        self.missing: set[nn.Parameter] = set()
        self.result: dist.Work | torch.futures.Future | None = None

    @staticmethod
    def _parts_of(
        flat: torch.Tensor, parameters: ParameterList
    ) -> dict[nn.Parameter, torch.Tensor]:
        parts = flat.split([p.numel() for p in parameters])
        return {p: part.view_as(p) for p, part in zip(parameters, parts, strict=True)}

    def wait(self) -> dict[nn.Parameter, torch.Tensor]:
        """Let the device wait for the average, and return it by parameter.

        Raises TypeError for a hook whose future holds anything but the buffer's elements.
        """
        if self.result is None:  # nothing is exchanged
            return self.views
        value: Any = self.result.wait()
        if isinstance(self.result, dist.Work):  # a future may be of several classes
            return self.views
        value = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        if value is self.flat:
            return self.views
        if not isinstance(value, torch.Tensor) or value.numel() != self.flat.numel():
            raise TypeError(
                f"the future of a communication hook must hold a tensor of the bucket's "
                f"{self.flat.numel()} elements, not {value}"
            )
        return self._parts_of(value.view(-1), list(self.views))


def gathered(parameters: ParameterList, limits_bytes: Sequence[float]) -> list[ParameterList]:
    """The parameters of each bucket, filled in the given order."""
    sizes, kinds = [p.nbytes for p in parameters], [(p.dtype, p.device) for p in parameters]
    found = assign_buckets(sizes, limits_bytes, kinds)
    return [[parameters[i] for i in members] for members in found]
