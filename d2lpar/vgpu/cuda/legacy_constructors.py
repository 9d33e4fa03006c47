"""Tensors by the names of their types: `torch.FloatTensor(2)`, and `torch.Tensor(2)`.

These are on the CPU, unless `torch.set_default_tensor_type` says that `torch.Tensor` is a type of
CUDA; a default device does not move them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..torch_backend import torch_private
from ..torch_backend.patches.lists import of_lists
from .device_translation import CUDA, speaking_cuda
from .patches import Patches, stand_in_class
from .tensor_types import TENSOR_TYPES
from .tensors import cuda_dtype, named


def install(patches: Patches) -> None:
    """Replace the types, and what chooses the default one."""
    types = {f"torch.{name}": getattr(torch, name) for name in TENSOR_TYPES}
    for name, theirs in zip(TENSOR_TYPES, types.values(), strict=True):
        patches.substitute(torch, name, stand_in_class(theirs, _speaking(theirs)))
    choose = _set_default_tensor_type(torch.set_default_tensor_type, types)
    patches.replace(torch, "set_default_tensor_type", choose)
    patches.set(torch.Tensor, "__new__", staticmethod(_new))
    patches.set(_TensorClass, "on_cuda", False)


def _speaking(theirs: type) -> Callable:
    """Torch looks at no function mode here, which would translate the messages of errors."""
    made = of_lists(theirs)

    def make(*args: object, **kwargs: object) -> object:
        with speaking_cuda():
            return made(*args, **kwargs)

    return make


class _TensorClass:
    """What `torch.Tensor(2)` makes: a tensor of the default type."""

    on_cuda = False  # of the block that is open: there is one at a time


_of_torch = of_lists(torch_private.TensorBase.__new__, at=1)


def _new(*args: object, **kwargs: object) -> object:
    """`torch.Tensor.__new__`: one function for all blocks, and with any arguments, as Dynamo notes
    it when it is imported."""
    of_cuda = args[0] is torch.Tensor and _TensorClass.on_cuda
    if of_cuda and not isinstance((*args, None)[1], torch.Tensor):
        return getattr(torch.cuda, _default_name())(*args[1:], **kwargs)
    return _of_torch(*args, **kwargs)


def _default_name() -> str:
    dtype = torch.get_default_dtype()
    return next(name for name, of_type in TENSOR_TYPES.items() if of_type == dtype)


def _set_default_tensor_type(theirs: Callable, types: dict[str, type]) -> Callable:
    def set_default_tensor_type(t: object) -> None:
        found = cuda_dtype(t)
        if found is None:
            torch.set_default_device(None)
            theirs(types.get(str(named(t)), t))
        else:
            torch.set_default_dtype(found)
            torch.set_default_device(CUDA)
        _TensorClass.on_cuda = found is not None

    return set_default_tensor_type
