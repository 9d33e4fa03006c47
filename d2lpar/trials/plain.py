"""Plain data: what may travel between an answer's process and its judge's, and how.

None, truth values, numbers, strings, lists, tuples, dicts, sets, ranges, fractions, arrays and
tensors. Of anything else only its name and its text arrive. A reader makes exact types of Python
from what it reads, and trusts nothing in it: no object, no code and no method of the sender's comes
along.

A message is its length in 8 bytes, JSON, and the values of the tensors, one after the other.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import torch

MOST_TEXT_BYTES = 8_000_000  # of a message's JSON
MOST_BYTES = 400_000_000  # of a message in all
MOST_LISTED = MOST_TEXT_BYTES // 3  # of a list: JSON takes three bytes for each at least
MOST_ITEMS = 100_000  # of an iterator: it may never end
LONGEST_SHOWN = 200
SHAREABLE_BYTES = 4096  # values of that size that are alike are sent once
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}
ERROR_LONG = "what was sent is too long: {size:,} bytes, and {most:,} may be"
ERROR_MANY = "what was sent has too many items: {count:,}, and {most:,} may be"
ERROR_TORN = "what was sent is no message: {why}"


class NotPlainError(ValueError):
    """What came is no plain data, or too much of it."""


class EndOfMessagesError(EOFError):
    """The other side has ended."""


@dataclass(frozen=True)
class Seen:
    """A tensor's values on the host, the device that it was on, and how it was printed."""

    values: torch.Tensor
    device: str
    requires_grad: bool
    shown: str

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Other:
    """Something that is no plain data: the name of its type, and how it was printed."""

    name: str
    shown: str

    def __repr__(self) -> str:
        return self.shown


def seen(value: object) -> Any:
    """The same with a `Seen` for each tensor in it, which outlives the device it is on."""
    if isinstance(value, torch.Tensor):
        own = value.detach().cpu().clone()
        return Seen(own, str(value.device), bool(value.requires_grad), shown(value))
    if isinstance(value, list | tuple):
        return (
            type(value)(map(seen, value)) if type(value) in (list, tuple) else [*map(seen, value)]
        )
    if isinstance(value, dict):
        return {key: seen(each) for key, each in value.items()}
    return value


def shown(value: object) -> str:
    """How a value is printed, or the beginning of it."""
    try:
        text = ADDRESS.sub("", repr(value))
    except Exception as error:
        text = f"<{type(value).__name__}, which cannot be printed: {type(error).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def type_name(value: object) -> str:
    """The name of a value's type, where it was made."""
    if isinstance(value, Other):
        return value.name
    return "Tensor" if isinstance(value, Seen) else type(value).__name__


# --- writing --------------------------------------------------------------------------------------


def packed(value: object) -> bytes:
    """A message. Raises NotPlainError for what is nested too deeply, or too long."""
    blobs: list[bytes] = []
    try:
        tree = _tree(value, blobs)
        text = json.dumps({"blobs": [*map(len, blobs)], "tree": tree}).encode()
    except RecursionError:
        raise NotPlainError("what was returned is nested too deeply") from None
    size = len(text) + sum(map(len, blobs))
    if len(text) > MOST_TEXT_BYTES or size > MOST_BYTES:
        most = MOST_TEXT_BYTES if len(text) > MOST_TEXT_BYTES else MOST_BYTES
        raise NotPlainError(ERROR_LONG.format(size=size, most=most))
    return b"".join([len(text).to_bytes(8, "big"), text, *blobs])


def _tree(value: object, blobs: list[bytes]) -> object:
    if isinstance(value, list | tuple | set | frozenset | deque | dict):
        _check_count(len(value))
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Number) and not isinstance(value, torch.Tensor):
        return _number(value)
    if isinstance(value, list):
        return [_tree(each, blobs) for each in value]
    if isinstance(value, torch.Tensor | np.ndarray | Seen):
        return _tensor(value, blobs)
    for name, kind in (("tuple", tuple), ("set", (set, frozenset)), ("deque", deque)):
        if isinstance(value, kind):
            return {"kind": name, "of": [_tree(each, blobs) for each in value]}
    if isinstance(value, dict):
        pairs = [[_tree(key, blobs), _tree(each, blobs)] for key, each in value.items()]
        return {"kind": "dict", "of": pairs}
    if isinstance(value, range):
        return {"kind": "range", "of": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        return {"kind": "iterator", "of": [_tree(e, blobs) for e in islice(value, MOST_ITEMS)]}
    if isinstance(value, Other):
        return {"kind": "other", "of": [value.name, value.shown]}
    return {"kind": "other", "of": [type(value).__name__, shown(value)]}


def _check_count(count: int) -> None:
    """Refuse at once what would take half a minute to write before it is found to be too long."""
    if count > MOST_LISTED:
        raise NotPlainError(ERROR_MANY.format(count=count, most=MOST_LISTED))


def _number(value: numbers.Number) -> object:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, Fraction):
        return {"kind": "fraction", "of": [int(value.numerator), int(value.denominator)]}
    if isinstance(value, numbers.Real):
        return float(value)
    return {"kind": "other", "of": [type(value).__name__, shown(value)]}


def _tensor(value: torch.Tensor | np.ndarray | Seen, blobs: list[bytes]) -> object:
    try:
        tensor = torch.as_tensor(value.values if isinstance(value, Seen) else value)
        own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        own = own.as_subclass(torch.Tensor)
        name = str(own.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise TypeError(name)
        blob = own.reshape(-1).view(torch.uint8).numpy().tobytes()
    except Exception:  # sparse, nested, meta, of text, of a type that only some devices have
        return {"kind": "other", "of": [type(value).__name__, shown(value)]}
    found: dict[str, object] = {"dtype": name, "shape": [*own.shape], "blob": _place(blob, blobs)}
    if isinstance(value, np.ndarray):
        return {"kind": "array", "of": found}
    if isinstance(value, Seen):
        told = {"device": value.device, "grad": value.requires_grad, "shown": value.shown}
        return {"kind": "seen", "of": found | told}
    return {"kind": "tensor", "of": found}


def _place(blob: bytes, blobs: list[bytes]) -> int:
    if len(blob) >= SHAREABLE_BYTES and blob in blobs:
        return blobs.index(blob)
    blobs.append(blob)
    return len(blobs) - 1


# --- reading --------------------------------------------------------------------------------------


def unpacked(message: bytes) -> Any:
    """The value of a message. Raises NotPlainError for what is none."""
    stream = memoryview(message)
    place = 0

    def take(size: int) -> memoryview:
        nonlocal place
        place += size
        if place > len(stream):
            raise EndOfMessagesError
        return stream[place - size : place]

    return _read(take)


def read(descriptor: int) -> Any:
    """The value of the next message in a pipe.

    Raises NotPlainError for what is none, EndOfMessagesError where it ends.
    """
    return _read(lambda size: _exactly(descriptor, size))


def write(descriptor: int, value: object) -> None:
    """Write a message into a pipe. Raises as `packed` does, and OSError if nobody reads."""
    send(descriptor, packed(value))


def send(descriptor: int, message: bytes) -> None:
    """Write what is packed into a pipe. Raises OSError if nobody reads."""
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(descriptor, rest[: 1 << 20]) :]


def _exactly(descriptor: int, size: int) -> bytearray:
    found = bytearray()
    while len(found) < size:
        part = os.read(descriptor, min(size - len(found), 1 << 20))
        if not part:
            raise EndOfMessagesError
        found += part
    return found


def _read(take: Callable[[int], Any]) -> Any:
    length = int.from_bytes(take(8), "big")
    if length > MOST_TEXT_BYTES:
        raise NotPlainError(ERROR_LONG.format(size=length, most=MOST_TEXT_BYTES))
    try:
        head = json.loads(bytes(take(length)))
        sizes, tree = [_count(size) for size in head["blobs"]], head["tree"]
        if sum(sizes) > MOST_BYTES:
            raise NotPlainError(ERROR_LONG.format(size=sum(sizes), most=MOST_BYTES))
        return _value(tree, [bytearray(take(size)) for size in sizes])
    except (NotPlainError, EndOfMessagesError):
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise NotPlainError(
            ERROR_TORN.format(why=f"{type(error).__name__}: {error}"[:200])
        ) from None


def _value(tree: Any, blobs: list[bytearray]) -> Any:
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, list):
        return [_value(each, blobs) for each in tree]
    kind, of = tree["kind"], tree["of"]
    if kind in ("tensor", "array", "seen"):
        return _from_bytes(kind, of, blobs)
    if kind == "dict":
        return {_value(key, blobs): _value(each, blobs) for key, each in of}
    if kind == "other":
        return Other(str(of[0])[:LONGEST_SHOWN], str(of[1])[:LONGEST_SHOWN])
    make: dict[str, Callable[[list], Any]] = {
        "tuple": tuple,
        "set": set,
        "deque": deque,
        "iterator": iter,
        "range": lambda numbers: range(*numbers),
        "fraction": lambda numbers: Fraction(*numbers),
    }
    return make[kind]([_value(each, blobs) for each in of])


def _from_bytes(kind: str, of: dict, blobs: list[bytearray]) -> Any:
    dtype, shape, blob = DTYPES[of["dtype"]], [_count(n) for n in of["shape"]], blobs[of["blob"]]
    if math.prod(shape) * dtype.itemsize != len(blob):
        raise NotPlainError(ERROR_TORN.format(why="a tensor's values do not fit its shape"))
    if dtype is torch.bool:  # of which every byte may be another truth
        own = torch.frombuffer(blob, dtype=torch.uint8).ne(0) if blob else torch.empty(0).bool()
    else:
        own = torch.frombuffer(blob, dtype=dtype) if blob else torch.empty(0, dtype=dtype)
    own = own.reshape(shape)
    if kind == "array":
        return own.numpy()
    if kind == "tensor":
        return own
    told = str(of["shown"])[:LONGEST_SHOWN]
    return Seen(own, str(of["device"])[:LONGEST_SHOWN], bool(of["grad"]), told)


def _count(number: object) -> int:
    if type(number) is not int or not 0 <= number <= MOST_BYTES:
        raise NotPlainError(ERROR_TORN.format(why="a size is no size"))
    return number
