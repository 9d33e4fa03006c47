"""The simulated clock: a deterministic discrete-event model of hosts, streams, engines and links.

Nothing here knows torch. An operation begins when its host thread has dispatched it, the earlier
work of its stream and the events that the stream waits for are done, and the engine or ports that
it needs are free. Which of several operations begins, and when that is worked out, is told in
`event_queue`; how copies travel, in `copy_routes`. Kernels of different streams that each fill a
device share its compute engine one after the other, and so do copies their links (real ones may
share at once); smaller kernels overlap.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ...machines import Link, Machine
from ...timeline import MemorySample, Span, Timeline
from ...timeline.spans import ANNOTATION
from ..device_naming import text
from ..signals import closed_to_handlers, open_to_handlers
from .busy_intervals import Resource
from .copy_routes import Port, hops
from .event_queue import EventQueue, Note, QueuedWork
from .recorded_order import recorded_after, recorded_by
from .staging import transfers
from .taken_shares import Engine

# Work that a stream holds before its host must wait: about 1,000 launches were measured on a GPU,
# for each stream on its own (stackoverflow.com/questions/53970187).
LAUNCH_QUEUE = 1024
POOLED_STREAMS = 32  # of a device and a priority; then they are handed out again, as by PyTorch

StreamKey = tuple[int, int]  # a device's number and a stream's
_Transfer = tuple[tuple[Resource, ...], Link, int | None]  # its ports, its link, where it goes


class HostThread:
    """A host thread's own time, in seconds.

    Of one of several processes, `used` are the streams on which that process has queued something:
    each process has a context of its own on a device, and waits for its own work there. None: all.
    `waits()` is called before it blocks for what is known to be done later. `line` is where the
    program asks for what it does, as far as timelines record.
    """

    __slots__ = ("line", "name", "now_s", "used", "waits")

    def __init__(self, name: str, now_s: float = 0.0, used: set[_Stream] | None = None) -> None:
        self.name = name
        self.now_s = now_s
        self.used = used
        self.line = ""
        self.waits: Callable[[], None] | None = None


class _Stream:
    """A queue of a device: its last work, and as much of it as the launch queue holds."""

    __slots__ = ("last", "priority", "queue")

    def __init__(self) -> None:
        self.last: QueuedWork | None = None
        self.priority = 0
        self.queue: deque[QueuedWork] = deque(maxlen=LAUNCH_QUEUE)


class Clock:
    """The simulated time of one process on one machine.

    Devices are numbered as in `machine.accelerators`; a stream is a pair (device, number), the
    default stream has number 0. All times are seconds since the clock was made. What is queued is
    returned as `QueuedWork`, whose times are known when `end_s` or something else asks for them.

    Where several hosts share the clock, `others(known)` lets them go on until `known()`: it is
    called by one that must wait while others have yet to join a collective.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.host = HostThread("main")
        self.timelines: list[Timeline] = []
        self.others: Callable[[Callable[[], bool]], None] | None = None
        self._schedule = EventQueue(self._record_work)
        self._engines: list[tuple[Engine]] = []
        self._streams: list[dict[int, _Stream]] = []
        self._ports: dict[Port, Resource] = defaultdict(Resource)
        self._routes: dict[tuple[int | None, int | None], list[_Transfer]] = {}
        self._streams_made: Counter[StreamKey] = Counter()  # by device and level
        self._operations = 0
        self.grow(machine)

    def grow(self, machine: Machine) -> None:
        """Go on with a machine that has more accelerators."""
        for _ in range(len(machine.accelerators) - len(self._engines)):
            self._engines.append((Engine(),))
            self._streams.append(defaultdict(_Stream))
        self.machine = machine
        self._routes.clear()

    def new_stream(self, device: int, level: int) -> int:
        """The number of a further stream, whose kernels are preferred to those of lower levels;
        0 is that of the default stream."""
        made = self._streams_made[device, level]
        self._streams_made[device, level] += 1
        number = 1 + level * POOLED_STREAMS + made % POOLED_STREAMS
        self.set_priority((device, number), -level)
        return number

    def set_priority(self, stream: StreamKey, priority: int) -> None:
        """Prefer the kernels of streams with a lower number, as CUDA does; the default is 0."""
        self._stream(stream).priority = priority

    # --- what the host does -----------------------------------------------------------------

    def branch(self, host_thread: HostThread, name: str) -> HostThread:
        """Another thread of the same process, which begins now."""
        return HostThread(name, host_thread.now_s, host_thread.used)

    def gather(self, host_thread: HostThread, branches: Iterable[HostThread]) -> None:
        """Let a host thread go on when the others have come as far as they have."""
        host_thread.now_s = max([host_thread.now_s, *(other.now_s for other in branches)])

    def host_work(self, host_thread: HostThread, seconds: float, name: str) -> None:
        """Keep a host thread busy with something that is no operation (loading data, Python)."""
        start_s = host_thread.now_s
        host_thread.now_s += seconds
        place, line = ("host", host_thread.name, "host"), host_thread.line
        self._record(Span(*place, name, start_s, host_thread.now_s, line=line))

    def spend(self, host_thread: HostThread, seconds: float) -> None:
        """Keep a host thread busy with what no timeline shows."""
        host_thread.now_s += seconds

    def moment(self, host_thread: HostThread) -> float:
        """The time of a host thread, for `annotate`."""
        return host_thread.now_s

    def annotate(self, host_thread: HostThread, name: str, start_s: float) -> None:
        """Record a block of the program that it has named, which has ended now."""
        place = ("host", host_thread.name, ANNOTATION)
        span = Span(*place, name, start_s, max(start_s, host_thread.now_s))
        for timeline in self.timelines:
            timeline.add_annotation(span)

    @closed_to_handlers
    def dispatch(
        self, host_thread: HostThread, seconds: float, name: str, correlation: int = 0
    ) -> None:
        """Let a host thread queue an operation; `correlation` is the number of what it queues."""
        start_s = host_thread.now_s
        host_thread.now_s = end_s = start_s + seconds
        for timeline in self.timelines:
            timeline.add_dispatch(
                host_thread.name, name, start_s, end_s, correlation, host_thread.line
            )

    @closed_to_handlers
    def wait_until(
        self,
        host_thread: HostThread,
        when_s: float,
        name: str,
        works: Iterable[QueuedWork] = (),
    ) -> None:
        """Block a host thread until `when_s`, when `works` are done; no span, if it is over."""
        if when_s > host_thread.now_s:
            if host_thread.waits is not None:
                host_thread.waits()
            if self.timelines:
                after = recorded_after(*((work, None) for work in works))
                place, line = ("host", host_thread.name, "wait"), host_thread.line
                span = Span(*place, name, host_thread.now_s, when_s, after=after, line=line)
                self._record(span)
            host_thread.now_s = when_s

    def wait_for(self, host_thread: HostThread, work: QueuedWork | None, name: str) -> None:
        """Block a host thread until `work` is done (None: nothing)."""
        if work is not None:
            self.wait_until(host_thread, self.end_s(work), name, [work])

    def wait_for_streams(
        self, host_thread: HostThread, streams: Iterable[StreamKey], name: str
    ) -> None:
        """Block a host thread until all that is queued on `streams` is done."""
        last = [work for s in streams if (work := self._stream(s).last) is not None]
        self.wait_until(host_thread, max(map(self.end_s, last), default=0.0), name, last)

    def wait_for_device(self, host_thread: HostThread, device: int, name: str) -> None:
        """Block a host thread until all streams of a device that its process uses are done."""
        used = host_thread.used
        known = self._streams[device].items()
        numbers = [number for number, queue in known if used is None or queue in used]
        self.wait_for_streams(host_thread, [(device, number) for number in numbers], name)

    # --- what the devices do ----------------------------------------------------------------

    @closed_to_handlers
    def kernel(
        self,
        host_thread: HostThread,
        stream: StreamKey,
        name: str,
        seconds: float,
        nbytes: int,
        flops: int,
        dispatch_s: float | None = None,
        engaged_s: float | None = None,
    ) -> QueuedWork:
        """Queue a kernel of `seconds` on `stream`; the host takes `dispatch_s` (default: its own)
        to do so.

        For `engaged_s` of them it leaves nothing of the device to kernels of other streams (None:
        for all).
        """
        queue = self._stream(stream)
        self._launch(host_thread, queue, name, dispatch_s)
        engine = self._engines[stream[0]]
        work = QueuedWork(host_thread.now_s, engine, seconds, queue.priority, engaged_s)
        if self.timelines:
            after = recorded_after((queue.last, stream))
            work.notes = (self._note(stream, "compute", name, nbytes, flops=flops, after=after),)
            work.recorded = {stream: self._operations}
        return self._submit(work, queue)

    @closed_to_handlers
    def copy(
        self,
        host_thread: HostThread,
        source: StreamKey | None,
        target: StreamKey | None,
        nbytes: int,
        name: str,
    ) -> QueuedWork:
        """Queue a copy between two streams' devices, None being the host.

        It runs on the source's stream (the target's, from the host), after the work that both
        streams have queued; the target's stream then waits for it, as in PyTorch's Copy.cu. Where
        it takes several transfers, each begins when the one before has ended; returned is the last.
        Priorities do not matter to copies, as the CUDA runtime API says of its own
        (cudaStreamCreateWithPriority).
        """
        streams = [stream for stream in (source, target) if stream is not None]
        queues = [self._stream(stream) for stream in streams]
        self._launch(host_thread, queues[0], name)
        if host_thread.used is not None:
            host_thread.used.update(queues)
        route = self._route(source and source[0], target and target[0])
        for ports, seconds, where, part in transfers(route, nbytes):
            work = QueuedWork(host_thread.now_s, ports, seconds)
            if self.timelines:
                after = recorded_after(
                    *((queue.last, s) for queue, s in zip(queues, streams, strict=True))
                )
                work.notes = (
                    self._note(streams[0], "copy", name, part, target=_name(where), after=after),
                )
                work.recorded = {streams[0]: self._operations}
            self._submit(work, *queues)
        return work

    @closed_to_handlers
    def record_event(self, host_thread: HostThread, stream: StreamKey) -> QueuedWork:
        """A mark that happens when what is queued on `stream` is done; at once, if it is idle."""
        queue = self._stream(stream)
        self._await_room(host_thread, queue)
        mark = QueuedWork(host_thread.now_s)
        if self.timelines:
            mark.recorded = recorded_by((queue.last, stream))
        return self._submit(mark, queue)

    @closed_to_handlers
    def stream_waits(self, host_thread: HostThread, stream: StreamKey, event: QueuedWork) -> None:
        """Let what is queued on `stream` from now on begin when `event` has happened."""
        queue = self._stream(stream)
        self._await_room(host_thread, queue)
        mark = QueuedWork(host_thread.now_s)
        if self.timelines:
            mark.recorded = recorded_by((queue.last, stream), (event, stream))
        self._submit(mark, queue, after=event)

    # --- what several hosts do together -----------------------------------------------------

    def announce(self, seconds: float, ports: Iterable[Port], hosts: int) -> QueuedWork:
        """Work of `seconds` on all `ports` that begins when so many `hosts` have joined it."""
        work = QueuedWork(0.0, tuple(self._ports[port] for port in ports), seconds)
        self._schedule.announce(work, hosts)
        return work

    @closed_to_handlers
    def equip(
        self,
        work: QueuedWork,
        seconds: float,
        ports: Iterable[Port],
        taken: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Say what announced work takes, before its last host joins it: seconds, ports, and shares
        of devices' multiprocessors."""
        work.resources = tuple(self._ports[port] for port in ports)
        work.seconds = work.engaged_s = seconds
        shares = [(self._engines[device][0].shares, share) for device, share in taken if share]
        work.takes = (*work.takes, *shares)

    @closed_to_handlers
    def join(
        self,
        host_thread: HostThread,
        stream: StreamKey,
        work: QueuedWork,
        name: str,
        *,
        kind: str = "collective",
        nbytes: int = 0,
        target: Callable[[], int | None] | None = None,
        taken: float = 0.0,
        group: tuple[int, ...] = (),
        until: QueuedWork | None = None,
    ) -> None:
        """Queue announced work of the ranks `group` on a stream of one of its hosts, of which it is
        a span there.

        `target()` is the device that data goes to, which is known when the work begins. What the
        stream has next waits for the work, or for `until`, which was announced for this host and
        for who lets it `depart`.

        It takes that share of the device's multiprocessors from kernels that run beside it.
        """
        queue, host = self._stream(stream), self.machine.host
        self._launch(host_thread, queue, name, host.dispatch_s + host.collective_s)
        if self.timelines:
            after = recorded_after((queue.last, stream))
            note = self._note(stream, kind, name, nbytes, group=group, after=after)
            work.notes += (note if target is None else _sent(note, target),)
            work.recorded = {**work.recorded, stream: self._operations}
        if taken:
            work.takes += ((self._engines[stream[0]][0].shares, taken),)
        self._schedule.join(work, host_thread.now_s, queue.last)
        if until is not None and until is not work:
            until.recorded = work.recorded
            self._schedule.join(until, host_thread.now_s, queue.last)
        queue.last = until or work
        queue.queue.append(work)

    def meet(self, host_thread: HostThread, work: QueuedWork) -> None:
        """Join announced work as a host that queues nothing on a device."""
        self._schedule.join(work, host_thread.now_s)

    def depart(self, _: HostThread, work: QueuedWork, after: QueuedWork | None) -> None:
        """Let a stream go on that has joined a transfer `until` that work: now, or `after` it."""
        self._schedule.join(work, 0.0, after)

    def abandon(self, _: HostThread, work: QueuedWork) -> None:
        """Let announced work be over that can never begin, as streams wait for one another."""
        self._schedule.begin(work)
        self._schedule.abandon(work)

    # --- when it happens --------------------------------------------------------------------

    def end_s(self, work: QueuedWork) -> float:
        """When `work` is done, also if that is in the future.

        Raises RuntimeError if it follows a collective that hosts have yet to join.
        """
        if work.end_s is None:
            self._let_others_go_on(lambda: self._is_known(work))
            self._schedule.begin(work)
        if work.end_s is None:
            raise RuntimeError(
                "the host waits for work behind a collective that can never begin: not all ranks "
                "have joined it, or their streams wait for one another"
            )
        return work.end_s

    def _is_known(self, work: QueuedWork) -> bool:
        self._schedule.begin(work)
        return work.end_s is not None

    @open_to_handlers
    def _let_others_go_on(self, known: Callable[[], bool]) -> None:
        if self.others is not None and (self._schedule.to_join or not known()):
            self.others(known)

    def is_done(self, host_thread: HostThread, work: QueuedWork) -> bool:
        """Whether `work` is done by now, as `host_thread` sees it."""
        if work.end_s is None:
            self._let_others_go_on(lambda: True)
        return self.is_known_done(host_thread, work)

    def is_known_done(self, host_thread: HostThread, work: QueuedWork) -> bool:
        """The same, by what is queued already: no other host goes on before the answer."""
        self._schedule.begin_until(host_thread.now_s)
        return work.end_s is not None and work.end_s <= host_thread.now_s

    def is_idle(self, host_thread: HostThread, stream: StreamKey) -> bool:
        """Whether all that was queued on `stream` is done by now, as `host_thread` sees it."""
        last = self._stream(stream).last
        return last is None or self.is_done(host_thread, last)

    def settle(self) -> None:
        """Work out all that is queued, also what lies in the future, and record it."""
        self._schedule.begin_all()

    # --- inside -----------------------------------------------------------------------------

    def _stream(self, stream: StreamKey) -> _Stream:
        return self._streams[stream[0]][stream[1]]

    def _launch(
        self, host_thread: HostThread, queue: _Stream, name: str, seconds: float | None = None
    ) -> None:
        self._await_room(host_thread, queue)
        self._operations += 1
        seconds = self.machine.host.dispatch_s if seconds is None else seconds
        self.dispatch(host_thread, seconds, name, self._operations)

    def _await_room(self, host_thread: HostThread, stream: _Stream) -> None:
        if host_thread.used is not None:
            host_thread.used.add(stream)
        if len(stream.queue) == stream.queue.maxlen:
            self.wait_for(host_thread, stream.queue[0], "launch queue is full")

    def _submit(
        self, work: QueuedWork, *queues: _Stream, after: QueuedWork | None = None
    ) -> QueuedWork:
        """Put work at the end of streams; it runs on the first, and takes up room there."""
        self._schedule.submit(work, *[queue.last for queue in queues], after)
        for queue in queues:
            queue.last = work
        queues[0].queue.append(work)
        return work

    def _route(self, source: int | None, target: int | None) -> list[_Transfer]:
        """The transfers of a copy between two devices (None: the host)."""
        route = self._routes.get((source, target))
        if route is None:
            route = self._routes[source, target] = [
                (tuple(self._ports[port] for port in hop.ports), hop.link, hop.target)
                for hop in hops(self.machine, source, target)
            ]
        return route

    # --- recording --------------------------------------------------------------------------

    def note_memory(self, host_thread: HostThread, device: int, nbytes: int) -> None:
        """Record what the tensors of a device occupy now, in the host's time, as they allocate."""
        sample = MemorySample(_name(device), host_thread.now_s, nbytes)
        for timeline in self.timelines:
            timeline.add_memory(sample)

    def _note(
        self,
        stream: StreamKey,
        kind: str,
        name: str,
        nbytes: int,
        *,
        flops: int = 0,
        target: str = "",
        group: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ) -> Note:
        """What it takes to record work when its times are known, on what records now."""
        device, number = stream
        span = partial(
            Span,
            _name(device),
            number,
            kind,
            name,
            bytes=nbytes,
            flops=flops,
            correlation=self._operations,
            target=target,
            group=group,
            after=tuple(number for number in after if number != self._operations),
        )
        return tuple(self.timelines), span

    def _record_work(self, work: QueuedWork, start_s: float, end_s: float) -> None:
        notes, work.notes = work.notes, ()
        for timelines, span in notes:
            self._record(span(start_s, end_s), timelines)

    def _record(self, span: Span, timelines: Iterable[Timeline] | None = None) -> None:
        for timeline in self.timelines if timelines is None else timelines:
            timeline.add(span)


def _sent(note: Note, target: Callable[[], int | None]) -> Note:
    """What is recorded of work that sends to a device, which is known when it begins."""
    timelines, span = note
    return timelines, lambda *times: replace(span(*times), target=_name(target()))


def _name(device: int | None) -> str:
    return "host" if device is None else text(device)
