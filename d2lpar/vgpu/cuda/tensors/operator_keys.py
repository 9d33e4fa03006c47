"""Kernels that a program registers for CUDA's autograd and autocast, by keys of virtual devices.

What it registers for CUDA itself, the dispatcher finds (`torch_operators.definition_of`). Without
these, torchvision's models of detection would not train in autocast: it casts their boxes so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.library

from ...patching import Patches
from ...torch_backend.private import torch_modes

_AUTOGRAD, _AUTOCAST = "AutogradCUDA", "AutocastCUDA"


def install(patches: Patches) -> None:
    """Register such kernels for virtual devices, too."""
    library = torch.library.Library
    patches.replace(library, "impl", _impl(library.impl))


def _impl(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def impl(
        self: Any, op_name: object, fn: Callable, dispatch_key: str = "", **options: object
    ) -> None:
        theirs(self, op_name, fn, dispatch_key, **options)
        key = dispatch_key or self.dispatch_key
        if key == _AUTOGRAD:
            theirs(self, op_name, fn, "AutogradPrivateUse1", **options)
        elif key == _AUTOCAST:
            theirs(self, op_name, _without_autocast(fn), "AutocastPrivateUse1", **options)

    return impl


def _without_autocast(kernel: Callable[..., object]) -> Callable[..., object]:
    """A kernel that calls its operator again, with the autocast of CUDA off."""

    @functools.wraps(kernel)
    def run(*args: object, **kwargs: object) -> object:
        with torch_modes.autocast_is_over():
            return kernel(*args, **kwargs)

    return run
