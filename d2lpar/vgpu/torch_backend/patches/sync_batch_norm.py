"""`SyncBatchNorm` from shapes alone.

It leaves out the statistics of ranks without any image, by a mask, whose values nobody knows then.
A rank that has images itself takes it that all have: else it would have to ask for values.
"""

from __future__ import annotations

import functools
import threading

import torch

from .. import torch_private


class _Here(threading.local):
    everybody_has_images = False


_here = _Here()


def selects_all() -> bool:
    """Whether a mask in this thread is one that selects everything."""
    return _here.everybody_has_images


def replace_sync_batch_norm() -> None:
    """Let its forward pass know what its mask selects."""
    theirs = torch_private.SYNC_BATCH_NORM.forward

    @functools.wraps(theirs)
    def forward(ctx: object, images: torch.Tensor, *args: object) -> object:
        _here.everybody_has_images = images.numel() > 0
        try:
            return theirs(ctx, images, *args)
        finally:
            _here.everybody_has_images = False

    torch_private.replace(torch_private.SYNC_BATCH_NORM, "forward", staticmethod(forward))
