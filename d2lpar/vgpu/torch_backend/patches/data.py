"""`tensor.data = other`: data may move between the host and virtual devices.

The gradient stays where it is, as on CUDA, though torch would not let anybody assign it so.
"""

from __future__ import annotations

from typing import Any

import torch

from ...patching import FOR_GOOD
from ..private import torch_tensors
from ..tensors.tensor import VirtualTensor, forget_moved, kept_elsewhere, moved, share


class TensorAttribute(property):
    """An attribute that torch takes for its own: torch._dynamo asks for its class and name."""

    __objclass__ = torch_tensors.TensorBase

    def __init__(self, name: str, *functions: Any) -> None:
        super().__init__(*functions)
        self.__name__ = name


def replace_data() -> None:
    """Let `parameter.data = parameter.data.to(device)` move parameters of the host, too."""
    for ours in (
        TensorAttribute("data", torch_tensors.get_data, _set_data),
        TensorAttribute("grad", _get_grad, _set_grad, _forget_grad),
    ):
        FOR_GOOD.set(torch.Tensor, ours.__name__, ours)


def _set_data(tensor: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(values, VirtualTensor):
        share(tensor, values)
    else:
        torch_tensors.set_data(tensor, values)


def _get_grad(tensor: torch.Tensor) -> torch.Tensor | None:
    grad = torch_tensors.get_grad(tensor)
    if grad is not None:
        return moved(grad)
    kept = kept_elsewhere(tensor)
    return None if kept is None else torch_tensors.get_grad(kept)


def _set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    kept = kept_elsewhere(tensor)
    if kept is not None:
        torch_tensors.set_grad(kept, None)
    forget_moved(torch_tensors.get_grad(tensor))
    torch_tensors.set_grad(tensor, grad)


def _forget_grad(tensor: torch.Tensor) -> None:
    _set_grad(tensor, None)
