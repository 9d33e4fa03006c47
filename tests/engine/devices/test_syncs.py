"""The sync detector: which calls make the host wait, where and for how long."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.races.call_sites import CallSite
from d2lpar.vgpu.races.sync_debug import SyncTotal, Wait, Waits

GPU = "vgpu:0"


def vgpu():
    return torch.get_device_module("vgpu")


CALLS = {
    "item": lambda a: a.sum().item(),
    "float": lambda a: float(a[0]),
    "if": lambda a: bool(a[0] > 0),
    "cpu": lambda a: a.cpu(),
    "tolist": lambda a: a.tolist(),
    "numpy": lambda a: a.numpy(force=True),
    "print": repr,
    "format": lambda a: f"{a[0]:.3f}",
    "nonzero": lambda a: a.nonzero(),
    "mask": lambda a: a[a > 0],
    "unique": lambda a: a.unique(),
    "copy_": lambda a: torch.zeros(4).copy_(a, non_blocking=True),
    "to": lambda a: torch.ones(4).to(GPU),
    "equal": lambda a: torch.equal(a, a),
    "synchronize": lambda a: vgpu().synchronize(),
    "stream": lambda a: vgpu().current_stream().synchronize(),
    "event": lambda a: vgpu().current_stream().record_event().synchronize(),
    "accelerator": lambda a: torch.accelerator.synchronize(),
}
NAMES = {
    "tolist": "tolist",
    "numpy": "numpy",
    "print": "print",
    "item": "item",
    "if": "item",
    "cpu": "copy vgpu:0 to host",
    "to": "copy host to vgpu:0",
    "nonzero": "nonzero",
    "mask": "index",
}


@pytest.mark.parametrize("how", CALLS)
def test_calls_that_wait_are_listed_with_their_place(fresh_gpus, how):
    a = torch.ones(4, device=GPU)
    with par.syncs() as waits:
        CALLS[how](a)
    assert waits
    assert {wait.device for wait in waits} == {GPU}
    assert {wait.place.file for wait in waits} == {__file__}
    assert all(f'"{how}": ' in w.place.source or w.place.source.startswith("CALLS") for w in waits)
    if how in NAMES:
        assert [wait.call for wait in waits] == [NAMES[how]]
    assert waits.seconds > 0


# Through the class, as `map` calls them.
def test_calls_that_do_not_wait_are_not(fresh_gpus):
    a, pinned = torch.ones(4, device=GPU), torch.ones(4).pin_memory()
    with par.syncs() as waits:
        b = a + 1
        b.to("vgpu:1")
        a[0] = 3.0
        pinned.to(GPU, non_blocking=True)
        kept = a.to("cpu", non_blocking=True)
        side = vgpu().Stream(GPU)
        side.wait_stream(vgpu().current_stream())
        vgpu().current_stream().query()
        nn.functional.cross_entropy(a.view(1, 4), torch.zeros(1, dtype=torch.long, device=GPU))
    assert not waits
    assert kept.is_pinned()


def test_seconds_are_those_of_the_clock():
    """A kernel of 5 s, queued in 1 s: waiting for it takes 5 s, waiting again none."""
    par.devices(1, kind="virtual", verbose=False)
    gpu = machines.Accelerator("toy", {"float32": 1.0}, 1.0, 10**6, kernel_latency_s=5.0)
    host = machines.Host("toy", dispatch_s=1.0, view_s=0.0)
    toy = replace(
        machines.machine(), name="toy", accelerators=(gpu,), host=host, peer=None, notes=""
    )
    with par.simulate(toy):
        a = torch.empty(0, device=GPU)
        with par.syncs() as waits:
            a + 1
            vgpu().synchronize()
            vgpu().synchronize()
        assert [wait.seconds for wait in waits] == [5.0, 0.0]
        with par.record() as timeline, par.syncs() as waits:
            a + 1
            par.host_work(2.0, "something else")
            vgpu().current_stream().synchronize()
        assert waits[0].seconds == 3.0 == timeline.on("host", "wait").duration_s


def test_a_wait_on_another_stream_and_for_an_event(fresh_gpus):
    side, big = vgpu().Stream("vgpu:1"), torch.ones(1000, 1000, device="vgpu:1")
    vgpu().synchronize("vgpu:1")
    with vgpu().stream(side):
        big @ big
        done = side.record_event()
    with par.syncs() as waits:
        done.synchronize()
        side.synchronize()
    assert [(w.call, w.device) for w in waits] == [
        ("synchronize event", "vgpu:1"),
        ("synchronize stream", "vgpu:1"),
    ]
    assert waits[0].seconds > 0 == waits[1].seconds


def test_an_event_that_was_never_recorded_waits_for_nothing(fresh_gpus):
    with par.syncs() as waits:
        vgpu().Event().synchronize()
    assert not waits


def test_waits_are_added_up_by_place(fresh_gpus):
    a = torch.ones(4, device=GPU)
    with par.syncs() as waits:
        for _ in range(3):
            a.add_(1).sum().item()
        line = inspect.currentframe().f_lineno - 1
        a.cpu()
    totals = {total.place.line: total for total in waits.by_place()}
    assert totals[line].count == 3
    assert totals[line].seconds == pytest.approx(sum(w.seconds for w in waits if w.call == "item"))
    first, second = str(waits).splitlines()[1:]
    assert "a.add_(1).sum().item()" in first + second
    assert f"test_syncs.py:{line}" in first + second


def test_the_table():
    places = [CallSite("train.py", 3), CallSite("train.py", 12)]
    waits = Waits(
        [
            Wait("item", places[0], 0.001, "vgpu:0"),
            Wait("item", places[1], 0.5, "vgpu:0"),
            Wait("item", places[0], 0.002, "vgpu:1"),
        ]
    )
    assert waits.by_place() == [
        SyncTotal(places[1], "item", 1, 0.5),
        SyncTotal(places[0], "item", 2, 0.003),
    ]
    assert str(waits).splitlines() == [
        "waited      times  call  place        code",
        "500.000 ms  1      item  train.py:12",
        "3.000 ms    2      item  train.py:3",
    ]
    assert str(Waits()) == "the host waited for no device"


def test_nested_blocks_both_listen(fresh_gpus):
    a = torch.ones(4, device=GPU)
    with par.syncs() as outer:
        a.sum().item()
        with par.syncs() as inner:
            a.sum().item()
    a.sum().item()
    assert (len(outer), len(inner)) == (2, 1)


def test_replicas_are_listened_to(fresh_gpus):
    class Net(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    with par.syncs() as waits:
        nn.DataParallel(Net(), [0, 1])(torch.ones(4, 2))
    items = [wait for wait in waits if wait.call == "item"]
    assert [wait.device for wait in items] == ["vgpu:0", "vgpu:1"]
    assert {wait.place.source for wait in items} == {"return x * x.sum().item()"}


def test_cuda_launch_blocking_lets_the_host_wait_for_each_kernel(monkeypatch):
    def waited_s(blocking=None):
        with par.simulate("1x-h100-nvswitch") as gpus:
            if blocking is not None:  # as programs set it, before their first kernel
                monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
            a = torch.ones(4096, 4096, device=gpus[0])
            with par.syncs() as waits:
                a @ a
                a @ a
            return [wait.seconds for wait in waits]

    assert waited_s() == []
    first_s, second_s = waited_s("1")
    assert first_s == pytest.approx(second_s, rel=0.1)
