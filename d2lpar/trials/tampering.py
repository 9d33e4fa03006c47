"""Whether an answer has changed the clock or the machine that it runs on.

The simulated clock is the only thing of the judge's that runs in the answer's process, so what an
answer does to it is looked for here: in the engine's code and constants, in Python's clock, and in
the machines, before and after. It runs where the answer runs, and is no proof: a figure that no
machine could reach is refused by the judge, whatever this says.
"""

from __future__ import annotations

import hashlib
import sys
import time
import types

import torch
from torch.utils.checkpoint import checkpoint

from .. import machines
from ..vgpu import record, simulate

WATCHED = ("d2lpar.vgpu", "d2lpar.machines", "d2lpar.timeline", __package__)
CALLABLE = (property, staticmethod, classmethod, types.BuiltinFunctionType)

State = dict[str, object]


def state() -> State:
    """What must be the same before and after: code by its identity, machines by a hash."""
    found: State = {}
    for name, module in [*sys.modules.items()]:
        if module is not None and name.startswith(WATCHED):
            _note(found, name, module)
    _note(found, "time", time)
    for name in sorted(machines.CATALOGUE):
        found[f"the machine {name}"] = fingerprint(machines.CATALOGUE[name])
    return found


def changed(before: State) -> str:
    """The first thing that is no longer as it was; "" if there is none."""
    after = state()
    return next((what for what, was in before.items() if after.get(what) != was), "")


def fingerprint(machine: machines.Machine) -> str:
    """A hash of all figures of a machine."""
    return hashlib.sha256(repr(machine).encode()).hexdigest()[:16]


def warm_up() -> None:
    """Let the engine replace what it replaces, before anybody looks."""
    with simulate(machines.DEFAULT, 1, with_values=True) as (gpu,), record():
        x = torch.rand(2, device=gpu, requires_grad=True)
        checkpoint(torch.sin, x, use_reentrant=False).sum().backward()


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
