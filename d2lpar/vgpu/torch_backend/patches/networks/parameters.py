"""`nn.Parameter` of virtual tensors, which keeps the class that a program derives from it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from ....patching import FOR_GOOD
from ...private import torch_tensors
from ...tensors.parameter_kinds import host_kind, with_kind
from ...tensors.tensor import VirtualTensor


def replace_parameters() -> None:
    """Let parameters of virtual tensors have the program's classes."""
    torch_new, torch_make = Parameter.__new__, torch_tensors.make_subclass()

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if isinstance(data, VirtualTensor):
            return _parameter(cls, data, requires_grad)
        return torch_new(host_kind(cls), data, requires_grad)

    def make(*args: Any, **kwargs: Any) -> Any:  # no names, as torch's: its compiler compares them
        cls, data, *options = args
        if not issubclass(cls, Parameter):
            return torch_make(*args, **kwargs)
        if not isinstance(data, VirtualTensor):
            return torch_make(host_kind(cls), data, *options, **kwargs)
        return _parameter(cls, data, kwargs.get("require_grad", options[0] if options else False))

    FOR_GOOD.set(Parameter, "__new__", new)
    torch_tensors.replace_make_subclass(make)


def _parameter(kind: Any, data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """What `nn.Parameter` is for tensors that have a class of their own."""
    parameter = data.detach().requires_grad_(requires_grad)
    torch_tensors.mark_parameter(parameter)
    return with_kind(parameter, kind)
