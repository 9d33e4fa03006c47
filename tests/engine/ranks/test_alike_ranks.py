"""One rank of each kind: the times of all ranks, and what is refused."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import d2lpar as par
from d2lpar import machines

NETWORK = machines.Link("net", 5e-6, 12.5e9)


def cluster(nodes: int, per_node: int, *, rails: bool) -> machines.Machine:
    """Nodes of A100, with a network port for each GPU or for a node."""
    box = machines.machine("8x-a100-nvswitch").with_accelerators(per_node)
    return box.cluster(nodes, NETWORK, network_shared_by=1 if rails else None)


def here() -> torch.device:
    return torch.device("vgpu", int(os.environ["LOCAL_RANK"]))


def seconds(step) -> float:
    """Simulated time of a step, after two to warm up."""
    for _ in range(2):
        step()
    start_s = par.Timer()
    step()
    return start_s.stop()


def data_parallel() -> float:
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).to(here())
    ddp = DistributedDataParallel(net, bucket_cap_mb=8)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.empty(64, 1024, device=here())

    def step():
        ddp(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return seconds(step)


def stages(per_stage: int) -> float:
    """A pipeline of as many stages as fit, each of them data parallel: forward and backward."""
    rank, size = dist.get_rank(), dist.get_world_size()
    firsts = range(0, size, per_stage)
    groups = [dist.new_group(list(range(first, first + per_stage))) for first in firsts]
    stage = rank // per_stage
    net = nn.Linear(2048, 2048).to(here())
    x = torch.empty(256, 2048, device=here())

    def step():
        if stage:
            dist.recv(x, rank - per_stage)
        y = x.detach().requires_grad_()
        out = net(y)
        if rank + per_stage < size:
            dist.send(out.detach(), rank + per_stage)
            dist.recv(x, rank + per_stage)
        out.sum().backward()
        if stage:
            dist.send(y.grad, rank - per_stage)
        for p in net.parameters():
            dist.all_reduce(p.grad, group=groups[stage])
            p.grad = None

    return seconds(step)


def tensor_parallel(width: int) -> float:
    """All-reduces within groups of neighbours, then between those of the same number."""
    rank, size = dist.get_rank(), dist.get_world_size()
    neighbours = [dist.new_group([*range(i, i + width)]) for i in range(0, size, width)]
    rails = [dist.new_group([*range(i, size, width)]) for i in range(width)]
    w = torch.empty(2048, 2048, device=here())

    def step():
        for _ in range(3):
            dist.all_reduce(w @ w, group=neighbours[rank // width])
        dist.all_reduce(w, group=rails[rank % width])

    return seconds(step)


PROGRAMS = {
    "data parallel": (data_parallel, (), lambda rank: None, True),
    "data parallel, a port a node": (data_parallel, (), lambda rank: None, False),
    "pipeline of nodes": (stages, (8,), lambda rank: rank // 8, True),
    "pipeline within nodes": (stages, (4,), lambda rank: rank // 4, True),
    "tensor and data": (tensor_parallel, (4,), lambda rank: None, True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_rank_of_each_kind_takes_the_time_of_all_16(name):
    program, args, alike, rails = PROGRAMS[name]
    machine = cluster(2, 8, rails=rails)
    with par.simulate(machine) as gpus:
        everyone = par.run_ranks(program, gpus, *args)
    found = par.run_alike(program, machine, *args, alike=alike)
    assert len(found) == len({alike(rank) for rank in range(16)})
    for rank, taken_s in found.items():
        kind = [s for other, s in enumerate(everyone) if alike(other) == alike(rank)]
        assert kind == pytest.approx([taken_s] * len(kind), rel=1e-9)


def test_512_ranks():
    start_s = time.monotonic()
    (taken_s,) = par.run_alike(data_parallel, cluster(64, 8, rails=True)).values()
    few = par.run_alike(data_parallel, cluster(64, 8, rails=True), ranks=8)
    assert taken_s > few[0]
    assert time.monotonic() - start_s < 60


def test_values_of_the_host_are_those_of_all():
    def exchange():
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, os.environ["WORLD_SIZE"])
        return found, dist.get_rank()

    found = par.run_alike(exchange, cluster(2, 8, rails=True), alike=lambda rank: rank // 8)
    assert found == {0: (["16"] * 16, 0), 8: (["16"] * 16, 8)}


def test_ranks_that_share_a_link_with_others_of_their_kind_are_refused():
    """A port a node: the rails of eight numbers are in each other's way."""
    with pytest.raises(ValueError, match=r"ranks 1, 5, 9, 13 share a link with rank 0"):
        par.run_alike(tensor_parallel, cluster(4, 4, rails=False), 4)


def test_a_send_to_a_rank_that_is_not_simulated_is_refused():
    with pytest.raises(ValueError, match="rank 0 sends to rank 4, and rank 4 is not simulated"):
        par.run_alike(stages, cluster(2, 4, rails=True), 4)


def test_a_group_without_a_simulated_rank_of_a_kind_is_refused():
    def odd():
        group = dist.new_group([0, 3])
        dist.all_reduce(torch.empty(4, device=here()), group=group)

    with pytest.raises(ValueError, match="no simulated rank of kind 1, that of rank 3"):
        par.run_alike(odd, cluster(1, 4, rails=True), alike=lambda rank: rank % 2)
