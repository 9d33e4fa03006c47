"""What tensors occupy on each virtual device."""

import contextlib
import gc
import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.sim import clock
from d2lpar.vgpu.torch_backend.machine import runtime

GRANULE = 512
MIB = 2**20
BLOCK = 2 * MIB  # a segment of small tensors
CONTEXT = round(80 * 3.8 * MIB)  # what CUDA itself takes of a V100


def held(device=0):
    return torch.vgpu.memory_allocated(device)


def rounded(nbytes):
    return -(-nbytes // GRANULE) * GRANULE


@pytest.fixture
def small():
    """Two devices that hold 100 MiB each."""
    par.devices(1, kind="virtual", verbose=False)
    textbook = machines.machine("2x-v100-textbook")
    # Without multiprocessors, so that CUDA itself takes nothing.
    tiny = replace(textbook.accelerators[0], memory_bytes=100 * MIB, multiprocessors=None)
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
    assert total - free == CONTEXT + BLOCK  # the allocator has reserved it
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
    a = torch.zeros(10 * MIB, device=small[0])
    with pytest.raises(torch.vgpu.OutOfMemoryError) as error:
        torch.zeros(15 * MIB + 1, device=small[0])
    message = str(error.value)
    assert "vgpu:0 is out of memory" in message
    assert f"Tried to allocate {62 * MIB / 1e6:.2f} MB" in message  # segments are of 2 MiB
    assert f"{60 * MIB / 1e6:.2f} MB of {100 * MIB / 1e6:.2f} MB are free" in message
    assert held() == 40 * MIB
    a += 1
    assert a.sum().item() == 10 * MIB
    torch.zeros(20 * MIB, device=small[1])
    del a
    assert torch.zeros(20 * MIB, device=small[0]).sum().item() == 0


def test_running_out_in_a_training_step_leaves_all_usable(small):
    net = nn.Sequential(nn.Linear(50, 1000), nn.Tanh(), nn.Linear(1000, 1)).to(small[0])
    before = held()

    def step(n):
        net(torch.ones(n, 50, device=small[0])).sum().backward()

    for forward_only in (20_000, 5_000):  # the second fails in the backward pass or not at all
        with contextlib.suppress(torch.vgpu.OutOfMemoryError):
            step(forward_only)
    with pytest.raises(torch.vgpu.OutOfMemoryError):
        step(20_000)
    net.zero_grad()
    gc.collect()
    assert held() == before
    step(10)
    assert net[0].weight.grad.shape == (1000, 50)


def test_running_out_in_the_backward_pass(small):
    x = torch.ones(3 * MIB, device=small[0], requires_grad=True)  # 12 MiB, as its powers
    y = x
    for _ in range(6):
        y = y * y
    loss = y.sum()
    with pytest.raises(torch.vgpu.OutOfMemoryError):
        loss.backward()
    del y, loss
    x.grad = None
    gc.collect()
    (x * x).sum().backward()
    assert x.grad.sum().item() == 6 * MIB


def test_it_is_raised_for_copies_and_replicas_too(small):
    host = torch.zeros(30 * MIB)
    with pytest.raises(torch.vgpu.OutOfMemoryError, match="vgpu:1"):
        host.to(small[1])
    net = nn.Linear(4096, 4096, bias=False).to(small[0])  # 64 MiB
    keep = torch.zeros(10 * MIB, device=small[1])
    with pytest.raises(torch.vgpu.OutOfMemoryError, match="vgpu:1"):
        nn.DataParallel(net)(torch.ones(4, 4096))
    del keep
    assert nn.DataParallel(net)(torch.ones(4, 4096)).shape == (4, 4096)


# --- what a full device holds ---------------------------------------------------------------------


def refusal(nbytes, device):
    with pytest.raises(torch.vgpu.OutOfMemoryError) as error:
        torch.empty(nbytes, dtype=torch.uint8, device=device)
    return str(error.value)


def test_it_is_an_error_that_cuda_programs_catch(small):
    assert issubclass(torch.vgpu.OutOfMemoryError, torch.OutOfMemoryError)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(10**9, device=small[0])


# Each a result that neither the device nor this machine has memory for.
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x - x.T,
        lambda x: x @ x.T,
        lambda x: torch.outer(x[:, 0], x[:, 0]),
        lambda x: x.repeat(1, len(x)),
        lambda x: x.expand(len(x), len(x)).contiguous(),
        lambda x: torch.empty(len(x), len(x), device=x.device),
        lambda x: torch.eye(len(x), device=x.device),
    ],
)
def test_it_is_raised_before_this_machine_runs_out_of_memory(small, compute):
    x = torch.ones(2_000_000, 1, device=small[0])
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        compute(x)


def test_who_computes_more_values_than_this_machine_holds_is_told_so():
    box = machines.machine("2x-v100-textbook")
    gpu = replace(box.accelerators[0], memory_bytes=10**15)
    with par.simulate(replace(box, accelerators=(gpu,)), 1, with_values=True) as (device,):
        x = torch.ones(2_000_000, 1, device=device)
        for compute in (lambda: x - x.T, lambda: torch.empty(10**13, device=device)):
            with pytest.raises(RuntimeError, match=r"this machine has no memory left.*shapes-only"):
                compute()


def test_a_full_device_tells_what_holds_the_most(small):
    device = small[0]
    assert "holds" not in refusal(10**9, device)
    activations = [torch.zeros(8, 32, 16, device=device) for _ in range(3)]
    line = inspect.currentframe().f_lineno - 1
    scalar = torch.ones((), device=device, dtype=torch.int64)
    message = refusal(10**9, device)
    lines = message.splitlines()
    made = f"made at test_vgpu_memory.py:{line}"
    assert lines[1] == f"  49.15 kB in 3 tensors of 8 × 32 × 16 float32, {made}"
    assert lines[2].startswith("  512 bytes in 1 tensor of one value int64, made at test_vgpu_memo")
    assert len(lines) == 4
    del activations, scalar
    assert "holds" not in refusal(10**9, device)


def test_parameters_gradients_and_other_tensors_are_told_apart(small):
    net = nn.Linear(60, 40, bias=False).to(small[0])
    x = torch.ones(10, 60, device=small[0])
    loss = net(x).tanh().square().sum()
    loss.backward()
    message = refusal(10**9, small[0])
    assert "9.73 kB in 1 parameter of 40 × 60 float32" in message
    assert "9.73 kB in 1 gradient of 40 × 60 float32" in message
    assert "2.56 kB in 1 tensor of 10 × 60 float32" in message


def test_what_autograd_keeps_is_found(small):
    x = torch.ones(1000, device=small[0], requires_grad=True)
    y = x.sin().sin().sin().sum()  # the derivative needs what each sine was taken of
    assert "12.29 kB in 3 tensors of 1000 float32" in refusal(10**9, small[0])
    del y


def test_many_kinds_are_cut_short(small):
    kept = [torch.ones(n, device=small[0]) for n in range(1, 1001, 100)]
    lines = refusal(10**9, small[0]).splitlines()
    assert len(lines) == 1 + 5 + 1 + 1
    assert lines[1].startswith("  4.10 kB in 1 tensor of 901 float32")
    assert lines[6].endswith("in 5 others")
    del kept


# --- the caching allocator ------------------------------------------------------------------------


def test_what_was_freed_stays_reserved_until_the_cache_is_emptied(fresh_gpus):
    a = torch.empty(3 * BLOCK, dtype=torch.uint8, device="vgpu:0")
    b = torch.empty(1000, dtype=torch.uint8, device="vgpu:0")
    assert torch.vgpu.memory_reserved() == 22 * MIB
    assert torch.vgpu.mem_get_info()[0] == int(15.78 * 2**30) - CONTEXT - 22 * MIB
    del a
    assert (held(), torch.vgpu.memory_reserved()) == (1024, 22 * MIB)
    torch.vgpu.empty_cache()
    assert torch.vgpu.memory_reserved() == torch.accelerator.memory_reserved() == BLOCK
    assert torch.vgpu.max_memory_reserved() == 22 * MIB
    torch.vgpu.reset_peak_memory_stats()
    assert torch.vgpu.max_memory_reserved() == BLOCK
    del b


def test_reserved_memory_is_free_for_tensors(small):
    a = torch.zeros(90 * MIB, dtype=torch.uint8, device=small[0])
    del a
    assert torch.vgpu.memory_reserved() == 90 * MIB
    assert torch.zeros(90 * MIB, dtype=torch.uint8, device=small[0]).sum() == 0
    torch.zeros(98 * MIB, dtype=torch.uint8, device=small[0])  # for which it is given back


def test_statistics_count_what_was_given_out(fresh_gpus):
    a = torch.empty(1000, device="vgpu:0")
    b = torch.empty(5, device="vgpu:0")
    del b
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(10**11, dtype=torch.uint8, device="vgpu:0")
    stats = torch.vgpu.memory_stats()
    kilo = rounded(4000)
    of_all = {name: n for name, n in stats.items() if "_pool." not in name and n}
    taken = {"allocated": kilo + GRANULE, "current": kilo, "freed": GRANULE, "peak": kilo + GRANULE}
    counts = {"allocated": 2, "current": 1, "freed": 1, "peak": 2}
    asked = {"allocated": 4020, "current": 4000, "freed": 20, "peak": 4020}
    reserved = {"allocated": BLOCK, "current": BLOCK, "peak": BLOCK}
    segment = dict.fromkeys(reserved, 1)
    # The segment was split for a, its rest for b, which then became one with what is left.
    columns = ("allocated", "current", "peak")
    pieces, split = dict.fromkeys(columns, 1), dict.fromkeys(columns, BLOCK - kilo)
    expected = {"active": counts, "active_bytes": taken, "allocated_bytes": taken}
    expected |= {"allocation": counts, "requested_bytes": asked, "reserved_bytes": reserved}
    expected |= {"segment": segment, "inactive_split": pieces, "inactive_split_bytes": split}
    assert of_all == {
        **{f"{name}.all.{key}": n for name, of in expected.items() for key, n in of.items()},
        "max_split_size": -1,
        "num_alloc_retries": 1,
        "num_device_alloc": 1,
        "num_ooms": 1,
        "num_sync_all_streams": 1,
    }
    assert torch.accelerator.memory_stats() == stats
    summary = torch.vgpu.memory_summary()
    assert "4.10 kB" in summary
    assert "out of memory" in summary
    torch.vgpu.reset_accumulated_memory_stats()
    stats = torch.vgpu.memory_stats()
    assert stats["allocation.all.allocated"] == stats["num_ooms"] == 0
    assert stats["allocated_bytes.all.current"] == kilo
    del a


def of_pool(name, pool):
    stats = torch.vgpu.memory_stats()
    columns = ("current", "peak", "allocated", "freed")
    return tuple(stats[f"{name}.{pool}.{column}"] for column in columns)


def test_each_pool_has_statistics_of_its_own(fresh_gpus):
    large = torch.empty(3 * BLOCK, dtype=torch.uint8, device="vgpu:0")
    small = [torch.empty(1000, dtype=torch.uint8, device="vgpu:0") for _ in range(4)]
    del small[1:], large
    assert of_pool("allocation", "small_pool") == (1, 4, 4, 3)
    assert of_pool("requested_bytes", "small_pool") == (1000, 4000, 4000, 3000)
    assert of_pool("active_bytes", "large_pool") == (0, 3 * BLOCK, 3 * BLOCK, 3 * BLOCK)
    assert of_pool("reserved_bytes", "small_pool") == (BLOCK, BLOCK, BLOCK, 0)
    assert of_pool("reserved_bytes", "large_pool") == (20 * MIB, 20 * MIB, 20 * MIB, 0)
    assert of_pool("segment", "large_pool") == (1, 1, 1, 0)
    torch.vgpu.reset_peak_memory_stats()
    torch.vgpu.reset_accumulated_memory_stats()
    assert of_pool("allocation", "small_pool") == (1, 1, 0, 0)
    assert of_pool("active_bytes", "large_pool") == (0, 0, 0, 0)
    torch.vgpu.empty_cache()
    assert of_pool("reserved_bytes", "large_pool") == (0, 20 * MIB, 0, 20 * MIB)
    assert len(small) == 1


def test_a_fraction_of_the_memory(small):
    torch.vgpu.set_per_process_memory_fraction(0.5, small[0])
    torch.zeros(48 * MIB, dtype=torch.uint8, device=small[0])
    with pytest.raises(
        torch.OutOfMemoryError, match=r"of 104\.86 MB are free; 52\.43 MB are allowed"
    ):
        torch.zeros(52 * MIB, dtype=torch.uint8, device=small[0])
    with pytest.raises(ValueError, match="from 0 to 1"):
        torch.vgpu.set_per_process_memory_fraction(50)


# --- memory in use on other streams ---------------------------------------------------------------


def test_recorded_memory_is_free_when_the_other_stream_is_done(small):
    """A device that is full waits for it; nothing waits as long as there is room."""
    device, side = small[0], torch.vgpu.Stream(small[0])

    def use_and_free(nbytes):
        x = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        side.wait_stream(torch.vgpu.current_stream(device))
        with torch.vgpu.stream(side):
            x.sum()
        x.record_stream(side)

    use_and_free(60 * MIB)
    assert held() == 0
    assert torch.vgpu.memory_stats()["active_bytes.all.current"] == 60 * MIB
    with par.syncs() as waits:
        fits = torch.empty(30 * MIB, dtype=torch.uint8, device=device)
    assert not waits
    with par.syncs() as waits:
        too = torch.empty(60 * MIB, dtype=torch.uint8, device=device)
    assert [wait.call for wait in waits] == ["wait for freed memory"]
    assert waits.seconds > 0
    stats = torch.vgpu.memory_stats()
    assert stats["num_alloc_retries"] == 1
    assert stats["active_bytes.all.current"] == held() == 30 * MIB + 60 * MIB
    del fits, too
    use_and_free(60 * MIB)
    torch.vgpu.synchronize()
    with par.syncs() as waits:  # done by now
        kept = [torch.empty(60 * MIB, dtype=torch.uint8, device=device) for _ in range(1)]
    assert waits.seconds == 0
    del kept


def test_what_another_stream_still_uses_is_reserved(fresh_gpus):
    side = torch.vgpu.Stream("vgpu:0")
    x = torch.empty(8 * BLOCK, dtype=torch.uint8, device="vgpu:0")
    big = torch.ones(2000, 2000)
    with torch.vgpu.stream(side):
        big = big.to("vgpu:0")
        big @ big
        x.add_(1)
    before = torch.vgpu.memory_reserved()
    x.record_stream(side)
    del x
    y = torch.empty(16 * BLOCK, dtype=torch.uint8, device="vgpu:0")
    stats = torch.vgpu.memory_stats()
    assert stats["active_bytes.all.current"] == held() + 8 * BLOCK > before
    assert torch.vgpu.memory_reserved() >= stats["active_bytes.all.current"]
    del y


def test_a_stream_that_is_not_done_is_asked_once(fresh_gpus, monkeypatch):
    """Each question lets all other ranks go on before the answer."""
    busy, idle = torch.vgpu.Stream("vgpu:0"), torch.vgpu.Stream("vgpu:0")
    big = torch.ones(2000, 2000)
    with torch.vgpu.stream(busy):
        big = big.to("vgpu:0")
        big @ big
    for side in (busy, idle, busy, idle, busy):
        x = torch.empty(BLOCK, dtype=torch.uint8, device="vgpu:0")
        x.record_stream(side)
        del x
    asked, is_done = [], clock.Clock.is_done

    def ask(*question):
        asked.append(is_done(*question))
        return asked[-1]

    monkeypatch.setattr(clock.Clock, "is_done", ask)
    kept = [torch.empty(GRANULE, dtype=torch.uint8, device="vgpu:0")]
    assert asked == [False]  # what idle got was given back when the last was made
    assert torch.vgpu.memory_stats()["active_bytes.all.current"] == held() + 3 * BLOCK
    torch.vgpu.synchronize()
    asked.clear()
    kept.append(torch.empty(GRANULE, dtype=torch.uint8, device="vgpu:0"))
    assert asked == [True] * 3
    assert torch.vgpu.memory_stats()["active_bytes.all.current"] == held()


def test_memory_does_not_grow_with_tensors_that_cross_streams(fresh_gpus):
    side = torch.vgpu.Stream("vgpu:0")
    for _ in range(50):
        x = torch.ones(1000, device="vgpu:0")
        side.wait_stream(torch.vgpu.current_stream())
        with torch.vgpu.stream(side):
            x.sum().item()
        x.record_stream(side)
    assert torch.vgpu.memory_stats()["active_bytes.all.current"] <= 3 * rounded(4000)


# --- machines one after the other -----------------------------------------------------------------


def test_a_machine_that_returns_has_its_limit_and_its_hazards_again(gpus):
    small, large = machines.machine("1x-titan-x"), runtime.current_runtime()
    side = torch.vgpu.Stream("vgpu:0")
    torch.vgpu.set_per_process_memory_fraction(0.5)
    try:
        with runtime.returning():
            runtime.start(small, torch.device("cpu"))
            assert torch.vgpu.mem_get_info()[1] == small.accelerators[0].memory_bytes
        assert runtime.current_runtime() is large
        there = large.machine.accelerators[0].memory_bytes
        assert torch.vgpu.mem_get_info()[1] == there
        assert large.memories[0].limit_bytes == there // 2
    finally:
        torch.vgpu.set_per_process_memory_fraction(1.0)
    with par.hazards() as found:
        x = torch.ones(1000, device="vgpu:0")
        side.wait_stream(torch.vgpu.current_stream())
        with torch.vgpu.stream(side):
            x.sum()
        del x
        torch.ones(1000, device="vgpu:0")
    assert [hazard.kind for hazard in found] == ["free"]


def test_tensors_that_were_set_hold_but_the_memory_that_they_share(fresh_gpus):
    x, y = torch.zeros(2000, device="vgpu:0"), torch.ones(2000, device="vgpu:0")
    x.set_(y)
    assert torch.vgpu.memory_allocated(0) == 8192
    del y
    assert torch.vgpu.memory_allocated(0) == 8192
    del x
    assert torch.vgpu.memory_allocated(0) == 0


def test_memory_that_grows_grows_for_all_views_of_it(fresh_gpus):
    x = torch.zeros(100, device="vgpu:0")
    part = x[:50]
    x.resize_(1000)
    assert torch.vgpu.memory_allocated(0) == 4096
    del x
    assert torch.vgpu.memory_allocated(0) == 4096
    assert part.tolist() == [0] * 50
    del part
    assert torch.vgpu.memory_allocated(0) == 0


def test_a_tensor_that_cannot_grow_stays_as_it_was(small):
    x = torch.arange(3.0, device="vgpu:0")
    held = torch.vgpu.memory_allocated(0)
    with pytest.raises(torch.OutOfMemoryError):
        x.resize_(10**9)
    assert (x.shape, x.tolist(), x._version) == ((3,), [0, 1, 2], 0)
    assert torch.vgpu.memory_allocated(0) == held


def test_an_error_in_a_hook_frees_the_graph_at_once(fresh_gpus):
    def fail(_):
        raise KeyError("in a hook")

    x = torch.ones(1000, device="vgpu:0", requires_grad=True)
    y = x.exp()
    y.register_hook(fail)
    gc.disable()
    try:
        with pytest.raises(KeyError):
            y.sum().backward()
        del x, y
        assert torch.vgpu.memory_allocated(0) == 0
    finally:
        gc.enable()


def test_a_graph_outlives_an_output_whose_data_are_taken_away(fresh_gpus):
    """As pipelines do: they send an output on, free it, and go back through its graph later."""
    device = fresh_gpus[1]
    layer, on_host = nn.Linear(4, 256).to(device), nn.Linear(4, 256)
    on_host.load_state_dict({name: t.cpu() for name, t in layer.state_dict().items()})
    batch = torch.randn(8, 4)
    output = layer(batch.to(device))
    gradient = torch.randn(8, 256)
    before = held(1)
    output.data = torch.Tensor()
    assert before - held(1) == rounded(8 * 256 * 4)
    assert output.numel() == 0
    # The engine itself: torch.autograd.backward compares the shapes of outputs and gradients.
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (output,), (gradient.to(device),), False, False, allow_unreachable=True,
        accumulate_grad=True,
    )  # fmt: skip
    on_host(batch).backward(gradient)
    torch.testing.assert_close(layer.weight.grad.cpu(), on_host.weight.grad)


# --- memory that nothing was written to -----------------------------------------------------------

NEW = {
    "empty": lambda x: torch.empty(64, 3, device=x.device),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(5, 5),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2), device=x.device),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 3), (1, 2)),
    "half": lambda x: torch.empty(9, dtype=torch.float16, device=x.device),
    "fp8": lambda x: torch.empty(9, dtype=torch.float8_e4m3fn, device=x.device).float(),
}


@pytest.mark.parametrize("make", NEW.values(), ids=NEW)
def test_memory_that_was_never_written_holds_zeros(gpus, make):
    x = torch.full((64, 3), 7.0, device=gpus[0])
    for _ in range(20):
        junk = [torch.full((64, 3), 7.0) for _ in range(8)]
        del junk  # the processor's memory, to be used again
        assert not make(x).any()


def test_buffers_that_to_empty_leaves_unset_are_zeros(gpus):
    with torch.device("meta"):
        norm = nn.BatchNorm1d(100)
    tensors = norm.to_empty(device=gpus[0]).state_dict().values()
    assert [tensor.count_nonzero().item() for tensor in tensors] == [0] * 5


def test_in_deterministic_mode_torch_fills_it_with_what_shows(gpus):
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(5, device=gpus[0]).isnan().all()
        assert torch.empty_like(torch.ones(5, device=gpus[0])).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("half", [False, True])
def test_operations_leave_no_garbage_in_cycles(gpus, half):
    """Programs that look for their own would find it."""

    def work(size):
        x = torch.ones(size, size, device=gpus[0])
        with torch.autocast("vgpu", enabled=half):
            return torch.addmm(x, x, x), torch.baddbmm(x[None], x[None], x[None]), torch.cat([x, x])

    work(2)  # what is built once
    gc.collect()
    work(3)
    assert gc.collect() == 0
