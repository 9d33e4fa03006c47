"""How what stages hand on travels from rank to rank: through which ports, over which links."""

from __future__ import annotations

from collections.abc import Sequence

from ...machines import Link, Machine
from ...vgpu.sim.copy_routes import Hop, hops

Way = list[Hop]


def ways(link: Machine | Link | None, owners: Sequence[int]) -> dict[tuple[int, int], Way]:
    """The way from each stage to its neighbours, by (stage, stage); `owners[stage]` is a rank.

    Empty is the way within a rank, and any if `link` is None: then sending takes no time. A
    `Link` joins all ranks, each with a port out and a port in. On a `Machine` ranks are
    accelerators, joined as `vgpu.routes` says.

    Raises ValueError if the machine has fewer accelerators than there are ranks.
    """
    ranks = 1 + max(owners)
    if isinstance(link, Machine) and len(link.accelerators) < ranks:
        raise ValueError(
            f"{link.name} has {len(link.accelerators)} accelerators, and the schedule {ranks} "
            f"ranks: take {link.name}.with_accelerators({ranks}), or a cluster"
        )
    stages = range(len(owners))
    pairs = [(s, other) for s in stages for other in (s - 1, s + 1) if other in stages]
    return {(s, other): _way(link, owners[s], owners[other]) for s, other in pairs}


def _way(link: Machine | Link | None, source: int, target: int) -> Way:
    if link is None or source == target:
        return []
    if isinstance(link, Link):
        return [Hop((("out", source), ("in", target)), link, target)]
    return hops(link, source, target)
