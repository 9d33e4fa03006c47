"""Hooks that hear of each collective which has ended: `group._register_on_completion_hook(hook)`.

In torch a thread of NCCL's process group calls them. Here the rank's own does, in the order in
which collectives were begun: when it begins the next one, waits for all, or ends the group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from . import c10d_private
from .collective_calls import CollectiveCall
from .collective_work import CollectiveWork
from .flight_recorder import Flight
from .nccl_debug import is_on

TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", "TORCH_NCCL_DESYNC_DEBUG")


@dataclass(frozen=True)
class WorkInfo:
    """One collective that has ended, in simulated time.

    `op_type` is torch's, `seq` the number in the group. `time_started` is when the host began it,
    `time_finished` when it ended, and `active_duration` how long it took on the device.
    """

    op_type: object
    seq: int
    time_started: timedelta
    time_finished: timedelta
    active_duration: timedelta


Hook = Callable[[WorkInfo], object]


class CompletionHooks:
    """The hook of a group on one rank, and the collectives that it has not heard of yet."""

    def __init__(self) -> None:
        self._hook: Hook | None = None
        self._under_way: deque[tuple[CollectiveWork, Flight, object]] = deque()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return self._hook is not None

    def register(self, hook: Hook) -> None:
        """Let `hook` hear of what is begun from now on. DistBackendError if there is one, and
        ValueError without the variable that lets NCCL's groups take times."""
        if self._hook is not None:
            raise dist.DistBackendError("ProcessGroupNCCL OnCompletion hook already registered")
        if not is_on(TIMING):
            raise ValueError(
                "ProcessGroupNCCL OnCompletion hook requires recording start and end events which "
                f"require setting {TIMING[0]} environment variable: set it to 1"
            )
        self._hook = hook

    def begun(self, work: CollectiveWork, flight: Flight, call: CollectiveCall) -> None:
        """Note a collective of devices, and tell of those that are done by now."""
        if self._hook is None:
            return
        self._under_way.append((work, flight, op_type(call)))
        while len(self._under_way) > 1 and self._under_way[0][0].is_known_done():
            self._tell()

    def wait_for_all(self) -> None:
        """Let the host wait for all that are under way, and tell of them."""
        while self._under_way:
            self._under_way[0][0].block()
            self._tell()

    def _tell(self) -> None:
        _, flight, kind = self._under_way.popleft()
        work, hook = flight.work, self._hook
        assert work is not None, "what is done was queued"
        assert work.start_s is not None, "and has begun"
        assert work.end_s is not None, "and ended"
        assert hook is not None, "what is noted is told"
        times = (flight.created_s, work.end_s, work.end_s - work.start_s)
        hook(WorkInfo(kind, flight.sequence, *(timedelta(seconds=time) for time in times)))


_KINDS = {"all_gather": "ALLGATHER", "reduce_scatter": "REDUCE_SCATTER", "all_to_all": "ALLTOALL"}
_OF_ONE_TENSOR = {
    "all_gather": "_ALLGATHER_BASE",
    "reduce_scatter": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
}
_COALESCED = {
    "all_reduce": "ALLREDUCE_COALESCED",
    "all_gather": "ALLGATHER_INTO_TENSOR_COALESCED",
    "reduce_scatter": "REDUCE_SCATTER_TENSOR_COALESCED",
}


def op_type(call: CollectiveCall) -> object:
    """What torch calls a collective, by the number of its tensors. A barrier of NCCL sums."""
    name = "all_reduce" if call.name == "barrier" else call.name
    if call.parts and name in _COALESCED:
        found = _COALESCED[name]
    elif name in _OF_ONE_TENSOR and len(call.reads) == len(call.writes) == 1:
        found = _OF_ONE_TENSOR[name]
    else:
        found = _KINDS.get(name, name.replace("_", "").upper())
    return getattr(c10d_private.OpType, found)
