"""`torch.compile` and `make_fx`: what they make of operations on virtual tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import torch_private
from ..dispatch import Dispatcher
from ..tensor import VirtualTensor


def replace_compile() -> None:
    """Let what `torch.compile` makes run on virtual devices, operation by operation: if it were
    traced, it is our own code that would be compiled."""
    torch_compile = torch.compile

    @functools.wraps(torch_compile)
    def compile(*args: Any, **kwargs: Any) -> object:
        from torch import _dynamo

        if isinstance(VirtualTensor.dispatcher, Dispatcher):
            VirtualTensor.dispatcher = staticmethod(_dynamo.disable(VirtualTensor.dispatcher))
        return torch_compile(*args, **kwargs)

    torch_private.replace(torch, "compile", compile)


def replace_tracing() -> None:
    """Let `make_fx`, and so `torch.func.linearize`, note operations on virtual tensors: of types
    that it does not know, it notes what their own code does with the values."""
    setattr(*torch_private.TRACED_TYPES, (*getattr(*torch_private.TRACED_TYPES), VirtualTensor))
