"""Classes of parameters that programs derive from `nn.Parameter`, on virtual devices.

torch makes such a parameter of a plain tensor's memory. A virtual tensor has a class of its own, so
one of both is made: it is what the program's class says, and a tensor of a virtual device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import Parameter

from .torch_private import LazyTensor

_OF_EACH_CLASS = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__new__"}


def kind_of(tensor: torch.Tensor) -> type[Parameter]:
    """The program's class of a parameter, wherever it is; `nn.Parameter` where it has none."""
    found: Any = getattr(type(tensor), "vgpu_kind", type(tensor))
    is_own = issubclass(found, Parameter) and not issubclass(found, LazyTensor)
    return found if is_own else Parameter


def with_kind(parameter: Any, kind: type[Parameter]) -> Any:
    """The same parameter, on the host or a virtual device, of a class that `kind_of` has given."""
    kind = getattr(kind, "vgpu_kind", kind)
    if kind is not Parameter:
        now: Any = type(parameter)
        parameter.__class__ = kind if issubclass(now, Parameter) else _both(kind, now)
    return parameter


@functools.cache
def _both(kind: Any, virtual: Any) -> type:
    """A class that has of the program's what that defines, and the rest of a virtual tensor."""
    own = [base for base in kind.__mro__ if issubclass(base, Parameter) and base is not Parameter]
    names: dict[str, Any] = {}
    for base in reversed(own):
        names.update({k: v for k, v in vars(base).items() if k not in _OF_EACH_CLASS})
    if "__torch_dispatch__" in names:
        raise NotImplementedError(
            f"{kind.__name__} is a parameter with a __torch_dispatch__ of its own, which virtual "
            "GPUs cannot have: wrap a tensor instead, as torch.Tensor._make_wrapper_subclass does"
        )
    names |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "vgpu_kind": kind}
    metaclass: Any = type(type(kind).__name__, (type(kind), type(virtual)), {})
    return metaclass(kind.__name__, (virtual, kind), names)
