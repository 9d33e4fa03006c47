"""What a collective of accelerators takes, and which ports it occupies as long as it lasts.

Times are those of `machines.collective_cost` over what joins these accelerators. A collective
occupies the ports of a ring through all of them, whatever its algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...machines import Machine
from ...machines import collective_cost as cost
from .copy_routes import Port, hops


class Group:
    """Accelerators that exchange among themselves, in the order of their ring."""

    def __init__(self, machine: Machine, devices: Sequence[int]) -> None:
        self.ports = ports_of(machine, devices)
        self._fabric = cost.fabric_among(machine, devices) if len(devices) > 1 else None

    def seconds(self, name: str, nbytes: int) -> float:
        """How long a collective of this name takes (`cost.collective_s`); none for one alone."""
        return 0.0 if self._fabric is None else cost.collective_s(name, nbytes, self._fabric)


def ports_of(machine: Machine, devices: Sequence[int]) -> tuple[Port, ...]:
    """The ports of a ring through these accelerators, in their order."""
    ring = zip(devices, [*devices[1:], devices[0]], strict=True)
    return _ports(machine, [pair for pair in ring if pair[0] != pair[1]])


def send(machine: Machine, source: int, target: int, nbytes: int) -> tuple[float, tuple[Port, ...]]:
    """Seconds and ports of a send between two accelerators, with its receive."""
    fabric = cost.fabric_among(machine, [source, target])
    return cost.send_s(nbytes, fabric), _ports(machine, [(source, target)])


def _ports(machine: Machine, ways: Sequence[tuple[int, int]]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(p for way in ways for h in hops(machine, *way) for p in h.ports))
