"""`SyncBatchNorm` from shapes alone.

It leaves out the statistics of ranks without any image, by a mask, whose values nobody knows then.
A rank that has images itself takes it that all have: else it would have to ask for values.
"""

from __future__ import annotations

import functools

import torch

from ....patching import FOR_GOOD
from ...private import torch_modules
from ...tensors import unknown_values


def replace_sync_batch_norm() -> None:
    """Let its forward pass know what its mask selects."""
    theirs = torch_modules.SYNC_BATCH_NORM.forward

    @functools.wraps(theirs)
    def forward(ctx: object, images: torch.Tensor, *args: object) -> object:
        with unknown_values.masks_taken_to_select_all(images.numel() > 0):
            return theirs(ctx, images, *args)

    FOR_GOOD.set(torch_modules.SYNC_BATCH_NORM, "forward", staticmethod(forward))
