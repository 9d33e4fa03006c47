"""torch's trackers of memory and estimator of times, on virtual GPUs: what the allocator counts.

They are in `torch.distributed._tools`; torchtitan and others use them to plan memory.
"""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed.fsdp import fully_shard

import d2lpar as par

WIDTH, BATCH = 64, 16


def net():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def two_steps(model, optimizer, X, tracker):
    """The peak of two steps, by device."""
    with tracker:
        for _ in range(2):
            loss = model(X).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
    return {str(device): kinds["Total"] for device, kinds in peaks(tracker).items()}


def peaks(tracker):
    return tracker.get_tracker_snapshot("peak")


def test_a_tracker_of_memory_finds_the_allocator_s_peak():
    with par.emulate_cuda(1, verbose=False):
        before = torch.cuda.memory_allocated()
        model = net().cuda()
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        X = torch.randn(BATCH, WIDTH, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        tracker = MemTracker()
        tracker.track_external(model, optimizer, X)
        found = two_steps(model, optimizer, X, tracker)
        assert found["cuda:0"] == torch.cuda.max_memory_allocated() - before
        kinds = {str(kind): size for kind, size in peaks(tracker)[X.device].items()}
    parameters = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())  # as memory is given
    assert kinds["_MemRefType.PARAM"] == parameters
    assert kinds["_MemRefType.OPT"] >= 2 * parameters


def test_it_sees_what_a_storage_gives_back():
    with par.emulate_cuda(1, verbose=False), MemTracker() as tracker:
        x = torch.ones(1024, device="cuda")
        seen = []
        for size in (4096, 0, 8192):
            x.untyped_storage().resize_(size)
            snapshot = tracker.get_tracker_snapshot()
            seen.append(snapshot.get(x.device, {"Total": 0})["Total"])
    assert seen == [4096, 0, 8192]


def of_rank():
    device = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_allocated()
    model = net().to(device)
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    X = torch.randn(BATCH, WIDTH, device=device)
    torch.cuda.reset_peak_memory_stats()
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((X,))
    found = two_steps(model, optimizer, X, tracker)
    return str(device), found, torch.cuda.max_memory_allocated() - before


def test_a_tracker_of_fsdp_finds_the_peak_of_its_rank_alone():
    """Ranks are threads here: what a tracker replaces, and its hooks, must be a rank's own."""
    gc.collect()  # what earlier tests have left would go meanwhile
    with par.emulate_cuda(2, "8x-v100-pcie", verbose=False) as gpus:
        for device, found, peak in par.run_ranks(of_rank, gpus):
            on_host = found.pop("cpu")
            assert found == {device: peak}
            assert on_host < 100  # the optimizer's numbers of steps


def test_hooks_of_all_modules_are_a_rank_s_own():
    calls = []

    def look():
        rank = torch.cuda.current_device()
        hook = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(rank))
        torch.distributed.barrier()
        nn.Identity()(torch.ones(1))
        torch.distributed.barrier()
        hook.remove()

    with par.emulate_cuda(2, "8x-v100-pcie", verbose=False) as gpus:
        par.run_ranks(look, gpus)
    assert sorted(calls) == [0, 1]


def estimated(estimator, mode):
    with FakeTensorMode(), torch.device("cuda"):
        model, X = nn.Linear(1024, 1024), torch.randn(1024, 1024)
        with estimator(mode):
            model(X)
    return estimator.total_runtime


def test_an_estimator_may_have_a_datasheet():
    try:
        estimator = RuntimeEstimator("NVIDIA H100")
    except TypeError:
        pytest.skip("this torch has estimators of the current device only")
    with par.emulate_cuda(1, verbose=False):
        assert estimated(estimator, "operator-level-cost-model") > 0


# --- collectives --------------------------------------------------------------------------------


def test_collectives_are_counted_by_the_names_of_torch_s_operators():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    def counts():
        device = torch.device("vgpu", torch.vgpu.current_device())
        mesh = init_device_mesh("vgpu", (2,))
        rows = distribute_tensor(torch.ones(4, 4, device=device), mesh, [Shard(0)])
        x, parts = torch.ones(2, device=device), torch.ones(4, device=device)
        with CommDebugMode() as mode:
            rows.redistribute(mesh, [Replicate()]).to_local()
            for _ in range(3):
                dist.all_reduce(x)
            dist.broadcast(x, 0)
            dist.all_gather_into_tensor(parts, x)
            dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
            dist.reduce_scatter_tensor(x, parts)
            dist.all_to_all_single(parts, parts.clone())
        dist.all_reduce(x)
        return {str(name): count for name, count in mode.get_comm_counts().items()}

    found, other = par.run_ranks(counts, par.devices(2, verbose=False))
    assert found == other
    assert found == {
        "c10d_functional.all_gather_into_tensor": 1,
        "c10d.allreduce_": 3,
        "c10d.broadcast_": 1,
        "c10d._allgather_base_": 1,
        "c10d.allgather_": 1,
        "c10d._reduce_scatter_base_": 1,
        "c10d.alltoall_base_": 1,
    }
