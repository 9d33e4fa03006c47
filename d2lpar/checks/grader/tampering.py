"""Whether an answer has changed what grades it: code, constants and machines, before and after."""

from __future__ import annotations

import builtins
import hashlib
import math
import sys
import time
import types

import torch
import torch.distributed

from ... import machines
from .source import Refused

WATCHED = (
    builtins,
    math,
    time,
    torch,
    torch.Tensor,
    torch.nn.functional,
    torch.distributed,
    torch.nn.Module,
)
CALLABLE = (
    property,
    staticmethod,
    classmethod,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
)
TEXT_CHANGED = "the answer has changed {what} while it ran, and so does not count"

State = dict[str, object]


def state() -> State:
    """What must be the same before and after: code by its identity, machines by a hash."""
    found: State = {}
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] == __package__.split(".")[0] and module is not None:
            _note(found, name, module)
    for owner in WATCHED:
        _note(found, owner.__name__, owner)
    for name in sorted(machines.CATALOGUE):
        found[f"the machine {name}"] = fingerprint(machines.CATALOGUE[name])
    return found


def check(before: State) -> None:
    """Raise `Refused` with the first thing that is no longer as it was."""
    after = state()
    for what, was in before.items():
        if after.get(what) != was:
            raise Refused(TEXT_CHANGED.format(what=what))


def fingerprint(machine: machines.Machine) -> str:
    """A hash of all figures of a machine."""
    return hashlib.sha256(repr(machine).encode()).hexdigest()[:16]


def _note(found: State, name: str, owner: object) -> None:
    for key, value in [*vars(owner).items()]:
        kind = type(value)  # not isinstance: some names warn when they are asked for their class
        if kind is types.FunctionType:
            found[f"{name}.{key}"] = id(value), id(value.__code__), id(value.__defaults__)
        elif issubclass(kind, type):
            found[f"{name}.{key}"] = id(value)
            if value.__module__ == name:
                _note(found, f"{name}.{key}", value)
        elif kind in CALLABLE:
            found[f"{name}.{key}"] = id(value)
        elif key.isupper() and kind in (int, float, str, tuple):
            found[f"{name}.{key}"] = repr(value)
