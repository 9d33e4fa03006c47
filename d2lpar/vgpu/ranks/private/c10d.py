"""The private parts of `torch.distributed` that virtual ranks need.

Its functions ask one object of their module which groups there are. While ranks run, a stand-in
answers in each rank's thread what that rank has, and in other threads what the process has. A group
is a `ProcessGroup` written in Python; torch's own functions check arguments and call its methods.
Functional collectives, which are C++, find groups by their names in a registry that is one of each
thread while ranks run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as registry
from torch.nn.parallel import distributed as ddp_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only

from .backends import GroupBackends

group_with_tag = c10d._find_pg_by_ranks_and_tag
NOT_A_MEMBER = dist.GroupMember.NON_GROUP_MEMBER
ProcessGroup = dist.ProcessGroup
# As base classes they have no type: torch's stubs know overloads that nobody calls on a group.
GroupBase: Any = dist.ProcessGroup
WorkBase: Any = dist.Work
Operator: Any = torch._ops.OpOverload
TorchDDP = ddp_module.DistributedDataParallel
_UNCOUNTED = "_unsafe_preserve_version_counter"
_COUNTS_BUFFERS = _UNCOUNTED not in TorchDDP._sync_buffers.__code__.co_names  # before torch 2.15
DeviceMesh = device_mesh.DeviceMesh
MODULES = (dist, c10d, device_mesh)  # where names may be bound that are replaced
# Where classes of stores are bound; the package has a function of that module's name.
STORE_MODULES = (dist, c10d, sys.modules["torch.distributed.rendezvous"])
OBJECT_DEVICE = (c10d, "_get_object_coll_device")  # the kind of device that carries objects
NEW_GROUP = (c10d, "_new_group_with_tag")  # what all functions call that make groups
# The attribute of a module that names what DDP shall leave alone, and of such parameters.
IGNORED_BY_DDP = "_ddp_params_and_buffers_to_ignore"
WORLD = (c10d, "_world")  # the object that torch's functions ask
WORLD_OF_CALLER = (type(dist.group), "WORLD")  # what `dist.group.WORLD` asks


def buffers_exchanged(buffers: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    """In the block DDP's writes to buffers do not count for graphs that have saved them, if the
    installed torch's own do not."""
    return nullcontext() if _COUNTS_BUFFERS else getattr(torch.autograd, _UNCOUNTED)(tuple(buffers))


# What dumps NCCL's flight recorder, pickled and as JSON; not in builds without NCCL.
FLIGHT_DUMPS = (
    (torch._C._distributed_c10d, "_dump_nccl_trace"),
    (torch._C._distributed_c10d, "_dump_nccl_trace_json"),
)

# Methods that torch's functions call on a group, and virtual ones do not have.
REFUSED = (
    *("recv_anysource", "new_window", "abort", "shutdown", "reconfigure", "merge_remote_group"),
    "_register_on_completion_hook",
)

DEFAULT_TIMEOUT = c10d.default_pg_timeout


# Whether each thread has a registry of its own, of groups by their names.
names_are_of_threads: Callable[[bool], None] = registry._set_thread_isolation_mode  # type: ignore[attr-defined]  # torch's stub forgets it


def mark_mesh(mesh: device_mesh.DeviceMesh, mark: int) -> None:
    """Let a mesh equal those with the same mark only."""
    mesh._thread_id = mark


# Which gradients torch's own DistributedDataParallel averages together.
assign_buckets = dist._compute_bucket_assignment_by_size


def trained_by_ddp(
    module: torch.nn.Module, ignored: set[str]
) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters whose gradients DDP averages, each once, by name."""
    named = module.named_parameters()
    return [(name, p) for name, p in named if p.requires_grad and name not in ignored]


class ReducesBy(Protocol):
    """Options of a collective that reduces."""

    reduceOp: object  # noqa: N815


class HasRoot(Protocol):
    """Options of a collective that starts from one rank, or goes to one."""

    rootRank: int  # noqa: N815


class ReducesTo(ReducesBy, HasRoot, Protocol):
    """Options of a reduce."""


class Groups(SimpleNamespace):
    """The groups that a rank knows, under the names that torch's functions ask for."""

    default_pg: Any

    def __init__(self) -> None:
        super().__init__(
            default_pg=None,
            pg_map={},
            pg_names={},
            pg_group_ranks={},
            pg_backend_config={},
            pg_coalesce_state={},
            pg_default_device={},
            pg_flight_recorder_hooks={},
            tags_to_pg={},
            pg_to_tag={},
            group_count=1,
            comms=[],
        )

    def add(
        self,
        group: Any,
        name: Any,  # of a type that torch's stub has for such texts
        backends: GroupBackends,
        ranks: Sequence[int],
        tag: str | None = None,
        *,
        store: dist.Store,
    ) -> None:
        """Make a group known; `ranks` are those of the world, in the order of the group's."""
        self.pg_map[group] = (backends.name, store)
        self.pg_backend_config[group] = str(backends)
        self.pg_names[group] = name
        self.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
        self.pg_to_tag[group] = f"user:{tag}" if tag else f"ptd:{name}"
        for each in [self.pg_to_tag[group], *([] if tag else [""])]:
            self.tags_to_pg.setdefault(each, []).append(group)
        registry._register_process_group(name, group)

    def change_store(self, group: ProcessGroup, store: dist.Store) -> None:
        """Let a group have another store than the one that it was made with."""
        self.pg_map[group] = (self.pg_map[group][0], store)

    def store_of(self, group: ProcessGroup) -> dist.Store:
        """The store that a group has."""
        store: dist.Store = self.pg_map[group][1]
        return store

    def note_others(self, ranks: Sequence[int]) -> None:
        """Keep which ranks are in the last group that others have: torch asks, whoever calls a
        function with a group that it is no member of."""
        self.pg_group_ranks[NOT_A_MEMBER] = {rank: i for i, rank in enumerate(ranks)}

    def change_backends(self, group: Any, backends: GroupBackends) -> None:
        """Let a group have other backends than those that it was made with."""
        group.backends = backends
        self.pg_map[group] = (backends.name, self.pg_map[group][1])
        self.pg_backend_config[group] = str(backends)

    def remove(self, group: ProcessGroup) -> None:
        """Forget a group. ValueError if it is not known."""
        if group not in self.pg_map:
            raise ValueError("Invalid process group specified")
        registry._unregister_process_group(self.pg_names[group])
        for groups in self.tags_to_pg.values():
            if group in groups:
                groups.remove(group)
        for table in (self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config):
            del table[group]
        self.pg_to_tag.pop(group)
        self.pg_coalesce_state.pop(group, None)

    def remove_all(self) -> None:
        """Forget all groups, that of all ranks included."""
        for group in list(self.pg_map):
            self.remove(group)
        self.default_pg = None
        self.pg_group_ranks.clear()


class GroupsByThread:
    """Stands in for torch's object: `here.groups` of a rank's thread, or the process's own."""

    def __init__(self, theirs: object, here: threading.local) -> None:
        object.__setattr__(self, "_theirs", theirs)
        object.__setattr__(self, "_here", here)

    def _groups(self) -> object:
        rank = getattr(self._here, "rank", None)
        return self._theirs if rank is None else rank.groups

    def __getattr__(self, name: str) -> object:
        return getattr(self._groups(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._groups(), name, value)


def modes_that_count() -> list[Any]:
    """The `CommDebugMode`s that are on in this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return []
    module = sys.modules.get("torch.distributed.tensor.debug._comm_mode")
    kind = getattr(module, "CommDebugMode", ())
    return [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, kind)]


def waited_for(values: Any) -> Any:
    """Arguments whose tensors are there: for what functional collectives give, whoever uses it
    waits first."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    if module is None:
        return values
    kind = module.AsyncCollectiveTensor
    return tree_map_only(kind, kind.trigger_wait, values)
