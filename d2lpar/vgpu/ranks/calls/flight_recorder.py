"""What each rank has called last, as torch's flight recorder notes it for NCCL.

The format of a dump is that of `torch._C._distributed_c10d._dump_nccl_trace`, which
`python -m torch.distributed.flight_recorder.fr_trace` analyses (its `components.types` read it).
Times are simulated nanoseconds; the stack is the line of the program's that has called.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ....timeline import whole_file
from ...races.call_sites import CallSite, Mark, call_site_of
from ...sim.event_queue import QueuedWork
from .collective_calls import CollectiveCall

VERSION = "2.10"
KEPT = 2000  # calls of a rank; NCCL's own default, TORCH_NCCL_TRACE_BUFFER_SIZE says otherwise
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

# What NCCL's process group calls what these operators do; others as we do. Source: the titles for
# profilers in ProcessGroupNCCL.cpp.
_TITLES = {
    "allreduce_coalesced_": "allreduce_coalesced",
    "_allgather_base_": "_all_gather_base",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
}


class NotedGroup(Protocol):
    """A group of ranks, as far as its calls are noted."""

    number: int
    ranks: list[int]


@dataclass
class Flight:
    """One call of a rank: the group's `sequence`-th collective or send there."""

    record: int
    group: NotedGroup
    sequence: int
    operation: int
    way: tuple[int, int] | None  # of a send or a receive, in numbers of the group
    text: str
    name: str
    operator: str  # of torch, which calls it
    sizes: tuple[list[list[int]], list[list[int]]]  # of what it reads and writes
    dtypes: tuple[list[str], list[str]]
    called_at: Mark | CallSite | None
    function: str  # of the program's, that has called
    timeout_s: float  # of the group
    created_s: float = 0.0
    is_nccl: bool = True
    is_watched: bool = False  # by NCCL's watchdog, which ends the process
    work: QueuedWork | None = None

    @property
    def limit_s(self) -> float:
        """Until when its rank waits for it."""
        return self.created_s + self.timeout_s

    def state(self, now_s: float) -> str:
        """How far it is: "scheduled" before all have come, "started", or "completed"."""
        work = self.work
        if work is None or work.start_s is None or work.start_s > now_s:
            return "scheduled"
        return "completed" if work.end_s is not None and work.end_s <= now_s else "started"

    @property
    def title(self) -> str:
        """What NCCL's process group calls it."""
        if self.way is None:
            return _TITLES.get(self.operator, self.name)
        source, target = self.way
        return f"send {source}->{target}" if self.name == "send" else f"recv {target}<-{source}"


class FlightRecorder:
    """The last calls of one rank.

    How many it keeps, and where they are written (`file`; None: nowhere) when no rank can go on,
    say variables that the rank has when it makes its first call.
    """

    def __init__(self) -> None:
        self.flights: deque[Flight] = deque()
        self.file: str | None = None
        self._counts: Counter[tuple[int, bool]] = Counter()
        self._records = 0

    def note(
        self,
        group: NotedGroup,
        call: CollectiveCall,
        way: tuple[int, int] | None,
        operator: str | None,
        timeout_s: float,
    ) -> Flight:
        """Note a call that is to begin; `operator` is torch's, if it is not called as ours."""
        if not self._records:
            size = _variable(SIZE_VARIABLES) or ""
            self.begin(int(size) if size.isdigit() else KEPT, _variable(FILE_VARIABLES))
        self._counts[group.number, way is not None] += 1
        self._records += 1
        sides = (call.reads or call.writes, call.writes or call.reads)
        flight = Flight(
            self._records - 1,
            group,
            self._counts[group.number, way is not None],
            self._counts[group.number, False] + self._counts[group.number, True],
            way,
            str(call),
            call.name,
            operator or call.name,
            tuple([list(t.shape) for t in side] for side in sides),  # type: ignore[arg-type]
            tuple([_dtype(t) for t in side] for side in sides),  # type: ignore[arg-type]
            call.called_at,
            call.called_at[0].co_name if isinstance(call.called_at, tuple) else "",
            timeout_s,
        )
        self.keep(flight)
        return flight

    def begin(self, kept: int, file: str | None) -> None:
        """Keep so many calls from now on, and write them there when no rank can go on."""
        self.flights, self.file = deque(maxlen=kept), file

    def keep(self, flight: Flight) -> None:
        """Note a call that has been described already."""
        self.flights.append(flight)

    def last(self) -> Flight | None:
        """The last call."""
        return self.flights[-1] if self.flights else None

    def before(self, flight: Flight) -> Flight | None:
        """The call before that one, if it is known."""
        return next((f for f in self.flights if f.record == flight.record - 1), None)


def _variable(names: Sequence[str]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _dtype(tensor: torch.Tensor) -> str:
    """As c10 names types: "Float", "BFloat16"."""
    return _DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.").title())


_DTYPES = {
    torch.float64: "Double", torch.float32: "Float", torch.float16: "Half",
    torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int", torch.int16: "Short",
    torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool",
}  # fmt: skip


# --- dumps ----------------------------------------------------------------------------------------


def dumped(recorder: FlightRecorder, now_s: float, *, active: bool = False) -> dict[str, Any]:
    """The record of one rank; `active`: of what is not completed only."""
    entries = [_entry(flight, now_s) for flight in recorder.flights]
    if active:
        entries = [entry for entry in entries if entry["state"] != "completed"]
    groups = {flight.group.number: flight.group for flight in recorder.flights}
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {str(number): _config(group) for number, group in groups.items()},
        "pg_status": {
            str(number): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": started,
                "last_completed_collective": completed,
            }
            for number, (enqueued, started, completed) in _progress(recorder, now_s).items()
        },
        "entries": entries,
    }


def write(recorder: FlightRecorder, rank: int, now_s: float) -> str | None:
    """Write a dump beside those of other ranks, if the program has said where.

    As with NCCL: the variable is what names of files begin with, and the rank's number ends them.
    Returns why it could not be written, which must not hide what is to be explained.
    """
    if recorder.file is None:
        return None
    try:
        whole_file.write_bytes(f"{recorder.file}{rank}", pickle.dumps(dumped(recorder, now_s)))
    except OSError as error:
        names = " or ".join(FILE_VARIABLES)
        return f"no flight record is written: {error} (its place is what {names} says)"
    return None


def _config(group: NotedGroup) -> dict[str, str]:
    return {"name": str(group.number), "desc": _description(group), "ranks": str(group.ranks)}


def _description(group: NotedGroup) -> str:
    return "undefined" if group.number else "default_pg"


def _progress(recorder: FlightRecorder, now_s: float) -> dict[int, list[int]]:
    """By group: the number of its last collective that was queued, has begun, has ended; or -1."""
    found: dict[int, list[int]] = {}
    for flight in recorder.flights:
        numbers = found.setdefault(flight.group.number, [-1, -1, -1])
        reached = ("scheduled", "started", "completed").index(flight.state(now_s))
        numbers[: reached + 1] = [flight.sequence] * (reached + 1)
    return found


def _entry(flight: Flight, now_s: float) -> dict[str, Any]:
    state, site = flight.state(now_s), call_site_of(flight.called_at)
    work = flight.work
    begun = work is not None and state != "scheduled"
    return {
        "frames": [{"name": flight.function, "filename": site.file, "line": site.line}],
        "record_id": flight.record,
        "pg_id": flight.group.number,
        "process_group": (str(flight.group.number), _description(flight.group)),
        "collective_seq_id": 0 if flight.way else flight.sequence,
        "p2p_seq_id": flight.sequence if flight.way else 0,
        "op_id": flight.operation,
        "profiling_name": f"nccl:{flight.title}",
        "time_created_ns": round(flight.created_s * 1e9),
        "time_discovered_started_ns": _ns(work.start_s) if work is not None and begun else None,
        "time_discovered_completed_ns": (
            _ns(work.end_s) if work is not None and state == "completed" else None
        ),
        "input_sizes": flight.sizes[0] or [[]],
        "input_dtypes": flight.dtypes[0],
        "output_sizes": flight.sizes[1] or [[]],
        "output_dtypes": flight.dtypes[1],
        "state": state,
        "retired": state == "completed",
        "is_p2p": flight.way is not None,
        "timeout_ms": round(flight.timeout_s * 1e3),
    }


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
