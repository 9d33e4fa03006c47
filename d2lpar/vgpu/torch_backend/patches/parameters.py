"""`nn.Parameter` of virtual tensors, which keeps the class that a program derives from it."""

from __future__ import annotations

from typing import Any

from torch.nn import Parameter

from .. import torch_private
from ..parameter_kinds import with_kind
from ..tensor import VirtualTensor


def replace_parameters() -> None:
    """Let parameters of virtual tensors have the program's classes."""
    torch_new, torch_make = Parameter.__new__, torch_private.make_subclass()

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        found = torch_new(cls, data, requires_grad)
        return with_kind(found, cls) if isinstance(found, VirtualTensor) else found

    def make(*args: Any, **kwargs: Any) -> Any:  # no names, as torch's: its compiler compares them
        cls, data, *options = args
        if not isinstance(data, VirtualTensor) or not issubclass(cls, Parameter):
            return torch_make(*args, **kwargs)
        requires_grad = kwargs.get("require_grad", options[0] if options else False)
        return with_kind(torch_new(Parameter, data, requires_grad), cls)

    torch_private.replace(Parameter, "__new__", new)
    torch_private.replace_make_subclass(make)
