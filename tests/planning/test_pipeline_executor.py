"""Pipelines on devices: equal to one device, whatever is cut where, and as fast as planned."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar.parallelism.pipeline.conformance import require
from d2lpar.parallelism.pipeline.costs import StageCost
from d2lpar.parallelism.pipeline.executor import Pipeline
from d2lpar.parallelism.pipeline.findings import ScheduleError
from d2lpar.parallelism.pipeline.operations import orders
from d2lpar.parallelism.pipeline.schedules import (
    SCHEDULES,
    gpipe,
    in_slots,
    one_f_one_b,
    zero_bubble_h1,
)
from d2lpar.parallelism.pipeline.simulation import simulate
from d2lpar.parallelism.pipeline.split_backward import SplitBackward

BATCH = 11
close = partial(assert_close, rtol=1e-10, atol=1e-12)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 8), nn.Linear(8, 3)
    ).double()


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 3),
    ).double()  # fmt: skip


def batch(*shape):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)
    return X, torch.randint(3, (BATCH,), generator=generator)


def cut(net, *where):
    """Its stages: the net cut before these layers."""
    return [net[a:b] for a, b in itertools.pairwise((0, *where, len(net)))]


def cuts(layers, stages):
    return itertools.combinations(range(1, layers), stages - 1)


def ranks_for(schedule, stages):
    """On how many ranks a schedule runs so many stages; 0: on none."""
    chunks = 2 if schedule == "interleaved" else 1
    return 0 if stages % chunks else stages // chunks


def may_run(schedule, ranks, micro_batches):
    """Interleaved 1F1B takes the micro-batches in rounds."""
    return schedule != "interleaved" or micro_batches % ranks == 0


def one_by_one(net, X, y, micro_batches, loss=F.cross_entropy):
    """One device, the same micro-batches one after the other."""
    total = 0
    pieces = zip(X.tensor_split(micro_batches), y.tensor_split(micro_batches), strict=True)
    for piece, labels in pieces:
        part = loss(net(piece), labels) * (len(piece) / len(X))
        part.backward()
        total += part.detach()
    return total


def gradients(net):
    return [p.grad.cpu() for p in net.parameters()]


# --- equal to one device --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [(name, n) for name in SCHEDULES for n in range(1, 7) if ranks_for(name, n)],
)
def test_it_equals_one_device_on_the_full_batch_wherever_the_net_is_cut(schedule, stages):
    ranks = ranks_for(schedule, stages)
    X, y = batch(5)
    alone = perceptron()
    expected = F.cross_entropy(alone(X), y)
    expected.backward()
    for where, micro_batches in itertools.product(cuts(6, stages), (1, 3, 4, 11)):
        if not may_run(schedule, ranks, micro_batches):
            continue
        net = perceptron()
        pipeline = Pipeline(cut(net, *where), ["cpu"] * ranks, SCHEDULES[schedule])
        losses = pipeline.step(X, y, F.cross_entropy, micro_batches=micro_batches)
        assert losses.shape == (micro_batches,)
        close(losses.sum(), expected.detach())
        close(gradients(net), gradients(alone))
        net.zero_grad()
        close(pipeline(X, micro_batches=micro_batches), alone(X).detach())
        assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_virtual_devices_compute_what_the_processor_does(gpus, schedule):
    for where, micro_batches in itertools.product([(4,), (1, 2, 5)], (1, 4)):
        ranks = ranks_for(schedule, len(where) + 1)
        if not may_run(schedule, ranks, micro_batches):
            continue
        X, y = batch(5)
        nets = [perceptron(), perceptron()]
        found = []
        with par.hazards() as hazards:
            for net, devices in zip(nets, (["cpu"] * 4, gpus), strict=True):
                pipeline = Pipeline(cut(net, *where), devices[:ranks], SCHEDULES[schedule])
                losses = pipeline.step(X, y, F.cross_entropy, micro_batches=micro_batches)
                found.append((losses.cpu(), gradients(net)))
                found[-1] += (pipeline(X, micro_batches=micro_batches).cpu(),)
        assert losses.device == pipeline.stage_devices[-1] == gpus[(len(where)) % ranks]
        assert_close(found[0], found[1], rtol=0, atol=0)
        assert not hazards


@pytest.mark.parametrize("kind", ["cpu", "vgpu"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_with_batch_norm_it_equals_the_micro_batches_one_by_one(gpus, schedule, kind):
    X, y = batch(1, 8, 8)
    devices = gpus if kind == "vgpu" else ["cpu"] * 4
    # At 2 a stage begins with a layer that changes its input in place.
    wheres = [(2,), (1, 3, 5)] if kind == "vgpu" else [*cuts(6, 2), *cuts(6, 4)]
    for where in wheres:
        ranks = ranks_for(schedule, len(where) + 1)
        alone, net = with_batch_norm(), with_batch_norm()
        expected = one_by_one(alone, X, y, 4)
        pipeline = Pipeline(cut(net, *where), devices[:ranks], SCHEDULES[schedule])
        losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
        close(losses.sum().cpu(), expected)
        close(gradients(net), gradients(alone))
        close({k: v.cpu() for k, v in net.state_dict().items()}, alone.state_dict())
    assert net[1].num_batches_tracked == 4


def test_the_streams_that_are_current_compute(gpus):
    X, y = batch(5)
    net = perceptron()
    pipeline = Pipeline(cut(net, 2, 4), gpus[:3], zero_bubble_h1)
    with par.hazards() as hazards, par.record() as timeline:
        streams = [torch.vgpu.Stream(gpu) for gpu in gpus[:3]]
        with streams[0], streams[1], streams[2]:
            losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
            found = losses.cpu().sum(), gradients(net)
    alone = perceptron()
    close(found, (one_by_one(alone, X, y, 4), gradients(alone)))
    assert not hazards
    for stream in streams:
        computed = timeline.on(gpus[stream.device_index], "compute")
        assert {span.stream for span in computed} == {stream.stream_id}


def test_the_host_may_have_a_stage_too(gpus):
    X, y = batch(5)
    alone, net = perceptron(), perceptron()
    with par.hazards() as hazards:
        pipeline = Pipeline(cut(net, 2, 4), ["cpu", gpus[1], "cpu"])
        losses = pipeline.step(X, y, F.cross_entropy, micro_batches=3)
    close((losses.sum(), gradients(net)), (one_by_one(alone, X, y, 3), gradients(alone)))
    assert not hazards


def test_it_runs_on_what_programs_take_for_cuda():
    X, y = batch(5)
    alone, net = perceptron(), perceptron()
    with par.emulate_cuda(2, verbose=False), par.hazards() as hazards:
        pipeline = Pipeline(cut(net, 3), ["cuda:0", "cuda:1"], zero_bubble_h1)
        losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
        assert losses.device == torch.device("cuda", 1)
        found = losses.cpu().sum(), gradients(net)
    close(found, (one_by_one(alone, X, y, 4), gradients(alone)))
    assert not hazards


def test_steps_of_an_optimizer_are_those_of_one_device(gpus):
    X, y = batch(5)
    alone, net = perceptron(), perceptron()
    optimizers = [torch.optim.SGD(n.parameters(), 0.1, momentum=0.9) for n in (alone, net)]
    pipeline = Pipeline(cut(net, 2, 4), gpus[:3], one_f_one_b)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(alone(X), y).backward()
        pipeline.step(X, y, F.cross_entropy, micro_batches=3)
        for optimizer in optimizers:
            optimizer.step()
    close({k: v.cpu() for k, v in net.state_dict().items()}, alone.state_dict())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_drops_what_one_device_would_drop(schedule):
    X, y = batch(5)
    nets = [perceptron() for _ in range(2)]
    for net in nets:
        net[3] = nn.Dropout(0.5)
    torch.manual_seed(2)
    expected = one_by_one(nets[0], X, y, 4)
    torch.manual_seed(2)
    pipeline = Pipeline(
        cut(nets[1], 1, 3, 5), ["cpu"] * ranks_for(schedule, 4), SCHEDULES[schedule]
    )
    losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
    close(losses.sum(), expected)
    close(gradients(nets[1]), gradients(nets[0]))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("frozen", [1, 2, 4])
def test_the_first_stages_may_be_frozen(schedule, frozen):
    """As in fine-tuning: then nothing has to come back to them."""
    X, y = batch(5)
    alone, net = perceptron(), perceptron()
    where = (1, 3, 5)
    for one in (alone, net):
        for stage in cut(one, *where)[:frozen]:
            stage.requires_grad_(False)
    devices = ["cpu"] * ranks_for(schedule, 4)
    pipeline = Pipeline(cut(net, *where), devices, SCHEDULES[schedule])
    losses = pipeline.step(X, y, F.cross_entropy, micro_batches=4)
    expected = F.cross_entropy(alone(X), y)
    if frozen < 4:
        expected.backward()
    close(losses.sum(), expected.detach())
    close([p.grad for p in net.parameters()], [p.grad for p in alone.parameters()])


def sent_out_of_order(ranks, micro_batches):
    """Rank 1 takes last what rank 0 sends first: with sends that block both would wait."""
    there, back = gpipe(ranks, micro_batches), gpipe(ranks, micro_batches, last_first=True)
    first, second = orders(there)[0], orders(back)[1]
    forwards = second[:micro_batches][::-1]
    return in_slots([first, forwards + second[micro_batches:]])


def test_sends_do_not_block():
    X, y = batch(5)
    alone, net = perceptron(), perceptron()
    with pytest.raises(ScheduleError, match="waits for ever with blocking sends"):
        require(orders(sent_out_of_order(2, 3)), stages=2, micro_batches=3)
    pipeline = Pipeline(cut(net, 3), ["cpu"] * 2, sent_out_of_order)
    losses = pipeline.step(X, y, F.cross_entropy, micro_batches=3)
    close((losses.sum(), gradients(net)), (one_by_one(alone, X, y, 3), gradients(alone)))


class Branches(nn.Module):
    """Hands on several tensors: one for the gradients, one that nobody uses, and an index."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, X):
        return self.left(X), self.right(X), X.argmax(1)


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, left, _, index):
        return left * self.table(index)


@pytest.mark.parametrize("schedule", [gpipe, zero_bubble_h1])
@pytest.mark.parametrize("kind", ["cpu", "vgpu"])
def test_stages_may_hand_on_several_tensors(gpus, schedule, kind):
    def make():
        torch.manual_seed(0)
        return nn.ModuleList([Branches(), Join(), nn.Linear(4, 3)]).double()

    X, y = batch(5)
    alone, net = make(), make()
    F.cross_entropy(alone[2](alone[1](*alone[0](X))), y).backward()
    pipeline = Pipeline(net, gpus[:3] if kind == "vgpu" else ["cpu"] * 3, schedule)
    pipeline.step(X, y, F.cross_entropy, micro_batches=3)
    assert net[0].right.weight.grad is None
    close([p.grad.cpu() for p in net.parameters() if p.grad is not None],
          [p.grad for p in alone.parameters() if p.grad is not None])  # fmt: skip


# --- the two parts of a backward pass -------------------------------------------------------------


class Twice(nn.Module):
    """Uses a weight twice in a row, with other weights in between."""

    def __init__(self):
        super().__init__()
        self.same, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.same(self.other(self.same(x).tanh()).tanh())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight) ** 2

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        slope = 2 * x * weight * gradient
        return slope * weight, slope * x


class Own(nn.Module):
    """An operation written in Python, and weights that the input has nothing to do with."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(4, 6)), nn.Parameter(torch.rand(6))

    def forward(self, x):
        return Square.apply(x, self.weight), self.bias.exp().expand(4, 6)


class Again(nn.Module):
    """Computes its forward pass again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Attention(nn.Module):
    """Three parts of one weight, used side by side."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        x = x[None]
        return self.inner(x, x * 2, x * 3, need_weights=False)[0]


PARTS = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)),
    "branches": lambda: nn.Bilinear(6, 6, 6),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
    ),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "recurrent": lambda: nn.RNN(6, 5),
    "twice": Twice,
    "own": Own,
    "again": Again,
    "attention": Attention,
    "without weights": nn.Tanh,
}


class Counting(TorchDispatchMode):
    """Counts products of matrices, and gradients of convolutions and normalisations."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm"):
            self.count[name] += 1
        elif name in ("convolution_backward", "native_batch_norm_backward"):
            self.count[name] += sum(args[-1])  # the mask of the gradients that are wanted
        return func(*args, **kwargs or {})


def backward_of(name, split):
    """Gradients of the input and the weights by a backward pass, and what it computed."""
    torch.manual_seed(0)
    module = PARTS[name]().double()
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    arguments = (x, x.cos()) if isinstance(module, nn.Bilinear) else (x,)
    outputs = module(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = [torch.randn_like(y) for y in outputs]
    with Counting() as counting:
        if split:
            roots = [torch.autograd.graph.get_gradient_edge(y) for y in outputs]
            parts = SplitBackward(roots, grads, [x])
            (x.grad,) = parts.inputs_part()
            assert all(p.grad is None for p in module.parameters())
            parts.weights_part()
        else:
            torch.autograd.backward(outputs, grads)
    return [x.grad, *(p.grad for p in module.parameters())], counting.count


@pytest.mark.parametrize("name", PARTS)
def test_two_parts_are_the_whole(name):
    whole, work = backward_of(name, split=False)
    parts, work_of_parts = backward_of(name, split=True)
    close(parts, whole)
    if name not in ("twice", "recurrent", "again"):  # these compute something again, as they say
        assert work_of_parts == work


def test_the_graph_is_freed_with_the_second_part():
    x = torch.randn(4, 6, requires_grad=True)
    y = nn.Linear(6, 6)(x).tanh()
    freed = []
    y.grad_fn.metadata["mark"] = mark = Twice()
    weakref.finalize(mark, freed.append, True)
    del mark
    edge = torch.autograd.graph.get_gradient_edge(y)
    gradient = torch.ones_like(y)
    del y
    parts = SplitBackward([edge], [gradient], [x])
    del edge
    parts.inputs_part()
    parts.weights_part()
    assert freed


# --- time and memory ------------------------------------------------------------------------------

RANKS, MICRO_BATCHES, WIDTH, SAMPLES = 4, 8, 8192, 16384


@pytest.fixture
def a100s():
    with par.simulate("8x-a100-nvswitch", RANKS) as gpus:
        yield gpus


def step_of(gpus, schedule, micro_batches=MICRO_BATCHES):
    """A pipeline of equal stages, a batch, and its step, which ends when all is done."""
    count = RANKS * (2 if schedule == "interleaved" else 1)
    stages = [nn.Linear(WIDTH, WIDTH, bias=False, device=gpus[s % RANKS]) for s in range(count)]
    pipeline = Pipeline(stages, gpus, SCHEDULES[schedule])
    X = torch.empty(SAMPLES, WIDTH, device=gpus[0])
    y = torch.empty(SAMPLES, WIDTH, device=gpus[-1])

    def step():
        pipeline.step(X, y, F.mse_loss, micro_batches=micro_batches)
        for gpu in gpus:
            torch.vgpu.synchronize(gpu)

    step()  # from now on there are gradients to add to
    return pipeline, X, step


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_devices_compute_while_they_send(a100s, schedule):
    *_, step = step_of(a100s, schedule)
    with par.hazards() as hazards, par.record() as timeline:
        step()
    assert not hazards
    copies = timeline.where(lambda s: s.kind == "copy")
    hops = (RANKS - 1) * (1 if schedule != "interleaved" else 2) + (schedule == "interleaved")
    assert len(copies) == 2 * MICRO_BATCHES * hops
    computing = timeline.where(lambda s: s.kind == "compute")
    assert copies.overlap_s(computing) > 0.9 * copies.busy_s
    for gpu in a100s:  # on streams that do nothing else
        assert not {s.stream for s in timeline.on(gpu, "copy")} & {
            s.stream for s in timeline.on(gpu, "compute")
        }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_takes_as_long_as_simulated(a100s, schedule):
    pipeline, X, step = step_of(a100s, schedule)
    with par.record() as timeline:
        pipeline(X, micro_batches=MICRO_BATCHES)
        for gpu in a100s:
            torch.vgpu.synchronize(gpu)
    stages_a_rank = len(pipeline.stages) // RANKS
    computes = timeline.on(a100s[1], "compute").busy_s / MICRO_BATCHES / stages_a_rank
    with par.record() as timeline:
        step()
    on_gpus = timeline.where(lambda s: s.device != "host")
    nbytes = SAMPLES // MICRO_BATCHES * WIDTH * 4
    # Two products of the same size on the way back; the first stage has nobody to send to.
    cost = StageCost(computes, 2 * computes, sent_bytes=nbytes)
    first = StageCost(computes, computes, 0.0, computes, sent_bytes=nbytes)
    planned = orders(SCHEDULES[schedule](RANKS, MICRO_BATCHES))
    costs = [first] + [cost] * (len(pipeline.stages) - 1)
    simulated = simulate(planned, costs, "8x-a100-nvswitch")
    assert on_gpus.duration_s == pytest.approx(simulated.duration_s, rel=0.05)


def peaks(gpus, schedule, micro_batches):
    """The most that a step has in use on each device, above what is there before it."""
    *_, step = step_of(gpus, schedule, micro_batches)
    before = [torch.vgpu.memory_allocated(gpu) for gpu in gpus]
    for gpu in gpus:
        torch.vgpu.reset_peak_memory_stats(gpu)
    step()
    after = [torch.vgpu.memory_allocated(gpu) for gpu in gpus]
    assert after == before
    return [torch.vgpu.max_memory_allocated(g) - b for g, b in zip(gpus, before, strict=True)]


def test_1f1b_holds_the_activations_of_fewer_micro_batches_than_gpipe():
    held = {}
    for schedule, micro_batches in itertools.product(("gpipe", "1f1b", "zero_bubble_h1"), (8, 16)):
        with par.simulate("8x-a100-nvswitch", RANKS) as gpus:
            # Of a micro-batch a stage keeps its input; the gradient of a weight comes and goes.
            unit = SAMPLES // micro_batches * WIDTH * 4
            held[schedule, micro_batches] = [
                round((peak - WIDTH * WIDTH * 4) / unit, 2)
                for peak in peaks(gpus, schedule, micro_batches)
            ]
    for rank in range(1, RANKS):  # the input of the first stage is there all the time
        one_f_one_b, gpipe, zero_bubble = (
            [held[schedule, m][rank] for m in (8, 16)]
            for schedule in ("1f1b", "gpipe", "zero_bubble_h1")
        )
        assert one_f_one_b[0] == one_f_one_b[1] < gpipe[0]
        # The last one keeps its outputs, too, for the loss.
        assert gpipe[1] - gpipe[0] == (16 if rank == RANKS - 1 else 8)
        assert zero_bubble[0] == zero_bubble[1]
    assert held["1f1b", 8][1] - held["1f1b", 8][2] == 1


# --- what is refused ------------------------------------------------------------------------------


def without_a_backward(ranks, micro_batches):
    slots = list(gpipe(ranks, micro_batches))
    return [tuple(None if str(op) == "1B1" else op for op in slot) for slot in slots]


def test_mistakes_are_named():
    X, y = batch(5)
    net = perceptron()
    with pytest.raises(ValueError, match=r"a pipeline needs stages and devices.* 0 and 1"):
        Pipeline([], ["cpu"])
    pipeline = Pipeline(cut(net, 3), ["cpu"] * 2)
    with pytest.raises(ValueError, match=r"11 samples cannot be cut into 12 micro-batches: .* 11"):
        pipeline.step(X, y, F.cross_entropy, micro_batches=12)
    with pytest.raises(ValueError, match="into 0 micro-batches"):
        pipeline(X, micro_batches=0)
    with pytest.raises(ValueError, match="runs 3 stages on 3 devices, and the pipeline has 2"):
        Pipeline(cut(net, 3), ["cpu"] * 3).step(X, y, F.cross_entropy, micro_batches=1)
    with pytest.raises(ScheduleError, match="1B1"):
        Pipeline(cut(net, 3), ["cpu"] * 2, without_a_backward).step(
            X, y, F.cross_entropy, micro_batches=2
        )
    with pytest.raises(ValueError, match="runs 0 stages on 2 devices, and the pipeline has 2"):
        Pipeline(cut(net, 3), ["cpu"] * 2, lambda *_: ()).step(
            X, y, F.cross_entropy, micro_batches=2
        )
    with pytest.raises(ValueError, match=r"must be one number, the mean .* of shape \[6\]"):
        pipeline.step(X, y, partial(F.cross_entropy, reduction="none"), micro_batches=2)
    with pytest.raises(RuntimeError) as caught:
        pipeline.step(X[:, :4], y, F.cross_entropy, micro_batches=2)
    assert caught.value.__notes__ == ["This was 0F0: micro-batch 0 in stage 0, on cpu."]


def test_a_parameter_belongs_to_one_device(gpus):
    tied = nn.Linear(5, 5).double()
    stages = [tied, nn.Tanh(), nn.Sequential(tied, nn.Tanh())]
    with pytest.raises(ValueError, match=r"stages 0 and 2 share the parameter '0.weight'.*vgpu:2"):
        Pipeline(stages, gpus[:3])
    X, y = batch(5)
    Pipeline(stages, ["cpu"] * 3, gpipe).step(X, y, F.cross_entropy, micro_batches=2)
    alone = nn.Linear(5, 5).double()
    alone.load_state_dict(tied.state_dict())
    F.cross_entropy(alone(alone(X).tanh()).tanh(), y).backward()
    close(gradients(tied), gradients(alone))
