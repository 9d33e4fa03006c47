"""Frozen dataclasses as JSON files, and back with every mistake named by its place in the file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..timeline import whole_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)


def text(kind: str, version: int, thing: DataclassInstance) -> str:
    """A dataclass as JSON, under its kind and schema version."""
    plain = {"kind": kind, "version": version, **dataclasses.asdict(thing)}
    return json.dumps(plain, indent=1, allow_nan=False)


def write(file: Path, content: str) -> None:
    """Write `text` of a dataclass, whole or not at all; its folder is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole_file.write(file, content)


def read(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError if the file is missing or holds no object."""
    try:
        content = whole_file.read(file, "a JSON file")
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: this is not JSON, for it is no UTF-8 text") from None
    try:
        plain = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: this is not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{file}: the file must hold one JSON object, not {_shown(plain)}")
    return plain


def build(cls: type[T], plain: dict[str, Any], file: Path, version: int) -> T:
    """The dataclass `cls` that `write` made `plain` from, checked field by field.

    Raises ValueError that names the file and the place in it: another schema version, a missing
    or unknown field, a wrong type, or a value that `cls` refuses.
    """
    rest = dict(plain)
    rest.pop("kind", None)
    found = rest.pop("version", None)
    if found != version or isinstance(found, bool):
        raise ValueError(
            f"{file}: schema version {_shown(found)} is unknown, this d2lpar reads {version}: "
            "make the file anew"
        )
    try:
        return _dataclass(cls, rest, "")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{file}: {error}") from None


def _dataclass(cls: type[T], plain: object, where: str) -> T:
    if not isinstance(plain, dict):
        _wrong(where, "an object", plain)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    inside = f" in {where}" if where else ""
    for name in plain:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            meant = f"; is {close[0]!r} meant?" if close else ""
            raise ValueError(f"there is no field {name!r}{inside}{meant}")
    missing = [name for name, field in fields.items() if _is_needed(field) and name not in plain]
    if missing:
        raise ValueError(f"the field {missing[0]!r} is missing{inside}")
    hints = typing.get_type_hints(cls)
    values = {
        name: _value(hints[name], value, f"{where}.{name}" if where else name)
        for name, value in plain.items()
    }
    return cls(**values)


def _is_needed(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(hint: Any, value: object, where: str) -> Any:
    """The value that a field of this type has, from what JSON makes of it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # X | None, the only one in use
        return None if value is None else _value(inner[0], value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            _wrong(where, "a list", value)
        return tuple(_value(inner[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            _wrong(where, "an object", value)
        return {key: _value(inner[1], v, f"{where}[{key!r}]") for key, v in value.items()}
    return _scalar(hint, value, where)


def _scalar(hint: type, value: object, where: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        _wrong(where, names[hint], value)
    return value


def _wrong(where: str, expected: str, value: object) -> NoReturn:
    raise ValueError(f"{where or 'the file'} must be {expected}, not {_shown(value)}")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
