"""Groups of virtual ranks: what torch's functions that make and end groups do on them.

Groups have the names that torch gives them, the same on all their ranks: by these C++ finds them.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...device_naming import naming
from ..private import c10d as c10d_private
from ..private.backends import GroupBackends, at_the_start, for_device, named
from ..stores.prefixed_store import PrefixedStore
from ..world.participants import WORLD
from ..world.rank import Rank, here
from .process_group import VirtualProcessGroup


def make_world_group(
    rank: Rank,
    backends: GroupBackends | None = None,
    store: dist.Store | None = None,
    size: int | None = None,
    timeout: timedelta | None = None,
) -> None:
    """Give a rank the group of all, or of the first `size`; `store` is the program's for it. Unless
    `backends` are asked for, it exchanges tensors of the host, too."""
    everyone = rank.world.size
    ranks = range(everyone if size is None else size)
    name = WORLD if len(ranks) == everyone else f"{WORLD} of the first {len(ranks)}"
    backends = backends or at_the_start(has_gpus=bool(rank.devices))
    store = store or _part_of_all(rank.torchrun_s_store())
    rank.groups.default_pg = _join(
        rank, name, ranks, backends, "default_pg", store=store, timeout=timeout
    )


def _join(
    rank: Rank,
    name: str,
    ranks: Sequence[int],
    backends: GroupBackends,
    description: str | None = None,
    tag: str | None = None,
    store: dist.Store | None = None,
    timeout: timedelta | None = None,
) -> dist.ProcessGroup:
    """Let a rank have the group of that name, of which it is one. `store` is the one that it has a
    part of: that of the group of all, by default."""
    store = PrefixedStore(f"{name}/", store or rank.groups.store_of(rank.groups.default_pg))
    meeting = rank.world.rendezvous(name, ranks)
    group = VirtualProcessGroup(rank, meeting, backends, name, description, timeout)
    rank.groups.add(group, name, backends, ranks, tag, store=store)
    return group


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: dist.Store | None = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: torch.device | int | None = None,
    **kwargs: object,
) -> None:
    """Join the group of all ranks. `run_ranks` has made it already, and it is only checked.

    Processes wait there for one another, and it may be that of the first `world_size`; the others
    do something else. ValueError if `world_size` or `rank` is not what there is, if a process has
    such a group already, or if it lacks variables that torchrun would have set; TypeError for an
    argument that torch's does not take.
    """
    for name in kwargs.keys() - TAKEN_BY_TORCH:
        raise TypeError(f"init_process_group() got an unexpected keyword argument {name!r}")
    mine = here.rank
    groups = mine.groups
    if mine.is_process:
        if groups.default_pg is not None:
            raise ValueError("trying to initialize the default process group twice!")
        if store is None and (init_method or ENV).startswith(ENV):
            rank, world_size = _from_environment(rank, world_size)
        mine.join(_place_of_meeting(init_method or ENV), rank, world_size)
    _check("rank", rank, mine.number)
    size = _checked_size(mine, world_size)
    backend = backend or for_device(device_id)
    backends = None if backend is None else _backends(mine, backend)
    if groups.default_pg is None:
        backends = backends or _backends(mine, None)
        if store is None and mine.is_process:
            store = _met(init_method or ENV, rank, world_size, timeout)
        make_world_group(mine, backends, store, size, timeout)
    else:
        if backends is not None:
            groups.change_backends(groups.default_pg, backends)
        groups.default_pg.set_timeout(timeout)
        if store is not None:
            groups.change_store(groups.default_pg, PrefixedStore(f"{WORLD}/", store))
    groups.default_pg.bound_device_id = _bound(device_id)


def _place_of_meeting(init_method: str) -> str:
    """Where processes meet that the program has started."""
    names = ("MASTER_ADDR", "MASTER_PORT") if init_method.startswith(ENV) else ()
    return " ".join([init_method, *(os.environ.get(name, "") for name in names)])


def _met(init_method: str, rank: int, size: int, timeout: timedelta | None) -> dist.Store:
    """The store by which processes find one another, once they have; torch's errors if they do not,
    or if the address is none."""
    limit = timeout or c10d_private.DEFAULT_TIMEOUT
    if init_method.startswith(ENV) and os.environ.get(AGENT_S_STORE) == str(True):
        return _part_of_all(here.rank.torchrun_s_store())  # that may be in a process of no run
    store, *_ = next(dist.rendezvous(init_method, rank, size, timeout=limit))
    store.set_timeout(limit)
    return _part_of_all(store)


def _part_of_all(store: dist.Store) -> dist.Store:
    """What the group of all ranks has of a store that is not the program's."""
    return PrefixedStore("default_pg", store)


def _backends(rank: Rank, backend: str | None) -> GroupBackends:
    return named(backend, has_gpus=bool(rank.devices))


def _bound(device: torch.device | int | None) -> torch.device | None:
    return torch.device(naming().type, device) if isinstance(device, int) else device


ENV = "env://"
AGENT_S_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # what torch's agent tells the ranks that it starts
TAKEN_BY_TORCH = inspect.signature(dist.init_process_group).parameters.keys()


def _from_environment(rank: int, world_size: int) -> tuple[int, int]:
    """As torch's rendezvous by variables: those that are missing raise."""
    asked = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": -1, "MASTER_PORT": -1}
    for name, value in asked.items():
        if value == -1 and name not in os.environ:
            raise ValueError(
                f"Error initializing torch.distributed using {ENV} rendezvous: environment "
                f"variable {name} expected, but not set. {_remedy(name, spawned=rank != -1)}"
            )
    numbers = [int(os.environ[name]) if asked[name] == -1 else asked[name] for name in TWO]
    return numbers[0], numbers[1]


TWO = ("RANK", "WORLD_SIZE")


def _remedy(variable: str, *, spawned: bool) -> str:
    """What to do about a missing variable; processes that are `spawned` know their rank."""
    if spawned and variable not in TWO:
        return (
            "A program that starts its processes itself finds it in its environment, as with "
            "`MASTER_ADDR=localhost MASTER_PORT=29500 d2lpar run …`"
        )
    return "torchrun sets it: start the program with `d2lpar run --nproc-per-node N`"


def _checked_size(rank: Rank, given: int) -> int:
    """How many ranks the group of all has; of processes, it may be the first ones alone."""
    if rank.is_process and rank.number < given < rank.world.size:
        return given
    _check("world_size", given, rank.world.size)
    return rank.world.size


def _check(name: str, given: int, is_really: int) -> None:
    if given in (-1, is_really):
        return
    world = here.rank.world
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    raise ValueError(
        f"init_process_group was given {name}={given}, but d2lpar has started {ranks}, of which "
        f"this is number {here.rank.number}: {_how_to_start(name, given, world.size)}"
    )


def _how_to_start(name: str, given: int, started: int) -> str:
    if name == "world_size" and given > started == 1 and here.rank.is_process:
        return f"start as many with `d2lpar run --nproc-per-node {given} SCRIPT`"
    if name == "rank":
        return (
            "a process has the number that it was started with, and a group smaller than all "
            "processes is one of the first of them"
        )
    if name == "world_size" and given < started:
        return (
            "the first group is that of all ranks here. Let all of them join it, and make the "
            f"smaller one with torch.distributed.new_group(ranks); or start {given}"
        )
    return "start as many ranks (and virtual GPUs) as the program expects"


def destroy_process_group(group: object = None) -> None:
    """Forget a group; with that of all ranks, all groups."""
    groups = here.rank.groups
    if group is c10d_private.NOT_A_MEMBER:
        return
    if group is None or group is groups.default_pg:
        groups.remove_all()
    else:
        groups.remove(group)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    backend_options: object = None,
    pg_tag: str | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> object:
    """A group of these ranks of the world; what torch has for "no member" on the others.

    All ranks must ask for it, or with `use_local_synchronization` its members. A second one with
    the same tag and ranks is the first. ValueError for ranks that there are not, or twice.
    """
    rank = here.rank
    everyone = len(rank.groups.pg_group_ranks[rank.groups.default_pg])
    ranks = _checked(range(everyone) if ranks is None else ranks, everyone)
    ranks = sorted(ranks) if sort_ranks else ranks
    rank.groups.group_count += 1  # what `get_pg_count` says: of groups that others have, too
    if use_local_synchronization:
        if rank.number not in ranks:
            return c10d_private.NOT_A_MEMBER
        name = _next_name(rank, f"of {ranks}, number ")
    else:
        name = _next_name(rank, "")
        rank.world.rendezvous(name, ranks)
    if rank.number not in ranks:
        rank.groups.note_others(ranks)
        return c10d_private.NOT_A_MEMBER
    if pg_tag and (known := c10d_private.group_with_tag(pg_tag, ranks)) is not None:
        return known
    return _join(
        rank,
        name,
        ranks,
        _backends_of(rank, backend),
        group_desc,
        pg_tag,
        timeout=timeout,
    )


def split_group(
    parent_pg: dist.ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> object:
    """The part of a group that this rank is in; `split_ranks` are the numbers in the group of the
    members of each part. ValueError if a part is empty, or has no such members."""
    rank = here.rank
    parent = rank.groups.default_pg if parent_pg is None else parent_pg
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    numbers = list(rank.groups.pg_group_ranks[parent])
    prefix = _next_name(rank, f"{rank.groups.pg_names[parent]} split ")
    backends = _backends_of(rank, backend, parent)
    found: object = c10d_private.NOT_A_MEMBER
    for i, part in enumerate(split_ranks):
        ranks = [numbers[member] for member in _checked(part, len(numbers))]
        name = f"{prefix} part {i}"
        rank.world.rendezvous(name, ranks)
        if rank.number in ranks:
            found = _join(rank, name, ranks, backends, group_desc, timeout=timeout)
    return found


def _checked(ranks: Sequence[int], size: int) -> list[int]:
    """The ranks of a group, as integers."""
    found = [operator.index(rank) for rank in ranks]
    for rank in found:
        if not 0 <= rank < size:
            raise ValueError(f"Rank {rank} is out of range: a group has ranks from 0 to {size - 1}")
    if not found or len(set(found)) < len(found):
        raise ValueError(
            f"a group has one or more ranks from 0 to {size - 1}, each once, and not {found}"
        )
    return found


def _next_name(rank: Rank, prefix: str) -> str:
    """The name of the next group that begins so."""
    rank.made[prefix] += 1
    return f"{prefix}{rank.made[prefix]}"


def _backends_of(
    rank: Rank, backend: str | None, parent: dist.ProcessGroup | None = None
) -> GroupBackends:
    """Those that a new group has: what is asked for, or what its parent has."""
    if backend:
        return _backends(rank, backend)
    group: Any = rank.groups.default_pg if parent is None else parent
    found: GroupBackends = group.backends
    return found
