"""SyncBatchNorm on virtual ranks: equal to one device that has the whole batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from virtual_ranks import here

import d2lpar as par
from d2lpar.vgpu.torch_backend.values import batch_norm_values

MACHINE = "8x-v100-pcie"


def run(function, *args, ranks=2):
    with par.simulate(MACHINE, ranks, with_values=True) as gpus:
        return par.run_ranks(function, gpus, *args)


def batch(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def step(norm, X, weights):
    """Output, gradients of the input and the parameters, and buffers, of one step."""
    X = X.detach().requires_grad_()
    output = norm(X)
    (output * weights).sum().backward()
    # A rank without a part of the batch gets no gradients.
    leaves = [X, *norm.parameters()]
    gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    return [t.detach().cpu() for t in (output, *gradients, *norm.buffers())]


def make(dims, **options):
    kind = {0: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    norm = kind(3, **options).double()
    for i, p in enumerate(norm.parameters()):
        nn.init.normal_(p, 1 - i, generator=torch.Generator().manual_seed(i))
    return norm


def on_rank(X, weights, sizes, options):
    mine = slice(sum(sizes[: dist.get_rank()]), sum(sizes[: dist.get_rank() + 1]))
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(make(X.dim() - 2, **options))
    return step(norm.to(here()), X[mine].to(here()), weights[mine].to(here()))


@pytest.mark.parametrize(
    ("shape", "sizes", "options"),
    [
        ((8, 3, 5, 4), (4, 4), {}),
        ((9, 3), (2, 3, 4), {}),
        ((6, 3, 2, 3, 2), (4, 0, 2), {"momentum": 0.3}),
        ((8, 3, 5, 4), (5, 3), {"affine": False}),
        ((8, 3, 5, 4), (5, 3), {"track_running_stats": False}),
    ],
)
def test_it_equals_one_device_that_has_the_whole_batch(shape, sizes, options):
    X, weights = batch(*shape), batch(*shape).flip(0)
    whole = step(make(len(shape) - 2, **options), X, weights)
    parts = run(on_rank, X, weights, sizes, options, ranks=len(sizes))
    affine = options.get("affine", True)
    for i, expected in enumerate(whole):
        found = [part[i] for part in parts]
        if i < 2:  # the output, and the gradient of the input
            assert_close(torch.cat(found), expected)
        elif i < 2 + 2 * affine:  # each rank has its part of the gradients of the parameters
            assert_close(sum(found), expected)
        else:
            assert_close(found, [expected] * len(sizes))


def test_a_network_under_ddp_equals_one_device_with_the_whole_batch():
    def network():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)]
        return nn.Sequential(*layers).double()

    def train(network, X):
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            network(X).square().mean().backward()
            optimizer.step()
        return {name: value.cpu() for name, value in network.state_dict().items()}

    def on_rank(X):
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(network()).to(here())
        return train(DDP(synced), X.chunk(4)[dist.get_rank()].to(here()))

    X = batch(8, 1, 6, 6)
    expected = train(network(), X)
    for found in run(on_rank, X, ranks=4):
        assert_close({name.removeprefix("module."): v for name, v in found.items()}, expected)


def test_groups_share_statistics_among_themselves():
    def on_rank(X):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        norm = nn.SyncBatchNorm(3, process_group=pairs[dist.get_rank() // 2]).double().to(here())
        return norm(X.chunk(4)[dist.get_rank()].to(here())).detach().cpu()

    X = batch(8, 3, 5)
    found = torch.cat(run(on_rank, X, ranks=4))
    halves = [nn.BatchNorm1d(3).double()(half) for half in X.chunk(2)]
    assert_close(found, torch.cat(halves).detach())


def test_half_precision_is_summed_up_in_float32_and_channels_last_stays():
    X = batch(4, 3, 64, 64, dtype=torch.float32).half() + 100
    mean, invstd = batch_norm_values.stats(X, 1e-5)
    assert mean.dtype == invstd.dtype == torch.float32
    assert_close(mean, X.double().mean((0, 2, 3)).float())
    last = X.contiguous(memory_format=torch.channels_last)
    weight = torch.ones(3).half()
    normed = batch_norm_values.elemt(last, weight, weight, mean, invstd, 1e-5)
    assert normed.dtype == torch.float16
    assert normed.is_contiguous(memory_format=torch.channels_last)


def test_programs_for_cuda_and_what_is_sent():
    def forward(X):
        norm = nn.SyncBatchNorm(64).cuda()
        norm(X.cuda().requires_grad_()).sum().backward()

    with par.emulate_cuda(2, MACHINE, verbose=False) as gpus, par.record() as timeline:
        par.run_ranks(partial(forward, torch.ones(2, 64, 7, 7)), gpus)
    sent = {s.name: s.bytes for s in timeline if s.kind == "collective"}
    # Means, deviations and a count of each rank; then the two sums of the backward pass.
    assert sent == {"all_gather": 2 * (2 * 64 + 1) * 4, "all_reduce": 2 * 64 * 4}
    (gathered,) = [s for s in timeline.on("cuda:0") if "gather_stats" in s.name]
    assert gathered.bytes < 2 * 64 * 7 * 7 * 4  # it does not read the images


def test_from_shapes_alone_it_takes_as_long_as_with_values():
    """Its mask that leaves out ranks without images has no values then."""

    def timeline(shapes_only):
        with par.emulate_cuda(2, MACHINE, shape_only=shapes_only, verbose=False) as gpus:
            with par.record() as recorded:
                par.run_ranks(on_gpu, gpus)
            return [(s.device, s.stream, s.name, round(s.duration_s, 12)) for s in recorded]

    def on_gpu():
        norm = nn.SyncBatchNorm(64).cuda()
        images = torch.ones(2, 64, 7, 7).cuda().requires_grad_()
        norm(images).sum().backward()
        assert images.grad.shape == images.shape

    assert timeline(shapes_only=True) == timeline(shapes_only=False)


def test_other_masks_are_as_unknown_as_before():
    def on_gpu():
        nn.SyncBatchNorm(64).cuda()(torch.ones(2, 64, 7, 7).cuda())
        values = torch.ones(2).cuda()
        with pytest.raises(RuntimeError, match="the shape of its result depends on values"):
            values[values >= 1]

    with par.emulate_cuda(2, MACHINE, shape_only=True, verbose=False) as gpus:
        par.run_ranks(on_gpu, gpus)
