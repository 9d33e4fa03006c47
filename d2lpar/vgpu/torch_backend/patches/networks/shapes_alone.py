"""What torch.nn and torch.amp read of values, where only shapes are computed.

`GradScaler` reads how many gradients are not finite, and leaves out the step if that is not zero.
Of a value that nobody knows it would read NaN, and no step would ever be made: none of its time,
none of the optimizer's memory. `SyncBatchNorm` leaves out the statistics of ranks without any
image, by a mask. A rank that has images itself takes it that all have.
"""

from __future__ import annotations

import functools

import torch

from ....patching import FOR_GOOD
from ...private import torch_modules
from ...tensors import unknown_values


def replace_grad_scaler() -> None:
    """Let it make its steps."""
    theirs = torch.amp.GradScaler._maybe_opt_step

    @functools.wraps(theirs)
    def maybe_step(*args: object, **kwargs: object) -> object:
        with unknown_values.taken_to_be_zero():
            return theirs(*args, **kwargs)  # type: ignore[arg-type]

    FOR_GOOD.set(torch.amp.GradScaler, "_maybe_opt_step", maybe_step)


def replace_sync_batch_norm() -> None:
    """Let its forward pass know what its mask selects."""
    theirs = torch_modules.SYNC_BATCH_NORM.forward

    @functools.wraps(theirs)
    def forward(ctx: object, images: torch.Tensor, *args: object) -> object:
        with unknown_values.masks_taken_to_select_all(images.numel() > 0):
            return theirs(ctx, images, *args)

    FOR_GOOD.set(torch_modules.SYNC_BATCH_NORM, "forward", staticmethod(forward))
