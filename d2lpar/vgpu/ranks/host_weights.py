"""Large weights that a program sets on the host, in a run without values: nobody sets them.

Programs make networks on the host, each rank its own, before they move to a GPU. At full size that
is most of the real time, and more memory than there is, as pages are there once they are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import init

LARGE = 2**20  # elements; smaller tensors are set, as that is quick


@contextmanager
def left_unset() -> Iterator[None]:
    """In the block, functions of `torch.nn.init` leave large tensors of the host as they are.

    Their first element is NaN, as what the host reads of a GPU is without values: so is then what
    it computes of them. Host random numbers that these would have drawn are not drawn.
    """
    active = [True]
    theirs = {name: value for name, value in vars(init).items() if _sets(name, value)}
    for name, function in theirs.items():
        setattr(init, name, _unless(active, function))
    try:
        yield
    finally:
        active.clear()  # for whoever keeps them under a name of its own
        for name, function in theirs.items():
            setattr(init, name, function)


def _sets(name: str, value: object) -> bool:
    return callable(value) and name.endswith("_") and not name.startswith("_")


def _unless(active: list[bool], function: Callable[..., torch.Tensor]) -> Callable:
    @functools.wraps(function)
    def fill(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if not (active and _is_large_of_host(tensor)):
            return function(tensor, *args, **kwargs)
        tensor.detach()[(0,) * tensor.dim()] = float("nan")
        return tensor

    return fill


def _is_large_of_host(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.is_floating_point()
        and tensor.numel() >= LARGE
    )
