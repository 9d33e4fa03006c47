"""Optimizers whose parameters the host keeps: what they move through its memory, and how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.api.timing import now_s
from d2lpar.vgpu.torch_backend.cost import optimizer_on_host

CORE = 10e9  # bytes that a core copies in a second: it reads as many and writes as many
HOST = machines.Host("plain", copy_bytes_per_s=CORE, cores=4, dispatch_s=3e-6, launch_s=1e-6)
N = 2**20


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    box = replace(machines.machine("2x-v100-textbook"), host=HOST)
    with par.simulate(box, 1) as (device,):
        yield torch.ones(1, device=device)


def parameter(n: int = N) -> torch.Tensor:
    made = torch.nn.Parameter(torch.ones(n))
    made.grad = torch.ones(n)
    return made


def step_s(optimizer: torch.optim.Optimizer) -> float:
    """Of the second step, as the first makes its state."""
    optimizer.step()
    start_s = now_s(wait=False)
    optimizer.step()
    return now_s(wait=False) - start_s


def moved_s(numbers: int, operations: int, threads: int = 4) -> float:
    """For so many numbers of each parameter's size, of four bytes."""
    return 4 * N * numbers / (2 * CORE * threads) + operations * 2e-6


# What each operation reads and writes, written down from the optimizers' formulas.
@pytest.mark.parametrize(
    ("make", "numbers", "operations"),
    [
        (lambda p: torch.optim.SGD([p], 0.1), 3, 1),  # p += g
        (lambda p: torch.optim.SGD([p], 0.1, fused=True), 3, 1),
        # with momentum: the mean times b, plus g; p plus the mean
        (lambda p: torch.optim.SGD([p], 0.1, momentum=0.9), 2 + 3 + 3, 3),
        # p *= d; m to g; v *= b; v += g g; sqrt(v); / c; + e; p += m / _; the count of steps, twice
        (lambda p: torch.optim.AdamW([p], 0.1), 2 + 3 + 2 + 3 + 2 + 2 + 2 + 4, 10),
        (lambda p: torch.optim.AdamW([p], 0.1, fused=True), 4 + 3, 2),
    ],
    ids=["sgd", "sgd-fused", "momentum", "adamw", "adamw-fused"],
)
def test_a_step_moves_what_its_operations_read_and_write(gpu, make, numbers, operations):
    assert step_s(make(parameter())) == pytest.approx(moved_s(numbers, operations), rel=1e-3)


def test_each_of_several_processes_has_one_thread_as_torchrun_says(gpu, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert step_s(torch.optim.SGD([parameter()], 0.1)) == pytest.approx(moved_s(3, 1, threads=1))


def test_large_results_are_in_fresh_pages(gpu):
    small_s, large_s = (step_s(torch.optim.AdamW([parameter(n)], 0.1)) / n for n in (2**22, 2**24))
    assert large_s > 1.5 * small_s  # the square root and the quotient


def test_a_parameter_on_the_device_costs_the_host_no_more_than_before(gpu):
    on_device = torch.nn.Parameter(torch.ones(N, device=gpu.device))
    on_device.grad = torch.ones(N, device=gpu.device)
    assert step_s(torch.optim.SGD([on_device], 0.1)) < 20e-6


def test_who_uses_no_device_takes_no_time(monkeypatch):
    with par.simulate("2x-v100-textbook", 1):
        assert step_s(torch.optim.SGD([parameter()], 0.1)) == 0


def test_a_closure_that_is_none_is_none(gpu):
    """As accelerate calls it."""
    optimizer = torch.optim.SGD([parameter()], 0.1)
    optimizer.step()
    start_s = now_s(wait=False)
    optimizer.step(None)
    optimizer.step(closure=None)
    assert now_s(wait=False) - start_s == pytest.approx(2 * moved_s(3, 1))


def test_what_computes_the_loss_is_no_part_of_the_step(gpu):
    """As Lightning has it computed, and LBFGS, again and again."""
    one = parameter()

    def closure():
        _ = one.detach() * 2
        return torch.zeros(())

    optimizer = torch.optim.SGD([one], 0.1)
    start_s = now_s(wait=False)
    optimizer.step(closure)
    assert now_s(wait=False) - start_s == pytest.approx(moved_s(3, 1))
    start_s = now_s(wait=False)
    torch.optim.LBFGS([one], 0.1, max_iter=2).step(closure)
    assert now_s(wait=False) > start_s


def test_a_parameter_on_the_host_counts_wherever_it_stands(gpu):
    on_device = torch.nn.Parameter(torch.ones(1, device=gpu.device))
    on_device.grad = torch.ones(1, device=gpu.device)
    one, other = (
        step_s(torch.optim.SGD(order, 0.1, foreach=False))
        for order in ([on_device, parameter()], [parameter(), on_device])
    )
    assert one == pytest.approx(other, rel=0.05)
    assert one > moved_s(3, 1)


def test_what_is_only_written_is_not_read(gpu):
    class Copies(torch.optim.SGD):
        def step(self, closure=None):
            (p,) = self.param_groups[0]["params"]
            p.data.copy_(p.grad)
            p.grad.zero_()

    assert step_s(Copies([parameter()], 0.1)) == pytest.approx(moved_s(2 + 1, 2))


def test_sparse_gradients_are_stepped(gpu):
    table = torch.nn.Embedding(100, 8, sparse=True)
    table(torch.arange(3)).sum().backward()
    assert step_s(torch.optim.SparseAdam(table.parameters(), 0.1)) > 0


def test_a_step_within_a_step_counts_once(gpu):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    assert step_s(Twice([parameter()], 0.1)) == pytest.approx(moved_s(3, 1))


def test_a_step_that_fails_leaves_nothing_behind(gpu):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Fails([parameter()], 0.1).step()
    assert step_s(torch.optim.SGD([parameter()], 0.1)) == pytest.approx(moved_s(3, 1))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_updates_are_those_without_it_and_are_counted(gpu, options, monkeypatch):
    timed, untimed = parameter(), parameter()
    torch.optim.AdamW([timed], 0.1, **options).step()
    with monkeypatch.context() as without:
        without.setattr(optimizer_on_host, "_is_offloaded", lambda *of: False)
        torch.optim.AdamW([untimed], 0.1, **options).step()
    assert torch.equal(timed, untimed)
    assert timed._version == untimed._version


def test_each_rank_pays_for_its_shard_that_fsdp_offloads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    box = replace(machines.machine("2x-v100-textbook"), host=HOST)

    def sharded_s() -> float:
        net = torch.nn.Linear(1024, 2 * N // 1024, bias=False)
        fully_shard(net, offload_policy=CPUOffloadPolicy())
        net(torch.ones(1, 1024, device=f"vgpu:{dist.get_rank()}")).sum().backward()
        return step_s(torch.optim.SGD(net.parameters(), 0.1))

    with par.simulate(box, 2) as gpus:
        for seconds in par.run_ranks(sharded_s, gpus):
            assert seconds == pytest.approx(moved_s(3, 1, threads=1))
