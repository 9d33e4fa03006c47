"""Collectives of tensors that wrap others: what such a tensor exchanges, its class decides.

torch runs a collective as an operator. A class with a `__torch_dispatch__` sees it, and calls it
with the tensors that it wraps. Virtual groups are called without operators, and so ask the class
themselves.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from ..private import c10d as c10d_private
from .collective_work import AnyWork, WorkTogether


class _Operator(c10d_private.Operator):
    """torch's operator as a class of tensors sees it; a call of it is one of `run` in this thread.

    There is one of each, as torch keeps what it has been asked about an operator for ever.
    """

    def __init__(self, name: str) -> None:
        self.__dict__.update(vars(getattr(torch.ops.c10d, name).default))
        self._here = threading.local()

    def __call__(self, *args: object, **kwargs: object) -> object:
        run: Callable[..., object] = self._here.run
        return run(*args, **kwargs)

    @contextmanager
    def running(self, run: Callable[..., object]) -> Iterator[None]:
        """In the block, call `run`."""
        before = getattr(self._here, "run", None)
        self._here.run = run
        try:
            yield
        finally:
            self._here.run = before


_operator = functools.cache(_Operator)


def asks_class(method: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """A group's method, which exchanges what tensors wrap as their class says."""

    @functools.wraps(method)
    def call(self: object, *args: Any, **kwargs: Any) -> object:
        kind = _wrapping((args, kwargs))
        if kind is None:
            return method(self, *args, **kwargs)
        works: list[AnyWork] = []

        def run(*inner: Any, **named: Any) -> tuple[object, object]:
            works.append(call(self, *inner, **named))  # type: ignore[arg-type]
            return inner[0], works[-1]

        with _operator(operator).running(run):
            kind.__torch_dispatch__(_operator(operator), (kind,), args, kwargs)
        return WorkTogether(works)

    return call


def _wrapping(arguments: object) -> Any:
    """The class of the first tensor that wraps others; None if there is none."""
    wrapping = filter(is_traceable_wrapper_subclass, tree_leaves(arguments))
    return next(map(type, wrapping), None)
