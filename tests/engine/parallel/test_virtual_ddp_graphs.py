"""DDP on virtual ranks when the graph is not what it was: errors, unused parameters, joins."""

from __future__ import annotations

import gc
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from virtual_ranks import run


def here():
    """The device of a virtual rank; the processor on a real one."""
    virtual = type(dist.group.WORLD).__module__.startswith("d2lpar")
    return torch.device("vgpu", torch.vgpu.current_device()) if virtual else torch.device("cpu")


class Chosen(nn.Module):
    """Two layers, of which each call uses those that it names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x, layers):
        for name in layers:
            x = getattr(self, name)(x)
        return x


def inputs():
    return torch.full((3, 4), dist.get_rank() + 1.0, device=here())


def steps(net, *layers):
    for names in layers:
        net(inputs(), names).sum().backward()


def message(net, *layers):
    """The error of the steps."""
    with pytest.raises(RuntimeError) as raised:
        steps(net, *layers)
    return str(raised.value)


def test_an_unused_parameter_is_named_by_its_number():
    def rank():
        return message(DDP(Chosen().to(here())), "a", "a")

    for number, text in enumerate(run(rank)):
        assert text.startswith("Expected to have finished reduction in the prior iteration")
        assert f"Parameter indices which did not receive grad for rank {number}: 1\n" in text
        assert text.endswith(f"Parameters which did not receive grad for rank {number}: b.weight")
        assert "find_unused_parameters=True" in text


def test_a_static_graph_that_changes_is_an_error_either_way():
    def rank():
        more = message(DDP(Chosen().to(here()), static_graph=True), "a", "ab")
        fewer = message(DDP(Chosen().to(here()), static_graph=True), "ab", "a", "a")
        return more, fewer

    for more, fewer in run(rank):
        assert more.startswith("Your training graph has changed in this iteration")
        assert "not compatible with static_graph set to True.\nParameter indices" in fewer


def test_a_hook_that_cannot_be_called_is_refused():
    def rank():
        with pytest.raises(TypeError, match="must be callable"):
            DDP(Chosen().to(here())).register_comm_hook({}, {})

    run(rank)


def test_ranks_may_use_different_parts_of_a_static_graph():
    """Buckets are sorted anew on all of them, also where a part is never used."""

    def rank():
        net = DDP(Chosen().to(here()), static_graph=True)
        steps(net, *["ab" if dist.get_rank() == 0 else "a"] * 3)
        return net._has_rebuilt_buckets, [p.grad.cpu() for p in net.parameters()]

    (told, *grads), (other, *others) = run(rank)
    assert told
    assert other
    assert_close(grads, others)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_a_pass_without_any_gradient_leaves_all_as_it_was():
    def rank():
        net = DDP(Chosen().to(here()), find_unused_parameters=True)
        NoGradient.apply(net(inputs(), "ab")).sum().backward()
        none = [p.grad is None for p in net.parameters()]
        steps(net, "ab")
        return none, [p.grad.cpu() for p in net.parameters()]

    def usual():
        net = DDP(Chosen().to(here()), find_unused_parameters=True)
        steps(net, "ab")
        return [p.grad.cpu() for p in net.parameters()]

    for (none, grads), expected in zip(run(rank), run(usual), strict=True):
        assert none == [True, True]
        assert_close(grads, expected)


@pytest.mark.parametrize("as_views", [False, True])
def test_optimizers_in_backward_step_with_averages(as_views):
    def rank(in_backward):
        net, options = Chosen().to(here()), {"lr": 0.1}
        ddp = DDP(net, gradient_as_bucket_view=as_views)
        if in_backward:
            _apply_optimizer_in_backward(torch.optim.SGD, ddp.parameters(), options)
        optimizer = torch.optim.SGD(net.parameters(), **options)
        for _ in range(3):
            optimizer.zero_grad()
            steps(ddp, "ab")
            if not in_backward:
                optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    assert_close(run(rank, True), run(rank, False))


def test_a_second_join_divides_by_all_again():
    def rank():
        net, found = DDP(Chosen().to(here())), []
        for by_all in (False, True):
            with net.join(divide_by_initial_world_size=by_all):
                for _ in range(1 + (dist.get_rank() > 0)):
                    net.zero_grad()
                    steps(net, "a" * 1 + "b")
                    found.append(net.module.a.weight.grad.sum().item())
        assert net._authoritative_rank == 1  # it had the last batch
        return found

    _, (first, last, first_again, last_again) = run(rank)
    assert first_again == first
    assert last_again == pytest.approx(last / 2)  # one of two ranks has a batch


def test_buckets_that_are_never_used_are_skipped_if_wanted():
    def rank(skip):
        net = DDP(
            Chosen().to(here()),
            find_unused_parameters=True,
            bucket_cap_mb=1e-5,
            skip_all_reduce_unused_params=skip,
        )
        steps(net, "a", "a")
        exchanged = [bucket.result for bucket in net.reducer.buckets if bucket.result is not None]
        return len(exchanged), net.module.a.weight.grad.cpu(), net.module.b.weight.grad

    for (all_of_them, grad, none), (fewer, same, still_none) in zip(
        run(rank, False), run(rank, True), strict=True
    ):
        assert (all_of_them, fewer) == (2, 1)
        assert none is still_none is None
        assert_close(same, grad)


def test_hooks_of_a_ddp_can_be_removed():
    def rank():
        net = Chosen().to(here())
        old = DDP(net)
        old(inputs(), "ab")  # expects a backward pass
        old._remove_autograd_hooks()
        steps(DDP(net), "ab")
        return old.reducer.missing()

    assert run(rank) == [[], []]


def test_outputs_need_not_be_copied():
    def rank():
        net = DDP(Chosen().to(here()), find_unused_parameters=True)
        net._set_ddp_sink_clone(False)
        steps(net, "a")
        return net.module.a.weight.grad.cpu()

    first, second = run(rank)
    assert_close(first, second)


def test_a_ddp_that_is_gone_averages_nothing():
    """As torch's: its parameters may be another's, also if it still expected a backward pass."""

    def rank():
        net = Chosen().to(here())
        DDP(net)(inputs(), "ab")
        gc.collect()
        net(inputs(), "ab").sum().backward()
        return net.a.weight.grad.cpu()

    first, second = run(rank)
    assert_close(2 * first, second)


# --- several forward and backward passes in one step, as on real ranks ----------------------------


class Buffered(nn.Module):
    """Its graph saves a buffer, of which each rank has values of its own at first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(4) + dist.get_rank())

    def forward(self, x):
        return self.last(self.norm(x) * self.scale)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.one, self.other = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, names=("one", "other")):
        x = self.body(x).tanh()
        return [getattr(self, name)(x) for name in names]


class OnlyCheckpoints(nn.Module):
    """Its one layer is in reentrant checkpoints, whose backward passes end on their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True).tanh()
        return x


def drawn(number):
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return torch.randn(5, 4, generator=generator).to(here())


def gradients_after(make, step, options):
    """The gradients after each of three steps, or the first words of an error that ends them."""
    net, found, error = DDP(make().to(here()), **options), [], ""
    try:
        for number in range(3):
            net.zero_grad()
            step(net, 2 * number)
            found.append(
                [None if p.grad is None else p.grad.to("cpu", copy=True) for p in net.parameters()]
            )
    except RuntimeError as raised:
        error = str(raised)[:45]
    return error, found, [b.cpu() for b in net.buffers()]


def three_forwards(net, number):
    (net(drawn(number)).mean() - net(drawn(number + 1)).square().mean()).backward()


def evaluated_between(net, number):
    loss = net(drawn(number)).square().sum()
    net.eval()
    with torch.no_grad():
        net(drawn(number + 1))
    loss = loss + net(drawn(number + 2)).sum()
    net.train()
    loss.backward()


def written_by_the_program(net, number):
    loss = net(drawn(number)).sum()
    net.module.scale.add_(1)
    loss.backward()


def loss_by_loss(net, number):
    output = net(drawn(number))
    output[:, 0].sum().backward(retain_graph=True)
    output[:, 1].square().sum().backward()


def two_passes_of_two(net, number):
    losses = [net(drawn(number + i)).square().sum() for i in range(2)]
    for loss in losses:
        loss.backward()


def head_by_head(net, number):
    one, other = net(drawn(number))
    one.sum().backward(retain_graph=True)
    other.square().sum().backward()


def one_head(net, number):
    net(drawn(number))[0].sum().backward()


def less_in_the_second_forward(net, number):
    """Outputs of the last forward pass say what is unused."""
    outputs = net(drawn(number), ["one"]), net(drawn(number + 1))
    sum(output.square().sum() for outs in outputs for output in outs).backward()


def unused_after_no_sync(net, number):
    with net.no_sync():
        sum(output.square().sum() for output in net(drawn(number))).backward()
    net(drawn(number + 1), ["one"])[0].sum().backward()


def penalty(net, number):
    x = drawn(number).requires_grad_()
    output = net(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    (output.mean() + slope.square().mean()).backward()


def run_once(net, number):
    net(drawn(number).requires_grad_()).square().sum().backward()


KINDS = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
}
Layer = partial(nn.Linear, 4, 4)
CASES = [
    *((Buffered, step) for step in (three_forwards, evaluated_between, written_by_the_program)),
    *((Layer, step) for step in (loss_by_loss, two_passes_of_two, penalty)),
    *((TwoHeads, s) for s in (head_by_head, one_head, less_in_the_second_forward)),
    (TwoHeads, unused_after_no_sync),
    (OnlyCheckpoints, run_once),
]
PROGRAMS = {
    f"{step.__name__}, {kind}": (make, step, options)
    for make, step in CASES
    for kind, options in KINDS.items()
    if step is not unused_after_no_sync or kind == "unused"
}


def programs():
    found = {}
    for name, (make, step, options) in PROGRAMS.items():
        if make is Layer:
            torch.manual_seed(0)
        found[name] = gradients_after(make, step, options)
    return found


def on_gloo(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(programs(), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What all programs give on virtual ranks, and on real ones."""
    folder = tmp_path_factory.mktemp("gloo")
    warm_process.run_on_ranks(on_gloo, str(folder), ranks=2)
    with pytest.warns(UserWarning, match="ranks drift apart"):
        found = run(programs)
    return found, [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_steps_of_several_passes_equal_those_on_real_ranks(both, program):
    for found, theirs in zip(*both, strict=True):
        assert found[program][0] == theirs[program][0]
        assert_close(found[program][1:], theirs[program][1:])


def warnings_of(step, make=Layer, **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(lambda: gradients_after(make, step, options))
    return [w for w in seen if "drift" in str(w.message)]


@pytest.mark.parametrize("step", [loss_by_loss, two_passes_of_two])
def test_who_lets_ranks_drift_apart_hears_of_it_once_at_the_line(step):
    (warning,) = warnings_of(step)
    assert warning.filename == __file__
    assert "sum of the losses" in str(warning.message)


def test_a_second_model_is_warned_of_too():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(lambda: [gradients_after(make, loss_by_loss, {}) for make in (Layer, Buffered)])
    assert sum("drift" in str(warning.message) for warning in seen) == 2


def test_steps_that_are_averaged_let_no_ranks_drift_apart():
    def without_averages(net, number):
        run_once(net, number)
        with net.no_sync():
            loss_by_loss(net, number)

    assert not warnings_of(without_averages)
    assert not warnings_of(penalty)
    assert not warnings_of(three_forwards, Buffered)
