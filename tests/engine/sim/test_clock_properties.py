"""What holds for every program on the simulated clock, and a second clock that ticks to compare.

Programs are lists of steps that hypothesis makes up. `Ticking` carries them out second by second,
without calendars or queues of pending work; the clock must come to the same times.
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar.machines import Accelerator, Host, Link, Machine
from d2lpar.timeline import Timeline
from d2lpar.vgpu.sim import staging
from d2lpar.vgpu.sim.clock import Clock, HostThread
from d2lpar.vgpu.sim.copy_routes import hops

GPU = Accelerator("toy", {"float32": 1.0}, 1.0, 10**9, kernel_latency_s=0.0)
BUS, PEER, NETWORK = Link("bus", 2.0, 1.0), Link("peer", 1.0, 1.0), Link("network", 3.0, 1.0)
ALL_PEERS = Machine("toy", (GPU,) * 4, Host("toy", dispatch_s=1.0, view_s=0.0), BUS, PEER)
MACHINES = {
    "peers": ALL_PEERS,
    "peers on the bus": ALL_PEERS.with_peer(BUS),
    "no peers": ALL_PEERS.with_peer(None),
    "a shared way to the host": replace(ALL_PEERS.with_peer(None), uplink_shared_by=4),
    "switches": replace(ALL_PEERS.with_peer(BUS), uplink_shared_by=2),
    "two nodes": replace(ALL_PEERS, network=NETWORK, node_size=2),
}

# --- programs -------------------------------------------------------------------------------------

streams = st.tuples(st.integers(0, 2), st.integers(0, 1))
seconds = st.integers(1, 6)
places = st.permutations([0, 1, 2, None]).map(lambda order: order[:2])
ends = st.builds(
    lambda two, a, b: tuple(
        None if d is None else (d, n) for d, n in zip(two, (a, b), strict=True)
    ),
    places,
    st.integers(0, 1),
    st.integers(0, 1),
)
slots = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("kernel"), streams, seconds),
    st.tuples(st.just("kernel"), streams, seconds),
    st.tuples(st.just("copy"), ends, st.integers(0, 4)),
    st.tuples(st.just("record"), streams, slots),
    st.tuples(st.just("wait"), streams, slots),
    st.tuples(st.just("host"), seconds),
    st.tuples(st.just("synchronize"), streams),
)
reads = st.tuples(st.just("read"), slots)
programs = st.lists(steps, max_size=50)
programs_with_reads = st.lists(st.one_of(steps, steps, steps, reads), max_size=50)
machines = st.sampled_from(sorted(MACHINES)).map(MACHINES.get)
PRIORITIES = {number: -number for number in range(2)}  # of streams, by number


def long_program(seed, length=300):
    """A long program that keeps everything busy, the same wherever it is made."""
    chance, program = random.Random(seed), []
    for _ in range(length):
        stream, other = (chance.randrange(2), chance.randrange(2)), (2, chance.randrange(2))
        program.append(
            chance.choice(
                [
                    ("kernel", stream, chance.randrange(1, 9)),
                    ("copy", (stream, None), chance.randrange(9)),
                    ("copy", (None, stream), chance.randrange(9)),
                    ("copy", (stream, other), chance.randrange(9)),
                    ("record", stream, chance.randrange(3)),
                    ("wait", stream, chance.randrange(3)),
                    ("read", chance.randrange(3)),
                ]
                * 5
                + [("host", 9), ("synchronize", stream)]
            )
        )
    return program


class Simulated:
    """A program on the clock. `read` steps ask whether an event has happened; `answers` has it."""

    def __init__(self, machine):
        self.clock = Clock(machine)
        self.timeline = Timeline("toy")
        self.clock.timelines.append(self.timeline)
        for device in range(4):
            for number, priority in PRIORITIES.items():
                self.clock.set_priority((device, number), priority)
        self.events, self.answers, self.work = {}, [], []

    def run(self, program, host_thread=None):
        for step in program:
            self.step(step, host_thread or self.clock.host)
        return self

    def step(self, step, host_thread):
        clock, (what, *args) = self.clock, step
        if what == "kernel":
            self.work.append(clock.kernel(host_thread, args[0], "kernel", args[1], 0, 0))
        elif what == "copy":
            self.work.append(clock.copy(host_thread, *args[0], args[1], "copy"))
        elif what == "record":
            self.events[args[1]] = clock.record_event(host_thread, args[0])
        elif what == "wait" and args[1] in self.events:
            clock.stream_waits(host_thread, args[0], self.events[args[1]])
        elif what == "host":
            clock.host_work(host_thread, args[0], "work")
        elif what == "synchronize":
            clock.wait_for_streams(host_thread, [args[0]], "wait")
        elif what == "read" and args[0] in self.events:
            self.answers.append(clock.is_done(host_thread, self.events[args[0]]))

    def times(self):
        """When each kernel and transfer ran, by the number of the operation."""
        self.clock.settle()
        found = [s for s in self.timeline if s.kind in ("compute", "copy")]
        return sorted((s.correlation, s.start_s, s.end_s) for s in found)


class Ticking:
    """The same, second by second: what has ended, what the host does, what begins."""

    def __init__(self, machine):
        self.machine = machine
        self.last, self.events, self.answers = {}, {}, []
        self.work, self.operations, self.host_s = [], 0, 0

    def run(self, program):
        todo, now = list(program), 0
        while todo or any(work["end"] is None for work in self.work):
            self._marks()
            while todo and self.host_s <= now and self._host_goes_on(*todo[0], now=now):
                todo.pop(0)
                self._marks()
            self._begin(now)
            now += 1
        return self

    def _host_goes_on(self, what, *args, now):
        """Carry out a step of the host; False if it has to wait."""
        if what == "synchronize" and not _done(self.last.get(args[0]), now):
            return False
        self.host_s = now
        if what in ("kernel", "copy"):
            self.host_s = now + 1
            self._launch(what, *args)
        elif what == "host":
            self.host_s = now + args[0]
        elif what == "record":
            self.events[args[1]] = self._add([args[0]])
        elif what == "wait" and args[1] in self.events:
            self._add([args[0]], after=self.events[args[1]])
        elif what == "read" and args[0] in self.events:
            self.answers.append(_done(self.events[args[0]], now))
        return True

    def _launch(self, what, where, amount):
        self.operations += 1
        if what == "kernel":
            self._add([where], amount, {("engine", where[0])}, PRIORITIES[where[1]])
            return
        both = [stream for stream in where if stream is not None]
        way = hops(self.machine, *(stream and stream[0] for stream in where))
        for sent in staging.transfers(way, amount):
            self._add(both, sent.seconds, set(sent.ports))

    def _add(self, on, lasts=0, needs=frozenset(), priority=0, after=None):
        work = {
            "operation": self.operations,
            "queued": self.host_s,
            "after": [w for w in (after, *map(self.last.get, on)) if w is not None],
            "lasts": lasts,
            "needs": needs,
            "priority": priority,
            "start": None,
            "end": None,
        }
        self.work.append(work)
        self.last.update(dict.fromkeys(on, work))
        return work

    def _marks(self):
        for work in self.work:
            if not work["needs"] and all(w["end"] is not None for w in work["after"]):
                work["start"] = work["end"] = _ready(work)

    def _begin(self, now):
        waiting = [
            w
            for w in self.work
            if w["start"] is None and w["needs"] and all(_done(a, now) for a in w["after"])
        ]
        order = [(w["priority"], _ready(w), w["queued"], i) for i, w in enumerate(waiting)]
        busy = {n for w in self.work if w["end"] is not None and w["end"] > now for n in w["needs"]}
        for _, ready, _, i in sorted(order):
            work = waiting[i]
            if ready <= now and not busy & work["needs"]:
                work.update(start=now, end=now + work["lasts"])
                busy |= work["needs"]

    def times(self):
        return sorted((w["operation"], w["start"], w["end"]) for w in self.work if w["needs"])


def _done(work, now):
    return work is None or (work["end"] is not None and work["end"] <= now)


def _ready(work):
    return max([work["queued"], *(w["end"] for w in work["after"])])


@settings(max_examples=300)
@given(machines, programs_with_reads)
def test_the_clock_comes_to_the_times_of_one_that_ticks(machine, program):
    simulated, ticking = Simulated(machine).run(program), Ticking(machine).run(program)
    assert simulated.answers == ticking.answers
    assert simulated.clock.host.now_s == ticking.host_s
    assert simulated.times() == ticking.times()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_both_come_to_the_same_times_where_all_is_busy(name, seed):
    program = long_program(seed)
    simulated = Simulated(MACHINES[name]).run(program)
    ticking = Ticking(MACHINES[name]).run(program)
    assert {True, False} == set(simulated.answers)
    assert simulated.answers == ticking.answers
    assert simulated.times() == ticking.times()


# --- when times are asked for ---------------------------------------------------------------------


@given(machines, programs_with_reads)
def test_reading_the_clock_changes_nothing(machine, program):
    asked = Simulated(machine).run(program)
    unasked = Simulated(machine).run(step for step in program if step[0] != "read")
    assert asked.times() == unasked.times()
    assert asked.clock.host.now_s == unasked.clock.host.now_s


@given(machines, programs, st.randoms(use_true_random=False))
def test_the_order_of_asking_does_not_matter(machine, program, chance):
    one, other = Simulated(machine).run(program), Simulated(machine).run(program)
    asked = list(enumerate(other.work))
    chance.shuffle(asked)
    ends = {i: other.clock.end_s(work) for i, work in asked}
    assert [ends[i] for i in range(len(ends))] == [one.clock.end_s(work) for work in one.work]
    assert one.times() == other.times()


@given(machines, programs, programs, st.randoms(use_true_random=False))
def test_the_order_in_which_two_lanes_submit_does_not_matter(machine, first, second, chance):
    def run(turns):
        simulated = Simulated(machine)
        host_threads = [
            HostThread("one"),
            HostThread("two", now_s=0.5),
        ]  # so that they never queue at the same time
        for turn in turns:
            simulated.step(next(todo[turn]), host_threads[turn])
        found = [(s.stream, s.device, s.start_s, s.end_s) for s in ran(simulated)]
        return sorted(found)

    first = [step for step in first if step[0] in ("kernel", "host")]
    second = [step for step in second if step[0] in ("kernel", "host")]
    # Each has streams of its own: the order in one stream is the order of submission.
    first = [(w, (a[0][0], 0), *a[1:]) if w == "kernel" else (w, *a) for w, *a in first]
    second = [(w, (a[0][0], 1), *a[1:]) if w == "kernel" else (w, *a) for w, *a in second]
    turns = [0] * len(first) + [1] * len(second)
    todo = [iter(first), iter(second)]
    expected = run(turns)
    chance.shuffle(turns)
    todo = [iter(first), iter(second)]
    assert run(turns) == expected


def test_another_process_comes_to_the_same_times():
    code = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[3])!r}]
from test_clock_properties import MACHINES, Simulated, long_program
print([Simulated(machine).run(long_program(0)).times() for machine in MACHINES.values()])
"""
    here = repr([Simulated(machine).run(long_program(0)).times() for machine in MACHINES.values()])
    assert len(here) > 10_000
    # The order of sets and of strings' hashes is another one in each process, as here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == here


# --- whatever is submitted, and when --------------------------------------------------------------


def ran(simulated):
    """The spans of kernels and transfers, all times settled."""
    simulated.clock.settle()
    return [s for s in simulated.timeline if s.kind in ("compute", "copy")]


host_threads = st.integers(0, 2)
scattered = st.lists(st.tuples(host_threads, st.one_of(steps, st.just(("settle",)))), max_size=50)


def run_scattered(machine, program):
    """A program of several host threads, whose future is sometimes settled before it is queued."""
    simulated = Simulated(machine)
    several = [simulated.clock.host, HostThread("one"), HostThread("two")]
    for host_thread, step in program:
        if step == ("settle",):
            simulated.clock.settle()
        else:
            simulated.step(step, several[host_thread])
    return simulated


def needs_of(machine, program):
    """For each operation, by number: its streams, and its transfers' resources and seconds."""
    found = {}
    for what, *args in program:
        if what == "kernel":
            found[len(found) + 1] = [args[0]], [({("engine", args[0][0])}, args[1])]
        elif what == "copy":
            way = hops(machine, *(stream and stream[0] for stream in args[0]))
            found[len(found) + 1] = (
                [stream for stream in args[0] if stream is not None],
                [(set(sent.ports), sent.seconds) for sent in staging.transfers(way, args[1])],
            )
    return found


@settings(max_examples=200)
@given(machines, scattered)
def test_no_resource_and_no_stream_does_two_things_at_once(machine, program):
    simulated = run_scattered(machine, program)
    needs = needs_of(machine, [step for _, step in program])
    taken, in_stream = set(), {}
    for number, (its_streams, transfers) in needs.items():
        spans = sorted((s for s in ran(simulated) if s.correlation == number), key=start_of)
        for span, (resources, lasts) in zip(spans, transfers, strict=True):
            assert span.duration_s == lasts
            for resource in resources:
                # All times are whole seconds: a program of toys.
                seconds = {(resource, t) for t in range(int(span.start_s), int(span.end_s))}
                assert not taken & seconds
                taken |= seconds
            for stream in its_streams:
                assert span.start_s >= in_stream.get(stream, 0)
        for stream in its_streams:
            in_stream[stream] = spans[-1].end_s


def start_of(span):
    return span.start_s


@settings(max_examples=200)
@given(machines, scattered)
def test_nothing_begins_before_it_was_queued_or_before_what_its_stream_waits_for(machine, program):
    simulated = Simulated(machine)
    several = [simulated.clock.host, HostThread("one"), HostThread("two")]
    waits = {}  # by operation: the events and the work that its streams have waited for
    waiting, operations = {}, 0
    for host_thread, step in program:
        what, *args = step
        if what == "settle":
            simulated.clock.settle()
            continue
        if what == "wait" and args[1] in simulated.events:
            waiting.setdefault(args[0], []).append(simulated.events[args[1]])
        simulated.step(step, several[host_thread])
        if what in ("kernel", "copy"):
            operations += 1
            on = [args[0]] if what == "kernel" else [s for s in args[0] if s is not None]
            waits[operations] = [event for stream in on for event in waiting.get(stream, [])]
    begun = {}
    for span in ran(simulated):
        begun[span.correlation] = min(span.start_s, begun.get(span.correlation, span.start_s))
    queued = {s.correlation: s.end_s for s in simulated.timeline if s.kind == "dispatch"}
    assert begun.keys() == queued.keys()
    for number, start_s in begun.items():
        assert start_s >= queued[number]
        assert all(start_s >= simulated.clock.end_s(event) for event in waits[number])


@given(machines, programs)
def test_the_makespan_is_at_least_every_lower_bound(machine, program):
    simulated = Simulated(machine).run(program)
    makespan_s = max((s.end_s for s in ran(simulated)), default=0.0)
    busy, chain = {}, {}
    for its_streams, transfers in needs_of(machine, program).values():
        begin_s = max(chain.get(stream, 0) for stream in its_streams)
        for resources, lasts in transfers:
            for resource in resources:
                busy[resource] = busy.get(resource, 0) + lasts
        for stream in its_streams:
            chain[stream] = begin_s + sum(lasts for _, lasts in transfers)
    assert makespan_s >= max([*busy.values(), *chain.values()], default=0)
    work_s = sum(lasts for _, ts in needs_of(machine, program).values() for _, lasts in ts)
    assert makespan_s <= simulated.clock.host.now_s + work_s  # and it is never all idle


chains = st.lists(
    st.one_of(
        st.tuples(st.just("kernel"), st.sampled_from([(0, 0), (1, 0)]), st.floats(0, 5)),
        st.tuples(
            st.just("copy"),
            st.permutations([(0, 0), (1, 0), None]).map(lambda three: tuple(three[:2])),
            st.integers(0, 100),
        ),
        st.tuples(st.just("synchronize"), st.sampled_from([(0, 0), (1, 0)])),
        st.tuples(st.just("host"), st.floats(0, 5)),
    ),
    max_size=30,
)


@given(machines, chains, st.floats(1, 100))
def test_more_bandwidth_is_never_slower_in_a_chain(machine, program, factor):
    """A stream a device: nothing competes, so that nothing can lose by another's being early."""

    def faster(link):
        return link and replace(link, bytes_per_s=link.bytes_per_s * factor)

    links = {name: faster(getattr(machine, name)) for name in ("host_link", "peer", "network")}
    slow, quick = (Simulated(m).run(program) for m in (machine, replace(machine, **links)))
    for before, after in zip(slow.times(), quick.times(), strict=True):
        assert after[2] <= before[2] * (1 + 1e-12)
    assert quick.clock.host.now_s <= slow.clock.host.now_s * (1 + 1e-12)
