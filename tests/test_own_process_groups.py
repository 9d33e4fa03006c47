"""Process groups that a program writes itself, on virtual ranks: its methods are called."""

from __future__ import annotations

import pickle
import re
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close
from virtual_ranks import run

import d2lpar as par


def here():
    return torch.device("vgpu", torch.vgpu.current_device())


class DoneWork(dist.Work):
    """A work of the program's own; its group counts who waits."""

    def __init__(self, result, group):
        super().__init__()
        self._future, self._group = Future(), weakref.ref(group)
        self._future.set_result(result)

    def wait(self, timeout=None):
        self._group().waits += 1
        return True

    def get_future(self):
        self._group().futures += 1
        return self._future


class ByStore(dist.ProcessGroup):
    """Sums and copies that go through a store, as bytes."""

    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self._store, self._member, self._count = store, rank, size
        self._numbers = 0
        self.waits = self.futures = 0
        self.calls, self._works = [], []

    def _put(self, tensor, key):
        self._store.set(key, pickle.dumps(tensor.cpu().numpy()))

    def _get(self, key):
        return torch.from_numpy(pickle.loads(self._store.get(key)))

    def _done(self, name, tensors):
        self.calls.append(name)
        self._works.append(DoneWork(tensors, self))
        return self._works[-1]

    def allreduce(self, tensors, opts):
        self._numbers += 1
        for tensor in tensors:
            self._put(tensor, f"{self._numbers} of {self._member}")
            parts = [self._get(f"{self._numbers} of {i}") for i in range(self._count)]
            tensor.copy_(sum(parts))
        return self._done("allreduce", tensors)

    def broadcast(self, tensors, opts):
        self._numbers += 1
        for tensor in tensors:
            if self._member == opts.rootRank:
                self._put(tensor, f"{self._numbers}")
            tensor.copy_(self._get(f"{self._numbers}"))
        return self._done("broadcast", tensors)

    def allgather(self, outputs, tensors, opts):
        self._numbers += 1
        for parts, tensor in zip(outputs, tensors, strict=True):
            self._put(tensor, f"{self._numbers} of {self._member}")
            for i, part in enumerate(parts):
                part.copy_(self._get(f"{self._numbers} of {i}"))
        return self._done("allgather", outputs)

    def getBackendName(self):  # noqa: N802, as torch calls it
        return "by-store"


def of_four(store, rank, size, timeout):
    return ByStore(store, rank, size)


def of_all(options, more):
    assert options.group_size == len(options.global_ranks_in_group)
    return ByStore(options.store, options.group_rank, options.group_size)


@pytest.fixture(autouse=True)
def backends():
    for name, make, extended in (
        ("by_store", of_four, False),
        ("by_store_too", of_all, True),
        ("compiled", lambda *args: object(), False),
    ):
        if name not in dist.Backend.backend_list:
            devices = ["cpu", "cuda"]
            dist.Backend.register_backend(name, make, extended_api=extended, devices=devices)


@pytest.mark.parametrize("asked", ["by_store", "by_store_too", "cpu:gloo,cuda:by_store"])
def test_a_registered_backend_makes_the_group_of_all_and_others(asked):
    """It was refused, and before that NCCL's sums stood in for it, in silence."""

    def rank():
        dist.init_process_group(asked)
        number, group = dist.get_rank(), dist.group.WORLD
        x, on_host = torch.full((2,), number + 1.0, device=here()), torch.ones(1)
        dist.all_reduce(x)
        dist.all_reduce(on_host)
        some, by_nccl = dist.new_group([0, 2]), dist.new_group(backend="nccl")
        y, z = torch.ones(1, device=here()) * number, torch.ones(1, device=here())
        if number != 1:
            dist.all_reduce(y, group=some)
        dist.all_reduce(z, group=by_nccl)
        kinds = type(group).__name__, dist.get_backend(), dist.get_backend(by_nccl)
        calls = group.calls, getattr(some, "calls", None)
        dist.destroy_process_group()
        assert not dist.is_initialized()
        return *(t.tolist() for t in (x, on_host, y, z)), kinds, calls

    found = run(rank, n=3)
    kinds, calls = ("ByStore", asked, "nccl"), ["allreduce", "allreduce"]
    assert found[0] == ([6, 6], [3], [2], [3], kinds, (calls, ["allreduce"]))
    assert found[1] == ([6, 6], [3], [1], [3], kinds, (calls, None))
    assert found[2] == found[0]


def gradients(net, x):
    net(x).square().sum().backward()
    return [p.grad.cpu() for p in net.parameters()]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def test_ddp_averages_by_a_group_of_the_program():
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def rank():
        dist.init_process_group("by_store")
        number = dist.get_rank()
        net = network().to(here())
        with torch.no_grad():
            net[0].weight.mul_(number + 1)  # rank 0's is that of all
        found = gradients(DDP(net), x[2 * number : 2 * number + 2].to(here()))
        return found, dist.group.WORLD.calls

    expected = [grad / 2 for grad in gradients(network(), x)]
    for found, calls in run(rank, n=2):
        assert_close(found, expected)
        assert calls[:2] == ["allgather", "broadcast"]
        assert {*calls} == {"allgather", "broadcast", "allreduce"}


def test_ddp_takes_a_group_that_nobody_has_registered():
    """As torch's own test of groups in Python: works are waited for, and asked for futures."""
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def rank():
        group = ByStore(dist.HashStore(), 0, 1)
        net = network().to(here())
        found = gradients(DDP(net, process_group=group), x.to(here()))
        return found, group.calls, group.waits > 0, group.futures > 0

    ((found, calls, *asked),) = run(rank, n=1)
    assert_close(found, gradients(network(), x))
    assert calls == ["allgather", "broadcast", "broadcast", "allreduce"]
    assert asked == [True, True]


OTHERWISE = {
    "DDP expects same model across all ranks, but Rank 1 has 1 params, while rank 0 has "
    "inconsistent 2 params": lambda: nn.Linear(3, 4, bias=False),
    "params[0] in this process, weight, with sizes [4, 2] appears not to match sizes of the same "
    "param in process 0": lambda: nn.Linear(2, 4),
    "params[0] in this process, weight, with strides [1, 4] appears not to match strides of the "
    "same param in process 0": lambda: _transposed(nn.Linear(3, 4)),
}


def _transposed(net):
    net.weight = nn.Parameter(net.weight.detach().t().contiguous().t())
    return net


@pytest.mark.parametrize("words", OTHERWISE)
def test_networks_that_differ_are_found_through_the_group(words):
    """In the words of torch's DDP, which asks such a group, too. Nobody asked, and what is laid out
    otherwise was trained with the values of other elements."""

    def rank():
        dist.init_process_group("by_store")
        net = OTHERWISE[words]() if dist.get_rank() else nn.Linear(3, 4)
        DDP(net.to(here()))

    with pytest.raises(RuntimeError, match=re.escape(words)):
        run(rank, n=2)


def test_what_is_no_group_written_in_python_is_refused():
    def rank():
        with pytest.raises(NotImplementedError, match="'compiled' of the program's gives a object"):
            dist.init_process_group("compiled")

    run(rank, n=1)


def register(name):
    rank = dist.get_rank()
    dist.Backend.register_backend(name, lambda *place: rank, devices=["cpu"])
    dist.barrier()
    own = dist.Backend._plugins[name.upper()].creator_fn()
    if rank == 0:
        dist.Backend.register_backend(f"{name}2", lambda *place: rank, devices=["cpu"])
    dist.barrier()
    return own, dist.is_backend_available(f"{name}2")


def test_each_rank_has_the_backends_that_it_has_registered():
    assert par.run_ranks(register, 2, "ranks_own") == [(0, True), (1, False)]
    assert not dist.is_backend_available("ranks_own")
    assert "ranks_own" not in dist.Backend.backend_list
