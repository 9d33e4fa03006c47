"""Streams, events, and copies between the host and virtual devices, in page-locked memory or not.

The times of the toy machine are worked out by hand: queuing takes 1 s, a kernel as many seconds as
it reads and writes bytes, a copy to or from the host 2 s and 1 s a byte.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import d2lpar as par
from d2lpar import machines
from d2lpar.machines import Accelerator, Host, Link
from d2lpar.vgpu.api.timing import now_s
from d2lpar.vgpu.sim.constants import MEMORY_EFFICIENCY, PAGE_LOCK_BYTES_PER_S, PAGEABLE_BYTES_PER_S

GPU = "vgpu:0"
MB = 10**6


def vgpu():
    return torch.get_device_module("vgpu")


@pytest.fixture
def toy():
    par.devices(1, kind="virtual", verbose=False)
    gpu = Accelerator("toy", {"float32": 1.0}, 1 / MEMORY_EFFICIENCY, 10**9, kernel_latency_s=0.0)
    machine = replace(
        machines.machine(),
        name="toy",
        accelerators=(gpu,),
        host=Host("toy", dispatch_s=1.0, view_s=0.0),
        host_link=Link("bus", 2.0, 1.0),
        peer=None,
    )
    with par.simulate(machine, with_values=True):
        yield


def host_s(work):
    """Seconds for which the host is busy with `work`; what it has queued may go on."""
    vgpu().synchronize()
    start_s = now_s(wait=False)
    kept = work()
    seconds = now_s(wait=False) - start_s
    del kept
    return seconds


# --- streams --------------------------------------------------------------------------------------


def test_stream_is_a_context_manager_and_none_changes_nothing(fresh_gpus):
    main, side = vgpu().current_stream("vgpu:1"), vgpu().Stream("vgpu:1")
    with vgpu().stream(side):
        assert vgpu().current_stream() == side
        assert vgpu().current_device() == 1
        with vgpu().stream(None):
            assert vgpu().current_stream() == side
        with vgpu().StreamContext(main):
            assert vgpu().current_stream() == main
        assert torch.accelerator.current_stream() == side
    assert vgpu().current_stream("vgpu:1") == main
    assert vgpu().current_device() == 0


def test_streams_come_from_a_pool_as_in_torch(fresh_gpus):
    made = [vgpu().Stream(GPU) for _ in range(33)]
    assert len(set(made)) == 32
    assert made[32] == made[0]
    assert vgpu().default_stream(GPU) not in made
    assert vgpu().Stream(GPU, priority=-1) not in made


def test_priorities_are_cut_to_their_range(fresh_gpus):
    lowest, highest = vgpu().Stream.priority_range()
    assert lowest > highest
    assert vgpu().Stream(GPU).priority == lowest
    assert vgpu().Stream(GPU, priority=highest - 5).priority == highest
    assert vgpu().Stream(GPU, priority=3).priority == lowest
    assert torch.Stream(device=GPU, priority=-1).priority == -1


@pytest.mark.parametrize(
    ("priority", "order"), [(0, ["first", "second"]), (-1, ["second", "first"])]
)
def test_of_two_kernels_that_wait_the_one_of_higher_priority_begins(toy, priority, order):
    x = torch.ones(25, device=GPU, dtype=torch.uint8)
    streams = {"first": vgpu().Stream(GPU), "second": vgpu().Stream(GPU, priority=priority)}
    vgpu().synchronize()
    with par.record() as timeline:
        x.fill_(1)  # from 1 s on, for 25 s: the two are queued meanwhile
        for stream in streams.values():
            with vgpu().stream(stream):
                torch.empty(2, device=GPU, dtype=torch.uint8).fill_(1)
    spans = sorted(timeline.on(GPU, "compute"), key=lambda span: span.start_s)
    assert [span.stream for span in spans] == [0, *(streams[name].stream_id for name in order)]
    assert [span.end_s - spans[0].start_s for span in spans] == pytest.approx([25, 27, 29])


def test_events_can_be_made_for_a_device_and_do_not_cross_processes(fresh_gpus):
    event = torch.Event(device="vgpu:1", enable_timing=True)
    assert event.query()
    event.record(vgpu().default_stream("vgpu:1"))
    assert event.device == torch.device("vgpu:1")
    with pytest.raises(NotImplementedError, match="between processes"):
        vgpu().Event(interprocess=True)


# --- page-locked memory ---------------------------------------------------------------------------


def test_locking_pages_takes_the_host_time_for_blocks_of_powers_of_two(toy):
    x = torch.ones(3 * MB // 4)
    lock_s, copy_s = 2**22 / PAGE_LOCK_BYTES_PER_S, 3 * MB / PAGEABLE_BYTES_PER_S
    assert host_s(lambda: x.pin_memory()) == pytest.approx(lock_s + copy_s)
    pinned = x.pin_memory()
    assert host_s(lambda: pinned.pin_memory()) == 0
    assert host_s(lambda: pinned[5:].pin_memory()) == 0


def make_pinned(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def test_freed_blocks_are_used_again_for_nothing(toy):
    assert host_s(lambda: make_pinned(3000)) == pytest.approx(4096 / PAGE_LOCK_BYTES_PER_S)
    assert host_s(lambda: make_pinned(4096)) == 0  # the block of the first
    assert host_s(lambda: make_pinned(5000)) > 0
    held = make_pinned(4000)
    assert host_s(lambda: make_pinned(4000)) > 0
    del held
    assert host_s(lambda: make_pinned(4000)) == 0


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "empty_host_cache"),
    reason="this torch has no torch.accelerator.empty_host_cache",
)
def test_freed_blocks_can_be_given_back(toy):
    make_pinned(4000)
    assert host_s(lambda: make_pinned(4000)) == 0
    torch.accelerator.empty_host_cache()
    assert host_s(lambda: make_pinned(4000)) == pytest.approx(4096 / PAGE_LOCK_BYTES_PER_S)


def test_a_block_is_not_used_again_before_its_copy_is_done(toy):
    lock_s = 4096 / PAGE_LOCK_BYTES_PER_S
    source = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    vgpu().synchronize()

    def send(tensor):
        tensor.to(GPU, non_blocking=True)

    send(source)  # 1 s to queue, then 2 + 4096 s
    del source
    started_s = now_s(wait=False)
    another = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    assert now_s(wait=False) - started_s == pytest.approx(lock_s)
    vgpu().synchronize()
    started_s = now_s(wait=False)
    reused = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
    assert now_s(wait=False) == started_s
    del another, reused


def test_non_blocking_copies_to_the_cpu_make_pinned_results_at_a_price(toy):
    x = torch.ones(10, device=GPU)
    lock_s = 4096 / PAGE_LOCK_BYTES_PER_S

    def copy():
        result = x.to("cpu", non_blocking=True)
        assert result.is_pinned()
        return result

    assert host_s(copy) == pytest.approx(1 + lock_s)
    vgpu().synchronize()
    assert host_s(copy) == pytest.approx(1)  # in the block of the first


def test_blocking_copies_wait(toy):
    x, pinned, nbytes = torch.ones(10, device=GPU), torch.ones(10).pin_memory(), 40
    wire_s = 1 + 2 + nbytes  # queued, latency, bytes
    through_buffer_s, fresh_s = nbytes / PAGEABLE_BYTES_PER_S, nbytes / PAGE_LOCK_BYTES_PER_S
    assert host_s(lambda: pinned.to(GPU)) == pytest.approx(wire_s, rel=1e-15)
    assert host_s(lambda: pinned.copy_(x)) == pytest.approx(wire_s, rel=1e-15)
    pageable = torch.ones(10)
    exactly = {"rel": 1e-12, "abs": 0}
    for work, more_s in (
        (lambda: x.cpu(), through_buffer_s + fresh_s),
        (lambda: pageable.copy_(x), through_buffer_s),
        (lambda: pageable.copy_(x, non_blocking=True), through_buffer_s),
        (lambda: pageable.to(GPU), through_buffer_s),
    ):
        assert host_s(work) - wire_s == pytest.approx(more_s, rel=1e-3)
        assert host_s(work) == pytest.approx(wire_s + more_s, **exactly)


def test_small_copies_from_pageable_memory_go_with_their_command(toy):
    """Up to 64 KiB; the host has read the memory when the call returns."""
    small, large = torch.ones(16_384), torch.ones(16_385)
    assert host_s(lambda: small.to(GPU, non_blocking=True)) == pytest.approx(
        1 + small.nbytes / PAGEABLE_BYTES_PER_S
    )
    vgpu().synchronize()
    assert host_s(lambda: large.to(GPU, non_blocking=True)) > large.nbytes
    arrived = small.to(GPU, non_blocking=True)
    small.zero_()  # no hazard: what was sent is the ones
    assert arrived.sum().item() == 16_384


def test_pinned_copies_overlap_with_the_host_and_kernels(toy):
    pinned, x = torch.ones(10).pin_memory(), torch.ones(50, device=GPU, dtype=torch.uint8)
    side = vgpu().Stream(GPU)
    vgpu().synchronize()
    with par.record() as timeline:
        x.fill_(2)  # queued at 1, done at 51
        with vgpu().stream(side):
            arrived = pinned.to(GPU, non_blocking=True)  # queued at 2, done at 44
    start_s = timeline.start_s
    copy, fill = timeline.on(GPU, "copy"), timeline.on(GPU, "compute")
    assert (copy.start_s - start_s, copy.end_s - start_s) == pytest.approx((2, 44))
    assert (fill.start_s - start_s, fill.end_s - start_s) == pytest.approx((1, 51))
    vgpu().current_stream().wait_stream(side)
    arrived.record_stream(vgpu().current_stream())
    assert arrived.sum().item() == 10


FACTORIES = {
    "empty": lambda **o: torch.empty(3, **o),
    "zeros": lambda **o: torch.zeros(3, **o),
    "ones": lambda **o: torch.ones(2, 3, **o),
    "full": lambda **o: torch.full((3,), 2.0, **o),
    "tensor": lambda **o: torch.tensor([1.0, 2.0], **o),
    "arange": lambda **o: torch.arange(5, **o),
    "rand": lambda **o: torch.rand(3, **o),
    "randn": lambda **o: torch.randn(3, **o),
    "randint": lambda **o: torch.randint(9, (3,), **o),
    "randperm": lambda **o: torch.randperm(9, **o),
    "eye": lambda **o: torch.eye(3, **o),
    "linspace": lambda **o: torch.linspace(0, 1, 3, **o),
    "empty_strided": lambda **o: torch.empty_strided((2, 3), (3, 1), **o),
    "zeros_like": lambda **o: torch.zeros_like(torch.ones(3), **o),
    "empty_like": lambda **o: torch.empty_like(torch.ones(3), **o),
    "new_zeros": lambda **o: torch.ones(3).new_zeros(2, **o),
    "new_tensor": lambda **o: torch.ones(3).new_tensor([1.0], **o),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_pinned_tensors(gpus, name):
    make = FACTORIES[name]
    torch.manual_seed(1)
    plain = make(pin_memory=False)
    torch.manual_seed(1)
    pinned = make(pin_memory=True)
    assert (plain.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.shape == plain.shape
    assert pinned.dtype == plain.dtype
    if "empty" not in name:
        assert torch.equal(pinned, plain)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.zeros(3, device=GPU, pin_memory=True)


def test_factories_are_still_torchs(gpus):
    import pickle

    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
    with torch.device("vgpu:1"):
        assert torch.zeros(2).device == torch.tensor([1.0]).device == torch.device("vgpu:1")
    compiled = torch.compile(lambda x: x + torch.ones(3), backend="eager")
    assert compiled(torch.ones(3)).tolist() == [2.0] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_pins_its_batches(fresh_gpus, workers):
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    loader = DataLoader(data, batch_size=3, pin_memory=True, num_workers=workers)
    batches = list(loader)
    assert all(X.is_pinned() and y.is_pinned() for X, y in batches)
    assert torch.equal(torch.cat([X for X, _ in batches]), data.tensors[0])
    X = batches[0][0].to(GPU, non_blocking=True)
    assert torch.equal(X.cpu(), batches[0][0])


def test_threads_may_pin_at_the_same_time(gpus):
    kept = [torch.ones(1).pin_memory() for _ in range(1000)]

    def pin():
        return [torch.ones(2000).pin_memory().is_pinned() for _ in range(100)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor() as pool:
            pinned = [pool.submit(pin) for _ in range(2)]
            assert all(all(found.result()) for found in pinned)
    finally:
        sys.setswitchinterval(before)
    assert all(tensor.is_pinned() for tensor in kept)


# --- random number generators ---------------------------------------------------------------------


def test_generators_for_virtual_devices(gpus):
    generator = torch.Generator(device="vgpu:1")
    assert generator.device == torch.device("vgpu:1")
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert type(torch.Generator()) is type(torch.default_generator)
    draws = [
        torch.rand(3, device="vgpu:1", generator=g.manual_seed(5)).tolist()
        for g in (generator, generator, torch.Generator(device="vgpu:1"))
    ]
    assert draws[0] == draws[1] == draws[2]
    assert draws[0] == torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()
    with pytest.raises(RuntimeError, match="vgpu:9"):
        torch.Generator(device="vgpu:9")


# --- the textbook's table -------------------------------------------------------------------------


def textbook_s(compute, copy, non_blocking=False):
    """Seconds of 50 products of 4000 x 4000 matrices, and of copying them to the CPU."""
    with par.simulate("2x-v100-textbook") as devices:
        x = torch.empty(4000, 4000, device=devices[0])
        results = [] if compute else [x @ x for _ in range(50)]
        vgpu().synchronize()
        start_s = now_s()
        if compute:
            results = [x @ x for _ in range(50)]
        kept = [y.to("cpu", non_blocking=non_blocking) for y in results] if copy else []
        vgpu().synchronize()
        seconds = now_s() - start_s
    del kept
    return seconds


def test_the_constants_fit_the_rows_that_they_were_fitted_on(gpus):
    assert textbook_s(compute=True, copy=False) == pytest.approx(0.4608, rel=0.01)
    assert textbook_s(compute=False, copy=True) == pytest.approx(2.3504, rel=0.01)
    both_s = textbook_s(compute=True, copy=True, non_blocking=True)
    assert both_s == pytest.approx(1.7703, rel=0.01)
