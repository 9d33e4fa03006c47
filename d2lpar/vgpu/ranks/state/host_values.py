"""Large random values that a program draws on the host, in a run without values: nobody draws them.

Programs make networks on the host, each rank its own, before they move to a GPU; and benchmarks
their data. At full size that is most of the real time, and more memory than there is, as pages are
there once they are written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn import init

from ...torch_backend.private import torch_modes

LARGE = 2**18  # elements; smaller tensors are set, as that takes a millisecond at most


@contextmanager
def left_unset() -> Iterator[None]:
    """In the block, what would set large tensors of the host leaves them as they are: functions of
    `torch.nn.init`, `normal_` and `uniform_` of tensors, `torch.rand` and `torch.randn`.

    Their first element is NaN, as what the host reads of a GPU is without values: so is then what
    it computes of them. Host random numbers that these would have drawn are not drawn.
    """
    active = [True]
    with ExitStack() as undo:
        undo.callback(active.clear)  # for whoever keeps them under a name of its own
        for name in [name for name, value in vars(init).items() if _sets(name, value)]:
            _replace(undo, init, name, _unless(active, getattr(init, name)))
        for name in ("normal_", "uniform_"):
            _replace(undo, torch.Tensor, name, _unless(active, getattr(torch.Tensor, name)))
        for owner, name in torch_modes.factories():
            if name in ("rand", "randn"):
                _replace(undo, owner, name, _empty_unless(active, getattr(owner, name)))
        yield


def _replace(undo: ExitStack, owner: object, name: str, new: Callable) -> None:
    if name in vars(owner):
        undo.callback(setattr, owner, name, getattr(owner, name))
    else:  # inherited
        undo.callback(delattr, owner, name)
    setattr(owner, name, new)


def _sets(name: str, value: object) -> bool:
    return callable(value) and name.endswith("_") and not name.startswith("_")


def _unless(active: list[bool], function: Callable[..., torch.Tensor]) -> Callable:
    """What sets a tensor, but a large one of the host."""

    @functools.wraps(function)
    def fill(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if not (active and _is_large_of_host(tensor)):
            return function(tensor, *args, **kwargs)
        return _marked(tensor)

    return fill


def _empty_unless(active: list[bool], function: Callable[..., torch.Tensor]) -> Callable:
    """What makes a tensor and sets it, but a large one of the host."""

    @functools.wraps(function)
    def make(*size: object, **options: object) -> torch.Tensor:
        if active and _is_large(*size, **options):
            options.pop("generator", None)
            if torch.empty(0, **options).device.type == "cpu":  # type: ignore[call-overload]
                return _marked(torch.empty(*size, **options))  # type: ignore[call-overload]
        return function(*size, **options)

    return make


def _is_large(*size: object, out: object = None, **options: object) -> bool:
    """Whether a tensor of that size is, if the size is given by its numbers."""
    lengths = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    known = out is None and all(isinstance(n, int) for n in lengths)
    return known and math.prod(lengths) >= LARGE


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    tensor.detach()[(0,) * tensor.dim()] = float("nan")
    return tensor


def _is_large_of_host(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.is_floating_point()
        and tensor.numel() >= LARGE
    )
