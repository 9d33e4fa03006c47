"""Simulated pipelines: by hand, by formula, by the longest path; and what stages cost."""

import copy
import dataclasses
import pickle
from graphlib import TopologicalSorter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import d2lpar as par
from d2lpar.machines import NETWORKS, Accelerator, Host, Link, Machine, machine
from d2lpar.parallelism.pipeline import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Operation,
    Pipeline,
    ScheduleError,
    Simulation,
    StageCost,
    gpipe,
    in_flight,
    interleaved_1f1b,
    one_f_one_b,
    orders,
    simulate,
    stage_costs,
    zero_bubble_h1,
)
from d2lpar.timeline import Span, Timeline

UNIT = StageCost(forward_s=1, backward_s=1, inputs_s=1, weights_s=1)
STAGE = StageCost(forward_s=1, backward_s=2)


def times(timeline: Timeline, kind: str = "compute") -> dict[str, tuple[float, float]]:
    return {span.name: (span.start_s, span.end_s) for span in timeline if span.kind == kind}


# --- without sending ------------------------------------------------------------------------------


def test_gpipe_by_hand():
    timeline = simulate(orders(gpipe(2, 2)), [STAGE, StageCost(2, 3)])
    assert times(timeline) == {
        "0F0": (0, 1),
        "0F1": (1, 2),
        "1F0": (1, 3),
        "1F1": (3, 5),
        "1B0": (5, 8),
        "1B1": (8, 11),
        "0B0": (8, 10),
        "0B1": (11, 13),
    }
    assert timeline.clock == "simulated"
    assert timeline.accelerators == ["vgpu:0", "vgpu:1"]
    assert timeline.duration_s == 13
    assert timeline.idle_s("vgpu:0") == 13 - 6
    assert {span.kind for span in timeline} == {"compute"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_operations_of_the_same_length_run_in_their_slots(name):
    for ranks, micro_batches in [(1, 3), (2, 4), (3, 6), (4, 12)]:
        slots = list(SCHEDULES[name](ranks, micro_batches))
        stages = ranks * (2 if name == "interleaved" else 1)
        expected = {str(op): (t, t + 1) for t, slot in enumerate(slots) for op in slot if op}
        assert times(simulate(orders(slots), [UNIT] * stages)) == expected


def published_bubble(schedule, p, m, cost):
    """Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2, who divide by the work
    and not by the step; Qi et al. 2024, table 2."""
    if schedule == "zero_bubble_h1":
        passes_s = cost.forward_s + cost.inputs_s + cost.weights_s
        idle_s = (p - 1) * (passes_s - 2 * cost.weights_s)
        return idle_s / (idle_s + m * passes_s)
    chunks = 2 if schedule == "interleaved" else 1
    return (p - 1) / (chunks * m + p - 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_bubbles_are_those_of_the_formulas(name):
    cost = StageCost(2.0, 4.5, inputs_s=3.0, weights_s=1.5)
    for ranks in range(1, 9):
        for micro_batches in range(1, 33):
            if name == "interleaved" and micro_batches % ranks:
                continue
            if name == "zero_bubble_h1" and micro_batches < ranks:
                continue
            stages = ranks * (2 if name == "interleaved" else 1)
            found = Simulation.of(orders(SCHEDULES[name](ranks, micro_batches)), [cost] * stages)
            expected = published_bubble(name, ranks, micro_batches, cost)
            assert found.bubble == pytest.approx(expected, abs=1e-12), (ranks, micro_batches)


def test_where_w_is_longer_than_i_zero_bubble_gains_no_more():
    # By hand: the bubble is then that of F alone.
    cost = StageCost(1, 3, inputs_s=1, weights_s=2)
    found = Simulation.of(orders(zero_bubble_h1(4, 8)), [cost] * 4)
    assert found.step_s == 8 * 4 + 3 * 1


def test_the_timeline_has_the_same_bubble():
    of_ranks = orders(one_f_one_b(4, 8))
    assert simulate(of_ranks, [STAGE] * 4).bubble_fraction() == pytest.approx(3 / 11)
    assert Simulation.of(of_ranks, [STAGE] * 4).bubble == pytest.approx(3 / 11)


costs_of_stages = st.lists(
    st.builds(StageCost, st.integers(1, 9), st.integers(1, 9), sent_bytes=st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50)
@given(costs_of_stages, st.integers(1, 8), st.sampled_from([None, Link("l", 0.0, 1.0)]))
def test_uneven_stages_of_gpipe_are_a_flow_shop(costs, micro_batches, link):
    """All that micro-batches pass takes its time once, and the slowest part for each other one."""
    sent_s = [cost.sent_bytes for cost in costs[:-1]] if link else []

    def phase_s(passes: list[float]) -> float:
        return sum(passes) + sum(sent_s) + (micro_batches - 1) * max(passes + sent_s)

    found = Simulation.of(orders(gpipe(len(costs), micro_batches)), costs, link)
    forward_s = phase_s([cost.forward_s for cost in costs])
    assert found.step_s == forward_s + phase_s([cost.backward_s for cost in costs])


def longest_path_s(of_ranks, costs, handover_s: float) -> float:
    """The end of the last operation, from the graph of what must come before what."""
    before: dict[Operation, dict[Operation, float]] = {}
    everything = {op for order in of_ranks for op in order}
    last = len(costs) - 1
    for rank, order in enumerate(of_ranks):
        for previous, op in zip([None, *order], order, strict=False):
            kind, stage, m = op
            needed = {previous: 0.0} if previous else {}
            neighbour = stage - 1 if kind == FORWARD else stage + 1
            if kind != "W" and 0 <= neighbour <= last:
                wanted = {(k, neighbour, m) for k in ("F" if kind == FORWARD else "BI")}
                away = handover_s if neighbour % len(of_ranks) != rank else 0.0
                needed |= dict.fromkeys(wanted & everything, away)
            before[op] = needed
    end_s: dict[Operation, float] = {}
    for op in TopologicalSorter({op: list(needed) for op, needed in before.items()}).static_order():
        start_s = max((end_s[other] + s for other, s in before[op].items()), default=0.0)
        end_s[op] = start_s + costs[op[1]].seconds(op[0])
    return max(end_s.values())


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    costs_of_stages.filter(lambda costs: len(costs) in (2, 4)),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_a_step_is_the_longest_path(name, costs, rounds, handover_s):
    ranks = len(costs) // 2 if name == "interleaved" else len(costs)
    of_ranks = orders(SCHEDULES[name](ranks, ranks * rounds))
    found = Simulation.of(of_ranks, costs, handover_s=handover_s)
    assert found.step_s == pytest.approx(longest_path_s(of_ranks, costs, handover_s))
    slowest_s = max(rounds * ranks * (cost.forward_s + cost.backward_s) for cost in costs)
    assert found.step_s >= slowest_s


def test_the_critical_path_has_no_gap():
    costs = [StageCost(1, 2, sent_bytes=1), StageCost(3, 4, sent_bytes=1), StageCost(2, 2)]
    timeline = simulate(orders(one_f_one_b(3, 6)), costs, Link("l", 0.25, 4.0))
    path = timeline.critical_path().spans
    assert path[0].start_s == 0
    assert path[-1].end_s == timeline.duration_s
    assert all(a.end_s == b.start_s for a, b in pairwise(path))
    named = [span.name for span in path]
    assert sum(name.startswith("1") for name in named) >= 6  # the slow stage keeps it waiting
    assert {"copy", "compute"} == {span.kind for span in path}


# --- sending --------------------------------------------------------------------------------------


def test_sending_goes_on_beside_computing():
    cost = StageCost(1, 2, sent_bytes=50)
    timeline = simulate(orders(gpipe(2, 2)), [cost, cost], Link("slow", 0.5, 100.0))
    assert times(timeline, "copy") == {
        "send 0F0": (1, 2),
        "send 0F1": (2, 3),
        "send 1B0": (6, 7),
        "send 1B1": (8, 9),
    }
    assert times(timeline)["1F0"] == (2, 3)
    assert times(timeline)["0B1"] == (9, 11)
    assert timeline.spans[-1] == Span(
        "vgpu:1", "to vgpu:0", "copy", "send 1B1", 8, 9, bytes=50, target="vgpu:0"
    )
    assert timeline.exposed_communication_s("vgpu:0") == 2  # 2 to 3, 6 to 7; else it computes
    assert timeline.summary("kind")[1].bytes == 200


def test_a_slow_link_is_what_micro_batches_wait_for():
    cost = StageCost(1, 1, sent_bytes=300)
    found = Simulation.of(orders(gpipe(2, 5)), [cost, cost], Link("slow", 0.0, 100.0))
    assert found.step_s == 2 * (1 + 5 * 3 + 1)


def test_links_are_full_duplex():
    cost = StageCost(1, 1, sent_bytes=200)
    timeline = simulate(orders(one_f_one_b(3, 6)), [cost] * 3, Link("l", 0.0, 100.0))
    there = timeline.where(lambda s: s.stream == "to vgpu:1" and s.device == "vgpu:0")
    back = timeline.where(lambda s: s.stream == "to vgpu:0")
    assert there.overlap_s(back) > 0


def test_a_port_takes_one_message_at_a_time():
    # Rank 1 of 3 hands on forwards and backwards through the same port out.
    cost = StageCost(1, 1, sent_bytes=300)
    timeline = simulate(orders(one_f_one_b(3, 6)), [cost] * 3, Link("l", 0.0, 100.0))
    sends = sorted(timeline.on("vgpu:1", "copy").spans, key=lambda span: span.start_s)
    assert {span.target for span in sends} == {"vgpu:0", "vgpu:2"}
    assert all(a.end_s <= b.start_s for a, b in pairwise(sends))


def test_what_stays_on_a_rank_is_not_sent():
    cost = StageCost(1, 1, sent_bytes=100)
    of_ranks = orders(interleaved_1f1b(1, 2, chunks=3))
    timeline = simulate(of_ranks, [cost] * 3, Link("l", 1.0, 1.0), handover_s=5)
    assert timeline.duration_s == 12
    assert {span.kind for span in timeline} == {"compute"}


PAIRS = Machine(
    "pairs",
    (Accelerator("a", {"float32": 1.0}, 1.0, 1),) * 4,
    Host("host"),
    host_link=Link("bus", 0.0, 50.0),
    peer=Link("peer", 0.0, 100.0),
    network=Link("network", 1.0, 10.0),
    node_size=2,
)


def test_neighbours_of_a_node_have_its_link_and_others_the_network():
    cost = StageCost(1, 1, sent_bytes=100)
    timeline = simulate(orders(gpipe(4, 1)), [cost] * 4, PAIRS)
    sent = {name: end - start for name, (start, end) in times(timeline, "copy").items()}
    assert sent == {f"send {op}": 1 for op in ("0F0", "2F0", "3B0", "1B0")} | {
        "send 1F0": 11,
        "send 2B0": 11,
    }
    assert timeline.clock == "simulated on pairs"


def test_without_peers_it_goes_through_the_host():
    through_host = dataclasses.replace(PAIRS.with_peer(None), node_size=None, network=None)
    cost = StageCost(1, 1, sent_bytes=100)
    timeline = simulate(orders(gpipe(2, 1)), [cost] * 2, through_host)
    copies = [s for s in timeline if s.kind == "copy" and s.name == "send 0F0"]
    assert [(s.start_s, s.end_s, s.target) for s in copies] == [(1, 3, "host"), (3, 5, "vgpu:1")]
    assert times(timeline)["1F0"] == (5, 6)


def test_ranks_of_a_node_share_its_network_port():
    # An interleaved ring over two nodes of two: ranks 1 and 3 send to the other node.
    shared = dataclasses.replace(PAIRS, network_shared_by=2)
    own = dataclasses.replace(PAIRS, network_shared_by=1)
    of_ranks = orders(interleaved_1f1b(4, 8))
    costs = [StageCost(1, 1, sent_bytes=100)] * 8
    assert (
        Simulation.of(of_ranks, costs, shared).step_s > Simulation.of(of_ranks, costs, own).step_s
    )


def test_machines_have_names_and_enough_accelerators():
    of_ranks = orders(gpipe(4, 2))
    timeline = simulate(of_ranks, [STAGE] * 4, "8x-a100-nvswitch")
    assert timeline.clock == "simulated on 8x-a100-nvswitch"
    cluster = machine("2x-v100-textbook").cluster(2, NETWORKS["100gbe"])
    assert Simulation.of(of_ranks, [STAGE] * 4, cluster).step_s >= 15
    with pytest.raises(ValueError, match=r"has 2 accelerators, and the schedule 4 ranks"):
        simulate(of_ranks, [STAGE] * 4, "2x-v100-textbook")


# --- computing again, and memory ------------------------------------------------------------------


def test_forwards_that_come_again_use_the_wait():
    of_ranks = orders(gpipe(2, 2))
    timeline = simulate(of_ranks, [STAGE] * 2, recompute=True)
    found = times(timeline)
    # Rank 1 has its gradient at once, and so computes the forward first; rank 0 is ready early.
    assert (found["1R0"], found["1B0"]) == ((3, 4), (4, 6))
    assert (found["0R0"], found["0B0"]) == ((2, 3), (6, 8))
    assert (found["0R1"], found["0B1"]) == ((8, 9), (9, 11))
    kept = simulate(of_ranks, [STAGE] * 2, recompute=lambda op: op.micro_batch == 0)
    assert {name for name in times(kept) if "R" in name} == {"0R0", "1R0"}
    assert Simulation.of(of_ranks, [STAGE] * 2, recompute=True).busy_s == [8, 8]


@pytest.mark.parametrize("name", SCHEDULES)
def test_memory_is_parameters_and_what_is_in_flight(name):
    of_ranks = orders(SCHEDULES[name](4, 8))
    stages = 8 if name == "interleaved" else 4
    costs = [StageCost(1, 2, activation_bytes=10, parameter_bytes=100)] * stages
    found = Simulation.of(of_ranks, costs)
    own = 100 * stages // 4
    assert found.peak_bytes == [own + 10 * count for count in in_flight(of_ranks)]
    samples = found.timeline().memory
    assert max(s.bytes for s in samples if s.device == "vgpu:0") == found.peak_bytes[0]
    for rank in range(4):
        at_rank = [s for s in samples if s.device == f"vgpu:{rank}"]
        assert (at_rank[0].time_s, at_rank[0].bytes, at_rank[-1].bytes) == (0, own, own)
        assert [s.time_s for s in at_rank] == sorted(s.time_s for s in at_rank)


def test_computing_again_keeps_inputs_only():
    costs = [StageCost(1, 2, sent_bytes=3, activation_bytes=10)] * 2
    peaks = Simulation.of(orders(gpipe(2, 4)), costs, recompute=True).peak_bytes
    # The first stage's input belongs to the data; the second one's is what it was sent.
    assert peaks == [10, 4 * 3 + (10 - 3)]


# --- errors, and what a timeline can do -----------------------------------------------------------


def broken(change) -> list[list[Operation]]:
    of_ranks = orders(one_f_one_b(2, 3))
    change(of_ranks)
    return of_ranks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o[1].pop(), "1B2 is missing"),
        (lambda o: o[0].pop(), "0B2 is missing"),
        (lambda o: o[1].remove(Operation(FORWARD, 1, 1)), "1F1 is missing"),
        (lambda o: o[0].insert(0, o[0][0]), "0F0 was done before"),
        (lambda o: o[0].append(o[0][0]), "0F0 was done before"),
        (lambda o: o[1].append(o[1][-1]), "1B2 was done before"),
        (lambda o: [order.extend(order) for order in o], "0F0 was done before"),
        (lambda o: o[1].reverse(), "1B2 needs 1F2"),
        (lambda o: o[0].append(o[1].pop()), "1B2 belongs on rank 1"),
        (lambda o: o[1].append(Operation("X", 1, 0)), "1X0 is of no kind"),
        (lambda o: o[1].append(Operation(FORWARD, -1, 0)), "-1F0 is of no stage"),
        (lambda o: [r.remove(op) for r in o for op in [*r] if op[2] == 1], "0F1 is missing"),
    ],
)
def test_broken_orders_are_refused_with_the_reason(change, message):
    of_ranks = broken(change)
    with pytest.raises(ScheduleError, match=message):
        simulate(of_ranks, [STAGE] * 2)


def test_deadlocks_are_refused_with_the_reason():
    first = [Operation(kind, 0, m) for m in range(2) for kind in "FB"]
    second = [Operation(kind, 1, m) for kind in "FB" for m in range(2)]
    with pytest.raises(ScheduleError, match="1F1 needs 0F1 of rank 0, which itself waits"):
        simulate([first, second[:2] + second[:1:-1]], [STAGE] * 2)


def test_costs_are_of_all_stages():
    with pytest.raises(ValueError, match="the orders have 2 stages and there are costs of 3"):
        simulate(orders(gpipe(2, 2)), [STAGE] * 3)
    with pytest.raises(ValueError, match="0 stages"):
        simulate([[]], [])
    with pytest.raises(ValueError, match="forward_s of StageCost must be a number from zero on"):
        StageCost(-1, 1)


def test_any_owners_and_idle_ranks():
    there_and_back = [
        [Operation(k, s, 0) for k, s in (("F", 0), ("F", 3), ("B", 3), ("B", 0))],
        [Operation(k, s, 0) for k, s in (("F", 1), ("F", 2), ("B", 2), ("B", 1))],
        [],
    ]
    timeline = simulate(there_and_back, [STAGE] * 4, Link("l", 1.0, 1.0))
    assert timeline.duration_s == 4 * 3 + 4 * 1  # 0-1 and 2-3 are sent, there and back


def test_the_same_result_twice_and_on_paper(tmp_path):
    of_ranks = orders(zero_bubble_h1(3, 5))
    timeline = simulate(of_ranks, [STAGE] * 3, "8x-a100-nvswitch")
    assert timeline.spans == simulate(of_ranks, [STAGE] * 3, "8x-a100-nvswitch").spans
    assert copy.copy(timeline).spans == timeline.spans
    assert pickle.loads(pickle.dumps(timeline)).spans == timeline.spans
    timeline.save_trace(tmp_path / "run.json")
    traced = Timeline.from_chrome_trace(tmp_path / "run.json")
    assert len(traced) == len(timeline)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        timeline.colour  # noqa: B018


# --- what stages cost -----------------------------------------------------------------------------


def perceptron(device) -> list[nn.Module]:
    first = nn.Sequential(nn.Linear(256, 512), nn.ReLU())
    return [first.to(device), nn.Linear(512, 128).to(device)]


def test_costs_of_virtual_stages_are_simulated():
    with par.simulate("2x-v100-textbook") as (gpu, _):
        stages = perceptron(gpu)
        x = torch.empty(64, 256, device=gpu)
        with par.record() as timeline:
            first, second = stage_costs(stages, x)
            again = stage_costs(stages, x)
    assert first.forward_s == pytest.approx(again[0].forward_s)
    assert (first.sent_bytes, second.sent_bytes) == (64 * 512 * 4, 64 * 128 * 4)
    assert first.parameter_bytes == (256 * 512 + 512) * 4
    # Input and output; ReLU needs its result only, so what comes in before it is freed.
    assert first.activation_bytes == 64 * (256 + 512) * 4
    assert second.activation_bytes == 64 * (512 + 128) * 4
    assert first.inputs_s < second.inputs_s  # nobody wants the gradient of the data
    assert first.weights_s == pytest.approx(first.backward_s - first.inputs_s)
    kernels = timeline.on(gpu, "compute").busy_s
    assert 0 < kernels < 20 * (first.forward_s + first.backward_s)


def test_costs_of_stages_on_the_processor_are_measured():
    stages = perceptron("cpu")
    first, second = stage_costs(stages, torch.rand(64, 256))
    assert min(first.forward_s, first.backward_s, second.inputs_s) > 0
    assert first.activation_bytes == 64 * (256 + 512) * 4
    assert second.activation_bytes == 64 * (512 + 128) * 4


def test_timing_leaves_the_stages_as_they_were():
    stage = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = copy.deepcopy(stage.state_dict())
    stage[0].weight.grad = torch.ones(8, 8)
    stage_costs([stage], torch.rand(16, 8))
    assert all(torch.equal(before[name], value) for name, value in stage.state_dict().items())
    assert torch.equal(stage[0].weight.grad, torch.ones(8, 8))
    assert stage[0].bias.grad is None


def test_adding_gradients_up_takes_time():
    with par.simulate("2x-v100-textbook") as (gpu, _):
        stage, x = nn.Linear(4096, 4096, device=gpu), torch.empty(8, 4096, device=gpu)
        (with_others,) = stage_costs([stage], x)
        (alone,) = stage_costs([stage], x, accumulate=False)
    added_s = 3 * with_others.parameter_bytes / 900e9  # read twice and written, at 900 GB/s
    assert with_others.backward_s - alone.backward_s == pytest.approx(added_s, rel=0.3)
    assert with_others.forward_s == pytest.approx(alone.forward_s)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x


def test_stages_may_hand_on_several_tensors_and_take_integers():
    words = torch.zeros(4, 8, dtype=torch.long)
    embedding, pair, bilinear = stage_costs(
        [nn.Embedding(10, 16), Pair(), nn.Bilinear(16, 16, 2)], words
    )
    assert embedding.inputs_s < embedding.weights_s
    assert pair.sent_bytes == 2 * 4 * 8 * 16 * 4
    assert bilinear.backward_s > 0


@pytest.mark.parametrize("name", ["gpipe", "zero_bubble_h1"])
def test_a_simulation_is_what_virtual_gpus_do(name):
    """The executor's step on the clock of virtual GPUs, and one that is put together of stages."""
    count, micro_batches, samples, width = 3, 4, 4096, 8192

    def stages(gpus: list[torch.device]) -> list[nn.Module]:
        layers = [nn.Linear(width, width, device=gpu) for gpu in gpus]
        return [nn.Sequential(layer, nn.ReLU()) for layer in layers]

    with par.simulate("8x-p40", count) as gpus:
        pipeline = Pipeline(stages(gpus), gpus, SCHEDULES[name])
        shape = (micro_batches * samples, width)
        x, y = torch.empty(shape, device=gpus[0]), torch.empty(shape, device=gpus[-1])
        for _ in range(2):  # the first step has no gradients to add to
            start_s = par.timing.now_s(gpus)
            pipeline.step(x, y, nn.functional.mse_loss, micro_batches=micro_batches)
        step_s = par.timing.now_s(gpus) - start_s
    with par.simulate("8x-p40", 1) as (gpu,):
        costs = stage_costs(stages([gpu] * count), torch.empty(samples, width, device=gpu))
    found = Simulation.of(orders(SCHEDULES[name](count, micro_batches)), costs, "8x-p40")
    assert found.step_s == pytest.approx(step_s, rel=0.02)


def test_costs_go_into_a_simulation():
    with par.simulate("2x-v100-textbook") as (gpu, _):
        costs = stage_costs(perceptron(gpu), torch.empty(64, 256, device=gpu))
    timeline = simulate(orders(one_f_one_b(2, 4)), costs, "2x-v100-textbook")
    alone_s = sum(cost.forward_s + cost.backward_s for cost in costs)
    assert alone_s < timeline.duration_s < 4 * alone_s + 1e-3
    assert {op.kind for order in orders(one_f_one_b(2, 4)) for op in order} == {FORWARD, BACKWARD}
