"""Deep copies and checkpoints: tensors that share memory still do so afterwards.

A checkpoint holds tensors of the CPU, so that plain `torch.load` reads it where there are no virtual
GPUs; `map_location="vgpu:1"` brings them to one.
"""

from __future__ import annotations

import copy
import functools
from contextvars import ContextVar

import torch

from . import copies
from .memory import Allocation
from .runtime import Runtime, runtime
from .tensor import VirtualTensor, adopt, backing, wrap

_OWN = {"_backing", "_allocation", "_index"}
_BEFORE_CPU = 5  # torch asks for storages in this order; its own CPU has 10

# The host's copies of the storages that the `torch.save` under way has met.
_saved: ContextVar[dict[int, torch.UntypedStorage] | None] = ContextVar("saved", default=None)


def install() -> None:
    """Let tensors, `torch.save` and `torch.load` use this module."""
    VirtualTensor.__deepcopy__ = deep_copy
    VirtualTensor.__copy__ = shallow_copy
    VirtualTensor.__reduce_ex__ = reduce
    torch.serialization.register_package(_BEFORE_CPU, lambda storage: None, _restore)
    torch_save = torch.save

    @functools.wraps(torch_save)
    def save(*args: object, **kwargs: object) -> None:
        token = _saved.set({})
        try:
            torch_save(*args, **kwargs)
        finally:
            _saved.reset(token)

    torch.save = torch.serialization.save = save


# --- copies in the same process -------------------------------------------------------------------


def deep_copy(tensor: VirtualTensor, memo: dict) -> VirtualTensor:
    """`copy.deepcopy`: a leaf with memory of its own, on the same device."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment"
        )
    values = copy.deepcopy(tensor._backing, memo)
    twin = memo[id(tensor)] = wrap(
        values, tensor._index, layout=_layout(tensor), allocation=_deep_copied(tensor, memo)
    )
    twin.requires_grad_(tensor.requires_grad)
    for name, value in tensor.__dict__.items():
        if name not in _OWN:
            twin.__dict__[name] = copy.deepcopy(value, memo)
    if tensor.grad is not None:
        twin.grad = copy.deepcopy(tensor.grad, memo)
    return twin
