"""A machine of one's own: one that is known, with other parts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..timeline.inputs import Count, require
from .catalogue import ACCELERATORS, CATALOGUE, NETWORKS
from .hardware import Accelerator, Host, Link, Machine


@dataclass(frozen=True)
class _Part:
    """A part that can be another one: its type, those known by names of their own, and how a
    machine of the catalogue says which one it has."""

    cls: type
    of: Callable[[Machine], Any]
    known: Mapping[str, Any] = field(default_factory=dict)
    listed: str = "CATALOGUE"  # of `par.machines`


PARTS = {
    "gpu": _Part(Accelerator, lambda m: m.accelerators[0], ACCELERATORS, "ACCELERATORS"),
    "peer": _Part(Link, lambda m: m.peer),
    "host_link": _Part(Link, lambda m: m.host_link),
    "network": _Part(Link, lambda m: m.network, NETWORKS, "NETWORKS"),
    "host": _Part(Host, lambda m: m.host),
}


def changed(
    machine: Machine, memory_bytes: Count | None, name: str | None, **parts: Any
) -> Machine:
    """The machine with those of `parts` that are not None, and GPUs of so much memory.

    Raises ValueError for a part that is not known, with the names that are close, and for a
    network of a machine that is no cluster.
    """
    given = {what: _found(what, which) for what, which in parts.items() if which is not None}
    said = [f"{what} {part.name}" for what, part in given.items()]
    cards = machine.accelerators
    if "gpu" in given:
        cards = (given.pop("gpu"),) * len(cards)
    if memory_bytes is not None:
        require("machine", Count, memory_bytes=memory_bytes)
        cards = tuple(replace(card, memory_bytes=memory_bytes) for card in cards)
        said.append(f"{memory_bytes / 1e9:g} GB")
    if "network" in given and machine.nodes == 1:
        raise ValueError(
            f"{machine.name} is one node, and a network joins several: name a cluster, such as "
            f"'2x{machine.name}-ib-ndr'"
        )
    if not said and name is None:
        return machine
    return replace(
        machine, accelerators=cards, name=name or f"{machine.name} with {', '.join(said)}", **given
    )


def _found(what: str, which: object) -> Any:
    """The part that is meant: itself, by its own name, or as a machine of the catalogue has it."""
    part = PARTS[what]
    if isinstance(which, part.cls):
        return which
    if not isinstance(which, str):
        raise ValueError(f"{what} is a name or a par.machines.{part.cls.__name__}, not {which!r}")
    if which in part.known:
        return part.known[which]
    count, _, kind = which.partition("x-")  # "1x-k80" has the parts of the machine with more
    for name, machine in CATALOGUE.items():
        fewer = count.isdecimal() and 1 <= int(count) <= len(machine.accelerators)
        known = which == name or (fewer and machine.name.partition("x-")[2] == kind)
        if known and part.of(machine) is not None:
            return part.of(machine)
    raise ValueError(f"no {what} is called {which!r}; {_advice(part, which)}")


def _advice(part: _Part, which: str) -> str:
    names = [*part.known, *(m.name for m in CATALOGUE.values() if part.of(m) is not None)]
    lower = {name.lower(): name for name in names}
    bare = which.lower().strip()
    close = [name for low, name in lower.items() if bare and bare in low][:3]
    close = close or [lower[low] for low in difflib.get_close_matches(bare, lower, n=3, cutoff=0.5)]
    if close:
        return f"there is {', '.join(map(repr, close))}"
    own = f"a par.machines.{part.cls.__name__} of your own"
    return f"`print(*par.machines.{part.listed})` lists the names, and {own} will do"
