"""Optimizers, averagers and samplers of torch.distributed on virtual ranks."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from torch.utils.data import DistributedSampler
from virtual_ranks import here, run

STEPS = 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(20, 20) for _ in range(4)]).double()


def batch():
    return torch.randn(8, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def mine():
    return batch().chunk(dist.get_world_size())[dist.get_rank()].to(here())


def train(net, optimizer, X):
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


def one_device(kind, **options):
    net = network()
    return train(net, kind(net.parameters(), **options), batch())


# --- ZeRO's first stage ---------------------------------------------------------------------------


def sharded(views):
    net = DDP(network().to(here()))
    optimizer = ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.Adam, lr=0.1, parameters_as_bucket_view=views
    )
    found = train(net, optimizer, mine())
    held = sum(
        value.nbytes for state in optimizer.optim.state.values() for value in state.values()
        if value.dim()
    )  # fmt: skip
    optimizer.consolidate_state_dict(to=0)
    return found, held, optimizer.state_dict() if dist.get_rank() == 0 else None


@pytest.mark.filterwarnings("ignore:a CPU tensor")
@pytest.mark.parametrize("views", [False, True])
def test_zero_equals_one_device_and_each_rank_holds_its_share_of_the_state(views):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    expected = train(net, optimizer, batch())
    whole = 2 * sum(p.nbytes for p in net.parameters())
    results = run(sharded, views, n=4)
    for found, held, _ in results:
        assert_close(found, expected)
        assert held == whole / 4  # four layers of the same size: one a rank
    _, _, state = results[0]
    theirs = optimizer.state_dict()["state"]
    assert state["state"].keys() == theirs.keys()
    for number, of_parameter in theirs.items():
        for name, value in of_parameter.items():
            assert_close(state["state"][number][name].cpu(), value, check_dtype=False)


# --- averaging models -----------------------------------------------------------------------------


def local_then_averaged(make_averager):
    net = network().to(here())
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), 0.1), make_averager())
    return train(net, optimizer, mine())


def separately(groups_after):
    """Four networks that step by themselves; after step i those of a group become their mean."""
    nets = [network() for _ in range(4)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    for step in range(STEPS):
        for net, optimizer, X in zip(nets, optimizers, batch().chunk(4), strict=True):
            optimizer.zero_grad()
            net(X).square().mean().backward()
            optimizer.step()
        for group in groups_after(step):
            for same in zip(*[nets[i].parameters() for i in group], strict=True):
                mean = torch.stack([p.data for p in same]).mean(0)
                for p in same:
                    p.data.copy_(mean)
    return [list(net.parameters()) for net in nets]


def test_models_are_averaged_from_time_to_time():
    make = partial(PeriodicModelAverager, period=2, warmup_steps=0)
    results = run(local_then_averaged, make, n=4)
    expected = separately(lambda step: [range(4)] if step % 2 == 0 else [])
    for found, theirs in zip(results, expected, strict=True):
        assert_close(found, [p.data for p in theirs])


def test_models_are_averaged_in_a_hierarchy():
    def make():
        return HierarchicalModelAverager(OrderedDict([(1, 2), (2, 4)]), warmup_steps=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = run(local_then_averaged, make, n=4)
    pairs = [(0, 1), (2, 3)]
    expected = separately(lambda step: [range(4)] if step % 2 == 0 else pairs)
    for found, theirs in zip(results, expected, strict=True):
        assert_close(found, [p.data for p in theirs])


# --- functional optimizers, and samplers ----------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*functional optimizers is deprecated")
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Rprop", "Adadelta"])
def test_functional_optimizers_equal_those_of_torch(name):
    from torch.distributed.optim.utils import functional_optim_map

    kind = getattr(torch.optim, name)
    functional = functional_optim_map[kind]

    def on_rank():
        net = DDP(network().to(here()))
        optimizer = functional(list(net.parameters()), lr=0.01)
        for _ in range(STEPS):
            net.zero_grad()
            net(mine()).square().mean().backward()
            optimizer.step([p.grad for p in net.parameters()])
        return [p.detach().cpu() for p in net.parameters()]

    for found in run(on_rank):
        assert_close(found, one_device(kind, lr=0.01))


def test_a_sampler_gives_each_rank_its_part_of_each_epoch():
    def on_rank():
        sampler = DistributedSampler(range(10), seed=3)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
        return epochs

    first, second = zip(*run(on_rank), strict=True)
    for epoch in (first, second):
        assert sorted(itertools.chain(*epoch)) == list(range(10))
    assert first != second
