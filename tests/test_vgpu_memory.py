"""What tensors occupy on each virtual device."""

import contextlib
import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar import machines

GRANULE = 512


def held(device=0):
    return torch.vgpu.memory_allocated(device)


def rounded(nbytes):
    return -(-nbytes // GRANULE) * GRANULE


@pytest.fixture
def small():
    """Two devices that hold 100,000 bytes each."""
    par.devices(1, kind="virtual", verbose=False)
    textbook = machines.machine("2x-v100-textbook")
    tiny = replace(textbook.accelerators[0], memory_bytes=100_000)
    machine = replace(textbook, name="tiny", accelerators=(tiny, tiny))
    with par.simulate(machine, with_values=True) as devices:
        yield devices


def test_tensors_count_where_they_are_and_while_they_live(fresh_gpus):
    assert [held(i) for i in range(4)] == [0] * 4
    a = torch.empty(1000, device="vgpu:1")
    b = torch.ones(3, device="vgpu:1", dtype=torch.int8)
    assert [held(i) for i in range(4)] == [0, rounded(4000) + GRANULE, 0, 0]
    del a
    assert held(1) == GRANULE
    c = b.to("vgpu:2")
    del b
    assert (held(1), held(2)) == (0, GRANULE)
    assert torch.vgpu.max_memory_allocated(1) == rounded(4000) + GRANULE
    torch.vgpu.reset_peak_memory_stats(1)
    assert torch.vgpu.max_memory_allocated(1) == 0
    free, total = torch.vgpu.mem_get_info(2)
    assert total - free == GRANULE
    assert torch.accelerator.memory_allocated(2) == GRANULE
    del c


def test_views_and_writing_in_place_add_nothing(fresh_gpus):
    a = torch.ones(1000, device="vgpu:0")
    alone, peak = held(), torch.vgpu.max_memory_allocated()
    views = [a.view(10, 100), a[5:], a.detach(), a.expand(7, 1000), a.reshape(20, 50).t(), a.data]
    a += 1
    a.mul_(2).clamp_(0, 1)
    a[::2] = 5.0
    a.unsqueeze_(0).t_()
    assert held() == alone
    assert torch.vgpu.max_memory_allocated() - peak <= 2 * GRANULE  # the scalar 5.0
    del a
    assert held() == alone  # the views hold on to it
    del views
    assert held() == 0


def test_a_backward_pass_frees_what_it_saved(fresh_gpus):
    net = nn.Linear(100, 100, bias=False).to("vgpu:0")
    weight = rounded(100 * 100 * 4)
    assert held() == weight
    loss = net(torch.ones(50, 100, device="vgpu:0")).tanh().sum()
    assert held() > weight
    loss.backward()
    del loss
    gc.collect()
    assert held() == 2 * weight  # and its gradient
    net.zero_grad()
    assert held() == weight
    net.cpu()
    assert held() == 0


def test_the_peak_is_what_was_held_at_once(fresh_gpus):
    a = torch.ones(10_000, device="vgpu:0")
    b = a + 1
    c = b * b
    del b
    assert held() == 2 * rounded(40_000)
    assert torch.vgpu.max_memory_allocated() == 3 * rounded(40_000)
    del a, c


def test_sparse_tensors_count_their_parts(fresh_gpus):
    dense = torch.zeros(1000, 100, device="vgpu:0")
    dense[3, 4] = 1
    with_dense = held()
    sparse = dense.to_sparse()
    assert sparse._nnz() == 1
    assert held() - with_dense <= 3 * GRANULE


def test_shapes_without_values_are_counted_too(fresh_gpus):
    with par.shape_only():
        a = torch.empty(10**9, device="vgpu:0")
        b = a[5:]
        assert held() == rounded(4 * 10**9)
    del a, b
    assert held() == 0


def test_running_out_says_what_was_asked_what_is_free_and_what_there_is(small):
    a = torch.zeros(10_000, device=small[0])
    with pytest.raises(torch.vgpu.OutOfMemoryError) as error:
        torch.zeros(20_000, device=small[0])
    message = str(error.value)
    assert "vgpu:0 is out of memory" in message
    assert "Tried to allocate 80.38 kB" in message
    assert "59.55 kB of 100.00 kB are free" in message
    assert held() == rounded(40_000)
    a += 1
    assert a.sum().item() == 10_000
    torch.zeros(20_000, device=small[1])
    del a
    assert torch.zeros(20_000, device=small[0]).sum().item() == 0


def test_running_out_in_a_training_step_leaves_all_usable(small):
    net = nn.Sequential(nn.Linear(50, 100), nn.Tanh(), nn.Linear(100, 1)).to(small[0])
    before = held()

    def step(n):
        net(torch.ones(n, 50, device=small[0])).sum().backward()

    for forward_only in (10_000, 100):  # the second fails in the backward pass or not at all
        with contextlib.suppress(torch.vgpu.OutOfMemoryError):
            step(forward_only)
    with pytest.raises(torch.vgpu.OutOfMemoryError):
        step(10_000)
    net.zero_grad()
    gc.collect()
    assert held() == before
    step(10)
    assert net[0].weight.grad.shape == (100, 50)


def test_running_out_in_the_backward_pass(small):
    x = torch.ones(2_500, device=small[0], requires_grad=True)  # 10 kB, its powers as much each
    y = x
    for _ in range(7):
        y = y * y
    loss = y.sum()
    with pytest.raises(torch.vgpu.OutOfMemoryError):
        loss.backward()
    del y, loss
    x.grad = None
    gc.collect()
    (x * x).sum().backward()
    assert x.grad.sum().item() == 5_000


def test_it_is_raised_for_copies_and_replicas_too(small):
    host = torch.zeros(30_000)
    with pytest.raises(torch.vgpu.OutOfMemoryError, match="vgpu:1"):
        host.to(small[1])
    net = nn.Linear(150, 150, bias=False).to(small[0])
    keep = torch.zeros(5_000, device=small[1])
    with pytest.raises(torch.vgpu.OutOfMemoryError, match="vgpu:1"):
        nn.DataParallel(net)(torch.ones(4, 150))
    del keep
    assert nn.DataParallel(net)(torch.ones(4, 150)).shape == (4, 150)
