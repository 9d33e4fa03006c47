"""The names that know virtual ranks: groups, DistributedDataParallel, refusals."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from typing import Any

import torch
import torch.cuda.nccl

from ..patching import Patches, stand_in
from ..races.user_code import is_user_frame, user_namespaces
from ..torch_backend.comm.nccl import build_version
from ..torch_backend.private.torch_profiler import END_PROFILER, PREPARE_PROFILER
from ..torch_backend.private.torch_tensors import METHODS_OF_LAZY_TENSORS
from ..torch_backend.tensors import wrapper_tensors
from .by_rank import checkpoints, current_device, object_lists, refused
from .by_rank.sharded_random import ShardedRandomNumbers
from .by_rank.shared_shardings import once_for_all
from .by_rank.stores_of_torch import WAITS, letting_others_go_on
from .ddp import subclasses as ddp_subclasses
from .ddp import wrapper as ddp
from .groups import collective_future, own_groups
from .private import c10d as c10d_private
from .private.dtensor import DTENSOR, RANDOM, sharding_propagator
from .stores.store_classes import classes
from .world.rank import Rank, here

_patches = Patches(lambda: getattr(here, "rank", None))


def _dump_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    found = here.rank.trace(active=bool(onlyActive))
    return pickle.dumps(found if includeCollectives is not False else {**found, "entries": []})


def _dump_trace_json(*args: Any, **options: Any) -> bytes:
    return json.dumps(pickle.loads(_dump_trace(*args, **options))).encode()


def _world_of_caller(theirs: property) -> property:
    """`dist.group.WORLD`, but none for the body of a module that all ranks share: it would keep
    the group of the rank that imports it. Without one each rank's own is meant, as torch has it
    for modules that are imported before there are groups."""

    def get(owner: object) -> object:
        frame = _getframe(1)
        is_body = not frame.f_code.co_flags & inspect.CO_OPTIMIZED  # of a module or a class
        rank: Rank | None = getattr(here, "rank", None)
        if is_body and rank is not None and len(rank.world.ranks) > 1 and not is_user_frame(frame):
            return None
        return theirs.__get__(owner)

    return property(get, theirs.fset)


def _init_ddp(self: c10d_private.TorchDDP, *args: Any, **kwargs: Any) -> None:
    self.__class__ = ddp_subclasses.ours(type(self))
    assert isinstance(self, ddp.DistributedDataParallel)
    ddp.DistributedDataParallel.__init__(self, *args, **kwargs)


def _mesh_of_rank(theirs: Callable) -> Callable:
    """Meshes of two ranks are two, also to caches that all ranks share: a mesh knows its rank."""

    @functools.wraps(theirs)
    def __init__(self: c10d_private.DeviceMesh, *args: object, **kwargs: object) -> None:  # noqa: N807
        rank: Rank | None = getattr(here, "rank", None)
        if rank is not None:
            _load_library(rank)
        theirs(self, *args, **kwargs)
        if rank is not None:
            c10d_private.mark_mesh(self, rank.mark)

    return __init__


def _load_library(rank: Rank) -> None:
    """Have DTensor imported; let it draw random numbers, and call devices, as virtual ranks do."""
    rank.world.library.load()
    module, name = sys.modules[RANDOM[0]], RANDOM[1]
    if not hasattr(getattr(module, name), "__wrapped__"):
        _patches.replace(module, name, ShardedRandomNumbers)
        dtensor = getattr(sys.modules[DTENSOR[0]], DTENSOR[1])
        _patches.set(dtensor, "device", property(wrapper_tensors.device_of))
        _patches.set(dtensor, "is_cuda", property(wrapper_tensors.is_cuda))
        owner, method = sharding_propagator()
        _patches.set(owner, method, once_for_all(getattr(owner, method)))


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
        _patches.undo(user_namespaces())


def _is_patched() -> bool:
    return isinstance(getattr(*c10d_private.WORLD), c10d_private.GroupsByThread)


OURS = (own_groups.init_process_group, own_groups.destroy_process_group, own_groups.split_group)


def _patch() -> None:
    for ours in OURS:
        name = ours.__name__
        choose = stand_in(getattr(c10d_private.dist, name), ours, _patches.holds)
        for module in c10d_private.MODULES:
            if hasattr(module, name):
                _patches.substitute(module, name, choose)
    for name in object_lists.NAMES:
        exchange = object_lists.by_host(getattr(c10d_private.dist, name))
        for module in c10d_private.MODULES[:2]:
            _patches.substitute(module, name, exchange)
    of_objects = object_lists.device_of_objects(getattr(*c10d_private.OBJECT_DEVICE))
    _patches.set(*c10d_private.OBJECT_DEVICE, of_objects)
    for kind in classes(here):
        for module in c10d_private.STORE_MODULES:
            if hasattr(module, kind.__name__):
                _patches.substitute(module, kind.__name__, kind)
    for name, what in WAITS.items():
        if hasattr(c10d_private.dist.Store, name):
            wait = getattr(c10d_private.dist.Store, name)
            _patches.set(c10d_private.dist.Store, name, letting_others_go_on(wait, what))
    getattr(*c10d_private.NEW_GROUP)
    _patches.replace(*c10d_private.NEW_GROUP, own_groups.new_group)
    theirs = getattr(*c10d_private.WORLD)
    _patches.set(*c10d_private.WORLD, c10d_private.GroupsByThread(theirs, here))
    world = getattr(*c10d_private.WORLD_OF_CALLER)
    _patches.set(*c10d_private.WORLD_OF_CALLER, _world_of_caller(world))
    c10d_private.names_are_of_threads(True)
    _patches.at_end(lambda: c10d_private.names_are_of_threads(False))
    for owner, name, moved in (
        (torch.Tensor, "to", current_device.moving),
        (torch, "tensor", current_device.making),
        (torch, "as_tensor", current_device.making),
        (torch.futures, "collect_all", collective_future.collecting),
        (torch.futures, "wait_all", collective_future.waiting_all),
    ):
        function = getattr(owner, name)
        _patches.replace(owner, name, moved(function))
    mesh = c10d_private.DeviceMesh
    _patches.set(mesh, "__init__", _mesh_of_rank(mesh.__init__))
    dumps = (_dump_trace, _dump_trace_json)
    for place, dump in zip(c10d_private.FLIGHT_DUMPS, dumps, strict=True):
        if hasattr(*place):
            _patches.replace(*place, dump)
    rpc: Any = sys.modules.get(refused.RPC)
    if hasattr(rpc, "init_rpc"):
        _patches.substitute(rpc, "init_rpc", refused.rpc_refused(rpc.init_rpc))
    symmetric = importlib.import_module(refused.SYMMETRIC)
    for name in refused.OF_SYMMETRIC_MEMORY:
        if hasattr(symmetric, name):
            _patches.set(symmetric, name, refused.of_symmetric_memory(getattr(symmetric, name)))
    _patches.set(torch.cuda.nccl, "version", build_version(torch.cuda.nccl.version))
    prepare = getattr(*PREPARE_PROFILER)
    _patches.set(*PREPARE_PROFILER, refused.second_profiler_refused(prepare))
    _patches.set(*END_PROFILER, refused.profiler_is_stopped(getattr(*END_PROFILER)))
    known = getattr(*METHODS_OF_LAZY_TENSORS)
    _patches.set(*METHODS_OF_LAZY_TENSORS, [*known, torch.Tensor.to])
    _patches.see_to(
        checkpoints.MODULES, lambda module: checkpoints.replace_in(module, _patches.set)
    )
    _patches.replace(c10d_private.TorchDDP, "__init__", _init_ddp)
    _patches.spread(user_namespaces())
