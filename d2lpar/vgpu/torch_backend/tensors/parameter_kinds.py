"""Classes of parameters, `nn.Parameter` and what programs derive from it, on virtual devices.

torch makes such a parameter of a plain tensor's memory. A virtual tensor has a class of its own, so
one of both is made: it is what the parameter's class says, and a tensor of a virtual device.

To programs that compare types, or look them up, both are the class that they know: it is equal, and
its hash, too. What they pickle is that class.
"""

from __future__ import annotations

import copy
import copyreg
import functools
from typing import Any

import torch
from torch.nn import Parameter

from ..private.torch_tensors import LazyTensor

STANDS_FOR = "vgpu_kind"  # the attribute of a class on virtual devices: that of the host
_BASE = "vgpu_base"  # of a class of parameters: what they would be as tensors
_OF_EACH_CLASS = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__new__"}


class KindOfTensor(type(torch.Tensor)):  # type: ignore[misc]  # a metaclass without a name
    """Lets a class equal the one that it stands for, as in `type(x) == torch.Tensor`, and be found
    in its place in tables: so it is on CUDA. Classes derived from it are classes of their own."""

    def __eq__(cls, other: object) -> bool:
        return cls is other or (other is not None and cls.__dict__.get(STANDS_FOR) is other)

    # torch looks up the type of each tensor in each operation: a function of Python took longer.
    __hash__ = hash(torch.Tensor).__index__


def _pickled(virtual: Any) -> tuple:
    """As the class itself on the host."""
    return copy.copy, (getattr(virtual, STANDS_FOR),)


copyreg.pickle(KindOfTensor, _pickled)


def host_kind(kind: Any) -> Any:
    """The class that one on virtual devices stands for; other classes as they are."""
    return getattr(kind, STANDS_FOR, kind)


def kind_of(tensor: torch.Tensor) -> type[Parameter]:
    """The program's class of a parameter, wherever it is; `nn.Parameter` where it has none."""
    found: Any = host_kind(type(tensor))
    is_own = issubclass(found, Parameter) and not issubclass(found, LazyTensor)
    return found if is_own else Parameter


def with_kind(parameter: Any, kind: type[Parameter]) -> Any:
    """The same parameter, on the host or a virtual device, of a class that `kind_of` has given."""
    kind, now = host_kind(kind), type(parameter)
    base = vars(now).get(_BASE, now)
    if isinstance(base, KindOfTensor) or not (kind is Parameter or issubclass(now, Parameter)):
        parameter.__class__ = class_of_both(kind, base)
    elif kind is not Parameter:
        parameter.__class__ = kind
    return parameter


@functools.cache
def class_of_both(kind: Any, virtual: Any) -> type:
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
    names |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    names |= {STANDS_FOR: kind, _BASE: virtual}
    bases, found_as = (type(kind), type(virtual)), {"__hash__": hash(kind).__index__}
    metaclass: Any = type(type(kind).__name__, bases, found_as)
    copyreg.pickle(metaclass, _pickled)
    return metaclass(kind.__name__, (virtual, kind), names)
