"""DDP's extras on virtual ranks: hooks, uneven inputs, subclasses, several devices a rank."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer, _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from virtual_ranks import run

import d2lpar as par
from d2lpar.machines.gradient_buckets import assign_buckets
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

MACHINE, STEPS = "8x-v100-pcie", 4


def here():
    """The device of a virtual rank; the processor on a real one."""
    virtual = type(dist.group.WORLD).__module__.startswith("d2lpar")
    return torch.device("vgpu", torch.vgpu.current_device()) if virtual else torch.device("cpu")


def network(*, norm=False):
    torch.manual_seed(0)
    between = nn.BatchNorm1d(24) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(16, 24), between, nn.Linear(24, 16), nn.Linear(16, 4)).double()


def batch(number, rows=4):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 16, generator=generator, dtype=torch.float64)


def mine(number):
    """The part of this rank of the batch of a step."""
    return batch(number, 8).chunk(dist.get_world_size())[dist.get_rank()].to(here())


def train(net, optimizer=None, steps=STEPS):
    """Some steps; the parameters, as they are on each rank."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for number in range(steps):
        optimizer.zero_grad()
        net(mine(number)).square().mean().backward()
        optimizer.step()
    return values_of(net)


def values_of(net):
    return [value.detach().cpu().clone() for value in net.state_dict().values()]


@functools.cache
def on_one_device():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        net(batch(number, 8)).square().mean().backward()
        optimizer.step()
    return values_of(net)


# --- communication hooks --------------------------------------------------------------------------


def hooked(hook, make_state=lambda: None):
    net = DDP(network().to(here()), bucket_cap_mb=0.001)
    net.register_comm_hook(make_state(), hook)
    return train(net)


def not_yet_compressed():
    """Gradients are averaged first; in torch 2.15, compressing them in one fails by itself."""
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=STEPS + 1)


def doubled_then_halved(state, bucket):
    future = dist.all_reduce(bucket.buffer() * 2, async_op=True).get_future()
    return future.then(lambda f: f.value()[0] / (2 * dist.get_world_size()))


def builtin_hook():
    net = DDP(network().to(here()))
    net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(net)


def local_sgd():
    net = DDP(network().to(here()))
    alone, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    net.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return train(net)


def fused_optimizer():
    net = DDP(network().to(here()), bucket_cap_mb=0.001)
    net._register_fused_optim(torch.optim.SGD, 0.1)
    for number in range(STEPS):
        net.zero_grad()
        net(mine(number)).square().mean().backward()
    return values_of(net)


def optimizer_in_backward():
    net = network().to(here())
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    net = DDP(net)
    for number in range(STEPS):
        net.zero_grad()
        net(mine(number)).square().mean().backward()
    return values_of(net)


HOOKS = {
    "allreduce": partial(hooked, default_hooks.allreduce_hook),
    "fp16": partial(hooked, default_hooks.fp16_compress_hook),
    "batched powerSGD": partial(hooked, powerSGD_hook.batched_powerSGD_hook, not_yet_compressed),
    "callback": partial(hooked, doubled_then_halved),
    "built in": builtin_hook,
    "local SGD": local_sgd,
    "fused optimizer": fused_optimizer,
}


# --- uneven inputs --------------------------------------------------------------------------------


class Branched(nn.Module):
    """One of two layers is used in a step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.even, self.odd = (nn.Linear(16, 16).double() for _ in range(3))

    def forward(self, X, number):
        return (self.odd if number % 2 else self.even)(self.first(X))


def uneven(norm=False, branched=False, **join):
    """Rank r has 2 + r batches."""
    net = Branched() if branched else network(norm=norm)
    net = DDP(net.to(here()), find_unused_parameters=branched)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with net.join(**join):
        for number in range(2 + dist.get_rank()):
            X = batch(10 * dist.get_rank() + number).to(here())
            optimizer.zero_grad()
            net(*((X, number) if branched else (X,))).square().mean().backward()
            optimizer.step()
    return values_of(net)


def uneven_with_zero():
    net = DDP(network().to(here()))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
    with Join([net, optimizer]):
        for number in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            X = batch(10 * dist.get_rank() + number).to(here())
            net(X).square().mean().backward()
            optimizer.step()
    return values_of(net)


UNEVEN = {
    "uneven": uneven,
    "uneven, of those who are left": partial(uneven, divide_by_initial_world_size=False),
    "uneven with buffers": partial(uneven, norm=True),
    "uneven and unused": partial(uneven, branched=True),
    "uneven with ZeRO": uneven_with_zero,
}


# --- static graphs --------------------------------------------------------------------------------


class Recomputed(nn.Module):
    """A layer that is used in two reentrant checkpoints, and one that is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.spare = nn.Linear(16, 16).double(), nn.Linear(2, 2).double()

    def forward(self, X):
        X = X.requires_grad_()
        for _ in range(2):
            X = checkpoint(self.layer, X, use_reentrant=True)
        return X


def static():
    return train(DDP(Recomputed().to(here()), static_graph=True))


def told_later():
    net = DDP(Recomputed().to(here()))
    net._set_static_graph()
    return train(net)


def replicated():
    return train(replicate(network(norm=True).to(here())))


def buckets_of_sizes():
    options = {"bucket_cap_mb_list": [0.001, 0.003]} if LISTS else {"bucket_cap_mb": 0.001}
    return train(DDP(network().to(here()), **options))


LISTS = "bucket_cap_mb_list" in inspect.signature(DDP).parameters
OTHERS = {
    "replicate": replicated,
    "buckets of several sizes": buckets_of_sizes,
}
STATIC = {"static graph": static, "static graph, told later": told_later}
PROGRAMS = HOOKS | UNEVEN | STATIC | OTHERS


# --- equal to torch's own on real ranks -----------------------------------------------------------


def on_gloo(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save({name: program() for name, program in PROGRAMS.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def on_real_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    multiprocessing.spawn(on_gloo, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_equals_torch_on_real_ranks(on_real_ranks, program):
    for found, theirs in zip(run(PROGRAMS[program]), on_real_ranks, strict=True):
        assert_close(found, theirs[program])


# --- replicate, sizes of buckets --------------------------------------------------------------


def on_one_device_by_shards():
    """Batch norm of each shard by itself, whose gradients are averaged."""
    nets = [network(norm=True) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in nets]
    for number in range(STEPS):
        for net, optimizer, shard in zip(nets, optimizers, batch(number, 8).chunk(2), strict=True):
            optimizer.zero_grad()
            net(shard).square().mean().backward()
        for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
            mine.grad = theirs.grad = (mine.grad + theirs.grad) / 2
        for optimizer in optimizers:
            optimizer.step()
    return nets


def test_replicate_equals_one_device():
    parameters = [p.detach() for p in on_one_device_by_shards()[0].parameters()]
    for found in run(trained_parameters, replicate):
        assert_close(found, parameters)


def trained_parameters(wrap):
    net = wrap(network(norm=True).to(here()))
    train(net)
    return [p.detach().cpu() for p in net.parameters()]


@pytest.mark.skipif(not LISTS, reason="this torch has one size for all buckets")
def test_buckets_have_the_sizes_of_a_list():
    def sizes():
        net = DDP(network().to(here()), bucket_cap_mb_list=[0.001, 0.003])
        assert net.bucket_bytes_cap_list == [int(0.001 * 2**20), int(0.003 * 2**20)]
        train(net)
        return [bucket.flat.nbytes for bucket in net.reducer.buckets], net.bucket_bytes_cap

    # The last layer first: 544 and 32 bytes, 3072 and 128 bytes, …
    rows = [p.nbytes for p in reversed(list(network().parameters()))]
    (found, limit), _ = run(sizes)
    assert limit == int(0.003 * 2**20)
    assert sum(found) == sum(rows)
    assert len(found) == len(assign_buckets(rows, (int(0.001 * 2**20), limit)))
    assert_close(run(buckets_of_sizes)[0], on_one_device())


# --- equal to one device --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["allreduce", "batched powerSGD", "callback"])
def test_hooks_that_average_give_what_one_device_gives(name):
    for found in run(HOOKS[name]):
        assert_close(found, on_one_device())


@pytest.mark.parametrize(
    ("hook", "tolerance"),
    [(default_hooks.fp16_compress_hook, 1e-3), (default_hooks.bf16_compress_hook, 1e-2)],
)
def test_compressed_gradients_are_almost_those_of_one_device_and_a_quarter_of_the_bytes(
    hook, tolerance
):
    with par.simulate(MACHINE, 2, with_values=True) as gpus, par.record() as timeline:
        results = par.run_ranks(hooked, gpus, hook)
    for found in results:
        assert_close(found, on_one_device(), atol=tolerance, rtol=tolerance)
    sent = sum(s.bytes for s in timeline.on("vgpu:0") if s.name == "all_reduce")
    elements = sum(p.numel() for p in network().parameters())
    assert sent == STEPS * elements * 2


def test_with_a_hook_that_does_nothing_ranks_have_their_own_gradients():
    def gradients():
        def noop(state, bucket):
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        net = DDP(network().to(here()))
        net.register_comm_hook(None, noop)
        net(mine(0)).square().mean().backward()
        return [p.grad.cpu() for p in net.parameters()]

    for rank, found in enumerate(run(gradients)):
        net = network()
        net(batch(0, 8).chunk(2)[rank]).square().mean().backward()
        assert_close(found, [p.grad for p in net.parameters()])


def test_a_callback_waits_on_its_own_stream_and_the_host_does_not():
    def pass_back():
        net = DDP(nn.Linear(2000, 2000, bias=False).to(here()))
        net.register_comm_hook(None, doubled_then_halved)
        net(torch.ones(8, 2000, device=here())).sum().backward()
        returned.append(current_runtime().now_s())

    returned = []
    with par.simulate(MACHINE, 2) as gpus, par.record() as timeline:
        par.run_ranks(pass_back, gpus)
    spans = list(timeline.on("vgpu:0"))
    (summed,) = [s for s in spans if s.name == "all_reduce" and s.bytes == 4 * 2000**2]
    (halved,) = [s for s in spans if s.name == "div"]
    assert halved.start_s == summed.end_s
    assert halved.stream not in (0, summed.stream)
    assert max(returned) < summed.end_s


def layer():
    torch.manual_seed(0)
    return nn.Linear(24, 16, bias=False).double()


def low_rank(**options):
    """A step with one example a rank, whose gradients are compressed from the beginning on."""
    net = DDP(layer().to(here()))
    state = powerSGD_hook.PowerSGDState(
        None, start_powerSGD_iter=2, min_compression_rate=1, warm_start=False, **options
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):
        net.zero_grad()
        net(example(dist.get_rank()).to(here())).square().mean().backward()
    return net.module.weight.grad.cpu()


def example(rank):
    return torch.arange(24.0).double().mul(1 + rank).sin()[None]


@pytest.mark.parametrize("use_error_feedback", [True, False])
def test_power_sgd_of_enough_rank_loses_nothing(use_error_feedback):
    net = layer()
    net(torch.cat([example(0), example(1)])).square().mean().backward()
    # Two examples make a gradient of rank two.
    options = {"matrix_approximation_rank": 2, "use_error_feedback": use_error_feedback}
    for found in run(partial(low_rank, **options)):
        assert_close(found, net.weight.grad)


def test_power_sgd_of_a_lower_rank_sends_less():
    with par.simulate(MACHINE, 2, with_values=True) as gpus, par.record() as timeline:
        par.run_ranks(partial(low_rank, matrix_approximation_rank=1), gpus)
    sent = [s.bytes for s in timeline.on("vgpu:0") if s.name == "all_reduce" and s.bytes]
    assert sent == [8 * 24 * 16] * 2 + [8 * 16, 8 * 24]  # twice all of it; then P and Q


def test_zero_overlapped_with_ddp_is_zero_once_buckets_are_known():
    def overlapped(shards):
        net = DDP(network().to(here()), bucket_cap_mb=0.001, gradient_as_bucket_view=True)
        zero = ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        hook = ddp_zero_hook.hook_with_zero_step(
            default_hooks.allreduce_hook, net, zero, shard_buckets=shards
        )
        net.register_comm_hook(None, hook)
        return train(net, zero)

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(2, STEPS):  # torch says: the first two steps only look at the buckets
        optimizer.zero_grad()
        net(batch(number, 8)).square().mean().backward()
        optimizer.step()
    for shards in (False, True):
        for found in run(overlapped, shards):
            assert_close(found, values_of(net))


def test_hooks_that_cannot_be():
    def register(*hooks):
        net = DDP(nn.Linear(2, 1).to(here()))
        for hook in hooks:
            net.register_comm_hook(None, hook)
        return net

    def annotated(state, bucket: int):
        return None

    def wrong_size(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer()[1:])
        return future

    def step():
        register(wrong_size)(torch.ones(1, 2, device=here())).sum().backward()

    allreduce = default_hooks.allreduce_hook
    for error, text, function in (
        (TypeError, "must be callable", partial(register, None)),
        (ValueError, "should be dist.GradBucket", partial(register, annotated)),
        (RuntimeError, "only be called once", partial(register, allreduce, allreduce)),
        (TypeError, "must hold a tensor of the bucket's 3 elements", step),
    ):
        with pytest.raises(error, match=text):
            run(function)


def test_sparse_gradients_are_refused_in_the_words_of_nccl():
    """torch ended in an internal error."""

    def step():
        net = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)).to(here())
        DDP(net)(torch.tensor([[1, 0]], device=here())).sum().backward()

    with pytest.raises(RuntimeError, match="NCCL does not support all_reduce with sparse tensors"):
        run(step, n=2)


def test_optimizers_that_step_in_backward_and_in_hooks_step_with_averages():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(STEPS):
        optimizer.zero_grad()
        net(batch(number, 8)).square().mean().backward()
        optimizer.step()
    for program in (optimizer_in_backward, fused_optimizer):  # of real ones, the first needs GPUs
        for found in run(program):
            assert_close(found, values_of(net))


# --- uneven inputs, by formulas -------------------------------------------------------------------


@pytest.mark.parametrize("by_all", [True, False])
def test_ranks_without_batches_count_as_zero_or_not_at_all(by_all):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(3):
        optimizer.zero_grad()
        active = [rank for rank in range(2) if number < 2 + rank]
        for rank in active:
            loss = net(batch(10 * rank + number)).square().mean()
            (loss / (2 if by_all else len(active))).backward()
        optimizer.step()
    for found in run(partial(uneven, divide_by_initial_world_size=by_all)):
        assert_close(found, values_of(net))


def test_uneven_inputs_may_end_all():
    with pytest.raises(RuntimeError, match=r"exhausted (all )?inputs"):
        run(partial(uneven, throw_on_early_termination=True))


# --- subclasses, what is left alone, what is told -------------------------------------------------


class Scaled(DDP):
    """A class of a program's."""

    def __init__(self, module, scale, **options):
        super().__init__(module, **options)
        self.scale = scale

    def forward(self, X):
        return super().forward(X) * self.scale


def test_subclasses_of_programs_do_what_they_do():
    def scaled():
        net = Scaled(network().to(here()), 3.0)
        again = copy.deepcopy(net)
        assert type(again) is type(net)
        assert isinstance(again, Scaled)
        assert type(net).__name__ == "Scaled"
        found = []
        for each in (net, again):
            each(mine(0)).mean().backward()
            found.append([p.grad.cpu() for p in each.parameters()])
        return found

    net = network()
    (net(batch(0, 8)) * 3).mean().backward()
    expected = [p.grad for p in net.parameters()]
    for found in run(scaled):
        assert_close(found, [expected, expected])


def test_ignored_parameters_are_neither_sent_nor_averaged():
    def one_step():
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(here())
        nn.init.constant_(net[1].weight, dist.get_rank())
        DDP._set_params_and_buffers_to_ignore_for_model(net, ["1.weight"])
        wrapped = DDP(net)
        wrapped(torch.full((1, 2), 1.0 + dist.get_rank(), device=here())).sum().backward()
        return [t.cpu() for t in (net[1].weight, net[1].weight.grad, net[0].weight.grad)]

    first, second = run(one_step)
    assert_close(first[0], torch.zeros(2, 2))
    assert_close(second[0], torch.ones(2, 2))
    assert not torch.equal(first[1], second[1])
    assert_close(first[2], second[2])


def test_what_ddp_does_not_tell_is_refused():
    def rank():
        net = DDP(network().to(here()))
        with pytest.raises(NotImplementedError, match=r"logging data: par\.record\(\)"):
            net._get_ddp_logging_data()
        with pytest.raises(NotImplementedError, match="no hooks for buffers"):
            net._register_buffer_comm_hook(None, print)

    run(rank)


def test_packed_sequences_are_moved_to_the_device():
    """Their lengths stay on the host."""

    def rank():
        torch.manual_seed(0)
        net, x = nn.LSTM(4, 2, batch_first=True).to(here()), torch.randn(3, 5, 4)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        ddp = DDP(copy.deepcopy(net), device_ids=[dist.get_rank()])
        found, expected = ddp(packed)[0].data, net(packed.to(here()))[0].data
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    run(rank)


def test_a_gradient_that_comes_twice_is_refused_without_a_static_graph():
    words = r"^Expected to mark a variable ready only once\. .*static_graph=True"
    with pytest.raises(RuntimeError, match=words):
        run(lambda: train(DDP(Recomputed().to(here()), find_unused_parameters=True)))


def test_outputs_that_the_loss_does_not_use():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.one, self.other = (nn.Linear(16, 16).double() for _ in range(3))

        def forward(self, X):
            X = self.body(X)
            return {"one": self.one(X), "other": [self.other(X)]}

    def one_step():
        net = DDP(Heads().to(here()), find_unused_parameters=True)
        net(mine(0))["one"].square().mean().backward()
        return [None if p.grad is None else p.grad.cpu() for p in net.parameters()]

    net = Heads()
    net(batch(0, 8))["one"].square().mean().backward()
    for found in run(one_step):
        assert_close(found[:4], [p.grad for p in net.parameters()][:4])
        assert found[4:] == [None, None]


def test_a_static_graph_with_checkpoints_equals_one_device():
    net = Recomputed()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        net(batch(number, 8)).square().mean().backward()
        optimizer.step()
    for found in run(static):
        assert_close(found, values_of(net))


# --- parameters marked as unused ------------------------------------------------------------------


class HandsOutLayer(nn.Module):
    """The program calls `last` itself, outside of forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.first(x)


@pytest.mark.parametrize("as_views", [False, True])
def test_gradients_of_what_was_found_unused_are_refused(as_views):
    """They come before the pass of the module's outputs begins, and were left out in silence."""

    def rank():
        net = HandsOutLayer().to(here())
        ddp = DDP(net, find_unused_parameters=True, gradient_as_bucket_view=as_views)
        out = ddp(torch.ones(2, 4, device=here()))
        net.last(out).sum().backward()

    words = r"^Expected to mark a variable ready only once\. Parameter at index 1 with name last"
    with pytest.raises(RuntimeError, match=words):
        run(rank)


def test_gradients_from_a_reentrant_checkpoint_of_unseen_parameters_are_refused():
    """What is in it is not seen in the graph, and was averaged as unused: without its gradient."""

    class Checkpointed(HandsOutLayer):
        def forward(self, x):
            return checkpoint(self.last, self.first(x), use_reentrant=True)

    def rank():
        ddp = DDP(Checkpointed().to(here()), find_unused_parameters=True)
        ddp(torch.ones(2, 4, device=here())).sum().backward()

    with pytest.raises(RuntimeError, match=r"once\. Parameter at index 1 .*use_reentrant=False"):
        run(rank)


@dataclasses.dataclass
class Scores:
    """An output that is no tree to torch."""

    scores: torch.Tensor


def test_unused_parameters_behind_a_dataclass_are_found():
    """Their bucket waited for them, and no gradient was averaged."""

    class InDataclass(HandsOutLayer):
        def forward(self, x):
            return Scores(self.first(x))

    def rank():
        torch.manual_seed(0)
        ddp = DDP(InDataclass().to(here()), find_unused_parameters=True)
        x = torch.full((2, 4), 1.0 + dist.get_rank(), device=here())
        ddp(x).scores.sum().backward()
        return ddp.module.first.weight.grad.cpu(), ddp.module.last.weight.grad

    for mean, none in run(rank):
        torch.testing.assert_close(mean, torch.full((4, 4), 3.0))  # of 2 and 4
        assert none is None


def test_what_a_hook_makes_by_itself_is_handed_out():
    """Such a future is of another class than those of collectives, and was passed over."""

    def twos(state, bucket):
        ones = torch.futures.Future()
        ones.set_result(torch.ones_like(bucket.buffer()))
        return ones.then(lambda found: 2 * found.value())

    def rank():
        ddp = DDP(HandsOutLayer().to(here()), find_unused_parameters=True)
        ddp.register_comm_hook(None, twos)
        ddp(torch.ones(2, 4, device=here())).sum().backward()
        return ddp.module.first.weight.grad.cpu()

    for found in run(rank):
        assert_close(found, torch.full((4, 4), 2.0))


class OfThree(nn.Module):
    """Three layers in another order than their definition's; the second is left out at wish."""

    def __init__(self, skips):
        super().__init__()
        self.layers, self.skips = nn.ModuleList(nn.Linear(2, 2) for _ in range(3)), skips

    def forward(self, x):
        first, second, third = self.layers
        x = third(first(x))
        return x if self.skips else second(x)


def rebuilding(skips, **options):
    """From which forward pass on DDP has sorted its buckets anew, and how."""
    net, found = DDP(OfThree(skips).to(here()), **options), []
    for _ in range(4):
        out = net(torch.ones(1, 2, device=here()))
        found.append(bool(net._has_rebuilt_buckets))
        out.sum().backward()
    return found


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("static_graph", [False, True])
def test_buckets_are_sorted_anew_when_torch_sorts_them(static_graph, skips):
    """A hook that steps the optimizer waits for it: with a static graph, that is a pass later."""
    options = {"static_graph": static_graph, "find_unused_parameters": skips and not static_graph}
    ours = run(partial(rebuilding, skips, **options))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = rebuilding(skips, **options)
    finally:
        dist.destroy_process_group()
    assert ours == [found] * 2


def test_an_option_that_is_a_parameter_is_refused_by_its_name(gpus):
    """A tensor has no truth value, and that of one zero is false."""

    def wrapped():
        net = nn.Linear(4, 1).to(here())
        DDP(net, param_to_hook_all_reduce=nn.Parameter(torch.zeros(2)))

    with pytest.raises(NotImplementedError, match="param_to_hook_all_reduce"):
        par.run_ranks(wrapped, gpus[:2])
