"""In which order ranks' calls run on GPUs: on one stream for each communicator, as NCCL's.

What a rank calls later on a communicator waits for what it has called before. A batch of sends and
receives is one entry, whose parts run in any order. Two that wait for what the other has yet to run
wait for ever.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Call = TypeVar("Call", bound=Hashable)
Stream = tuple[Hashable, int, int]  # a communicator, a member of it, the device's number


class CallOrder(Generic[Call]):
    """What has yet to run on each stream; a call of several members is on a stream of each."""

    def __init__(self) -> None:
        # Entries of a stream: the batch (or None), and its calls.
        self._entries: defaultdict[Stream, deque[tuple[object, dict[Call, None]]]]
        self._entries = defaultdict(deque)
        self._streams: dict[Call, dict[int, Stream]] = {}  # of members

    def add(self, stream: Stream, call: Call, batch: object = None) -> None:
        """Put a member's call at the end of a stream, or into the batch that is there."""
        entries = self._entries[stream]
        if batch is None or not entries or entries[-1][0] is not batch:
            entries.append((batch, {}))
        entries[-1][1][call] = None
        self._streams.setdefault(call, {})[stream[1]] = stream

    def is_next(self, call: Call, member: int | None = None) -> bool:
        """Whether nothing is before it on the stream of a member, or of all that it has."""
        streams = self._streams.get(call, {})
        asked = streams.values() if member is None else [streams[member]]
        return all(call in self._entries[stream][0][1] for stream in asked)

    def before(self, call: Call, member: int) -> Call | None:
        """What runs first on the stream of a member; None if it is this call, or on no stream."""
        stream = self._streams.get(call, {}).get(member)
        if stream is None or call in self._entries[stream][0][1]:
            return None
        return next(iter(self._entries[stream][0][1]))

    def remove(self, call: Call, member: int | None = None) -> list[Call]:
        """Note that a member, or all, have run a call that was next; returns what is next now."""
        streams = self._streams.get(call, {})
        done = list(streams) if member is None else [member]
        found: list[Call] = []
        for each in done:
            entries = self._entries[streams.pop(each)]
            del entries[0][1][call]
            if not entries[0][1]:
                entries.popleft()
                found += entries[0][1] if entries else ()
        if not streams:
            self._streams.pop(call, None)
        return found
