"""`tensor.data = other`: data may move between the host and virtual devices.

The gradient stays where it is, as on CUDA, though torch would not let anybody assign it so.
"""

from __future__ import annotations

import torch

from .. import torch_private
from ..tensor import VirtualTensor, kept_elsewhere, share


def replace_data() -> None:
    """Let `parameter.data = parameter.data.to(device)` move parameters of the host, too."""
    torch_private.replace(torch.Tensor, "data", property(torch_private.get_data, _set_data))
    torch_private.replace(torch.Tensor, "grad", property(_get_grad, _set_grad, _forget_grad))


def _set_data(tensor: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(values, VirtualTensor):
        share(tensor, values)
    else:
        torch_private.set_data(tensor, values)


def _get_grad(tensor: torch.Tensor) -> torch.Tensor | None:
    grad = torch_private.get_grad(tensor)
    kept = kept_elsewhere(tensor) if grad is None else None
    return grad if kept is None else torch_private.get_grad(kept)


def _set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    kept = kept_elsewhere(tensor)
    if kept is not None:
        torch_private.set_grad(kept, None)
    torch_private.set_grad(tensor, grad)


def _forget_grad(tensor: torch.Tensor) -> None:
    _set_grad(tensor, None)
