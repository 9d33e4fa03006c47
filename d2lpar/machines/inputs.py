"""What functions and dataclasses may be given: said by their annotations, and refused by name.

    @checked
    def seconds(nbytes: NotNegative, devices: Count) -> float: ...

What is wrong raises ValueError with the argument's name, whose it is, what it may be, and its
value: without that it would end as a TypeError somewhere inside. Dataclasses call `check_fields`
first of all in `__post_init__`.
"""

from __future__ import annotations

import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from itertools import chain
from math import inf
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


class Kind(NamedTuple):
    """What a value may be, in words, and whether one is."""

    what: str
    holds: Callable[[Any], bool]


def is_number(value: object) -> bool:
    """Whether it is a real number, infinity and NaN included; True is none."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def is_whole(value: object) -> bool:
    """Whether it is an integer; True is none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


Count = Annotated[int, Kind("a whole number from 1 on", lambda v: is_whole(v) and v >= 1)]
Index = Annotated[int, Kind("a whole number from 0 on", lambda v: is_whole(v) and v >= 0)]
Positive = Annotated[float, Kind("a number above zero", lambda v: is_number(v) and 0 < v < inf)]
NotNegative = Annotated[
    float, Kind("a number from zero on", lambda v: is_number(v) and 0 <= v < inf)
]
Fraction = Annotated[
    float, Kind("a number above zero, 1 at most", lambda v: is_number(v) and 0 < v <= 1)
]
Share = Annotated[float, Kind("a number from zero to 1", lambda v: is_number(v) and 0 <= v <= 1)]

_OF_TYPES = {
    bool: Kind("True or False", lambda v: isinstance(v, bool)),
    int: Kind("a whole number", is_whole),
    float: Kind("a number", is_number),
    str: Kind("a text", lambda v: isinstance(v, str)),
    type(None): Kind("None", lambda v: v is None),
}
_ANYTHING = Kind("anything", lambda _: True)


def require(whose: str, hint: Any, **values: object) -> None:
    """Raise ValueError for the first of the values that is not what `hint` says."""
    kind = _kind(hint)
    for name, value in values.items():
        if not kind.holds(value):
            raise _refused(name, whose, kind, value)


def check_fields(record: Any) -> None:
    """Raise ValueError for a field of a dataclass that is not what its annotation says."""
    for name, kind in _kinds(record.__class__).items():
        if not kind.holds(value := getattr(record, name)):
            own = getattr(record, "name", None)
            whose = own if isinstance(own, str) and own else type(record).__name__
            raise _refused(name, whose, kind, value)


def checked(function: F) -> F:
    """The same function, which raises ValueError for what its annotations do not allow."""
    names = tuple(inspect.signature(function).parameters)
    whose = function.__qualname__.removesuffix(".__init__").lstrip("_")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kinds = _kinds(function)
        for name, value in chain(zip(names, args, strict=False), kwargs.items()):
            if name in kinds and not kinds[name].holds(value):
                raise _refused(name, whose, kinds[name], value)
        return function(*args, **kwargs)

    return cast(F, call)


def _refused(name: str, whose: str, kind: Kind, value: object) -> ValueError:
    return ValueError(f"{name} of {whose} must be {kind.what}, not {_SHORT.repr(value)}")


@cache
def _kinds(of: Hashable) -> dict[str, Kind]:
    """What each argument, or each field of a dataclass, may be. Worked out when it is first asked
    for: annotations may name what a module has further down."""
    hints = typing.get_type_hints(of, include_extras=True)
    names = {field.name for field in fields(of)} if is_dataclass(of) else hints.keys()
    return {name: _kind(hint) for name, hint in hints.items() if name in names}


@cache
def _kind(hint: Any) -> Kind:
    """What a type allows; anything, where it is not one of those known here."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return next(each for each in args if isinstance(each, Kind))
    if origin in (typing.Union, types.UnionType):
        return _any_of([_kind(arg) for arg in args])
    if hint in _OF_TYPES:
        return _OF_TYPES[hint]
    of = origin or hint
    if of is Callable:
        return Kind("a function", callable)
    if not isinstance(of, type) or of is object:
        return _ANYTHING
    if issubclass(of, Mapping):
        return _mapping(*map(_kind, args)) if args else Kind("a mapping", _is_a(of))
    if issubclass(of, Iterable) and args:
        return _several(of, _kind(args[0]))
    return Kind(f"a {of.__name__}", _is_a(of))


def _is_a(cls: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, cls)


def _any_of(kinds: list[Kind]) -> Kind:
    what = " or ".join(kind.what for kind in kinds)
    return Kind(what, lambda v: any(kind.holds(v) for kind in kinds))


def _mapping(key: Kind, value: Kind) -> Kind:
    return Kind(
        f"a mapping from {key.what} to {value.what}",
        lambda v: (
            isinstance(v, Mapping)
            and all(key.holds(k) and value.holds(each) for k, each in v.items())
        ),
    )


def _several(cls: type, member: Kind) -> Kind:
    name = cls.__name__.lower()
    return Kind(
        f"{'an' if name == 'iterable' else 'a'} {name}, each member {member.what}",
        lambda v: isinstance(v, cls) and not isinstance(v, (str, bytes)) and _all(member, v),
    )


def _all(member: Kind, values: Any) -> bool:
    """Members of what can be read once only, such as a generator, are taken as they come."""
    try:
        return not isinstance(values, Collection) or all(map(member.holds, values))
    except TypeError:  # a tensor without dimensions
        return False
