"""The simulated clock: a deterministic discrete-event model of hosts, streams, engines and links.

Nothing here knows torch. An operation starts when its host lane has dispatched it, the earlier work
of its stream is done, and the engine or links that it needs are free; kernels of different streams
of one device share its compute engine one after the other (real GPUs may overlap small ones).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..machines import Link, Machine
from ..timeline import Span, Timeline

KEPT_INTERVALS = 4096


class Resource:
    """Something that does one thing at a time, and the gaps that are left in its calendar."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def earliest(self, ready_s: float, duration_s: float) -> float:
        """The first moment from `ready_s` on at which `duration_s` seconds are free."""
        if not self._ends or ready_s >= self._ends[-1]:
            return ready_s
        start_s = ready_s
        for i in range(bisect_right(self._ends, ready_s), len(self._ends)):
            if start_s + duration_s <= self._starts[i]:
                return start_s
            start_s = max(start_s, self._ends[i])
        return start_s

    def occupy(self, start_s: float, end_s: float) -> None:
        if end_s <= start_s:
            return
        if self._ends and start_s == self._ends[-1]:
            self._ends[-1] = end_s
            return
        at = bisect_right(self._starts, start_s)
        self._starts.insert(at, start_s)
        self._ends.insert(at, end_s)
        if len(self._starts) > KEPT_INTERVALS:
            self._forget_oldest_gap()

    def _forget_oldest_gap(self) -> None:
        """Close the oldest gap, so that memory and time stay bounded in long runs."""
        del self._starts[1], self._ends[0]


class Lane:
    """A host thread's own time, in seconds."""

    __slots__ = ("name", "now_s")

    def __init__(self, name: str, now_s: float = 0.0) -> None:
        self.name = name
        self.now_s = now_s


class Clock:
    """The simulated time of one process on one machine.

    Devices are numbered as in `machine.accelerators`; a stream is a pair (device, number), the
    default stream has number 0. All times are seconds since the clock was made.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.host = Lane("main")
        self.timelines: list[Timeline] = []
        self._stream_s: dict[tuple[int, int], float] = defaultdict(float)
        self._engines = [Resource() for _ in machine.accelerators]
        self._links: dict[tuple[str, int], Resource] = defaultdict(Resource)

    def grow(self, machine: Machine) -> None:
        """Go on with a machine that has more accelerators."""
        new = len(machine.accelerators) - len(self._engines)
        self._engines += [Resource() for _ in range(new)]
        self.machine = machine

    # --- what the host does -----------------------------------------------------------------

    def host_work(self, lane: Lane, seconds: float, name: str) -> None:
        """Keep a host lane busy with something that is no operation (loading data, Python)."""
        start_s = lane.now_s
        lane.now_s += seconds
        self._record(Span("host", lane.name, "host", name, start_s, lane.now_s))

    def dispatch(self, lane: Lane, seconds: float, name: str) -> None:
        """Let a host lane queue an operation."""
        start_s = lane.now_s
        lane.now_s += seconds
        if self.timelines:
            self._record(Span("host", lane.name, "dispatch", name, start_s, lane.now_s))

    def wait_until(self, lane: Lane, when_s: float, name: str) -> None:
        """Block a host lane until `when_s`; a wait that is over already takes no time."""
        if when_s > lane.now_s:
            self._record(Span("host", lane.name, "wait", name, lane.now_s, when_s))
            lane.now_s = when_s

    def wait_for_streams(self, lane: Lane, streams: Iterable[tuple[int, int]], name: str) -> None:
        self.wait_until(lane, max((self._stream_s[s] for s in streams), default=0.0), name)

    def wait_for_device(self, lane: Lane, device: int, name: str) -> None:
        self.wait_for_streams(lane, [s for s in self._stream_s if s[0] == device], name)

    # --- what the devices do ----------------------------------------------------------------

    def kernel(
        self,
        lane: Lane,
        stream: tuple[int, int],
        name: str,
        seconds: float,
        nbytes: int,
        flops: int,
    ) -> float:
        """Queue a kernel of `seconds` on `stream`; returns when it ends."""
        self.dispatch(lane, self.machine.host.dispatch_s, name)
        engine = self._engines[stream[0]]
        start_s = engine.earliest(max(lane.now_s, self._stream_s[stream]), seconds)
        end_s = start_s + seconds
        engine.occupy(start_s, end_s)
        self._stream_s[stream] = end_s
        if self.timelines:
            self._record(
                Span(f"vgpu:{stream[0]}", stream[1], "compute", name, start_s, end_s, nbytes, flops)
            )
        return end_s

    def copy(
        self,
        lane: Lane,
        source: tuple[int, int] | None,
        target: tuple[int, int] | None,
        nbytes: int,
        name: str,
    ) -> float:
        """Queue a copy between two streams' devices, None being the host; returns when it ends.

        It runs on the source's stream (the target's, from the host), after the work that both
        streams have queued; the target's stream then waits for it, as in PyTorch's Copy.cu.
        """
        self.dispatch(lane, self.machine.host.dispatch_s, name)
        streams = [s for s in (source, target) if s is not None]
        ready_s = max(lane.now_s, *(self._stream_s[s] for s in streams))
        for ports, link in self._route(source and source[0], target and target[0]):
            ready_s = self._transfer(streams[0], ports, link, ready_s, nbytes, name)
        for stream in streams:
            self._stream_s[stream] = ready_s
        return ready_s

    def record_event(self, lane: Lane, stream: tuple[int, int]) -> float:
        """The moment at which an event recorded now on `stream` will have happened."""
        return max(lane.now_s, self._stream_s[stream])

    def stream_waits(self, stream: tuple[int, int], when_s: float) -> None:
        self._stream_s[stream] = max(self._stream_s[stream], when_s)

    def stream_end_s(self, stream: tuple[int, int]) -> float:
        """When everything that is queued on `stream` so far will be done."""
        return self._stream_s[stream]

    # --- how copies travel ------------------------------------------------------------------

    def _route(
        self, source: int | None, target: int | None
    ) -> list[tuple[Sequence[tuple[str, int]], Link]]:
        """The hops of a copy: for each, the one-way ports that it occupies and the link."""
        machine = self.machine
        if source is None:
            return [([("host down", target)], machine.host_link)]
        if target is None:
            return [([("host up", source)], machine.host_link)]
        if machine.peer is None:
            return self._route(source, None) + self._route(None, target)
        # Peers on the host's own bus share its ports with the copies to and from the host.
        kind = "host" if machine.peer == machine.host_link else "peer"
        return [([(f"{kind} up", source), (f"{kind} down", target)], machine.peer)]

    def _transfer(
        self,
        stream: tuple[int, int],
        ports: Sequence[tuple[str, int]],
        link: Link,
        ready_s: float,
        nbytes: int,
        name: str,
    ) -> float:
        seconds = link.seconds(nbytes)
        resources = [self._links[port] for port in ports]
        start_s, settled = ready_s, False
        while not settled:
            earliest_s = max(r.earliest(start_s, seconds) for r in resources)
            start_s, settled = earliest_s, earliest_s == start_s
        for resource in resources:
            resource.occupy(start_s, start_s + seconds)
        self._record(
            Span(f"vgpu:{stream[0]}", stream[1], "copy", name, start_s, start_s + seconds, nbytes)
        )
        return start_s + seconds

    def _record(self, span: Span) -> None:
        for timeline in self.timelines:
            timeline.spans.append(span)
