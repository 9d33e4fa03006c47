"""The names of torch that know virtual ranks: groups, DistributedDataParallel, and refusals."""

from __future__ import annotations

import functools
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from ..races.user_code import user_namespaces
from . import c10d_private, ddp
from .flight_recorder import dumped
from .process_group import VirtualProcessGroup
from .rank import Rank, here

_undo = ExitStack()


def make_world_group(rank: Rank, backend: str = "nccl") -> None:
    """Give a rank the group of all."""
    ranks = list(range(rank.world.size))
    group = VirtualProcessGroup(rank, rank.world.rendezvous(0, ranks))
    rank.groups.add(group, ranks, backend)
    rank.groups.default_pg = group
    rank.made = 0


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    *args: object,
    **kwargs: object,
) -> None:
    """Join the group of all ranks. `run_ranks` has made it already, and it is only checked.

    ValueError if `world_size` or `rank` is not what there is, if a process has such a group
    already, or if it lacks variables that torchrun would have set.
    """
    mine = here.rank
    groups = mine.groups
    if mine.is_process:
        if groups.default_pg is not None:
            raise ValueError("trying to initialize the default process group twice!")
        if store is None and (init_method or ENV).startswith(ENV):
            rank, world_size = _from_environment(rank, world_size)
    _check("world_size", world_size, mine.world.size)
    _check("rank", rank, mine.number)
    if groups.default_pg is None:
        make_world_group(mine)
    if backend is not None:
        groups.pg_map[groups.default_pg] = (backend, None)


ENV = "env://"


def _from_environment(rank: int, world_size: int) -> tuple[int, int]:
    """As torch's rendezvous by variables: those that are missing raise."""
    asked = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": -1, "MASTER_PORT": -1}
    for name, value in asked.items():
        if value == -1 and name not in os.environ:
            raise ValueError(
                f"Error initializing torch.distributed using {ENV} rendezvous: environment "
                f"variable {name} expected, but not set. torchrun sets it: start the program with "
                "`d2lpar run --nproc-per-node N`"
            )
    numbers = [int(os.environ[name]) if asked[name] == -1 else asked[name] for name in TWO]
    return numbers[0], numbers[1]


TWO = ("RANK", "WORLD_SIZE")


def _check(name: str, given: int, is_really: int) -> None:
    if given not in (-1, is_really):
        count = here.rank.world.size
        raise ValueError(
            f"init_process_group was given {name}={given}, but d2lpar has started {count} ranks, "
            f"of which this is number {here.rank.number}: start as many ranks (and virtual GPUs) "
            "as the program expects"
        )


def destroy_process_group(group: object = None) -> None:
    """Forget the group of all ranks; others are forgotten with their last name."""
    groups = here.rank.groups
    if group is None or group is groups.default_pg:
        groups.default_pg = None


def new_group(ranks: Sequence[int] | None = None, *args: object, **kwargs: object) -> object:
    """A group of these ranks of the world; what torch has for "no member" on the others."""
    rank = here.rank
    ranks = list(range(rank.world.size)) if ranks is None else sorted(ranks)
    rank.made += 1
    rendezvous = rank.world.rendezvous(rank.made, ranks)
    if rank.number not in ranks:
        return c10d_private.NOT_A_MEMBER
    group = VirtualProcessGroup(rank, rendezvous)
    rank.groups.add(group, ranks, rank.groups.pg_map[rank.groups.default_pg][0])
    return group


def _dump_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    rank = here.rank
    found = dumped(rank.flights, rank.host_thread.now_s, active=bool(onlyActive))
    return pickle.dumps(found if includeCollectives is not False else {**found, "entries": []})


def _dump_trace_json(*args: Any, **options: Any) -> bytes:
    return json.dumps(pickle.loads(_dump_trace(*args, **options))).encode()


def _by_thread(theirs: Callable, ours: Callable) -> Callable:
    @functools.wraps(theirs)
    def choose(*args: object, **kwargs: object) -> object:
        return (theirs if getattr(here, "rank", None) is None else ours)(*args, **kwargs)

    return choose


def _init_ddp(self: c10d_private.TorchDDP, *args: Any, **kwargs: Any) -> None:
    if type(self) is not c10d_private.TorchDDP:
        raise NotImplementedError(
            f"{type(self).__name__} is a kind of DistributedDataParallel, and virtual ranks have "
            "torch's own only"
        )
    self.__class__ = ddp.DistributedDataParallel
    assert isinstance(self, ddp.DistributedDataParallel)
    ddp.DistributedDataParallel.__init__(self, *args, **kwargs)


def _refuse_old_fsdp(module: torch.nn.Module, name: str, part: object) -> None:
    """Called when a module gets a part: the first thing that FSDP does in its `__init__`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    in_rank = getattr(here, "rank", None) is not None
    if in_rank and fsdp and isinstance(module, fsdp.FullyShardedDataParallel):
        raise NotImplementedError(
            "virtual ranks have no FullyShardedDataParallel: use DistributedDataParallel there, "
            "and sharded parameters on ranks of d2lpar.cluster"
        )


@contextmanager
def names_of_torch() -> Iterator[None]:
    """Let torch's names know ranks: in its modules, and where the user's have imported them."""
    if _is_patched():  # a virtual process that starts others
        yield
        return
    try:
        _patch()
        yield
    finally:
        pairs = {choose: choose.__wrapped__ for choose in _choosers()}
        _undo.close()
        _exchange(pairs)


def _is_patched() -> bool:
    return isinstance(getattr(*c10d_private.WORLD), c10d_private.GroupsByThread)


OURS = (init_process_group, destroy_process_group, new_group)


def _patch() -> None:
    for ours in OURS:
        name = ours.__name__
        choose = _by_thread(getattr(c10d_private.dist, name), ours)
        for module in c10d_private.MODULES:
            _set(module, name, choose)
    theirs = getattr(*c10d_private.WORLD)
    _set(*c10d_private.WORLD, c10d_private.GroupsByThread(theirs, here))
    dumps = (_dump_trace, _dump_trace_json)
    for place, dump in zip(c10d_private.FLIGHT_DUMPS, dumps, strict=True):
        if hasattr(*place):
            _set(*place, _by_thread(getattr(*place), dump))
    init = c10d_private.TorchDDP.__init__
    _set(c10d_private.TorchDDP, "__init__", _by_thread(init, _init_ddp))
    _undo.callback(register_module_module_registration_hook(_refuse_old_fsdp).remove)
    _exchange({choose.__wrapped__: choose for choose in _choosers()})


def _set(owner: object, name: str, value: object) -> None:
    before = getattr(owner, name)
    _undo.callback(setattr, owner, name, before)
    setattr(owner, name, value)


def _choosers() -> list[Any]:
    return [getattr(c10d_private.dist, ours.__name__) for ours in OURS]


def _exchange(pairs: dict[Any, Any]) -> None:
    """Put functions in the place of others wherever the user's modules have them."""
    for namespace in user_namespaces():
        for name, value in list(namespace.items()):
            if type(value) is FunctionType and value in pairs:
                namespace[name] = pairs[value]
