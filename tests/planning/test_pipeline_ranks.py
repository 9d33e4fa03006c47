"""torch's own pipelines on gloo ranks: recorded, and compared with our schedules and one device."""

from __future__ import annotations

import itertools
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from d2lpar.parallelism.pipeline import schedules, torch_pipelining
from d2lpar.parallelism.pipeline.executor import Pipeline
from d2lpar.parallelism.pipeline.operations import Operation, orders
from d2lpar.timeline import Span, Timeline

RANKS, BATCH, LAYERS = 4, 16, 8
AHEAD_S = 1000
# Of torch's schedules: how many ranks, stages a rank and micro-batches, and our own like it.
PROGRAMS = {
    "ScheduleGPipe": (4, 1, 8, schedules.gpipe),
    "Schedule1F1B": (4, 1, 8, schedules.one_f_one_b),
    "Schedule1F1B on 2": (2, 1, 4, schedules.one_f_one_b),
    "ScheduleInterleaved1F1B": (4, 2, 8, schedules.interleaved_1f1b),
    "ScheduleInterleaved1F1B on 2": (2, 2, 4, schedules.interleaved_1f1b),
    "ScheduleInterleavedZeroBubble": (4, 1, 8, schedules.zero_bubble_h1),
}

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)


def perceptron():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(LAYERS)]
    return nn.Sequential(*[nn.Sequential(layer, nn.Tanh()) for layer in layers]).double()


def batch():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return X, torch.randint(6, (BATCH,), generator=generator)


def run(program, group, rank):
    """A recorded step of this rank: gradients by stage, the losses and the timeline."""
    from torch.distributed import pipelining

    ranks, chunks, micro_batches, _ = PROGRAMS[program]
    count, net = ranks * chunks, perceptron()
    size = LAYERS // count
    stages = [
        pipelining.PipelineStage(
            net[s * size : (s + 1) * size], s, count, torch.device("cpu"), group=group
        )
        for s in range(rank, count, ranks)
    ]
    kind = getattr(pipelining, program.split()[0])
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    schedule = kind(stages if several else stages[0], micro_batches, loss_fn=F.cross_entropy)
    X, y = batch()
    losses = []
    step = partial(schedule.step, *([X] if rank == 0 else []), target=y, losses=losses)
    step()
    net.zero_grad()
    with torch_pipelining.recorded(stages if several else stages[0]) as timeline:
        step()
        assert len(timeline) == 0
    assert not any("one_chunk" in name for stage in stages for name in vars(stage))
    gradients = {s.stage_index: [p.grad for p in s.submod.parameters()] for s in stages}
    return gradients, losses, timeline


def on_gloo(rank, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    two = dist.new_group([0, 1])
    found = {}
    for program, (ranks, *_) in PROGRAMS.items():
        if rank < ranks:
            found[program] = run(program, two if ranks == 2 else None, rank)
    # The same as if each rank had a machine of its own, whose clock began some time ago.
    torch_pipelining.socket = SimpleNamespace(gethostname=lambda: f"host {rank}")
    torch_pipelining.time = SimpleNamespace(
        perf_counter=lambda: time.perf_counter() + AHEAD_S * rank
    )
    found["several machines"] = run("Schedule1F1B", None, rank)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def on_real_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    long = "torch.distributed.pipelining"
    warm_process.run_on_ranks(on_gloo, str(folder), ranks=RANKS, importing=long)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_torch_does_our_operations_in_our_order(on_real_ranks, program):
    ranks, _, micro_batches, schedule = PROGRAMS[program]
    ours = orders(schedule(ranks, micro_batches))
    for rank in range(ranks):  # all of them have the whole timeline
        assert torch_pipelining.performed(on_real_ranks[rank][program][2]) == ours


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_and_losses_are_those_of_one_device_and_of_our_executor(on_real_ranks, program):
    ranks, chunks, micro_batches, schedule = PROGRAMS[program]
    X, y = batch()
    alone, net = perceptron(), perceptron()
    F.cross_entropy(alone(X), y).backward()
    size = LAYERS // (ranks * chunks)
    stages = [net[at : at + size] for at in range(0, LAYERS, size)]
    ours = Pipeline(stages, ["cpu"] * ranks, schedule).step(
        X, y, F.cross_entropy, micro_batches=micro_batches
    )
    found = [of_rank[program] for of_rank in on_real_ranks[:ranks]]
    gradients = {s: values for of_rank in found for s, values in of_rank[0].items()}
    flat = list(itertools.chain.from_iterable(gradients[s] for s in sorted(gradients)))
    close = partial(assert_close, rtol=1e-10, atol=1e-12)
    close(flat, [p.grad for p in alone.parameters()])
    close(flat, [p.grad for p in net.parameters()])
    close(torch.stack(found[-1][1]) / micro_batches, ours)


@pytest.mark.parametrize("program", PROGRAMS)
def test_spans_are_measured_on_one_clock(on_real_ranks, program):
    ranks, chunks, *_ = PROGRAMS[program]
    timeline = on_real_ranks[0][program][2]
    assert timeline.clock == "measured"
    assert timeline.devices == [f"rank {rank}" for rank in range(ranks)]
    assert timeline.start_s == 0
    assert {span.kind for span in timeline} == {"compute"}
    ends_s = {span.name: span.end_s for span in timeline}
    for span in timeline:
        stage, kind, m = span.name[0], span.name[1], span.name[2:]
        assert span.start_s < span.end_s
        if kind == "F" and stage != "0":  # what a stage needs was done before, by the same clock
            assert ends_s[f"{int(stage) - 1}F{m}"] < span.start_s
        if kind in "BI" and int(stage) < ranks * chunks - 1:
            assert ends_s[f"{int(stage) + 1}{kind}{m}"] < span.start_s
    for rank in range(ranks):
        own = sorted(timeline.on(f"rank {rank}"), key=lambda s: s.start_s)
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(own))


def test_clocks_of_several_machines_are_compared(on_real_ranks):
    timeline = on_real_ranks[0]["several machines"][2]
    assert len(timeline) == 2 * 4 * 8
    assert timeline.duration_s < AHEAD_S / 2


def test_orders_are_read_from_any_timeline_of_operations():
    spans = [
        ("vgpu:10", "11F3", 2),
        ("vgpu:2", "2B0", 1),
        ("vgpu:2", "copy", 0),
        ("vgpu:2", "2F0", 0),
    ]
    timeline = Timeline(
        "simulated", [Span(device, 0, "compute", name, at, at + 1) for device, name, at in spans]
    )
    assert torch_pipelining.performed(timeline) == [
        [Operation("F", 2, 0), Operation("B", 2, 0)],
        [Operation("F", 11, 3)],
    ]
