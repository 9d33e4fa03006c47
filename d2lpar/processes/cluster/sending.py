"""Functions, arguments and variables on their way from the notebook to the ranks."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .. import pickling
from . import messages
from .wire import OWN_NAMES


def packed_call(function: object, args: tuple, kwargs: Mapping[str, object]) -> bytes:
    """A function and its arguments, pickled: what it refers to in the notebook goes with it.

    Raises ValueError for what is no function, TypeError naming what cannot be sent: open files,
    locks, generators, sockets, running threads, virtual GPUs, and whatever holds one of those.
    """
    if not callable(function):
        raise ValueError(messages.ERROR_FUNCTION.format(what=function))
    what = getattr(function, "__qualname__", repr(function))
    with _ranks_own_names_hidden(function):
        try:
            return pickling.dumps((function, args, dict(kwargs)))
        except Exception as error:
            guilty = _culprits(
                [
                    *((f"argument {i}", value) for i, value in enumerate(args, 1)),
                    *((f"`{name}`", value) for name, value in kwargs.items()),
                ]
            )
            path = pickling.culprit(inspect.unwrap(function), pickling.can_be_dumped)
            guilty += [", used by ".join(f"`{name}`" for name in path)] if path else []
            raise TypeError(_cannot_send(what, error, guilty)) from None


def packed_variables(values: Mapping[str, object]) -> bytes:
    """Variables, pickled; raises TypeError naming the ones that cannot be sent."""
    try:
        return pickling.dumps((dict(values),))
    except Exception as error:
        guilty = _culprits((f"`{name}`", value) for name, value in values.items())
        raise TypeError(_cannot_send("a variable", error, guilty)) from None


@contextlib.contextmanager
def _ranks_own_names_hidden(function: Callable[..., object]) -> Iterator[None]:
    """Keep the notebook's own `device` or `rank` back: on a rank they mean something else."""
    names = pickling.globals_of(function)
    if names.get("__name__") != "__main__":
        names = {}
    hidden = {name: names.pop(name) for name in OWN_NAMES if name in names}
    try:
        yield
    finally:
        names.update(hidden)


def _cannot_send(what: str, error: Exception, guilty: Sequence[str]) -> str:
    because = messages.BECAUSE.format(names=", ".join(guilty)) if guilty else ""
    return messages.ERROR_SEND.format(what=what, reason=error, because=because)


def _culprits(values: Iterable[tuple[str, object]]) -> list[str]:
    return [name for name, value in values if not pickling.can_be_dumped(value)]
