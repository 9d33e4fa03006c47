"""The forms in which programs call a group's methods themselves: `group.allreduce(tensor)`.

torch's own functions give lists of tensors and an object with options. Its groups take one tensor,
too, and in place of the object an operation and a root, each of which may be left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

from ..private.c10d import waited_for

# How deep the lists are that torch's functions give, by method: one for each list of tensors.
DEPTHS = {
    "allgather": (2, 1),
    "allgather_coalesced": (2, 1),
    "allreduce": (1,),
    "allreduce_coalesced": (1,),
    "broadcast": (1,),
    "gather": (2, 1),
    "reduce": (1,),
    "reduce_scatter": (1, 2),
    "reduce_scatter_single": (0, 0),
    "reduce_scatter_single_coalesced": (1, 1),
    "scatter": (1, 2),
}
_OPERATIONS = (ReduceOp, ReduceOp.RedOpType)
TENSORS = (torch.Tensor, list, tuple)


@dataclass
class CallOptions:
    """What torch's options say that matters here; what is left out is as torch has it."""

    reduceOp: object = ReduceOp.SUM  # noqa: N815
    rootRank: int = 0  # noqa: N815


def in_any_form(method: Callable[..., Any], depths: tuple[int, ...]) -> Callable[..., Any]:
    """The method of a group, which may be called in any of torch's forms."""

    @functools.wraps(method)
    def call(self: object, *args: object, **named: object) -> object:
        given = [*args, *named.values()]  # what they are called differs from form to form
        lists = [value for value in given if isinstance(value, TENSORS)]
        if _has_root(given) and [_depth(value) for value in lists[: len(depths)]] == [*depths]:
            raise TypeError(
                f"{method.__name__}(): incompatible function arguments. A root alone goes with "
                "tensors that are not in further lists; with lists, give an object with options"
            )
        tensors = [_nested(value, depth) for value, depth in zip(lists, depths, strict=False)]
        if any(depth == 1 and not value for value, depth in zip(tensors, depths, strict=False)):
            raise RuntimeError(
                "There were no tensor arguments to this function: a list of tensors of "
                f"{method.__name__} is empty"
            )
        return method(self, *tensors, _options(given))

    return call


def waits_first(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a group, which waits for tensors that are still on their way from others."""

    @functools.wraps(method)
    def call(self: object, *args: object, **named: object) -> object:
        args, named = waited_for((args, named))
        return method(self, *args, **named)

    return call


def _has_root(given: list[object]) -> bool:
    """Whether a root is given, and no object with options."""
    return any(isinstance(v, int) and not isinstance(v, _OPERATIONS) for v in given)


def _nested(value: object, depth: int) -> object:
    """A tensor, or list of tensors, in as many lists as torch's functions give."""
    for _ in range(depth - _depth(value)):
        value = [value]
    return value


def _depth(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return 0
    return 1 + (_depth(value[0]) if value else 0)  # type: ignore[index]  # it is a list


def _options(given: list[object]) -> object:
    """The object with options, or one of the operation and the root that are given in its place."""
    options = CallOptions()
    for value in given:
        if isinstance(value, _OPERATIONS):
            options.reduceOp = value
        elif isinstance(value, int):
            options.rootRank = value
        elif isinstance(value, CallOptions) or hasattr(value, "timeout"):  # as all of torch's have
            return value
    return options
