"""A process inside `emulate_cuda` that is the only rank of its group, as notebooks try programs."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import d2lpar as par

ALONE = {"init_method": "tcp://localhost:29500", "rank": 0, "world_size": 1}


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(2, verbose=False) as devices:
        yield devices


def trained(wrap, device):
    torch.manual_seed(0)
    net = wrap(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in torch.randn(3, 8, 4):
        sgd.zero_grad()
        net(batch.to(device)).square().sum().backward()
        sgd.step()
    state = {name.removeprefix("module."): value for name, value in net.state_dict().items()}
    return {n: getattr(v, "to_local", lambda v=v: v)().cpu() for n, v in state.items()}


def sharded(net):
    fully_shard(net, mesh=init_device_mesh("cuda", (1,)))
    return net


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_it_trains_as_without_a_group(wrap):
    begin_s = time.perf_counter()
    init_process_group("nccl", **ALONE)
    assert_close(trained(wrap, "cuda"), trained(lambda net: net, "cpu"), rtol=0, atol=1e-6)
    assert time.perf_counter() > begin_s, "the simulated clock goes on"
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "nccl")


@pytest.mark.parametrize("how", ["arguments", "address", "environment", "store"])
def test_the_size_is_found_as_torch_finds_it(how, monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items() if how == "environment" else ():
        monkeypatch.setenv(name, value)
    options = {
        "arguments": ALONE,
        "address": {"init_method": "tcp://localhost:29500?rank=0&world_size=1"},
        "environment": {},
        "store": {"store": dist.HashStore(), "rank": 0, "world_size": 1},
    }
    init_process_group("nccl", **options[how])
    x = torch.ones(2, device="cuda:1")
    dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0]


def test_it_ends_with_the_block_and_may_start_again():
    before = init_process_group
    init_process_group("nccl", **ALONE)
    with pytest.raises(ValueError, match="twice"):
        init_process_group("nccl", **ALONE)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    init_process_group("gloo", **ALONE)
    assert dist.get_backend() == "gloo"
    assert init_process_group is not before  # the stand-in that knows ranks


def test_nothing_of_it_is_left_after_the_block():
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.all_reduce(torch.ones(1))


def number(rank, queue):
    init_process_group("nccl", init_method="tcp://localhost:1", rank=rank, world_size=2)
    total = torch.full((1,), rank + 1.0, device=f"cuda:{rank}")
    dist.all_reduce(total)
    queue.put(total.item())


def test_it_starts_processes_and_ranks_of_its_own(cuda):
    init_process_group("nccl", **ALONE)
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(number, (queue,), nprocs=2)
    assert [queue.get(), queue.get()] == [3.0, 3.0]
    assert par.run_ranks(dist.get_rank, cuda) == [0, 1]
    assert dist.get_world_size() == 1


def test_what_it_waits_for_never_comes():
    init_process_group("nccl", **ALONE)
    store = dist.TCPStore("localhost", 29501, 1, is_master=True)
    with pytest.raises(dist.DistStoreError, match="is the only one of its group: start ranks"):
        store.get("never set")
    x = torch.ones(1, device="cuda")
    with pytest.raises(ValueError, match="both ends would wait for each other"):
        dist.recv(x, 0)
    dist.all_reduce(x)  # it goes on


@pytest.mark.parametrize("options", [{**ALONE, "world_size": 2}, {}])
def test_a_larger_group_is_refused_with_what_to_do(options):
    assert "WORLD_SIZE" not in os.environ
    with pytest.raises(NotImplementedError, match=r"nproc-per-node N SCRIPT`; .*world_size=1\)"):
        init_process_group("nccl", **options)
