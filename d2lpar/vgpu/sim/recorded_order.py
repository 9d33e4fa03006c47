"""What recorded work has to follow: the last recorded work of each stream that it waits for.

Marks (events, waits of streams) are not recorded themselves, and hand on what they come after.
"""

from __future__ import annotations

from .event_queue import QueuedWork

StreamKey = tuple[int, int]
# Work that comes before, and the stream that looks at it (None: a host).
Before = tuple[QueuedWork | None, StreamKey | None]


def recorded_after(*before: Before) -> tuple[int, ...]:
    """The numbers of the recorded work to follow, in their order."""
    return tuple(sorted(set(recorded_by(*before).values())))


def recorded_by(*before: Before) -> dict[StreamKey, int]:
    """The last recorded work of each stream that one of the given works is, or comes after."""
    found: dict[StreamKey, int] = {}
    for work, stream in before:
        if work is None:
            continue
        for place, number in work.recorded.items():
            # A collective has a part on each device, and all end at once: one's own is enough.
            other = work.joined and stream is not None and place[0] != stream[0]
            if not other and number > found.get(place, 0):
                found[place] = number
    return found
