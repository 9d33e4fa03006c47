"""torch.distributed.pipelining on virtual ranks: equal to one device, on time by our simulator."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, SplitPoint, schedules
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close

import d2lpar as par
from d2lpar.parallelism import pipeline
from d2lpar.parallelism.pipeline import Operation

MICRO_BATCHES, WIDTH = 8, 6
# Stages that the first rank has besides the first one: none, that after all ranks' first, the last.
SCHEDULES = {
    "ScheduleGPipe": None,
    "Schedule1F1B": None,
    "ScheduleLoopedBFS": "loop",
    "ScheduleInterleaved1F1B": "loop",
    "ScheduleInterleavedZeroBubble": "loop",
    "ScheduleZBVZeroBubble": "V",
    "ScheduleDualPipeV": "V",
}
KINDS = {
    schedules.FORWARD: "F",
    schedules.FULL_BACKWARD: "B",
    schedules.BACKWARD_INPUT: "I",
    schedules.BACKWARD_WEIGHT: "W",
}


def kind_of(name):
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    return getattr(schedules, name)


def stages_of(name, rank, ranks):
    """The numbers of a rank's stages, and how many there are."""
    way = SCHEDULES[name]
    if way is None:
        return [rank], ranks
    return [rank, rank + ranks if way == "loop" else 2 * ranks - 1 - rank], 2 * ranks


def here():
    """The device of a rank, by the name that programs have for it."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("vgpu", torch.vgpu.current_device())


def network(stages):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(stages)]
    return nn.Sequential(*[nn.Sequential(layer, nn.Tanh()) for layer in layers]).double()


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2 * MICRO_BATCHES, WIDTH, generator=generator, dtype=torch.float64)


def squares(output, target):
    return (output - target).square().mean()


def schedule_of(name, stages):
    kind = kind_of(name)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    return kind(stages if several else stages[0], MICRO_BATCHES, loss_fn=squares)


def step(schedule, mine, count, X, y):
    """A step of a rank that has these stages; the losses and the output, on the last one's."""
    losses = []
    args = (X,) if 0 in mine else ()
    last = {"target": y, "losses": losses} if count - 1 in mine else {}
    output = schedule.step(*args, **last)
    return [loss.item() for loss in losses], None if output is None else output.cpu()


def on_rank(name, ranks):
    mine, count = stages_of(name, dist.get_rank(), ranks)
    net, device = network(count).to(here()), here()
    stages = [PipelineStage(net[i], i, count, device) for i in mine]
    X, y = batch().to(device)
    losses, output = step(schedule_of(name, stages), mine, count, X, y)
    return {i: [p.grad.cpu() for p in net[i].parameters()] for i in mine}, losses, output


def on_one_device(count):
    """Gradients by stage, the loss of each micro-batch, the output."""
    net, (X, y) = network(count), batch()
    outputs, losses = [], []
    for part, target in zip(X.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
        outputs.append(net(part))
        losses.append(squares(outputs[-1], target))
    (sum(losses) / MICRO_BATCHES).backward()
    gradients = [[p.grad for p in stage.parameters()] for stage in net]
    return gradients, [loss.item() for loss in losses], torch.cat(outputs).detach()


def check_equal(results, count):
    gradients, losses, output = on_one_device(count)
    seen = []
    for of_stages, their_losses, their_output in results:
        for stage, found in of_stages.items():
            seen.append(stage)
            assert_close(found, gradients[stage])
        if count - 1 in of_stages:
            assert_close(their_losses, losses)
            assert_close(their_output, output)
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_equals_one_device(name):
    kind_of(name)
    with par.simulate("8x-a100-nvswitch", 2, with_values=True) as gpus:
        results = par.run_ranks(on_rank, gpus, name, 2)
    check_equal(results, stages_of(name, 0, 2)[1])


@pytest.mark.parametrize("name", ["Schedule1F1B", "ScheduleInterleavedZeroBubble"])
def test_programs_for_cuda(name):
    with par.emulate_cuda(4, "8x-a100-nvswitch", verbose=False) as gpus:
        results = par.run_ranks(on_rank, gpus, name, 4)
    check_equal(results, stages_of(name, 0, 4)[1])


@pytest.mark.slow
def test_a_traced_network_is_split_where_one_says():
    def traced():
        X, y = batch().to(here())
        parts = pipelining.pipeline(
            network(2), (batch()[0].chunk(MICRO_BATCHES)[0],),
            split_spec={"1": SplitPoint.BEGINNING},
        )  # fmt: skip
        rank = dist.get_rank()
        stage = parts.build_stage(rank, here())
        losses, output = step(schedule_of("Schedule1F1B", [stage]), [rank], 2, X, y)
        return {rank: [p.grad.cpu() for p in stage.submod.parameters()]}, losses, output

    with par.emulate_cuda(2, verbose=False) as gpus:
        check_equal(par.run_ranks(traced, gpus), 2)


@pytest.mark.parametrize("name", ["ScheduleGPipe", "ScheduleInterleaved1F1B"])
def test_pipelines_of_a_mesh_whose_stages_are_averaged_over_data(name):
    """Two pipelines of two ranks, with half of the batch each."""

    def on_mesh():
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pipeline", "data"))
        rank, part = mesh.get_local_rank("pipeline"), mesh.get_local_rank("data")
        mine, count = stages_of(name, rank, 2)
        net, device = network(count).to(here()), here()
        averaged = [DDP(net[i], process_group=mesh.get_group("data")) for i in mine]
        stages = [
            PipelineStage(stage, i, count, device, group=mesh.get_group("pipeline"))
            for stage, i in zip(averaged, mine, strict=True)
        ]
        X, y = (half.chunk(2)[part].to(device) for half in batch())
        step(schedule_of(name, stages), mine, count, X, y)
        return {i: [p.grad.cpu() for p in net[i].parameters()] for i in mine}

    with par.emulate_cuda(4, "8x-a100-nvswitch", verbose=False) as gpus:
        results = par.run_ranks(on_mesh, gpus)
    count = stages_of(name, 0, 2)[1]
    net, (X, y) = network(count), batch()
    squares(net(X), y).backward()
    for found in results:
        for i, gradients in found.items():
            assert_close(gradients, [p.grad for p in net[i].parameters()])


# --- time -----------------------------------------------------------------------------------------

ROWS, WIDE, MACHINE = 4096, 4096, "8x-h100-nvswitch"  # products that take long beside their launch


def wide():
    return nn.Sequential(nn.Linear(WIDE, WIDE, bias=False), nn.Tanh())


def second_step(name, ranks, begun):
    """The order of operations that torch has for the ranks; `begun` gets the step's beginning."""
    mine, count = stages_of(name, dist.get_rank(), ranks)
    device = here()
    stages = [PipelineStage(wide().to(device), i, count, device) for i in mine]
    schedule = schedule_of(name, stages)
    X = torch.empty(MICRO_BATCHES * ROWS, WIDE, device=device)
    args, last = (X,) if 0 in mine else (), {"target": X} if count - 1 in mine else {}
    for _ in range(2):
        torch.vgpu.synchronize()
        dist.barrier()
        begun.append(par.timing.now_s())
        schedule.step(*args, **last)
    return getattr(schedule, "pipeline_order", None)


def orders_of(name, table, ranks):
    """The schedule that torch has performed: a written one of ours, or torch's own table."""
    ours = {"ScheduleGPipe": pipeline.gpipe, "Schedule1F1B": pipeline.one_f_one_b}
    if name in ours:
        return pipeline.orders(ours[name](ranks, MICRO_BATCHES))
    return [
        [
            Operation(KINDS[part.computation_type], part.stage_index, part.microbatch_index)
            for action in table[rank]
            if action is not None
            for part in (getattr(action, "sub_actions", None) or [action])
            if part.computation_type in KINDS
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_takes_what_the_simulator_of_schedules_says(name):
    kind_of(name)
    ranks, begun = 4, []
    with par.simulate(MACHINE, ranks) as gpus, par.record() as timeline:
        table = par.run_ranks(second_step, gpus, name, ranks, begun)[0]
    count = stages_of(name, 0, ranks)[1]
    with par.simulate(MACHINE, 1) as (gpu,):
        costs = pipeline.stage_costs(
            [wide().to(gpu) for _ in range(count)], torch.empty(ROWS, WIDE, device=gpu)
        )
    expected = pipeline.simulate(orders_of(name, table, ranks), costs, MACHINE)
    expected_s = max(s.end_s for s in expected)
    spans = [s for s in timeline if s.kind == "compute" and s.start_s >= max(begun)]
    step_s = max(s.end_s for s in spans) - min(s.start_s for s in spans)
    # Beside the stages: the loss, adding up and scaling of gradients, receiving into new memory.
    assert step_s == pytest.approx(expected_s, rel=0.06)
    for rank in range(ranks):
        busy_s = sum(s.end_s - s.start_s for s in spans if s.device == f"vgpu:{rank}")
        idle = 1 - sum(s.end_s - s.start_s for s in expected.on(f"vgpu:{rank}")
                       if s.kind == "compute") / expected_s  # fmt: skip
        assert 1 - busy_s / step_s == pytest.approx(idle, abs=0.06)


# --- batches of sends and receives ----------------------------------------------------------------


def exchanged(order):
    """Two tensors each way between two ranks, begun in that order; what has come."""
    me, other = dist.get_rank(), 1 - dist.get_rank()
    sent = [torch.full((3,), 10.0 * me + i, device=here()) for i in range(2)]
    come = [torch.zeros(3, device=here()) for _ in range(2)]
    ops = [dist.P2POp(dist.isend, t, other) for t in sent]
    ops += [dist.P2POp(dist.irecv, t, other) for t in come]
    order = order if me == 0 else order[::-1]
    kept = [ops[i] for i in order]
    # torch: of several on the same way, the first that is sent is the first that is received.
    for work in dist.batch_isend_irecv(kept):
        work.wait()
    ways = [[i for i in order if i < 2], [i - 2 for i in order if i >= 2]]
    return ways, [t[0].item() for t in come]


@pytest.mark.parametrize("order", [o for o in itertools.permutations(range(4)) if o[0] < o[1]])
def test_a_batch_of_sends_and_receives_in_any_order(order):
    with par.simulate("8x-v100-pcie", 2, with_values=True) as gpus:
        results = par.run_ranks(exchanged, gpus, order)
    for me in range(2):
        (_, received), come = results[me]
        (sent, _), _ = results[1 - me]
        expected = {i: 10.0 * (1 - me) + tensor for i, tensor in zip(received, sent, strict=True)}
        assert come == [expected[0], expected[1]]


def test_a_batch_is_one_piece_of_work_whose_parts_run_side_by_side():
    def both_ways():
        other = 1 - dist.get_rank()
        out, into = (torch.empty(2**20, device=here()) for _ in range(2))
        ops = [dist.P2POp(dist.isend, out, other), dist.P2POp(dist.irecv, into, other)]
        return len(dist.batch_isend_irecv(ops))

    with par.simulate("8x-v100-pcie", 2) as gpus, par.record() as timeline:
        assert par.run_ranks(both_ways, gpus) == [1, 1]
    sends = [s for s in timeline if s.name == "send" and s.kind == "copy"]
    assert {(s.device, s.target) for s in sends} == {("vgpu:0", "vgpu:1"), ("vgpu:1", "vgpu:0")}
    assert sends[0].start_s < sends[1].end_s
    assert sends[1].start_s < sends[0].end_s


# --- memory ---------------------------------------------------------------------------------------


def highest(name, ranks):
    """What a step without outputs holds at most, in outputs of a stage."""
    mine, count = stages_of(name, dist.get_rank(), ranks)
    schedule = schedule_of(name, [PipelineStage(wide().to(here()), mine[0], count, here())])
    X = torch.empty(MICRO_BATCHES * ROWS, WIDE, device=here())
    args, last = (X,) if 0 in mine else (), {"target": X} if count - 1 in mine else {}
    for _ in range(2):
        dist.barrier()
        before = torch.vgpu.memory_allocated()
        torch.vgpu.reset_peak_memory_stats()
        schedule.step(*args, **last, return_outputs=False)
    return (torch.vgpu.max_memory_allocated() - before) / (ROWS * WIDE * 4)


def test_one_forward_one_backward_holds_as_few_micro_batches_as_its_table_says():
    ranks, held = 4, {}
    for name in ("ScheduleGPipe", "Schedule1F1B"):
        with par.simulate(MACHINE, ranks) as gpus:
            held[name] = par.run_ranks(highest, gpus, name, ranks)
    flights = [
        pipeline.in_flight(pipeline.orders(table(ranks, MICRO_BATCHES)))
        for table in (pipeline.gpipe, pipeline.one_f_one_b)
    ]
    for rank, (gpipe, one_f_one_b) in enumerate(zip(*held.values(), strict=True)):
        fewer = flights[0][rank] - flights[1][rank]
        # Each holds what tanh returns, and the input; that of the first stage is part of X.
        expected = fewer if rank == 0 else 2 * fewer
        # GPipe has one more tensor on its way while it begins to go back.
        assert gpipe - one_f_one_b == pytest.approx(expected, abs=int(rank > 0))
