"""`torch.ctc_loss`: lengths are numbers that the host needs, wherever their tensors are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ....patching import FOR_GOOD
from ...tensors.tensor import is_virtual

Lengths = torch.Tensor | Sequence[int]


def replace_ctc_loss() -> None:
    """Let lengths be tensors of the host or of the device, as on CUDA, which copies them to the
    host: on tensors of a type of their own, torch computes with them on the device."""
    theirs: Any = torch.ctc_loss  # one of its two ways

    @functools.wraps(theirs)
    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if is_virtual(log_probs):
            input_lengths, target_lengths = _numbers(input_lengths), _numbers(target_lengths)
        return theirs(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)

    FOR_GOOD.set(torch, "ctc_loss", ctc_loss)


def _numbers(lengths: Lengths) -> Sequence[int]:
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths
