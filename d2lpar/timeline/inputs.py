"""What functions and dataclasses may be given: said by their annotations, and refused by name.

    @checked
    def seconds(nbytes: NotNegative, devices: Count) -> float: ...

What is wrong raises ValueError with the argument's name, whose it is, what it may be, and its
value: without that it would end as a TypeError somewhere inside, or never. Dataclasses call
`check_fields` first of all in `__post_init__`.
"""

from __future__ import annotations

import argparse
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from itertools import chain
from math import isfinite
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

MOST_COUNT = 2**63 - 1  # torch takes nothing larger as a size
MOST_TIMES = 10**6  # that something is done again, and a user waits
MOST_SECONDS = 10**7  # that a user waits: four months
LEAST_NUMBER, MOST_NUMBER = 1e-30, 1e30  # of any unit: products of several stay finite, and sums
BELOW_COUNT, IN_NUMBERS = "below 2**63", "from 1e-30 to 1e30"

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


class Kind(NamedTuple):
    """What a value may be, in words, and whether one is; the words for what is too large."""

    what: str
    holds: Callable[[Any], bool]
    limit: str = ""


def is_number(value: object) -> bool:
    """Whether it is a real number, infinity and NaN included; True is none."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def is_whole(value: object) -> bool:
    """Whether it is an integer; True is none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_finite(value: object) -> bool:
    """Whether it is a finite number, and a float can hold it, as what is computed with are floats
    in the end."""
    try:
        return is_number(value) and isfinite(cast(float, value))
    except OverflowError:
        return False


def is_amount(value: object) -> bool:
    """Whether it is a number from zero on that something can have: neither huge nor tiny."""
    return is_finite(value) and (value == 0 or LEAST_NUMBER <= cast(float, value) <= MOST_NUMBER)


def beyond(value: object, limit: str = BELOW_COUNT) -> str:
    """What to add to the words for a number if `value` is one too large, or small; else nothing."""
    return f", {limit}" if any(map(_is_extreme, _members(value))) else ""


def _is_extreme(value: object) -> bool:
    if is_whole(value):
        return cast(int, value) > MOST_COUNT
    return is_finite(value) and cast(float, value) > 0 and not is_amount(value)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return (*value, *value.values())
    return value if isinstance(value, (list, tuple)) else (value,)


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on that torch takes as a size."""
    return is_whole(value) and 1 <= cast(int, value) <= MOST_COUNT


def whole(least: int, most: int) -> Kind:
    """A whole number of a range."""
    what = f"a whole number from {least} to {most}"
    return Kind(what, lambda value: is_whole(value) and least <= value <= most)


Count = Annotated[int, Kind("a whole number from 1 on", is_count, BELOW_COUNT)]
Index = Annotated[
    int,
    Kind("a whole number from 0 on", lambda v: is_whole(v) and 0 <= v <= MOST_COUNT, BELOW_COUNT),
]
Times = Annotated[int, whole(1, MOST_TIMES)]
Seconds = Annotated[
    float,
    Kind(
        f"a number of seconds above zero, {MOST_SECONDS} at most",
        lambda v: is_amount(v) and 0 < v <= MOST_SECONDS,
    ),
]
Positive = Annotated[
    float,
    Kind("a number above zero", lambda v: is_amount(v) and v > 0, IN_NUMBERS),
]
NotNegative = Annotated[
    float,
    Kind("a number from zero on", is_amount, IN_NUMBERS),
]
Fraction = Annotated[
    float,
    Kind("a number above zero, 1 at most", lambda v: is_amount(v) and 0 < v <= 1, IN_NUMBERS),
]
Share = Annotated[
    float, Kind("a number from zero to 1", lambda v: is_amount(v) and v <= 1, IN_NUMBERS)
]

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


def option(hint: Any) -> Callable[[str], Any]:
    """What reads an option of a command, as `type` of argparse's `add_argument`: a text to the
    number that `hint` says."""
    kind, number = _kind(hint), typing.get_args(hint)[0]

    def read(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            value = text
        if not kind.holds(value):
            what = kind.what + (beyond(value, kind.limit) if kind.limit else "")
            raise argparse.ArgumentTypeError(f"it takes {what}, not {text!r}")
        return value

    return read


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
    what = kind.what + (beyond(value, kind.limit) if kind.limit else "")
    return ValueError(f"{name} of {whose} must be {what}, not {_SHORT.repr(value)}")


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
    return Kind(what, lambda v: any(kind.holds(v) for kind in kinds), _limit(*kinds))


def _mapping(key: Kind, value: Kind) -> Kind:
    return Kind(
        f"a mapping from {key.what} to {value.what}",
        lambda v: (
            isinstance(v, Mapping)
            and all(key.holds(k) and value.holds(each) for k, each in v.items())
        ),
        _limit(key, value),
    )


def _several(cls: type, member: Kind) -> Kind:
    name = cls.__name__.lower()
    return Kind(
        f"{'an' if name == 'iterable' else 'a'} {name}, each member {member.what}",
        lambda v: isinstance(v, cls) and not isinstance(v, (str, bytes)) and _all(member, v),
        member.limit,
    )


def _limit(*kinds: Kind) -> str:
    return next((kind.limit for kind in kinds if kind.limit), "")


def _all(member: Kind, values: Any) -> bool:
    """Members of what can be read once only, such as a generator, are taken as they come; of a
    range the ends stand for all."""
    if isinstance(values, range) and values:
        values = (values[0], values[-1])
    try:
        return not isinstance(values, Collection) or all(map(member.holds, values))
    except TypeError:  # a tensor without dimensions
        return False
