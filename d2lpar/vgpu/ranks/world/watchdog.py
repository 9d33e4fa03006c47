"""How long a rank waits for others in one call, in simulated time: the timeout of its group.

Over NCCL a watchdog of each process ends it when a call is not done so long after it was queued,
also because of what is before it on the streams (ProcessGroupNCCL::WorkNCCL::checkTimeout). Over
gloo, and with TORCH_NCCL_BLOCKING_WAIT=1, whoever waits gets an error: see `collective_work`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from math import prod

import torch.distributed as dist

from ...races.call_sites import call_site_of
from ..calls.flight_recorder import Flight
from .rendezvous import PendingCollective, Rendezvous

# Of a group that was not given another. Source: kProcessGroupNCCLDefaultTimeout, and
# torch.distributed.constants.default_pg_timeout.
OF_NCCL, OF_OTHERS = timedelta(minutes=10), timedelta(minutes=30)

Before = Callable[[int, Flight], Flight | None]  # the call of a rank before one of its calls
SHOWN = 3  # ranks that came too late

Watched = tuple[Rendezvous, PendingCollective, int]


class Watchdog:
    """That of one rank: `end(group, pending, member)` ends the process."""

    def __init__(self, end: Callable[[Rendezvous, PendingCollective, int], None]) -> None:
        self._end = end
        self._calls: deque[Watched] = deque()

    def watch(self, group: Rendezvous, pending: PendingCollective, member: int) -> None:
        """Take note of a call that is on the clock."""
        self._calls.append((group, pending, member))

    def look(self) -> None:
        """End the process if a call has taken too long, as far as times are known by now."""
        while self._calls:
            group, pending, member = self._calls[0]
            work = pending.work_of(member)
            if work is None or work.end_s is None:
                return
            self._calls.popleft()
            if work.end_s > pending.flights[member].limit_s:
                self._end(group, pending, member)


def overdue(pending: PendingCollective, now_s: float) -> int | None:
    """Who has waited too long for one who comes now, or later, and has a watchdog."""
    if now_s <= pending.limit_s:
        return None
    for member, flight in pending.flights.items():
        has_sent = pending.is_buffered and member == pending.members[0]
        if flight.is_watched and now_s > flight.limit_s and not has_sent:
            return member
    return None


def watchdog_text(
    group: Rendezvous, pending: PendingCollective, member: int, before: Before
) -> str:
    """What a watchdog says at the end of its process, and why, and what to do."""
    return (
        f"[Rank {group.ranks[member]}] Watchdog caught collective operation timeout: "
        f"{work_text(pending.flights[member])} ran for "
        f"{round(pending.flights[member].timeout_s * 1e3)} milliseconds before timing out.\n"
        f"{why(group, pending, member, before)}"
    )


def work_text(flight: Flight) -> str:
    """A call as NCCL's process group prints it."""
    given, taken = (sum(map(prod, sizes)) or 1 for sizes in flight.sizes)  # a barrier sums one
    return (
        f"WorkNCCL(SeqNum={flight.sequence}, OpType={_op_type(flight.operator)}, NumelIn={given}, "
        f"NumelOut={taken}, Timeout(ms)={round(flight.timeout_s * 1e3)})"
    )


_OP_TYPES = {  # where it is not the operator's name; a barrier of NCCL sums
    "BARRIER": "ALLREDUCE",
    "ALL_REDUCE": "ALLREDUCE",
    "ALL_GATHER": "ALLGATHER",
    "ALL_TO_ALL": "ALLTOALL",
}


def _op_type(operator: str) -> str:
    name = operator.rstrip("_").upper()
    return _OP_TYPES.get(name, name)


def timed_out(
    group: Rendezvous,
    pending: PendingCollective,
    member: int,
    before: Before,
    limit_s: float,
    name: str,
) -> RuntimeError:
    """The error of a rank that waits itself, until `limit_s`, as of a `name` operation of gloo."""
    flight, story = pending.flights[member], why(group, pending, member, before, limit_s)
    if flight.is_nccl:
        who = f"[Rank {group.ranks[member]}]"
        return dist.DistBackendError(
            f"{who} Work {work_text(flight)} timed out in blocking wait.\n{story}"
        )
    if limit_s < flight.limit_s:
        return RuntimeError(f"Operation timed out!\n{story}")
    ms = round(flight.timeout_s * 1e3)
    return RuntimeError(f"Timed out waiting {ms}ms for {name} operation to complete\n{story}")


def closed(
    group: Rendezvous, pending: PendingCollective, member: int, before: Before
) -> RuntimeError:
    """The error of a rank that comes when another one has not waited for it any longer."""
    first = min(pending.flights, key=lambda m: pending.flights[m].limit_s)
    story = why(group, pending, first, before)
    if pending.flights[member].is_nccl:
        return dist.DistBackendError(f"NCCL error: remote process exited\n{story}")
    return RuntimeError(f"Connection closed by peer [rank {group.ranks[first]}]\n{story}")


def late(pending: PendingCollective, limit_s: float) -> list[int]:
    """The members who came after that time, the latest first."""
    came = {m: flight.created_s for m, flight in pending.flights.items()}
    return sorted((m for m in came if came[m] > limit_s), key=lambda m: (-came[m], m))


def why(
    group: Rendezvous,
    pending: PendingCollective,
    member: int,
    before: Before,
    limit_s: float | None = None,
) -> str:
    """Who has waited where for whom, how much later that one came, and what to do."""
    mine = pending.flights[member]
    waited = "waited" if limit_s is None else f"waited {limit_s - mine.created_s:.4g} s"
    came_late = late(pending, mine.limit_s if limit_s is None else limit_s)
    lines = [f"  rank {group.ranks[member]} called {_called(mine, group)}, and {waited}"]
    lines += [f"  rank {group.ranks[m]} had not come by then" for m in pending.missing[:SHOWN]]
    lines += [_came(group, pending, mine, m, before) for m in came_late[:SHOWN]]
    if len(came_late) > SHOWN:
        lines.append(f"  and {len(came_late) - SHOWN} more came too late")
    waited_for = [*pending.missing, *came_late][:SHOWN]
    if not waited_for:
        lines.append("  all came in time, but what their GPUs had to do before it took longer")
    ranks = ", ".join(f"rank {group.ranks[m]}" for m in waited_for) or "the GPUs"
    lines.append(
        f"let {ranks} come to it earlier (in simulated time), or all wait for longer: "
        "init_process_group(timeout=timedelta(minutes=…)), or new_group(timeout=…)"
    )
    return "\n".join(lines)


def _came(
    group: Rendezvous, pending: PendingCollective, mine: Flight, member: int, before: Before
) -> str:
    theirs = pending.flights[member]
    later_s = theirs.created_s - mine.created_s
    last = before(group.ranks[member], theirs)
    since = (
        "it had called nothing before"
        if last is None
        else f"its call before was {_called(last, last.group)}"
    )
    place = call_site_of(theirs.called_at)
    return f"  rank {group.ranks[member]} came {later_s:.4g} s later, at {place}; {since}"


def _called(flight: Flight, group: object) -> str:
    return f"{flight.text} of {group}, at {call_site_of(flight.called_at)}"
