"""Ranks with several devices each, and ranks without any, over gloo."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest
import running
import torch
import torch.distributed as dist
import warm_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.testing import assert_close

import d2lpar as par
from d2lpar.machines import collective_cost
from d2lpar.vgpu.races.stream_sanitizer import HazardWarning

MACHINE, PROGRAMS = "8x-v100-pcie", Path(__file__).parents[2] / "programs"
PROGRESS = re.compile(r"d2lpar: \d+ s, simulated ")  # said of a run that takes long


# --- several --------------------------------------------------------------------------------------


class InTwoParts(nn.Module):
    """A network of two layers; the second may be on another device."""

    def __init__(self, first=None, second=None):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(6, 30).double(), nn.Linear(30, 3).double()
        self.first, self.second = layers[0].to(first), layers[1].to(second)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64, device=second))

    def forward(self, X):
        hidden = self.first(X.to(self.first.weight.device)).tanh()
        self.seen += 1
        return self.second(hidden.to(self.second.weight.device))


def batch():
    return torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def train(net, X):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()
    return [value.detach().cpu() for value in net.state_dict().values()]


@pytest.mark.parametrize("backend", [None, "nccl"])
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}])
def test_ddp_of_a_module_on_two_devices_equals_one_device(options, backend):
    """Its ranks have set no device: what DDP itself tells of its buckets goes by none."""

    def on_rank(mine):
        if backend is not None:
            dist.init_process_group(backend)
            torch.vgpu.set_device(0)
        own = mine[dist.get_rank()]
        net = DDP(InTwoParts(*own), **options)
        assert [b.flat.device for b in net.reducer.buckets] == [own[1], own[0]]
        return train(net, batch().chunk(2)[dist.get_rank()])

    expected = train(InTwoParts(), batch())
    with par.simulate(MACHINE, 4, with_values=True) as gpus:
        pairs = [gpus[:2], gpus[2:]]
        for found in par.run_ranks(on_rank, pairs, pairs):
            assert_close(found, expected)


def test_a_collective_is_of_the_devices_of_its_tensors():
    def on_rank(mine):
        for device in mine[dist.get_rank()]:
            torch.vgpu.set_device(device)
            dist.all_reduce(torch.empty(10**6, device=device))

    with par.simulate(MACHINE, 4) as gpus, par.record() as timeline:
        pairs = [[gpus[0], gpus[1]], [gpus[2], gpus[3]]]
        par.run_ranks(on_rank, pairs, pairs)
    sums = [s for s in timeline if s.kind == "collective"]
    assert [s.device for s in sums] == ["vgpu:0", "vgpu:2", "vgpu:1", "vgpu:3"]
    machine = par.machines.machine(MACHINE)
    for s, devices in zip(sums[::2], [(0, 2), (1, 3)], strict=True):
        fabric = collective_cost.fabric_among(machine, devices)
        expected_s = collective_cost.collective_s("all_reduce", 4 * 10**6, fabric)
        assert s.end_s - s.start_s == pytest.approx(expected_s)
    # The two have devices and links of their own, and no rank waits in between.
    assert sums[2].start_s < sums[0].end_s


def test_mistakes_with_several_devices():
    def on_rank(devices):
        dist.all_reduce(torch.empty(2, device=devices[dist.get_rank()]))

    with par.simulate(MACHINE, 4) as gpus:
        pairs = [gpus[:2], gpus[2:]]
        with pytest.raises(RuntimeError, match=r"works on vgpu:0 and vgpu:1, .* on vgpu:3: move"):
            par.run_ranks(on_rank, pairs, [gpus[3], gpus[2]])
        with pytest.raises(ValueError, match="every rank has a device of its own"):
            par.run_ranks(on_rank, [gpus[:2], gpus[1:]], gpus)
        with pytest.raises(ValueError, match=r"It is \[0\], and parameters are on"):
            par.run_ranks(lambda: DDP(InTwoParts(*gpus[:2]), device_ids=[0]), [gpus[:2]])
        with pytest.raises(ValueError, match=r"only work with .* output_device is 1, and param"):
            par.run_ranks(lambda: DDP(InTwoParts(*gpus[:2]), output_device=1), [gpus[:2]])
        with pytest.raises(ValueError, match="the same type of devices, but its parameters are on"):
            par.run_ranks(lambda: DDP(InTwoParts(gpus[0], "cpu")), [gpus[:2]])


# --- none -----------------------------------------------------------------------------------------


def test_ranks_without_devices_equal_one_process():
    def on_rank():
        dist.init_process_group("gloo")
        assert dist.get_backend() == "gloo"
        place = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
        assert place == [str(dist.get_rank())] * 2 + ["4"]
        found = [None] * 4
        dist.all_gather_object(found, dist.get_rank())
        dist.barrier()
        assert found == [0, 1, 2, 3]
        return train(DDP(InTwoParts()), batch().chunk(4)[dist.get_rank()])

    expected = train(InTwoParts(), batch())
    for found in par.run_ranks(on_rank, 4):
        assert_close(found, expected)


def test_futures_and_sends_of_the_host():
    def on_rank():
        work = dist.all_reduce(torch.ones(2), async_op=True)
        halved = work.get_future().then(lambda future: future.value()[0] / 2).wait()
        other = 1 - dist.get_rank()
        come = torch.zeros(1)
        sent = dist.isend(torch.full((1,), 5.0 + dist.get_rank()), other)
        dist.recv(come, other)
        sent.wait()
        return halved.tolist(), come.item()

    assert par.run_ranks(on_rank, 2) == [([1.0, 1.0], 6.0), ([1.0, 1.0], 5.0)]


@pytest.mark.parametrize("how", ["collect_all", "wait_all"])
def test_who_waits_for_several_futures_waits_for_their_collectives(gpus, how):
    def on_rank():
        big = [torch.ones(1 << 20, device="vgpu") for _ in range(2)]
        futures = [dist.all_reduce(x, async_op=True).get_future() for x in big]
        if how == "collect_all":
            torch.futures.collect_all(futures).wait()
        else:
            torch.futures.wait_all(futures)
        return [(x + 1).sum().item() for x in big]

    with warnings.catch_warnings():
        warnings.simplefilter("error", HazardWarning)
        assert par.run_ranks(on_rank, gpus[:2]) == [[3.0 * (1 << 20)] * 2] * 2


def test_mistakes_without_devices(gpus):
    with pytest.raises(
        ValueError, match="run_ranks starts a thread for each rank, 1 to 4096 at most, not 0"
    ):
        par.run_ranks(dist.barrier, 0)
    with pytest.raises(RuntimeError, match=r"works on the host, .* on vgpu:1: it has no GPU"):
        par.run_ranks(lambda: dist.all_reduce(torch.ones(1, device=gpus[1])), 2)


# --- d2lpar run -----------------------------------------------------------------------------------


@pytest.fixture
def run():
    return running.run


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", 0, "--nproc-per-node", 3, PROGRAMS / "gloo_only.py"),
        ("--gpus", 0, PROGRAMS / "gloo_only.py", "spawn"),
    ],
)
def test_a_program_over_gloo_that_touches_no_gpu(run, words):
    found = run(*words)
    assert found.err == ""
    assert found.status == 0
    assert found.lines[:3] == [f"{rank} of 3 on cpu: 6.0 1.0 gloo" for rank in range(3)]


def test_a_program_whose_ranks_have_two_gpus_each(run):
    found = run("--gpus", 4, "--nproc-per-node", 2, PROGRAMS / "ddp_two_gpus_each.py")
    assert found.err == ""
    ranks = [line.split() for line in found.lines[:2]]
    assert [words[:3] for words in ranks] == [["0", "cuda:0", "cuda:1"], ["1", "cuda:2", "cuda:3"]]
    assert ranks[0][3] == ranks[1][3]


def test_two_ranks_on_one_gpu_are_told(run, tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1, device='cuda:0'))\n"
    )
    found = run("--nproc-per-node", 2, script)
    assert found.status == 1
    assert "ranks 0 and 1 both exchange tensors of cuda:0 (NCCL: Duplicate GPU" in found.err


def test_rpc_is_refused_with_what_to_do_instead(gpus):
    from torch.distributed import rpc

    with pytest.raises(NotImplementedError, match=r"no agents of .*rpc: .* torchrun"):
        par.run_ranks(lambda: rpc.init_rpc("worker", rank=dist.get_rank(), world_size=2), gpus[:2])


def test_without_a_group_ddp_of_a_module_on_a_gpu_says_how_to_make_one(tmp_path):
    with par.emulate_cuda(2, verbose=False):
        with pytest.raises(NotImplementedError, match=r"Start ranks, with .*run_ranks"):
            DDP(nn.Linear(2, 1).cuda())
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        for device in ("cpu", "cuda"):
            net = DDP(nn.Linear(2, 1).to(device))
            net(torch.ones(1, 2, device=device)).sum().backward()
            assert_close(net.module.weight.grad.cpu(), torch.ones(1, 2))


def test_without_virtual_gpus_optimizers_of_the_host_work():
    code = (
        "import torch, d2lpar as par\n"
        "with par.simulate('8x-v100-pcie', 1): pass\n"
        "assert torch.accelerator.current_accelerator(check_available=True) is None\n"
        "p = torch.nn.Parameter(torch.ones(1)); p.grad = torch.ones(1)\n"
        "torch.optim.Adam([p]).step()\n"
    )
    run = warm_process.run(code)
    assert run.returncode == 0, run.stderr
