"""`GradScaler` from shapes alone: its gradients are finite.

It reads how many are not, and leaves out the step if that is not zero. Of a value that nobody knows
it would read NaN, and no step would ever be made: none of its time, none of the optimizer's memory.
"""

from __future__ import annotations

import functools

import torch

from ....patching import FOR_GOOD
from ...tensors import unknown_values


def replace_grad_scaler() -> None:
    """Let it make its steps."""
    theirs = torch.amp.GradScaler._maybe_opt_step

    @functools.wraps(theirs)
    def maybe_step(*args: object, **kwargs: object) -> object:
        with unknown_values.taken_to_be_zero():
            return theirs(*args, **kwargs)  # type: ignore[arg-type]

    FOR_GOOD.set(torch.amp.GradScaler, "_maybe_opt_step", maybe_step)
