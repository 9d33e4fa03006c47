"""Tensors by the names of their types: `torch.FloatTensor(2)`, and `torch.Tensor(2)`.

These are on the CPU, unless `torch.set_default_tensor_type` says that `torch.Tensor` is a type of
CUDA; a default device does not move them.
"""

from __future__ import annotations

import functools
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
    choose = _set_default_tensor_type(torch.set_default_tensor_type, types, _TensorClass(patches))
    patches.replace(torch, "set_default_tensor_type", choose)


def _speaking(theirs: type) -> Callable:
    """Torch looks at no function mode here, which would translate the messages of errors."""

    def make(*args: object, **kwargs: object) -> object:
        with speaking_cuda():
            return of_lists(theirs)(*args, **kwargs)

    return make


class _TensorClass:
    """What `torch.Tensor(2)` makes: a tensor of the default type."""

    def __init__(self, patches: Patches) -> None:
        self.on_cuda = False
        new = functools.partial(_new, lambda: self.on_cuda)
        patches.set(torch.Tensor, "__new__", staticmethod(new))


_of_torch = of_lists(torch_private.TensorBase.__new__, at=1)


def _new(is_on_cuda: Callable[[], bool], cls: type, *args: object, **kwargs: object) -> object:
    if cls is not torch.Tensor or not is_on_cuda() or isinstance((*args, None)[0], torch.Tensor):
        return _of_torch(cls, *args, **kwargs)
    return getattr(torch.cuda, _default_name())(*args, **kwargs)


def _default_name() -> str:
    dtype = torch.get_default_dtype()
    return next(name for name, of_type in TENSOR_TYPES.items() if of_type == dtype)


def _set_default_tensor_type(
    theirs: Callable, types: dict[str, type], tensor_class: _TensorClass
) -> Callable:
    def set_default_tensor_type(t: object) -> None:
        found = cuda_dtype(t)
        if found is None:
            torch.set_default_device(None)
            theirs(types.get(str(named(t)), t))
        else:
            torch.set_default_dtype(found)
            torch.set_default_device(CUDA)
        tensor_class.on_cuda = found is not None

    return set_default_tensor_type
