"""Why no rank can go on: collectives and sends under way, who has come and who has not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...races.call_sites import CallSite, Mark, call_site_of
from ..calls.flight_recorder import Flight
from .rendezvous import PendingCollective, Rendezvous


def explained(
    groups: Sequence[Rendezvous], last: dict[int, Flight | None], returned: set[int]
) -> list[str]:
    """Lines about what is under way in `groups`, and what to look for.

    `last` has each rank's last call, `returned` the ranks whose program has ended.
    """
    found = [(group, pending) for group in groups for pending in group.open_collectives()]
    found.sort(key=lambda item: item[1].is_send)
    lines = [
        line for group, pending in found for line in _described(group, pending, last, returned)
    ]
    advice = _advice(found, returned)
    return [*(["under way:"] if lines else []), *lines, *([advice] if advice else [])]


def at(place: Mark | CallSite | None) -> str:
    """A comma and "at train.py:12"; nothing where the place is not known."""
    return "" if place is None else f", at {call_site_of(place)}"


def _described(
    group: Rendezvous,
    pending: PendingCollective,
    last: dict[int, Flight | None],
    returned: set[int],
) -> Iterator[str]:
    yield f"  {group.name(pending)}:"
    for member, call in pending.calls.items():
        before = group.behind(pending, member)
        first = None if before is None else before.calls[member]
        behind = "" if first is None else f", behind its {first}{at(first.called_at)}"
        yield f"    rank {group.ranks[member]} called {call}{at(call.called_at)}{behind}"
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
    came = [(g, p, m) for g, p in found for m in p.calls]
    first = [(g, p, m) for g, p, m in came if g.behind(p, m) is None]
    if all(pending.is_send for _, pending in found):
        names = {p.calls[m].name for _, p, m in first}
        if names == {"recv"}:
            return "all wait to receive: let one of them send first, or use batch_isend_irecv"
        if names == {"send"}:
            return (
                "all wait to send, and a send of NCCL waits for its receive: let one of them "
                "receive first, or use batch_isend_irecv"
            )
    if len(first) < len(came):
        return (
            "NCCL runs what a rank calls in a group, and alone with one other rank, in the order "
            "of the calls: let all keep to one order, or use batch_isend_irecv"
        )
    alone = [(g.number, *p.members) for g, p in found if p.is_send and p.missing]
    if len(alone) > len(set(alone)):
        return (
            "a send in a batch and a receive alone, or the reverse, do not meet, as NCCL has a "
            "communicator for each: let both use batch_isend_irecv"
        )
    missing = {group.ranks[m] for group, pending in found for m in pending.missing}
    if missing & returned:
        return (
            "a rank that leaves a loop or a branch before others is the usual cause: let all make "
            "the same calls"
        )
    groups = {group.number for group, _ in found}
    if len(groups) > 1 and missing & {group.ranks[m] for group, _, m in came}:
        return "groups that share ranks are called in different orders: let all ranks keep to one"
    return ""
