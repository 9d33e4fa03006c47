"""The simulated clock: small timelines worked out by hand, and its calendar against brute force."""

import gc
import itertools
from dataclasses import replace

import pytest
import torch
import warm_process
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar import machines
from d2lpar.machines import Accelerator, Host, Link, Machine
from d2lpar.timeline import Span, Timeline
from d2lpar.vgpu.api.timing import now_s
from d2lpar.vgpu.sim.busy_intervals import Resource, earliest
from d2lpar.vgpu.sim.clock import LAUNCH_QUEUE, Clock, HostThread
from d2lpar.vgpu.sim.constants import MATMUL_EFFICIENCY, MEMORY_EFFICIENCY
from d2lpar.vgpu.sim.copy_routes import hops
from d2lpar.vgpu.sim.event_queue import QueuedWork

# Queuing takes 1 s, a view nothing; a copy to or from the host 2 s and 1 s a byte, between two
# devices 1 s and 1 s for two bytes.
GPU = Accelerator("toy", {"float32": 1.0}, 1.0, 10**9, kernel_latency_s=0.0)
MACHINE = Machine(
    "toy",
    (GPU, GPU, GPU),
    Host("toy", dispatch_s=1.0, view_s=0.0, query_s=0.0),
    Link("bus", 2.0, 1.0),
    Link("peer", 1.0, 2.0),
)
NO_PEER = replace(MACHINE, peer=None)


def new_clock(machine=MACHINE):
    clock = Clock(machine)
    clock.timelines.append(Timeline("toy"))
    return clock


def spans(clock, *kinds):
    """All that was queued, in the order in which it happened."""
    clock.settle()
    kinds = kinds or ("compute", "copy", "host", "wait")
    found = sorted(clock.timelines[0], key=lambda s: (s.start_s, s.correlation))
    return [(s.device, s.kind, s.start_s, s.end_s) for s in found if s.kind in kinds]


def drawn(clock):
    """What each stream did, a letter a second, and when its host waited (w) or queued (.)."""
    clock.settle()
    rows = {}
    for span in clock.timelines[0]:
        if span.kind != "dispatch":
            row = rows.setdefault(f"{span.device}/{span.stream}", [])
            start, end = int(span.start_s), int(span.end_s)
            row.extend("." * (end - len(row)))
            assert set(row[start:end]) <= {"."}, "a stream did two things at once"
            letter = "w" if span.kind == "wait" else span.name[0]
            row[start:end] = letter * (end - start)
    return {name: "".join(row) for name, row in sorted(rows.items())}


def kernel(clock, device, seconds, stream=0, name="kernel", host_thread=None):
    return clock.kernel(host_thread or clock.host, (device, stream), name, seconds, 0, 0)


def copy(clock, source, target, nbytes, name="copy", host_thread=None):
    return clock.copy(host_thread or clock.host, source, target, nbytes, name)


# --- by hand --------------------------------------------------------------------------------------


def test_kernels_of_a_stream_follow_each_other():
    clock = new_clock()
    kernel(clock, 0, 5)
    kernel(clock, 0, 2)
    assert clock.host.now_s == 2
    assert spans(clock) == [("vgpu:0", "compute", 1, 6), ("vgpu:0", "compute", 6, 8)]


def test_a_device_that_is_quicker_than_its_host_idles():
    clock = new_clock()
    for _ in range(3):
        kernel(clock, 0, 0.25)
    assert [start for _, _, start, _ in spans(clock)] == [1, 2, 3]


def test_devices_overlap():
    clock = new_clock()
    kernel(clock, 0, 5, name="a")
    kernel(clock, 1, 5, name="b")
    clock.wait_for_device(clock.host, 0, "wait")
    assert clock.host.now_s == 6
    clock.wait_for_device(clock.host, 1, "wait")
    assert clock.host.now_s == 7
    assert drawn(clock) == {
        "host/main": "..wwwww",
        "vgpu:0/0": ".aaaaa",
        "vgpu:1/0": "..bbbbb",
    }
    assert spans(clock, "wait") == [("host", "wait", 2, 6), ("host", "wait", 6, 7)]


def test_streams_of_one_device_take_turns_at_its_engine():
    clock = new_clock()
    for name in "abc":
        kernel(clock, 0, 2, stream=0, name=name)  # queued at 1, 2, 3
    for name in "xy":
        kernel(clock, 0, 2, stream=1, name=name)  # queued at 4, 5
    # At 5, c has been ready since b ended (5), x since it was queued (4); at 7, y only since x.
    assert drawn(clock) == {
        "vgpu:0/0": ".aabb..cc",
        "vgpu:0/1": ".....xx..yy",
    }


def test_kernels_that_do_not_fill_a_device_run_side_by_side():
    clock = new_clock()
    for stream, name in enumerate("ab"):  # queued at 1 and 2; each needs half of the device
        clock.kernel(clock.host, (0, stream), name, 8, 0, 0, engaged_s=4)
    clock.kernel(clock.host, (0, 2), "c", 8, 0, 0)  # needs all of it
    # b begins when a has had its share of the engine (5), c when b has had its own (9).
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaaaaaa",
        "vgpu:0/1": ".....bbbbbbbb",
        "vgpu:0/2": ".........cccccccc",
    }


def test_a_stream_does_not_overtake_itself_though_the_engine_is_free():
    clock = new_clock()
    for name in "ab":
        clock.kernel(clock.host, (0, 0), name, 4, 0, 0, engaged_s=1)
    assert drawn(clock) == {"vgpu:0/0": ".aaaabbbb"}


def test_the_host_knows_only_what_has_happened():
    clock = new_clock()
    a, b = kernel(clock, 0, 2, name="a"), kernel(clock, 0, 2, name="b")
    assert not clock.is_done(clock.host, a)  # it runs from 1 to 3, and it is 2
    clock.host_work(clock.host, 1, "h")
    assert clock.is_done(clock.host, a)
    assert not clock.is_done(clock.host, b)
    assert not clock.is_idle(clock.host, (0, 0))
    assert clock.is_idle(clock.host, (0, 1))
    assert (clock.end_s(b), clock.host.now_s) == (5, 3)  # known early, and not waited for
    clock.wait_for(clock.host, b, "wait")
    assert clock.is_idle(clock.host, (0, 0))
    assert drawn(clock) == {"host/main": "..hww", "vgpu:0/0": ".aabb"}


def test_what_is_queued_later_can_still_begin_before_what_was_asked_about():
    for look_ahead, expected in (
        (False, {"vgpu:0/0": ".aaaa..bbbb", "vgpu:0/1": ".....uu"}),
        (True, {"vgpu:0/0": ".aaaabbbb", "vgpu:0/1": ".........uu"}),
    ):
        clock = new_clock()
        clock.set_priority((0, 1), -1)
        kernel(clock, 0, 4, name="a")
        b = kernel(clock, 0, 4, name="b")
        assert not clock.is_done(clock.host, b)
        if look_ahead:
            clock.settle()  # as the end of a recording does: what was queued in it is not changed
        kernel(clock, 0, 2, stream=1, name="urgent")
        assert drawn(clock) == expected


def test_reading_the_clock_settles_nothing_that_begins_now():
    clock = new_clock(replace(MACHINE, host=replace(MACHINE.host, dispatch_s=0.0)))
    clock.set_priority((0, 1), -1)
    a = kernel(clock, 0, 2, name="a")
    assert not clock.is_done(clock.host, a)
    kernel(clock, 0, 2, stream=1, name="urgent")  # queued at the same moment
    assert drawn(clock) == {"vgpu:0/0": "..aa", "vgpu:0/1": "uu"}


def test_priority_decides_among_the_ready_and_interrupts_nothing():
    clock = new_clock()
    clock.set_priority((0, 1), -1)
    clock.set_priority((0, 2), 1)
    kernel(clock, 0, 6, stream=0, name="a")  # queued at 1
    kernel(clock, 0, 2, stream=2, name="l")  # at 2, low
    kernel(clock, 0, 2, stream=0, name="b")  # at 3
    kernel(clock, 0, 2, stream=1, name="h")  # at 4, high
    kernel(clock, 0, 2, stream=1, name="i")  # at 5, high
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaaaa....bb",
        "vgpu:0/1": ".......hhii",
        "vgpu:0/2": ".............ll",
    }


def test_priority_does_not_matter_to_copies():
    clock = new_clock()
    clock.set_priority((0, 1), -1)
    copy(clock, None, (0, 2), 3, "a")
    copy(clock, None, (0, 0), 1, "b")
    copy(clock, None, (0, 1), 1, "c")
    assert drawn(clock) == {
        "vgpu:0/0": "......bbb",
        "vgpu:0/1": ".........ccc",
        "vgpu:0/2": ".aaaaa",
    }


def test_a_copy_waits_for_both_streams_and_both_wait_for_it():
    clock = new_clock()
    kernel(clock, 0, 5, name="a")
    kernel(clock, 1, 10, name="b")
    done = copy(clock, (0, 0), (1, 0), 4)
    assert clock.end_s(done) == 12 + 1 + 4 / 2
    kernel(clock, 0, 1, name="d")
    kernel(clock, 1, 1, name="e")
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaaa......cccd",
        "vgpu:1/0": "..bbbbbbbbbb...e",
    }
    assert clock.host.now_s == 5  # the host has waited for nothing


def test_copies_over_one_link_queue_and_other_links_are_free():
    clock = new_clock()
    copy(clock, (0, 0), (1, 0), 2, "a")
    copy(clock, (0, 1), (2, 0), 2, "b")
    copy(clock, (2, 1), (1, 1), 2, "c")
    # 0 sends twice, one after the other; then the way into 1 is free for 2.
    assert drawn(clock) == {"vgpu:0/0": ".aa", "vgpu:0/1": "...bb", "vgpu:2/1": "...cc"}


def test_a_link_serves_who_comes_first_not_who_was_queued_first():
    clock = new_clock()
    kernel(clock, 0, 10, name="k")
    copy(clock, (0, 0), None, 1, "p")  # queued at 2, ready at 11
    copy(clock, (0, 1), None, 10, "q")  # queued and ready at 3
    assert drawn(clock) == {
        "vgpu:0/0": ".kkkkkkkkkk....ppp",
        "vgpu:0/1": "...qqqqqqqqqqqq",
    }


def test_links_are_full_duplex():
    clock = new_clock()
    copy(clock, None, (0, 0), 4, "down")
    copy(clock, (0, 1), None, 4, "up")
    copy(clock, None, (0, 2), 4, "again")
    assert drawn(clock) == {
        "vgpu:0/0": ".dddddd",
        "vgpu:0/1": "..uuuuuu",
        "vgpu:0/2": ".......aaaaaa",
    }


def test_without_peer_to_peer_copies_go_through_the_host():
    clock = new_clock(NO_PEER)
    copy(clock, (0, 0), (1, 0), 4, "a")  # up until 7, and only then down
    copy(clock, None, (1, 1), 1, "b")  # the way down to 1 is free
    copy(clock, (0, 1), None, 1, "c")  # the way up from 0 is free from 7 on
    copy(clock, None, (1, 2), 3, "d")  # is there before a, which must wait for it at 7
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaaaa...aaaaaa",
        "vgpu:0/1": ".......ccc",
        "vgpu:1/1": "..bbb",
        "vgpu:1/2": ".....ddddd",
    }


def test_both_transfers_of_a_copy_tell_where_they_go_and_who_queued_them():
    clock = new_clock(NO_PEER)
    kernel(clock, 0, 1)
    copy(clock, (0, 0), (1, 0), 4)
    clock.settle()
    found = [(s.kind, s.device, s.target, s.correlation) for s in clock.timelines[0]]
    assert found == [
        ("dispatch", "host", "", 1),
        ("dispatch", "host", "", 2),
        ("compute", "vgpu:0", "", 1),
        ("copy", "vgpu:0", "host", 2),
        ("copy", "vgpu:0", "vgpu:1", 2),
    ]


def test_peers_on_the_hosts_bus_share_its_links():
    bus = MACHINE.host_link
    for peer, start_s in ((bus, 7), (MACHINE.peer, 2)):
        clock = new_clock(MACHINE.with_peer(peer))
        copy(clock, (0, 0), (1, 0), 4, "between devices")
        copy(clock, (0, 1), None, 4, "to the host")
        assert spans(clock)[1][2] == start_s


def test_neighbours_behind_a_switch_share_the_way_to_the_host():
    clock = new_clock(replace(MACHINE, uplink_shared_by=2))  # 0 and 1 do; 2 is alone
    for device, name in enumerate("abc"):
        copy(clock, None, (device, 0), 2, name)
    copy(clock, (0, 1), None, 2, "up")
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaa",
        "vgpu:0/1": "....uuuu",
        "vgpu:1/0": ".....bbbb",
        "vgpu:2/0": "...cccc",
    }


def test_peers_behind_one_switch_do_not_take_the_way_to_the_host():
    bus = MACHINE.host_link
    clock = new_clock(replace(MACHINE.with_peer(bus), uplink_shared_by=2))
    copy(clock, (0, 0), (1, 0), 1, "a")  # stays behind the switch
    copy(clock, None, (0, 1), 2, "b")  # comes down to it
    copy(clock, (0, 2), (2, 2), 1, "c")  # waits for the port of 0
    copy(clock, (1, 3), None, 1, "d")  # waits for the way up, which c has taken
    assert drawn(clock) == {
        "vgpu:0/0": ".aaa",
        "vgpu:0/1": "..bbbb",
        "vgpu:0/2": "....ccc",
        "vgpu:1/3": ".......ddd",
    }


def test_copies_between_sockets_share_the_link_between_them():
    bus = MACHINE.host_link
    machine = MACHINE.with_peer(bus).with_accelerators(4)
    slow = Link("between sockets", 2.0, 0.5)
    clock = new_clock(replace(machine, socket_size=2, socket_link=slow))
    copy(clock, (0, 0), (1, 0), 1, "a")  # on one processor's bus
    copy(clock, (0, 1), (2, 1), 1, "b")  # waits for the port of 0, and then for the link
    copy(clock, (1, 2), (3, 2), 1, "c")  # to the other processor's: 2 s and 1 / 0.5
    copy(clock, (2, 3), (0, 3), 1, "d")  # the other way
    assert drawn(clock) == {
        "vgpu:0/0": ".aaa",
        "vgpu:0/1": ".......bbbb",
        "vgpu:1/2": "...cccc",
        "vgpu:2/3": "....dddd",
    }


def test_each_copy_takes_a_link_of_those_between_sockets():
    bus = MACHINE.host_link
    machine = MACHINE.with_peer(bus).with_accelerators(4)
    slow = Link("between sockets", 2.0, 0.5)
    clock = new_clock(replace(machine, socket_size=2, socket_link=slow, socket_links=2))
    copy(clock, (0, 1), (2, 1), 1, "b")
    copy(clock, (1, 2), (3, 2), 1, "c")  # when the host has come to it: it waits for nobody
    copy(clock, (0, 3), (2, 3), 1, "e")  # waits for the port of 0
    assert drawn(clock) == {
        "vgpu:0/1": ".bbbb",
        "vgpu:1/2": "..cccc",
        "vgpu:0/3": ".....eeee",
    }


def test_a_box_of_two_processors_sends_more_slowly_from_one_to_the_other():
    """p2pBandwidthLatencyTest on two EPYC 7542: 25.8 and 21.9 GB/s (catalogue.links)."""
    box = machines.machine("8x-rtx-4090-epyc-p2p")
    within, across = (hops(box, 0, target)[-1].link.payload_bytes_per_s for target in (3, 4))
    assert across == pytest.approx(21.9e9, rel=0.1)
    assert within == pytest.approx(25.8e9, rel=0.1)


def four_in_two_nodes(**options):
    machine = replace(MACHINE.with_accelerators(4), network=Link("network", 2.0, 2.0), node_size=2)
    return replace(machine, **options)


def test_copies_between_nodes_share_a_network_port_and_leave_the_others_free():
    clock = new_clock(four_in_two_nodes())
    copy(clock, (0, 0), (2, 0), 4, "a")  # from node 0 to node 1
    copy(clock, (1, 0), (3, 0), 4, "b")  # the same way
    copy(clock, (2, 1), (0, 1), 4, "c")  # the other way
    copy(clock, (0, 2), (1, 2), 4, "d")  # within node 0
    copy(clock, (0, 3), None, 4, "e")  # to the host of node 0
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaa",
        "vgpu:0/2": "....ddd",
        "vgpu:0/3": ".....eeeeee",
        "vgpu:1/0": ".....bbbb",
        "vgpu:2/1": "...cccc",
    }


def test_accelerators_with_network_ports_of_their_own_do_not_share():
    clock = new_clock(four_in_two_nodes(network_shared_by=1))
    copy(clock, (0, 0), (2, 0), 4, "a")
    copy(clock, (1, 0), (3, 0), 4, "b")
    copy(clock, (1, 1), (2, 1), 4, "c")
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaa",
        "vgpu:1/0": "..bbbb",
        "vgpu:1/1": "......cccc",
    }


def test_events_order_streams():
    clock = new_clock()
    kernel(clock, 0, 5, name="a")
    happened = clock.record_event(clock.host, (0, 0))
    kernel(clock, 0, 3, name="b")  # after the event: nobody waits for it
    clock.stream_waits(clock.host, (1, 0), happened)
    clock.stream_waits(clock.host, (0, 1), happened)
    kernel(clock, 1, 2, name="x")
    kernel(clock, 1, 2, stream=1, name="y")
    again = clock.record_event(clock.host, (1, 0))
    clock.stream_waits(clock.host, (2, 0), again)
    kernel(clock, 2, 1, name="z")
    kernel(clock, 0, 1, stream=1, name="c")
    assert clock.end_s(happened) == 6
    assert drawn(clock) == {
        "vgpu:0/0": ".aaaaabbb",
        "vgpu:0/1": ".........c",
        "vgpu:1/0": "......xx",
        "vgpu:1/1": "....yy",
        "vgpu:2/0": "........z",
    }


def test_an_event_on_an_idle_stream_happens_when_it_is_recorded():
    clock = new_clock()
    kernel(clock, 0, 1)
    clock.host_work(clock.host, 4, "load")
    assert clock.end_s(clock.record_event(clock.host, (2, 0))) == 5
    assert clock.end_s(clock.record_event(clock.host, (0, 0))) == 5


def test_a_chain_over_streams_and_devices_with_the_host_in_it():
    clock = new_clock()
    copy(clock, None, (0, 0), 2, "i")  # 1 to 5
    kernel(clock, 0, 3, name="a")  # to 8
    copy(clock, (0, 0), (1, 0), 2, "p")  # to 10
    kernel(clock, 1, 2, name="b")  # to 12
    copy(clock, (1, 0), None, 1, "o")  # to 15
    clock.wait_for_streams(clock.host, [(1, 0)], "wait")
    kernel(clock, 0, 1, name="c")  # queued from 15 to 16
    assert drawn(clock) == {
        "host/main": ".....wwwwwwwwww",
        "vgpu:0/0": ".iiiiaaapp......c",
        "vgpu:1/0": "..........bbooo",
    }


def test_host_work_delays_what_is_queued_after_it():
    clock = new_clock()
    kernel(clock, 0, 1)
    clock.host_work(clock.host, 10, "load")
    kernel(clock, 0, 1)
    assert spans(clock) == [
        ("host", "host", 1, 11),
        ("vgpu:0", "compute", 1, 2),
        ("vgpu:0", "compute", 12, 13),
    ]


def test_every_kernel_and_copy_was_dispatched_before_it_began():
    clock = new_clock()
    kernel(clock, 0, 5)
    copy(clock, (0, 0), None, 1)
    dispatched = [end for *_, end in spans(clock, "dispatch")]
    begun = [start for *_, start, _ in spans(clock, "compute", "copy")]
    assert dispatched == [1, 2]
    assert all(d <= b for d, b in zip(dispatched, begun, strict=True))


def test_the_host_waits_where_the_launch_queue_of_a_stream_is_full(monkeypatch):
    monkeypatch.setattr("d2lpar.vgpu.sim.clock.LAUNCH_QUEUE", 2)
    clock = new_clock()
    for name in "abcd":
        kernel(clock, 0, 5, name=name)
    kernel(clock, 0, 1, stream=1, name="x")  # another stream has a queue of its own
    assert drawn(clock) == {
        "host/main": "..wwww.wwww",  # until a is done, until b is done
        "vgpu:0/0": ".aaaaabbbbbccccc.ddddd",
        "vgpu:0/1": "................x",
    }
    assert {s.name for s in clock.timelines[0] if s.kind == "wait"} == {"launch queue is full"}


def test_a_host_that_never_waits_holds_little_work():
    def held():
        gc.collect()
        return sum(type(thing) is QueuedWork for thing in gc.get_objects())

    before = held()
    for seconds in (0.25, 5):  # the host is the slower one, or the device
        clock = Clock(MACHINE)
        for _ in range(5 * LAUNCH_QUEUE):
            kernel(clock, 0, seconds)
            clock.record_event(clock.host, (0, 0))
        assert held() - before <= LAUNCH_QUEUE + 1


# --- several host threads -------------------------------------------------------------------------


def test_lanes_queue_at_the_same_time():
    clock = new_clock()
    host_threads = [HostThread(f"thread {i}", now_s=2.0) for i in range(2)]
    for device, host_thread in enumerate(host_threads):
        for name in "ab":
            kernel(clock, device, 3, name=name, host_thread=host_thread)
    assert drawn(clock) == {"vgpu:0/0": "...aaabbb", "vgpu:1/0": "...aaabbb"}


def test_what_one_lane_queued_earlier_goes_first_though_it_was_submitted_later():
    clock = new_clock()
    slow, quick = HostThread("slow", now_s=5.0), HostThread("quick")
    copy(clock, None, (0, 0), 2, "late", host_thread=slow)  # queued at 6
    copy(clock, None, (0, 1), 4, "early", host_thread=quick)  # at 1
    assert drawn(clock) == {"vgpu:0/0": ".......llll", "vgpu:0/1": ".eeeeee"}


def test_of_what_becomes_ready_together_that_which_was_queued_first_begins():
    clock = new_clock()
    kernel(clock, 1, 4, name="k")
    both_wait_for = clock.record_event(clock.host, (1, 0))
    slow, quick = HostThread("slow", now_s=2.0), HostThread("quick", now_s=1.0)
    for number, host_thread in enumerate((slow, quick)):
        clock.stream_waits(host_thread, (0, number), both_wait_for)
        kernel(clock, 0, 2, stream=number, name=host_thread.name, host_thread=host_thread)
    assert drawn(clock) == {"vgpu:0/0": ".......ss", "vgpu:0/1": ".....qq", "vgpu:1/0": ".kkkk"}


def test_work_for_a_time_that_is_settled_takes_the_gaps():
    clock = new_clock()
    behind = HostThread("behind")
    kernel(clock, 0, 2, name="a")
    clock.host_work(clock.host, 7, "host work")
    kernel(clock, 0, 2, name="b")
    clock.wait_for_device(clock.host, 0, "wait")
    for number, name in enumerate("xyz", start=1):  # queued at 1, 2, 3: free are 3 to 9
        kernel(clock, 0, 4, stream=number, name=name, host_thread=behind)
    kernel(clock, 0, 2, stream=4, name="v", host_thread=behind)
    assert drawn(clock) == {
        "host/main": ".hhhhhhh.ww",
        "vgpu:0/0": ".aa......bb",
        "vgpu:0/1": "...xxxx",
        "vgpu:0/2": "...........yyyy",
        "vgpu:0/3": "...............zzzz",
        "vgpu:0/4": ".......vv",
    }


# --- the calendar of a resource -------------------------------------------------------------------

times = st.integers(0, 30)


@given(st.lists(st.tuples(times, st.integers(0, 6)), max_size=25))
def test_the_earliest_gap_is_the_one_that_brute_force_finds(requests):
    resource, taken = Resource(), set()
    for ready, duration in requests:
        found = resource.earliest(ready, duration)
        expected = next(
            start
            for start in itertools.count(ready)
            if taken.isdisjoint(range(start, start + duration))
        )
        if duration:
            assert found == expected
        assert found >= ready
        resource.occupy(found, found + duration)
        taken |= set(range(found, found + duration))


@given(st.lists(st.tuples(times, st.integers(1, 6), st.sets(st.integers(0, 2), min_size=1))))
def test_what_needs_several_resources_finds_them_free_at_once(requests):
    resources, taken = [Resource() for _ in range(3)], set()
    for ready, duration, needed in requests:
        found = earliest(tuple(resources[i] for i in needed), ready, duration)
        wanted = next(
            span
            for start in itertools.count(ready)
            if taken.isdisjoint(
                span := {(i, t) for i in needed for t in range(start, start + duration)}
            )
        )
        assert found == min(t for _, t in wanted)
        for i in needed:
            resources[i].occupy(found, found + duration)
        taken |= wanted


def test_a_long_calendar_stays_short_and_never_double_books(monkeypatch):
    monkeypatch.setattr("d2lpar.vgpu.sim.busy_intervals.KEPT_INTERVALS", 8)
    resource, booked = Resource(), []
    for i in range(100):
        start = resource.earliest(i * 10, 2)
        resource.occupy(start, start + 2)
        booked.append(start)
        assert len(resource._starts) <= 8
    assert booked == [i * 10 for i in range(100)]
    assert resource.earliest(0, 5) > 800  # the oldest gaps are forgotten, not given away
    assert resource.earliest(980, 5) == 982


# --- operations on virtual devices ----------------------------------------------------------------


@pytest.fixture
def toy(gpus):
    with par.simulate(MACHINE, with_values=True) as devices:
        yield devices


def test_other_types_are_made_on_the_host(toy):
    there, here = torch.ones(8, dtype=torch.float16, device=toy[0]), torch.zeros(8)
    with par.record() as timeline:
        here.copy_(there)
        there.copy_(here)
    assert [span.bytes for span in timeline if span.kind == "copy"] == [16, 16]
    assert here.tolist() == [1.0] * 8


def test_a_product_lasts_as_long_as_the_roofline_says(toy):
    a = torch.ones(4, 8, device=toy[0])
    b = torch.ones(8, 2, device=toy[0])
    with par.record() as timeline:
        a @ b
    (product,) = timeline.on(toy[0], "compute")
    flops, nbytes = 2 * 4 * 8 * 2, 4 * (4 * 8 + 8 * 2 + 4 * 2)
    assert (product.name, product.flops, product.bytes) == ("mm", flops, nbytes)
    expected_s = max(flops / MATMUL_EFFICIENCY, nbytes / MEMORY_EFFICIENCY)
    assert product.duration_s == pytest.approx(expected_s, rel=1e-12)


def test_views_take_no_time_on_the_device(toy):
    a = torch.ones(4, 4, device=toy[0])
    with par.record() as timeline:
        a.t().reshape(2, 8)[0].detach().view(4, 2)
    assert len(timeline.on(toy[0])) == 1  # reshape of a transposed matrix copies
    assert [s.name for s in timeline.on(toy[0])] == ["clone"]


def test_what_needs_a_value_makes_the_host_wait(toy):
    a = torch.ones(4, device=toy[1])
    for needs in (
        lambda: a.sum().item(),
        lambda: a.cpu(),
        lambda: bool(a[0] > 0),
        lambda: a.nonzero(),
        lambda: a[a > 0],
        lambda: a.tolist(),
        lambda: repr(a),
        lambda: torch.zeros(4).copy_(a, non_blocking=True),  # into pageable memory
        lambda: torch.ones(20_000).to(toy[1], non_blocking=True),  # from pageable memory
    ):
        with par.record() as timeline:
            needs()
        assert timeline.on("host", "wait").spans
        assert now_s(wait=False) >= timeline.on(toy[1]).end_s


def test_what_needs_no_value_does_not(toy):
    a = torch.ones(4, device=toy[0])
    pinned = torch.ones(4).pin_memory()
    torch.vgpu.synchronize()
    with par.record() as timeline:
        a + a
        a.to(toy[1])
        pinned.to(toy[0], non_blocking=True)
        a.to("cpu", non_blocking=True)
        pinned.copy_(a, non_blocking=True)
    assert not timeline.on("host", "wait").spans


def test_a_backward_pass_has_a_lane_a_device(toy):
    a = torch.ones(4, device=toy[0], requires_grad=True)
    b = torch.ones(4, device=toy[1], requires_grad=True)
    losses = [(a * 2).sum(), (b * 2).sum()]
    torch.vgpu.synchronize(0)
    torch.vgpu.synchronize(1)
    with par.record() as timeline:
        torch.autograd.backward(losses)
    host_threads = {}
    for span in timeline.on("host", "dispatch"):
        host_threads.setdefault(span.stream, []).append(span)
    host_threads.pop("main", None)
    assert len(host_threads) == 2
    together = [[s.start_s for s in host_thread] for host_thread in host_threads.values()]
    assert together[0][0] == together[1][0]


def test_backward_passes_one_after_the_other_queue_one_after_the_other(toy):
    def lasted(separately):
        tensors = [torch.ones(4, device=d, requires_grad=True) for d in toy[:2]]
        losses = [(t * 2).sum() for t in tensors]
        with par.record() as timeline:
            if separately:
                for loss in losses:
                    loss.backward()
            else:
                torch.autograd.backward(losses)
        return timeline.on("host", "dispatch").duration_s

    # The caller makes the first gradient of each loss; then each device multiplies once, both at
    # the same time if it is one pass. Views take this host no time.
    passes_s = 1e-3  # what autograd needs for a pass is far less
    assert lasted(separately=False) == pytest.approx(2 + 1, abs=passes_s)
    assert lasted(separately=True) == pytest.approx((1 + 1) + (1 + 1), abs=passes_s)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_takes_the_time_of_its_second_forward_pass(toy, use_reentrant):
    def net(x):
        return (x.sin() * 2).cos()

    def kernels(forward):
        x = torch.ones(4, device=toy[0], requires_grad=True)
        with par.record() as timeline:
            forward(x).sum().backward()
        return len(timeline.on(toy[0], "compute"))

    again = kernels(lambda x: checkpoint(net, x, use_reentrant=use_reentrant))
    assert again >= kernels(net) + 2  # the sine and the product once more
    x = torch.ones(4, device=toy[0], requires_grad=True)
    loss = checkpoint(net, x, use_reentrant=use_reentrant).sum()
    with par.record() as timeline:
        loss.backward()
    dispatches = sorted((s.start_s, s.end_s) for s in timeline.on("host", "dispatch"))
    # One thread does all of it, an inner backward pass too: it is never in two places at once.
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(dispatches))


def test_a_backward_pass_that_fails_leaves_the_clock_usable(toy):
    x = torch.ones(4, device=toy[0], requires_grad=True)
    y = (x * 2).sin()
    y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    watch = par.Timer()
    (x * 2).sum().backward()
    assert watch.stop() > 0
    with par.record() as timeline:
        x + 1
    assert {s.stream for s in timeline.on("host", "dispatch")} == {"main"}


def test_streams_overlap_copies_with_kernels(gpus):
    with par.simulate(MACHINE, with_values=True) as devices:
        a = torch.ones(10, device=devices[0])
        side, done = torch.vgpu.Stream(devices[0]), torch.vgpu.Event()
        torch.vgpu.synchronize(0)
        with par.record() as timeline:
            done.record()
            with torch.vgpu.stream(side):
                side.wait_event(done)
                a.to("cpu", non_blocking=True)
            a + 1
        copy, add = timeline.on(devices[0], "copy"), timeline.on(devices[0], "compute")
        assert copy.start_s < add.end_s
        assert add.start_s < copy.end_s
        torch.vgpu.current_stream(0).wait_stream(side)
        with par.record() as timeline:
            a + 1
        assert timeline.on(devices[0], "compute").start_s >= copy.end_s


def test_urgent_streams_go_first_and_events_say_when(gpus):
    with par.simulate(MACHINE, with_values=True) as devices:
        a = torch.ones(10, device=devices[0])
        urgent = torch.vgpu.Stream(devices[0], priority=-1)
        torch.vgpu.synchronize(0)
        with par.record() as timeline:
            for _ in range(3):
                a + a  # each lasts longer than it takes to queue them all
            event = torch.vgpu.Event()
            with torch.vgpu.stream(urgent):
                a * a
                event.record()
            assert not event.query()
        kernels = sorted(timeline.on(devices[0], "compute"), key=lambda span: span.start_s)
        assert [span.name for span in kernels] == ["add", "mul", "add", "add"]
        event.synchronize()
        assert event.query()
        assert now_s(wait=False) == kernels[1].end_s
        assert not torch.vgpu.current_stream(0).query()


def test_an_event_belongs_to_the_machine_that_it_was_recorded_on(toy):
    event = torch.vgpu.Event()
    event.record()
    with par.simulate(MACHINE):
        for use in (event.synchronize, event.query, event.wait):
            with pytest.raises(RuntimeError, match="another virtual machine"):
                use()


# --- shapes only ----------------------------------------------------------------------------------


class LeNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 20, 3),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
        )
        self.head = nn.Linear(4, 10)

    def forward(self, X):
        Y = self.first(X)
        Y = F.relu(Y + self.body(Y))
        return self.head(F.adaptive_avg_pool2d(Y, 1).flatten(1))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=False),
}


def training_run(make_net, make_optimizer, device_ids, *, with_values):
    """All spans of three training steps."""
    torch.manual_seed(0)
    with par.simulate("2x-v100-textbook", with_values=with_values) as devices:
        net = make_net().to(devices[0])
        optimizer = make_optimizer(net.parameters())
        forward = nn.DataParallel(net, device_ids) if len(device_ids) > 1 else net
        with par.record() as timeline:
            for _ in range(3):
                X, y = torch.zeros(8, 1, 28, 28), torch.zeros(8, dtype=torch.long)
                X, y = X.to(devices[0]), y.to(devices[0])
                optimizer.zero_grad()
                loss = F.cross_entropy(forward(X), y)
                loss.backward()
                optimizer.step()
                loss.item()
        peaks = [torch.vgpu.max_memory_allocated(i) for i in range(2)]
    return timeline.spans, peaks


@pytest.mark.parametrize("device_ids", [[0], [0, 1]])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", [LeNet, Residual])
def test_shapes_alone_give_the_times_of_real_arithmetic(gpus, net, optimizer, device_ids):
    real, real_peaks = training_run(net, OPTIMIZERS[optimizer], device_ids, with_values=True)
    shapes, peaks = training_run(net, OPTIMIZERS[optimizer], device_ids, with_values=False)
    assert len(real) > 300
    assert shapes == real
    assert peaks == real_peaks


def test_a_run_takes_the_same_time_in_another_process(gpus):
    run = warm_process.run("from test_clock import run_checksum\nprint(run_checksum())")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == run_checksum()


def run_checksum():
    found, peaks = training_run(Residual, OPTIMIZERS["SGD"], [0, 1], with_values=True)
    return repr([(s.name, s.start_s, s.end_s) for s in found][::7] + peaks)


def test_views_and_writing_in_place_without_values(gpus):
    kept = torch.arange(4.0, device=gpus[0])
    with par.shape_only():
        a = torch.zeros(4, 6, device=gpus[0])
        b = a.t()[1:, ::2]
        assert (b.shape, b.stride(), b.storage_offset()) == ((5, 2), (1, 12), 1)
        assert a[2:].view(-1)[3:].storage_offset() == 15
        b += 1
        b.unsqueeze_(0)
        assert b.shape == (1, 5, 2)
        a[0] = 3.0
        torch.add(a, 1, out=(c := torch.empty(0, device=gpus[0])))
        assert c.shape == (4, 6)
        assert a.to(gpus[1]).device == gpus[1]
        assert torch.isnan(a.cpu()).all()
        assert a.long().sum().item() == 0
        assert a.data_ptr() == a.view(-1).data_ptr()
        assert a.data_ptr() != c.data_ptr()
        with pytest.raises(RuntimeError, match="from shapes alone"):
            a.nonzero()
        with pytest.raises(RuntimeError, match=r"^view size is not compatible"):  # with values, too
            a[:, :2].view(-1)
        with pytest.raises(RuntimeError, match="same device"):
            a + torch.zeros(4, 6, device=gpus[1])
    assert kept.tolist() == [0, 1, 2, 3]
    assert torch.zeros(2, device=gpus[0]).tolist() == [0, 0]


def test_equal_numbers_of_two_types_are_two_things_without_values(gpus):
    with par.shape_only():
        a = torch.zeros(2, dtype=torch.bool, device=gpus[0])
        assert [(a + x).dtype for x in (True, 1, 1.0, True)] == [
            torch.bool,
            torch.int64,
            torch.float32,
            torch.bool,
        ]
        b = torch.zeros(2, dtype=torch.int64, device=gpus[0])
        assert (b / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (b / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


# --- record, simulate, host_work ------------------------------------------------------------------


def test_records_nest_and_end(toy):
    a = torch.ones(2, device=toy[0])
    with par.record() as outer:
        a + 1
        with par.record() as inner:
            a + 1
    a + 1
    assert len(outer.on(toy[0])) == 2
    assert inner.on(toy[0]).spans == outer.on(toy[0]).spans[1:]
    assert outer.clock == "simulated on toy"


def test_simulating_moves_neither_clock_nor_memory_outside(gpus):
    before = now_s(wait=False)
    held = torch.vgpu.memory_allocated()
    with par.simulate("8x-a100-nvswitch", 5) as devices:
        assert len(devices) == torch.vgpu.device_count() == 5
        assert now_s(wait=False) == 0
        torch.ones(10**9, device=devices[4])
        par.host_work(3, "load")
        assert now_s(wait=False) > 3
        assert torch.vgpu.get_device_name() == "A100-SXM4-40GB (virtual)"
    assert torch.vgpu.device_count() == 4
    assert (now_s(wait=False), torch.vgpu.memory_allocated()) == (before, held)


def test_simulating_computes_values_only_if_asked(gpus):
    for with_values in (True, False):
        with par.simulate("2x-v100-textbook", with_values=with_values) as devices:
            total = torch.ones(3, device=devices[1]).sum().item()
            assert (total == 3) == with_values


def test_host_work_takes_no_negative_time(toy):
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="number from zero on"):
            par.host_work(wrong, "load")


def test_an_unknown_machine_is_named_with_those_that_are_near(gpus):
    with (
        pytest.raises(ValueError, match=r"no machine is called '2x-v100'; there is .*textbook"),
        par.simulate("2x-v100"),
    ):
        pass


# --- timelines ------------------------------------------------------------------------------------


def test_what_a_timeline_tells():
    timeline = Timeline(
        "measured",
        [
            Span("vgpu:1", 0, "compute", "a", 2, 5),
            Span("host", "main", "dispatch", "a", 1, 2),
            Span("vgpu:1", 1, "copy", "b", 4, 7, bytes=8),
            Span("vgpu:0", 0, "compute", "c", 9, 11),
        ],
    )
    assert timeline.devices == ["host", "vgpu:0", "vgpu:1"]
    assert (timeline.start_s, timeline.end_s, timeline.duration_s) == (1, 11, 10)
    assert timeline.on("vgpu:1").busy_s == 5
    assert timeline.busy_fraction("vgpu:1") == 0.5
    assert timeline.busy_fraction("vgpu:1", "copy") == 0.3
    assert [s.name for s in timeline.where(lambda s: s.bytes)] == ["b"]
    assert (len(timeline), len(Timeline("measured")), Timeline("measured").duration_s) == (4, 0, 0)


def test_machines_grow_and_compare():
    textbook = machines.machine()
    assert machines.machine("2x-v100-textbook") is textbook
    bigger = textbook.with_accelerators(5)
    assert len(bigger.accelerators) == 5
    assert bigger.is_like(textbook)
    assert not bigger.is_like(textbook.with_peer(None))
    mixed = replace(textbook, accelerators=(machines.V100, machines.A100))
    assert mixed.with_accelerators(3).accelerators == (machines.V100, machines.A100, machines.V100)
    assert not mixed.is_like(textbook)
    with pytest.raises(ValueError, match="1 to 65536 accelerators, not 0"):
        textbook.with_accelerators(0)
