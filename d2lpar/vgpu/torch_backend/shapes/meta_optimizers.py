"""Fused optimizer steps from shapes alone: they write in place and return nothing.

torch has a kernel on `meta` for a few of them, and otherwise runs them on made-up tensors of the
device: DTensor asks so what a step does to the shapes of its parts.
"""

from __future__ import annotations

import torch

from ..private.torch_operators import lacks_meta_kernel

_STEPS = [
    f"{name}{overload}"
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    for overload in ("", ".tensor_lr")
]


def register(library: torch.library.Library) -> None:
    """Give torch those that it lacks."""
    for step in _STEPS:
        if lacks_meta_kernel(step):
            library.impl(step, _change_no_shape, "Meta")


def _change_no_shape(*_: object, **__: object) -> None:
    """Shapes stay as they are."""
