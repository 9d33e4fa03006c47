"""Simulated times of virtual ranks: collectives on a tiny machine, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from test_clock import MACHINE, drawn, kernel, new_clock

import d2lpar as par
from d2lpar import machines
from d2lpar.machines import Link, collective_cost
from d2lpar.vgpu.sim import collective_routes
from d2lpar.vgpu.sim.busy_intervals import Resource
from d2lpar.vgpu.sim.clock import HostThread
from d2lpar.vgpu.sim.taken_shares import TakenShares
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

# Queuing takes 1 s; 4 bytes summed by two ranks, or sent from one to the other, 2 s and some µs.
TOY = replace(MACHINE, peer=Link("peer", 0.0, 2.0))


def work(seconds, name="compute"):
    """Queue a kernel of so many seconds on this rank's current stream."""
    rt, device = current_runtime(), torch.vgpu.current_device()
    stream = (device, rt.current_stream(device))
    rt.host_threads.submit(device, rt.clock.kernel, stream, name, seconds, 0, 0)


def floats(n=1):
    return torch.empty(n, device=f"vgpu:{torch.vgpu.current_device()}")


def rounded(timeline, *kinds):
    """(device, stream, name, start, end) in whole seconds, without those on the host."""
    spans = sorted(timeline, key=lambda s: (s.start_s, s.device, str(s.stream)))
    return [
        (s.device, s.stream, s.name, round(s.start_s, 3), round(s.end_s, 3))
        for s in spans
        if s.device != "host" and s.kind in (kinds or ("compute", "collective", "copy"))
    ]


def record(function, *args, n=2, machine=TOY):
    with par.simulate(machine, n) as gpus, par.record() as timeline:
        par.run_ranks(function, gpus, *args)
    return timeline


# --- the clock ------------------------------------------------------------------------------------


def test_announced_work_begins_when_the_last_host_has_joined_it():
    clock = new_clock()
    others = [clock.host, HostThread("b")]
    both = clock.announce(3, [("peer out", 0)], 2)
    kernel(clock, 0, 4, name="a")  # 1 to 5
    clock.join(others[0], (0, 0), both, "sum")
    kernel(clock, 0, 1, name="c")
    clock.settle()
    assert both.end_s is None
    kernel(clock, 1, 6, name="b", host_thread=others[1])  # 1 to 7
    clock.join(others[1], (1, 0), both, "sum")
    assert clock.end_s(both) == 10
    assert drawn(clock) == {"vgpu:0/0": ".aaaa..sssc", "vgpu:1/0": ".bbbbbbsss"}


def test_a_host_cannot_wait_for_what_will_never_begin():
    clock = new_clock()
    both = clock.announce(1, [("peer out", 0)], 2)
    clock.join(clock.host, (0, 0), both, "sum")
    with pytest.raises(RuntimeError, match="a collective that can never begin"):
        clock.wait_for_device(clock.host, 0, "wait")
    clock.meet(clock.host, both)
    clock.wait_for_device(clock.host, 0, "wait")
    assert clock.host.now_s == 2


# --- collectives ----------------------------------------------------------------------------------


def test_a_collective_starts_at_the_later_rank_and_the_stream_waits():
    def uneven():
        r = dist.get_rank()
        work(5 if r == 0 else 9)
        dist.all_reduce(floats())
        work(1)

    # The host queues at 1, 2, 3 s; the kernels run from 1 s on.
    assert rounded(record(uneven)) == [
        ("vgpu:0", 0, "compute", 1, 6),
        ("vgpu:1", 0, "compute", 1, 10),
        ("vgpu:0", 1, "all_reduce", 10, 12),
        ("vgpu:1", 1, "all_reduce", 10, 12),
        ("vgpu:0", 0, "compute", 12, 13),
        ("vgpu:1", 0, "compute", 12, 13),
    ]


def test_an_asynchronous_collective_overlaps_with_what_does_not_wait_for_it():
    def overlap():
        work(2)
        handle = dist.all_reduce(floats(3), async_op=True)
        work(5)
        handle.wait()
        work(1)

    for device in ("vgpu:0", "vgpu:1"):
        assert [s[1:] for s in rounded(record(overlap)) if s[0] == device] == [
            (0, "compute", 1, 3),
            (0, "compute", 3, 8),
            (1, "all_reduce", 3, 9),
            (0, "compute", 9, 10),
        ]


def test_collectives_of_a_group_run_in_their_order_and_the_host_does_not_wait():
    hosts = []

    def several():
        works = [dist.all_reduce(floats(n), async_op=True) for n in (2, 1)]
        for handle in works:
            handle.wait()
        hosts.append(current_runtime().now_s())
        dist.barrier()
        hosts.append(current_runtime().now_s())

    found = [s for s in rounded(record(several), "collective") if s[0] == "vgpu:0"]
    assert [s[2:] for s in found] == [("all_reduce", 1, 5), ("all_reduce", 5, 7), ("barrier", 7, 9)]
    assert hosts == pytest.approx([2, 2, 9, 9], abs=1e-3)  # two launches; the barrier ends at 9


def test_groups_that_share_ports_take_turns_and_others_do_not():
    def groups(pairs):
        r = dist.get_rank()
        made = [dist.new_group(pair) for pair in pairs]
        for pair, group in zip(pairs, made, strict=True):
            if r in pair:
                dist.all_reduce(floats(), group=group, async_op=True)

    machine = TOY.with_accelerators(4)
    apart = rounded(record(groups, ([0, 1], [2, 3]), n=4, machine=machine))
    assert {s[3:] for s in apart} == {(1, 3)}
    chained = rounded(record(groups, ([0, 1], [1, 2]), n=4, machine=machine))
    assert [s[0::3] + s[4:] for s in chained] == [
        ("vgpu:0", 1, 3), ("vgpu:1", 1, 3), ("vgpu:1", 3, 5), ("vgpu:2", 3, 5),
    ]  # fmt: skip


def test_sends_go_both_ways_at_once():
    def swap():
        r = dist.get_rank()
        works = [dist.isend(floats(2), 1 - r), dist.irecv(floats(2), 1 - r)]
        for handle in works:
            handle.wait()

    timeline = record(swap)
    # Rank 0 queues its send at 1 s, and rank 1 the receive at 2 s; so do they the other way round.
    assert sorted((s[0], *s[2:]) for s in rounded(timeline)) == [
        (f"vgpu:{r}", name, 2, 6) for r in (0, 1) for name in ("recv", "send")
    ]
    sent = next(s for s in timeline if s.name == "send" and s.device == "vgpu:0")
    assert (sent.target, sent.bytes) == ("vgpu:1", 8)


def test_a_host_that_waits_for_its_device_waits_for_open_collectives():
    times = []

    def wait():
        r = dist.get_rank()
        work(3 + 4 * r)
        dist.all_reduce(floats(), async_op=True)
        torch.vgpu.synchronize()
        times.append(current_runtime().now_s())

    record(wait)
    assert times == pytest.approx([10, 10], abs=1e-3)  # the later kernel ends at 8


def test_ranks_that_ask_in_loops_see_a_collective_end_when_it_does():
    found = []

    def ask():
        rank = dist.get_rank()
        par.host_work(0.0 if rank == 0 else 0.01, "late")
        handle, asked = dist.all_reduce(floats(), async_op=True), 1
        while not handle.is_completed():
            asked += 1
        polled = current_runtime().now_s()
        torch.vgpu.synchronize()
        found.append((asked, polled, current_runtime().now_s()))

    record(ask, machine=replace(TOY, host=replace(TOY.host, query_s=1e-3)))
    for asked, polled, done in found:
        assert polled == done == pytest.approx(found[0][1], abs=2e-3)
        assert asked > 1000  # the exchange takes 2 s


def test_who_asks_a_store_in_a_loop_sees_a_value_no_earlier_than_it_is_set():
    times = []

    def ask():
        rank = dist.get_rank()
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            par.host_work(7, "late")
            store.set("key", "value")
        else:
            while not store.check(["key"]):
                pass
        times.append(current_runtime().now_s())

    record(ask)
    assert times == [7, 7]


def test_a_stream_that_is_done_is_done_while_others_have_yet_to_come():
    found = []

    def ask():
        if dist.get_rank() == 0:
            work(1)
            event = torch.vgpu.Event()
            event.record()
            handle = dist.all_reduce(floats(), async_op=True)
            par.host_work(1, "think")
            found.append((event.query(), handle.is_completed()))
            par.host_work(10, "think")
            found.append((event.query(), handle.is_completed()))
        else:
            par.host_work(5, "late")
            dist.all_reduce(floats())

    record(ask)
    assert found == [(True, False), (True, True)]


def test_hosts_have_times_of_their_own():
    ends = []

    def host():
        r = dist.get_rank()
        par.host_work(1 + 2.0 * r, "load")
        ends.append(current_runtime().now_s())

    with par.simulate(TOY, 2) as gpus, par.record() as timeline:
        par.run_ranks(host, gpus)
        assert current_runtime().now_s() == 3
    assert ends == [1, 3]
    assert {(s.stream, s.start_s, s.end_s) for s in timeline} == {
        ("rank 0", 0, 1),
        ("rank 1", 0, 3),
    }


def test_a_forgotten_wait_is_a_hazard(gpus):
    def forget(wait):
        t = torch.ones(4).to(f"vgpu:{dist.get_rank()}")
        handle = dist.all_reduce(t, async_op=True)
        if wait:
            handle.wait()
        t.add(1)
        handle.wait()

    with par.hazards() as found:
        par.run_ranks(forget, gpus[:2], True)
    assert not found
    with par.hazards() as found:
        par.run_ranks(forget, gpus[:2], False)
    assert {hazard.kind for hazard in found} == {"read"}


# --- what collectives take from computing ---------------------------------------------------------


def test_a_kernel_has_what_a_collective_leaves_it():
    engine = Resource()
    shares = TakenShares(engine)
    shares.take(10, 20, 0.25)
    assert shares.needed_s(0, 5) == 5  # before
    assert shares.needed_s(10, 3) == 4  # three quarters of the speed
    assert shares.needed_s(8, 5) == pytest.approx(2 + 3 / 0.75)
    assert shares.needed_s(10, 9) == pytest.approx(10 + 1.5)  # the rest alone
    shares.begun(20)
    assert not shares.matter


def test_a_kernel_that_ran_already_is_made_up_for_by_the_next():
    engine = Resource()
    engine.occupy(5, 12)
    shares = TakenShares(engine)
    shares.take(10, 20, 0.25)
    assert shares.needed_s(12, 3) == pytest.approx((3 + 2 * 0.25) / 0.75)
    shares.begun(12)
    assert shares.needed_s(16, 3) == 4


def test_collectives_take_multiprocessors_from_kernels_of_other_streams():
    clock = new_clock()
    both = clock.announce(5, [("peer out", 0)], 2)
    clock.join(clock.host, (0, 0), both, "sum", taken=0.5)  # from 1 s to 6 s
    clock.join(HostThread("b"), (1, 0), both, "sum")
    kernel(clock, 0, 3, name="k", stream=1)  # queued at 2 s
    kernel(clock, 0, 1, name="l", stream=1)
    kernel(clock, 1, 3, name="m", stream=1)
    clock.settle()
    drawings = drawn(clock)
    assert drawings["vgpu:0/1"] == "..kkkkkl"  # 4 s beside, 1 s alone
    assert drawings["vgpu:1/1"] == "....mmm"


def test_ranks_compute_more_slowly_beside_a_collective():
    ends = {}

    def beside(name, nbytes):
        handle = dist.all_reduce(floats(nbytes // 4), async_op=True) if nbytes else None
        work(1e-2)
        if handle is not None:
            handle.wait()
        torch.vgpu.synchronize()
        ends[name] = current_runtime().now_s()

    machine = machines.machine("8x-a100-nvswitch")
    for name, nbytes in (("alone", 0), ("beside", 2**28)):
        record(beside, name, nbytes, n=8, machine=machine)
    exchange_s = collective_cost.all_reduce_s(2**28, collective_cost.fabric_of(machine))
    slower_s = ends["beside"] - ends["alone"] - machine.host.collective_s  # to call it
    assert slower_s == pytest.approx(exchange_s * 24 / 108, rel=0.05)


# --- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["8x-a100-nvswitch", "8x-v100-pcie", "8x-p100-dgx1"])
def test_groups_take_what_the_machines_collectives_take(name):
    machine = machines.machine(name)
    group = collective_routes.Group(machine, [1, 2, 5])
    fabric = collective_cost.fabric_among(machine, [1, 2, 5])
    for collective in ("all_reduce", "all_gather", "broadcast", "all_to_all", "gather"):
        expected_s = collective_cost.collective_s(collective, 10**8, fabric)
        assert group.seconds(collective, 10**8) == expected_s
    assert collective_routes.Group(machine, [1]).seconds("all_reduce", 10**8) == 0
    pair = collective_cost.fabric_among(machine, [1, 2])
    seconds, ports = collective_routes.send(machine, 1, 2, 10**8)
    assert seconds == collective_cost.send_s(10**8, pair)
    assert ports


def test_fabrics_of_some_devices():
    node = machines.machine("8x-a100-nvswitch")
    network = Link("net", 1e-6, 25e9)
    cluster = node.cluster(2, network, network_shared_by=2)
    among = partial(collective_cost.fabric_among, cluster)
    assert among(range(16)) == collective_cost.fabric_of(cluster)
    assert among([8, 9, 10, 11]) == collective_cost.fabric_of(node, 4)
    two = among([0, 2, 8, 10])  # each with a network port of its own
    assert (two.ranks, two.nodes, two.network_bytes_per_s) == (4, 2, 50e9)
    assert among([0, 1, 8, 9]).network_bytes_per_s == 25e9
    assert among([0, 1, 8]).ranks == 4  # as if both nodes had two


def test_a_ring_occupies_the_ports_between_its_neighbours():
    machine = TOY.cluster(2, Link("net", 1.0, 1.0))  # three a node
    ring = collective_routes.ports_of(machine, [0, 1, 3])
    assert set(ring) == {
        ("peer out", 0), ("peer in", 1), ("network out", 0), ("network in", 1),
        ("network out", 1), ("network in", 0),
    }  # fmt: skip
    assert collective_routes.ports_of(machine, [2]) == ()


def test_a_host_does_not_wait_for_what_another_process_has_queued():
    """Each process has a context of its own on a device: torch's averager of models, for one, lets
    every process synchronize its current device, which is 0 where a program has not said so."""

    def add():
        x = floats().fill_(torch.vgpu.current_device() + 1.0)
        torch.vgpu.synchronize(0)  # where rank 0's part of the sum waits for the others
        dist.all_reduce(x)
        return x.item()

    with par.simulate(TOY, 2, with_values=True) as gpus:
        assert par.run_ranks(add, gpus) == [3.0, 3.0]


# --- by the host ----------------------------------------------------------------------------------


def test_gloo_copies_to_the_host_and_back_and_its_host_waits_for_the_exchange():
    def rank():
        dist.init_process_group("gloo")
        x = floats()
        work(dist.get_rank() + 1)  # until 2 s, or 3 s
        dist.all_reduce(x)
        return current_runtime().now_s()

    with par.simulate(TOY, 2) as gpus, par.record() as timeline:
        assert par.run_ranks(rank, gpus) == [9, 9]
    exchange = [("vgpu:0", 1, "all_reduce", 9, 9), ("vgpu:1", 1, "all_reduce", 9, 9)]
    assert rounded(timeline, "collective") == exchange
    assert sorted(rounded(timeline, "copy")) == [  # of 4 bytes: 2 s and 4 s
        ("vgpu:0", 1, "all_reduce", 2, 8),
        ("vgpu:0", 1, "all_reduce", 9, 15),
        ("vgpu:1", 1, "all_reduce", 3, 9),
        ("vgpu:1", 1, "all_reduce", 9, 15),
    ]
