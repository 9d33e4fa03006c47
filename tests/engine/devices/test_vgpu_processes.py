"""Virtual GPUs and several processes: a forked one has none, a spawned one its own."""

from __future__ import annotations

import gc
import os
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import d2lpar as par

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
FORKED = r"Cannot re-initialize virtual GPUs \(vgpu\) in forked subprocess\. .* 'spawn'"


class Items(Dataset):
    """What `make(i)` returns, in whichever process it is asked."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return self.make(i)


@pytest.fixture
def workers_that_end_soon(monkeypatch):
    """After an error torch's loader tells its workers nothing, and ends them when 5 s are over."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()  # the loader is in a cycle with its error


def loaded(make, method="fork"):
    return list(DataLoader(Items(make), num_workers=1, multiprocessing_context=method))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.ones(2, device=x.device),
        lambda x: torch.ones(2).to("vgpu"),
        lambda x: x,
        lambda x: (x + 1).cpu(),
        lambda x: torch.tensor(x.tolist()),
        lambda x: par.devices(1, kind="virtual", verbose=False),
        lambda x: par.simulate("2x-v100-textbook").__enter__(),
    ],
    ids=["factory", "to", "parent's", "arithmetic", "tolist", "devices", "simulate"],
)
@pytest.mark.usefixtures("workers_that_end_soon")
def test_forked_workers_are_told_of_spawn(gpus, make):
    x = torch.ones(2, device=gpus[0])
    with pytest.raises(RuntimeError, match=FORKED):
        loaded(lambda i: make(x))


def test_forked_workers_compute_on_the_cpu(gpus):
    def make(i):
        w = torch.ones(2) * i
        assert not torch.vgpu.is_available()
        assert not w.is_pinned()
        assert par.clock_name() == "measured"
        torch.manual_seed(i)
        return w + torch.rand(1) * 0

    assert torch.equal(torch.cat(loaded(make)), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert torch.ones(2, device=gpus[0]).sum().item() == 2  # the parent goes on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_process_without_virtual_gpus_may_start_its_own():
    code = """
import os, d2lpar as par, torch
child = os.fork()
if child == 0:
    device, = par.devices(1, kind="virtual", verbose=False)
    os._exit(int(torch.ones(7, device=device).sum().item()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    from test_devices import run

    assert run(code, D2LPAR_BACKING="cpu") == ["7"]


def on_its_own_device(i):
    (device,) = par.devices(1, kind="virtual", verbose=False)
    x = torch.ones(2, device=device) * i
    return x.cpu() if i == 0 else x


@pytest.mark.slow
def test_a_spawned_worker_has_its_own_and_cannot_share_them(gpus):
    loader = iter(
        DataLoader(Items(on_its_own_device), num_workers=1, multiprocessing_context="spawn")
    )
    assert torch.equal(next(loader), torch.zeros(1, 2))
    with pytest.raises(NotImplementedError, match=r"let the dataset return CPU tensors"):
        next(loader)


def test_what_is_sent_to_another_process_is_on_the_host(gpus):
    for tensor in (torch.ones(2, device=gpus[1]), nn.Parameter(torch.ones(2, device=gpus[1]))):
        with pytest.raises(ValueError, match=r"on vgpu:1 cannot be sent .* send tensor.cpu\(\)"):
            ForkingPickler.dumps(tensor)
        host = ForkingPickler.loads(ForkingPickler.dumps(tensor.detach().cpu()))
        assert host.is_shared()
        assert host.tolist() == [1, 1]


def test_storages_that_would_crash_are_refused(gpus):
    with pytest.raises(NotImplementedError, match="memory of vgpu:1 cannot be shared"):
        torch.ones(2, device=gpus[1])._typed_storage()._new_shared(2, device=gpus[1])
    assert torch.UntypedStorage(2).nbytes() == torch.UntypedStorage._new_shared(2).nbytes() == 2
