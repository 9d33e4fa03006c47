"""DistributedDataParallel on virtual ranks: equal to one device, and to torch's own on gloo."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from functools import partial
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from virtual_ranks import SumOverRanks, run

import d2lpar as par
from d2lpar import machines, scaling
from d2lpar.machines import collective_cost
from d2lpar.parallelism.scaling import NO_OVERHEAD
from d2lpar.vgpu.ranks.ddp import wrapper as ddp
from d2lpar.vgpu.ranks.private import c10d as c10d_private

BATCH, STEPS = 16, 3
OLD_NAME = pytest.mark.filterwarnings("ignore:.broadcast_buffers. of DDP is dep:FutureWarning")


def lenet(*, batch_norm=False):
    torch.manual_seed(0)
    norm = [nn.BatchNorm2d(20)] if batch_norm else []
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), *norm, nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    ).double()  # fmt: skip


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        X = torch.randn(BATCH, 1, 28, 28, generator=generator, dtype=torch.float64)
        yield X, torch.randint(0, 10, (BATCH,), generator=generator)


def here():
    """The device of a virtual rank; None on a real one."""
    virtual = type(dist.group.WORLD).__module__.startswith("d2lpar")
    return torch.device("vgpu", torch.vgpu.current_device()) if virtual else None


def train(make_net, wrap=DDP, **options):
    """Train a rank's share of each batch; the state, the last gradients, and the reducer."""
    r, n = dist.get_rank(), dist.get_world_size()
    device = here()
    net = make_net() if r == 0 else make_net().apply(_spoil)
    net = wrap(net.to(device) if device else net, device_ids=device and [device.index], **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for X, y in batches():
        X, y = X.chunk(n)[r], y.chunk(n)[r]
        optimizer.zero_grad()
        F.cross_entropy(net(X), y.to(device) if device else y).backward()
        optimizer.step()
    state = {name: value.cpu().clone() for name, value in net.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.cpu().clone() for p in net.parameters()]
    return state, gradients, net


def _spoil(module):
    """Other initial parameters: construction must make them those of rank 0."""
    for tensor in (*module.parameters(False), *module.buffers(False)):
        tensor.data.zero_()


def one_device(make_net, shards):
    """The same steps on one device: all at once, or shard by shard with gradients averaged."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for X, y in batches():
        optimizer.zero_grad()
        before = copy.deepcopy(dict(net.named_buffers()))
        for i, (part, labels) in enumerate(zip(X.chunk(shards), y.chunk(shards), strict=True)):
            (F.cross_entropy(net(part), labels) / shards).backward()
            if i == 0:
                after = copy.deepcopy(dict(net.named_buffers()))
            for name, buffer in net.named_buffers():  # each rank starts with those of rank 0
                buffer.copy_(before[name])
        for name, buffer in net.named_buffers():
            buffer.copy_(after[name])
        optimizer.step()
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    return state, [p.grad for p in net.parameters()]


# --- equal to one device --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("view", [False, True])
def test_it_equals_one_device_on_the_full_batch(n, view):
    expected = one_device(lenet, shards=1)
    for state, gradients, _ in run(
        train, lenet, n=n, gradient_as_bucket_view=view, bucket_cap_mb=0.1
    ):
        assert_close((state, gradients), expected)


def test_with_batch_norm_it_equals_one_device_running_the_shards_one_by_one():
    make = partial(lenet, batch_norm=True)
    expected = one_device(make, shards=2)
    found = run(train, make)
    assert_close(found[0][:2], expected)
    buffers = {name: found[0][0][name] for name, _ in found[0][2].named_buffers()}
    assert len(buffers) == 3
    # The last step moved each rank's own buffers; the next forward would make them rank 0's.
    assert not torch.equal(found[1][0]["module.1.running_mean"], buffers["module.1.running_mean"])


def test_it_is_a_module_of_torch_with_its_names(gpus):
    def look():
        device = here()
        net = DDP(lenet().to(device), device_ids=[device])
        assert isinstance(net, DDP)
        assert isinstance(net, nn.Module)
        assert type(net).__module__ == "d2lpar.vgpu.ranks.ddp.wrapper"
        return list(net.state_dict()), net.module.state_dict().keys()

    for names, inner in par.run_ranks(look, gpus[:2]):
        assert names == [f"module.{name}" for name in inner]


def test_gradients_are_accumulated_under_no_sync():
    def accumulate():
        r, device = dist.get_rank(), here()
        net = DDP(nn.Linear(1, 1, bias=False).to(device))
        x = torch.full((1, 1), r + 1.0).to(device)
        with net.no_sync():
            net(x).sum().backward()
        local = net.module.weight.grad.item()
        net(x).sum().backward()
        return local, net.module.weight.grad.item()

    assert run(accumulate) == [(1.0, 3.0), (2.0, 3.0)]


def test_a_copy_averages_by_itself():
    def copied():
        r, device = dist.get_rank(), here()
        net = DDP(nn.Linear(1, 1, bias=False).to(device))
        other = copy.deepcopy(net)
        for _ in range(2):  # the second step has other buckets
            other.zero_grad()
            other(torch.full((1, 1), r + 1.0, device=device)).sum().backward()
        return other.module.weight.grad.item(), net.module.weight.grad, list(other.state_dict())

    assert run(copied) == [(1.5, None, ["module.weight"])] * 2


class SyncedNorm(nn.BatchNorm2d):
    """Batch norm over the batches of all ranks: of sums that all have added up."""

    def forward(self, X):
        count = torch.tensor([X.numel() / X.shape[1]], dtype=X.dtype).to(X.device)
        sums = torch.cat([X.sum((0, 2, 3)), X.square().sum((0, 2, 3)), count])
        total, squares, count = SumOverRanks.apply(sums).split([X.shape[1], X.shape[1], 1])
        mean = total / count
        variance = squares / count - mean**2
        shape = (1, -1, 1, 1)
        X = (X - mean.view(shape)) / (variance + self.eps).sqrt().view(shape)
        return X * self.weight.view(shape) + self.bias.view(shape)


def synced_lenet():
    net = lenet(batch_norm=True)
    net[1] = SyncedNorm(20).double()
    return net


def test_synchronised_batch_norm_by_hand_equals_one_device_on_the_full_batch():
    state, gradients = one_device(partial(lenet, batch_norm=True), shards=1)
    for found, their_gradients, net in run(train, synced_lenet):
        names = dict(net.named_parameters())
        assert_close({n: found[n] for n in names}, {n: state[n] for n in names})
        assert_close(their_gradients, gradients)


# --- equal to torch's own -------------------------------------------------------------------------


class Wide(nn.Module):
    """Its layers are used in another order than they are defined; one is used on no rank, one on
    rank 1 only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle = nn.Linear(300, 10), nn.Linear(300, 300)
        self.first, self.spare, self.odd = nn.Linear(784, 300), nn.Linear(3, 3), nn.Linear(3, 300)
        self.double()

    def forward(self, X):
        hidden = F.relu(self.first(X.flatten(1)))
        if dist.get_rank() == 1:
            hidden = hidden + self.odd(X.flatten(1)[:, :3])
        return self.last(F.relu(self.middle(hidden)))


def reordered():
    """A perceptron whose layers are defined in another order than they are used."""
    torch.manual_seed(0)
    last, first, middle = nn.Linear(90, 10), nn.Linear(784, 200), nn.Linear(200, 90)
    return nn.Sequential(nn.Flatten(), _Used(first, middle, last)).double()


class _Used(nn.Module):
    def __init__(self, first, middle, last):
        super().__init__()
        self.last, self.first, self.middle = last, first, middle

    def forward(self, X):
        return self.last(self.middle(self.first(X)))


PROGRAMS = {
    "lenet": (partial(lenet, batch_norm=True), {}),
    "small buckets": (lenet, {"bucket_cap_mb": 0.2, "gradient_as_bucket_view": True}),
    "reordered": (reordered, {"bucket_cap_mb": 0.1}),
    "static": (lenet, {"static_graph": True}),
    "unused": (Wide, {"find_unused_parameters": True, "bucket_cap_mb": 0.5}),
}


def spans_of_training():
    with par.simulate("8x-v100-pcie", 3, with_values=True) as gpus, par.record() as timeline:
        par.run_ranks(partial(train, lenet, bucket_cap_mb=0.1), gpus)
    return [(s.device, s.stream, s.name, s.start_s, s.end_s) for s in timeline]


def on_gloo(rank, folder):
    torch.set_num_threads(1)
    spans = spans_of_training() if rank == 0 else None
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name, (make, options) in PROGRAMS.items():
        for kind, wrap in (("torch's", DDP), ("ours", ddp.DistributedDataParallel)):
            state, gradients, net = train(make, wrap, **options)
            log = net._get_ddp_logging_data() if wrap is DDP else {}
            sizes = {k: log.get(k) for k in ("bucket_sizes", "rebuilt_bucket_sizes")}
            found[name, kind] = state, gradients, sizes
    torch.save((found, spans), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def on_real_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    warm_process.run_on_ranks(on_gloo, str(folder), ranks=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def bucket_bytes(net):
    return [bucket.flat.nbytes for bucket in net.reducer.buckets]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_equals_torch_on_real_ranks(on_real_ranks, program):
    make, options = PROGRAMS[program]
    virtual = run(train, make, **options)
    for rank, (state, gradients, net) in enumerate(virtual):
        found, _ = on_real_ranks[rank]
        theirs, their_gradients, log = found[program, "torch's"]
        assert_close(state, theirs)
        assert_close(gradients, their_gradients)
        sizes = log["rebuilt_bucket_sizes"] or log["bucket_sizes"]
        assert bucket_bytes(net) == [int(size) for size in sizes.split(",")]
        assert_close(found[program, "ours"][:2], (theirs, their_gradients))


def test_two_runs_and_another_process_take_the_same_time(on_real_ranks):
    spans = spans_of_training()
    assert spans == spans_of_training() == on_real_ranks[0][1]
    assert len(spans) > 1000


def test_buckets_are_sorted_anew_after_the_first_step():
    def buckets():
        net = DDP(reordered().to(here()), bucket_cap_mb=0.1)
        found = []
        for X, _ in batches():
            net(X.to(here())).sum().backward()
            found.append([[net.names[p] for p in b.views] for b in net.reducer.buckets])
        return found

    first, second, third = run(buckets)[0]
    defined = [
        f"1.{layer}.{name}" for layer in ("last", "first", "middle") for name in ("weight", "bias")
    ]
    assert first == [defined]
    # In backward order; 0.1 MiB are 13,107 numbers: 18,000 + 90 of the middle layer are more.
    assert second == third
    assert [{name.split(".")[1] for name in bucket} for bucket in second][-1] == {"first"}
    assert [name for bucket in second for name in bucket][-1] == "1.first.weight"


# --- what happens when ----------------------------------------------------------------------------


def second_step(**options):
    """What a device does in the second step of four layers, each with a bucket of its own."""

    def steps():
        device = here()
        layers = [nn.Linear(1000, 1000, bias=False) for _ in range(4)]
        net = DDP(nn.Sequential(*layers).to(device), bucket_cap_mb=3, **options)
        X = torch.empty(3000, 1000, device=device)
        net(X).sum().backward()
        dist.barrier()
        begun.append(par.timing.now_s())
        net(X).sum().backward()

    begun = []
    with par.simulate("8x-v100-pcie", 2) as gpus, par.record() as timeline:
        par.run_ranks(steps, gpus)
    spans = [s for s in timeline.on("vgpu:0") if s.start_s >= begun[0]]
    return sorted(spans, key=lambda s: s.start_s)


def named(spans, *names):
    return [s for s in spans if s.name in names]


@pytest.mark.parametrize("view", [True, False])
def test_buckets_are_summed_in_order_while_backward_goes_on(view):
    spans = second_step(gradient_as_bucket_view=view)
    sums, products, filled = (named(spans, n) for n in ("all_reduce", "mm", "mul"))
    assert [s.bytes for s in sums] == [4_000_000] * 4
    assert len(filled) == 4
    for i, s in enumerate(sums):
        assert s.start_s == pytest.approx(filled[i].end_s)
    # 4 MB travel while the layer before computes its two products; the last has nothing to hide it.
    assert [s.end_s <= products[-1].end_s for s in sums] == [True, True, True, False]


def test_gradients_outside_the_buckets_are_copied_back_as_they_are_summed():
    assert not named(second_step(gradient_as_bucket_view=True), "copy")
    spans = second_step()
    sums, back = named(spans, "all_reduce"), named(spans, "copy")
    assert len(back) == 4
    assert all(copy.start_s >= s.end_s for copy, s in zip(back, sums, strict=True))
    assert back[2].end_s < sums[3].end_s
    assert back[3].start_s == sums[3].end_s


@OLD_NAME
def test_buffers_come_from_rank_0_before_each_forward_that_follows_a_step():
    def count(**options):
        def steps():
            device = here()
            net = DDP(nn.BatchNorm1d(4).to(device), **options)
            X = torch.ones(3, 4, device=device)
            for _ in range(2):
                net(X).sum().backward()
            net.eval()
            with torch.no_grad():
                net(X)
                net(X)

        with par.simulate("8x-v100-pcie", 2) as gpus, par.record() as timeline:
            par.run_ranks(steps, gpus)
        return sum(s.name == "broadcast" for s in timeline.on("vgpu:0", "collective"))

    # Parameters and buffers are of two data types; then buffers thrice: as torch's does, also
    # before the first forward of an evaluation.
    assert (count(), count(broadcast_buffers=False)) == (2 + 2 * 3, 1)
    assert count(forward_sync_buffers=False) == 2  # torch 2.15's name: at the start they are sent
    assert count(broadcast_buffers=False, forward_sync_buffers=True) == 2 + 2 * 3


# --- the model of scaling ------------------------------------------------------------------------

LEAN = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
STEPS_OF_NETS = {  # machine, GPUs, net, batch of a GPU, bucket_cap_mb, options
    "resnet50-p100-pcie": ("8x-p100-pcie", 4, "resnet50", 8, 25, {}),
    "resnet18-p100-dgx1": ("8x-p100-dgx1", 8, "resnet18", 32, 25, {}),
    "resnet50-v100-pairs": ("4x-v100-nvlink-pairs", 4, "resnet50", 32, 50, {}),
    "resnet50-a100": ("8x-a100-nvswitch", 2, "resnet50", 64, 5, {}),
    "resnet50-h100": ("8x-h100-nvswitch", 2, "resnet50", 16, None, {}),
    "resnet50-h100-host": ("8x-h100-nvswitch", 2, "resnet50", 4, 25, {}),
    "resnet50-h100-lean": ("8x-h100-nvswitch", 2, "resnet50", 4, 25, LEAN),
    "resnet18-h100-pcie": ("8x-h100-pcie", 2, "resnet18", 16, 25, {}),
    "vgg11-v100-pcie": ("8x-v100-pcie", 4, "vgg11", 16, None, {}),
}


needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="the nets are torchvision's"
)


def net_and_step(name, batch, device, wrap=lambda net: net):
    """A torchvision net without values, its optimizer and a function that trains it a step."""
    from torchvision import models

    with torch.device("meta"):
        net = getattr(models, name)()
    net = wrap(net.to_empty(device=device))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    X = torch.empty(batch, 3, 224, 224, device=device)
    y = torch.empty(batch, dtype=torch.long, device=device)

    def step():
        F.cross_entropy(net(X), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, optimizer, step


def seconds_of_a_step(name, batch, options):
    """Of this rank, once buckets are sorted anew: that takes a moment of the second step."""
    wrap = partial(DDP, init_sync=False, **options)
    net, _, step = net_and_step(name, batch, here(), wrap)
    step()
    net.reducer.rebuild_buckets()
    dist.barrier()
    watch = par.Timer()
    step()
    return watch.stop()


@functools.cache
def simulated_s(row):
    """A step of all ranks."""
    machine, n, name, batch, cap, options = STEPS_OF_NETS[row]
    with par.simulate(machine, n) as gpus:
        options = {"bucket_cap_mb": cap, **options}
        return par.run_ranks(seconds_of_a_step, gpus, name, batch, options)


def modelled_s(row, *, with_overhead):
    """The same by `scaling`, from a step of one device."""
    name_of_machine, n, name, batch, cap, options = STEPS_OF_NETS[row]
    machine = machines.machine(name_of_machine)
    with par.simulate(machine, 1) as (device,):
        net, optimizer, step = net_and_step(name, batch, device)
        alone = scaling.timed_step(step, net, optimizer)
    return scaling.step_s(
        alone,
        partial(collective_cost.all_reduce_s, fabric=collective_cost.fabric_of(machine, n)),
        bucket_bytes=None if cap is None else cap * 2**20,
        overhead=scaling.Overhead.of(machine, net, **options) if with_overhead else NO_OVERHEAD,
    )


@OLD_NAME
@needs_torchvision
@pytest.mark.parametrize("row", STEPS_OF_NETS)
def test_a_step_takes_what_the_model_of_scaling_says(row):
    found, *others = simulated_s(row)
    # The model leaves out what Python takes for DDP's own modules and for each bucket.
    assert found == pytest.approx(modelled_s(row, with_overhead=True), rel=0.03)
    assert others == pytest.approx([found] * len(others), rel=1e-3)


@OLD_NAME
@needs_torchvision
@pytest.mark.parametrize("row", ["resnet50-p100-pcie", "resnet50-h100", "resnet50-h100-lean"])
def test_without_what_ddp_queues_the_model_is_short(row):
    assert modelled_s(row, with_overhead=False) < 0.95 * simulated_s(row)[0]


# --- errors ---------------------------------------------------------------------------------------


def test_parameters_without_a_gradient_are_named():
    def train_twice():
        net = DDP(Wide().to(here()))
        for X, _ in batches():
            net(X.to(here())).sum().backward()

    with pytest.raises(
        RuntimeError, match=r"for rank 0: spare\.weight, spare\.bias, odd\.weight, odd\.bias"
    ):
        run(train_twice)


def test_an_error_in_one_backward_pass_ends_the_others():
    def fail():
        net = DDP(nn.Linear(2, 1).to(here()))
        out = net(torch.ones(1, 2).to(here()))
        if dist.get_rank() == 1:
            out.register_hook(_raise)
        out.sum().backward()

    with pytest.raises(KeyError, match="in backward") as caught:
        run(fail, n=3)
    assert caught.value.__notes__ == ["raised by rank 1 of 3, on vgpu:1"]


def _raise(gradient):
    raise KeyError("in backward")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"broadcast_buffers": True}, "use forward_sync_buffers"),
        ({"broadcast_buffers": False, "forward_sync_buffers": True}, "it is ignored"),
        ({"forward_sync_buffers": True}, None),
        ({}, None),
    ],
)
def test_who_uses_an_old_name_hears_the_new_one_as_of_torch(options, said):
    arguments = inspect.signature(c10d_private.TorchDDP.__init__).parameters
    with par.simulate("8x-v100-pcie", 2) as gpus, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        par.run_ranks(lambda: DDP(nn.Linear(2, 2).to(here()), **options), gpus)
    expected = 2 * (said is not None and "forward_sync_buffers" in arguments)
    assert [(w.category, w.filename) for w in caught] == [(FutureWarning, __file__)] * expected
    assert all(said in str(w.message) for w in caught)


def test_a_mesh_of_one_dimension_stands_for_its_group():
    def steps():
        mesh = init_device_mesh("vgpu", (2, 2), mesh_dim_names=("data", "other"))
        net = nn.Linear(2, 2).to(here())
        with pytest.raises(RuntimeError, match="Only 1D device mesh is supported"):
            DDP(net, device_mesh=mesh)
        with pytest.raises(RuntimeError, match="both process_group and device_mesh"):
            DDP(net, device_mesh=mesh["data"], process_group=dist.group.WORLD)
        ddp = DDP(net, device_mesh=mesh["data"])
        return ddp.device_mesh == mesh["data"], dist.get_process_group_ranks(ddp.process_group)

    with par.simulate("8x-v100-pcie", 4) as gpus:
        assert par.run_ranks(steps, gpus) == [
            (True, group) for group in ([0, 2], [1, 3], [0, 2], [1, 3])
        ]


def test_a_rank_without_a_backward_pass_is_waited_for_in_vain():
    def skip():
        net = DDP(nn.Linear(2, 1).to(here()))
        out = net(torch.ones(1, 2).to(here()))
        if dist.get_rank() == 0:
            out.sum().backward()

    with pytest.raises(RuntimeError, match="rank 1 has returned"):
        run(skip)


def test_a_forward_without_backward_is_no_error():
    def evaluate():
        net = DDP(nn.Linear(2, 1).to(here()))
        for _ in range(2):
            out = net(torch.ones(1, 2).to(here()))
        out.sum().backward()
        net(torch.ones(1, 2).to(here())).sum().backward()

    run(evaluate)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda r, d: DDP(nn.Linear(2, 1 + r).to(d)),
            r"weight has the shape \[1, 2\] on rank 0 and",
        ),
        (lambda r, d: DDP(nn.ReLU()), "none of whose parameters is trained"),
        (lambda r, d: DDP(nn.LazyLinear(2)), "Modules with uninitialized parameters"),
    ],
)
def test_networks_that_do_not_fit(make, error):
    with pytest.raises(RuntimeError, match=error):
        run(lambda: make(dist.get_rank(), here()))


def test_arguments_that_do_not_fit():
    def wrong_device():
        DDP(nn.Linear(2, 1).to(here()), device_ids=[1 - dist.get_rank()])

    with pytest.raises(ValueError, match=r"device_ids is \[1\], but the parameters are on vgpu:0"):
        run(wrong_device)
    with pytest.raises(NotImplementedError, match="has no param_to_hook_all_reduce: leave it out"):
        run(lambda: DDP(nn.Linear(2, 1).to(here()), param_to_hook_all_reduce=object()))


@pytest.mark.parametrize("kinds", [("cuda", "cuda:{}"), ("number", "cuda"), ("cuda:{}", "list")])
def test_devices_of_ddp_in_every_form_that_torch_takes(kinds):
    """What has no number, a list among it, is the current device to torch."""

    def form(kind):
        r = dist.get_rank()
        return {"number": r, "list": [r]}.get(kind) if ":" not in kind else kind.format(r)

    def on_rank():
        torch.cuda.set_device(dist.get_rank())
        ids, output = (form(k) if k != "cuda" else k for k in kinds)
        net = DDP(nn.Linear(2, 1).cuda(), device_ids=[ids], output_device=output)
        return net.device_ids[0], net.output_device

    with par.emulate_cuda(2, verbose=False) as gpus:
        assert par.run_ranks(on_rank, gpus) == [(0, 0), (1, 1)]
