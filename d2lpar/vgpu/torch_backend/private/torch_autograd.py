"""Autograd: the pass and the node under way, its engine, and errors in it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from ...patching import FOR_GOOD
from ...signals import closed_to_handlers

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
NO_TASK = -1  # what it says where there is no backward pass


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward pass that this thread runs has finished."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


_ADDS_UP = 2**64 - 1  # the number that autograd gives to nodes that add up gradients in leaves
next_node_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


def node_number() -> int | None:
    """The number of the node whose backward operation this thread runs; None where that says
    nothing of its forward operation."""
    node = torch._C._current_autograd_node()
    number = _ADDS_UP if node is None else node._sequence_nr()
    return None if number == _ADDS_UP else number


def nodes_from(tensors: Iterable[object], start: int) -> Iterator[Any]:
    """The nodes that made tensors, back to the number `start` of this thread; without those that
    add up gradients in leaves."""
    seen: set[Any] = set()
    waiting = [getattr(tensor, "grad_fn", None) for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or not start <= node._sequence_nr() < _ADDS_UP:
            continue
        seen.add(node)
        yield node
        waiting += [before for before, _ in node.next_functions]


def notes_of_node() -> dict[Any, Any]:
    """What was noted in the `metadata` of the node whose backward operation this thread runs."""
    node: Any = torch._C._current_autograd_node()
    return {} if node is None else node.metadata


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether gradients are added up in it. A view that was made without autograd, and whose base
    has changed since, is none: torch raises when it is asked."""
    try:
        return tensor.requires_grad and tensor.is_leaf
    except RuntimeError:
        return False


def leaf_of_node() -> torch.Tensor | None:
    """The leaf to which the node gives its gradient that this thread runs; None of other nodes."""
    return getattr(torch._C._current_autograd_node(), "variable", None)


_PRIVATE_USE_1 = torch._C._autograd.DeviceType.PrivateUse1
_notice = functools.partial(id, None)  # cheap; and Python checks its result for a pending exception


def make_device_guard() -> object:
    """What tells the engine the type of the device.

    It is asked even while the engine unwinds because a hook has raised. A Python function that
    returns with an exception pending fails, and the process would end; so the exception is put
    aside, and `raising_late` raises it when the engine is out.
    """

    class DeviceGuard(torch._C._acc.DeviceGuard):
        type_ = _type_of_device  # type: ignore[assignment]  # torch's stub says a device

    return DeviceGuard()


@closed_to_handlers
def _type_of_device(_: object) -> object:
    try:
        _notice()
    except SystemError as error:
        _late.error = error.__cause__
    return _PRIVATE_USE_1


_late = threading.local()


def raising_late(engine: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Call the autograd engine; raise what was put aside by the device guard."""

    @functools.wraps(engine)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            with _tracing_all_but(_type_of_device.__code__):
                return engine(*args, **kwargs)
        except SystemError:
            error = _late.__dict__.pop("error", None)
            if error is None:
                raise
            try:
                raise error from error.__cause__
            finally:
                del error  # it knows this frame: a cycle that would keep all of the graph

    return run


@contextmanager
def _tracing_all_but(code: CodeType) -> Iterator[None]:
    """Let a trace function, such as a debugger's, not see this code: where an exception is pending
    it would fail, and the process would end."""
    trace = sys.gettrace()
    if trace is None:
        yield
        return

    def see(frame: FrameType, event: Any, arg: Any) -> Any:
        return None if frame.f_code is code else trace(frame, event, arg)

    sys.settrace(see)
    try:
        yield
    finally:
        if sys.gettrace() is see:
            sys.settrace(trace)


def replace_engine(make: Callable[[object], object]) -> None:
    """Let programs that call the autograd engine themselves call what `make` makes of it."""
    owner: Any = torch.autograd.Variable
    FOR_GOOD.set(owner, "_execution_engine", make(owner._execution_engine))
