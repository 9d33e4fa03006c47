"""The private parts of `torch.distributed` that virtual ranks need.

Its functions ask one object of their module which groups there are. While ranks run, a stand-in
answers in each rank's thread what that rank has, and in other threads what the process has. A group
is a `ProcessGroup` written in Python; torch's own functions check arguments and call its methods.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import distributed as ddp_module

from ..device_naming import TYPE

NOT_A_MEMBER = dist.GroupMember.NON_GROUP_MEMBER
ProcessGroup = dist.ProcessGroup
# As base classes they have no type: torch's stubs know overloads that nobody calls on a group.
GroupBase: Any = dist.ProcessGroup
WorkBase: Any = dist.Work
TorchDDP = ddp_module.DistributedDataParallel
MODULES = (dist, c10d)
WORLD = (c10d, "_world")  # the object that torch's functions ask

# What dumps NCCL's flight recorder, pickled and as JSON; not in builds without NCCL.
FLIGHT_DUMPS = (
    (torch._C._distributed_c10d, "_dump_nccl_trace"),
    (torch._C._distributed_c10d, "_dump_nccl_trace_json"),
)

# Methods that torch's functions call on a group, and virtual ones do not have.
REFUSED = (
    *("allreduce_coalesced", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single_coalesced", "reduce_scatter_tensor_coalesced", "recv_anysource"),
    *("reduce_scatter_single_coalesced", "monitored_barrier", "_start_coalescing", "split_group"),
    *("gather_single", "gather_into_tensor", "new_window", "abort", "shutdown", "reconfigure"),
)

# Which gradients torch's own DistributedDataParallel averages together.
assign_buckets = dist._compute_bucket_assignment_by_size


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

    def add(self, group: ProcessGroup, ranks: list[int], backend: str) -> None:
        """Make a group known; `ranks` are those of the world, in the order of the group's."""
        name = str(len(self.pg_map))
        self.pg_map[group] = (backend, None)
        self.pg_names[group] = name
        self.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
        self.pg_backend_config[group] = f"cpu:{backend},{TYPE}:{backend}"
        self.pg_to_tag[group] = f"ptd:{name}"
        self.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)


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
