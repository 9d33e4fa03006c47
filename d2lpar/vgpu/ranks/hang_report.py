"""Why no rank can go on: collectives and sends under way, who has come and who has not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..races.call_sites import Mark, call_site_of
from .flight_recorder import Flight
from .rendezvous import PendingCollective, Rendezvous


def explained(
    groups: Sequence[Rendezvous], last: dict[int, Flight | None], returned: set[int]
) -> list[str]:
    """Lines about what is under way in `groups`, and what to look for.

    `last` has each rank's last call, `returned` the ranks whose program has ended.
    """
    found = [(group, name, pending) for group in groups for name, pending in group.under_way()]
    lines = [
        line
        for group, name, pending in found
        for line in _described(group, name, pending, last, returned)
    ]
    advice = _advice([(group, pending) for group, _, pending in found], returned)
    return [*(["under way:"] if lines else []), *lines, *([advice] if advice else [])]


def at(place: Mark | None) -> str:
    """A comma and "at train.py:12"; nothing where the place is not known."""
    return "" if place is None else f", at {call_site_of(place)}"


def _described(
    group: Rendezvous,
    name: str,
    pending: PendingCollective,
    last: dict[int, Flight | None],
    returned: set[int],
) -> Iterator[str]:
    yield f"  {name}:"
    for member, call in pending.calls.items():
        yield f"    rank {group.ranks[member]} called {call}{at(call.called_at)}"
    for member in pending.missing:
        rank = group.ranks[member]
        flight = last.get(rank)
        state = "has returned" if rank in returned else "has not come"
        if flight is None:
            yield f"    rank {rank} {state}: it has called nothing yet"
        else:
            yield (
                f"    rank {rank} {state}: its last call was {flight.text} of {flight.group}"
                f"{at(flight.called_at)}"
            )


def _advice(found: Sequence[tuple[Rendezvous, PendingCollective]], returned: set[int]) -> str:
    """What is usually the cause of such a picture."""
    sends = [call.name for _, p in found for call in p.calls.values() if p.is_send]
    if found and len(sends) == len(found):
        if set(sends) == {"recv"}:
            return "all wait to receive: let one of them send first, or use batch_isend_irecv"
        if set(sends) == {"send"}:
            return (
                "all wait to send, and a send of NCCL waits for its receive: let one of them "
                "receive first, or use batch_isend_irecv"
            )
    missing = {group.ranks[m] for group, pending in found for m in pending.missing}
    if missing & returned:
        return (
            "a rank that leaves a loop or a branch before others is the usual cause: let all make "
            "the same calls"
        )
    groups = {group.number for group, _ in found}
    came = {group.ranks[m] for group, pending in found for m in pending.calls}
    if len(groups) > 1 and missing & came:
        return "groups that share ranks are called in different orders: let all ranks keep to one"
    return ""
