"""Blocks end in any order and in any thread: what they leave behind, and who begins first."""

import contextlib
import contextvars
import gc
import sys
import threading
from collections import Counter
from unittest import mock

import pytest
import torch
import warm_process
from torch.overrides import TorchFunctionMode

import d2lpar as par
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

BOX = "2x-v100-textbook"
OF_ANOTHER = "belongs to a machine that is not in use here: to that of a simulation .* has ended"


def in_thread(function):
    """Call it in a thread of its own, and wait."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


# --- tensors that are left of a block -------------------------------------------------------------


@pytest.fixture
def gpus():
    return par.devices(2, kind="virtual", verbose=False)


@pytest.fixture
def left(gpus):
    """Values of a simulation that has ended."""
    with par.simulate(BOX, 4, with_values=True) as simulated:
        return [torch.arange(3.0, device=simulated[i]) for i in (0, 3)]


USES = {
    "kernel": lambda x, here: x + 1,
    "beside another": lambda x, here: here + x,
    "in a list": lambda x, here: torch.stack([here, x]),
    "in place": lambda x, here: x.add_(1),
    "read into another": lambda x, here: here.copy_(x),
    "written from the host": lambda x, here: x.copy_(torch.ones(3)),
    "to another device": lambda x, here: x.to("vgpu:1"),
    "fused step": lambda x, here: torch._foreach_add_([here, x], 1),
    "replicas": lambda x, here: torch.nn.parallel.comm.broadcast(x, [0, 1]),
}


@pytest.mark.parametrize("inside", ["process", "values", "shapes"])
@pytest.mark.parametrize("use", USES)
def test_what_is_left_of_a_simulation_is_refused_by_name(left, use, inside):
    blocks = {
        "process": contextlib.nullcontext(),
        "values": par.simulate(BOX, with_values=True),
        "shapes": par.simulate(BOX),
    }
    values = left[0].tolist()
    with blocks[inside]:
        here = torch.ones(3, device="vgpu:0")
        with pytest.raises(RuntimeError, match=OF_ANOTHER):
            USES[use](left[0], here)
    assert left[0].tolist() == values


def test_it_can_be_read_and_brought_in_as_the_message_says(left):
    for x in left:  # of a device that is here, and of one that is not
        index = x.vgpu_index
        assert x.cpu().tolist() == x.tolist() == [0, 1, 2]
        assert x[1].item() == 1
        assert x[1:].numpy(force=True).tolist() == [1, 2]
        assert repr(x) == f"tensor([0., 1., 2.], device='vgpu:{index}')"
        assert (x.cpu().to("vgpu:1") + 1).tolist() == [1, 2, 3]
    refused = pytest.raises(RuntimeError, match=f"vgpu:3 {OF_ANOTHER}.* with vgpu:0 to vgpu:1$")
    with par.simulate(BOX), refused:
        left[1] + 1


def test_reading_it_takes_no_time_of_a_clock_that_is_not_its_own(left):
    with par.simulate(BOX, with_values=True), par.record() as timeline:
        left[0].cpu()
    assert not timeline.spans
    with par.simulate(BOX, with_values=True):
        one = torch.ones((), device="vgpu:0")
    with par.simulate(BOX, with_values=True), par.record() as timeline:
        one.item()
    assert not timeline.spans


def test_a_backward_pass_through_it_is_refused(gpus):
    with par.simulate(BOX, with_values=True):
        w = torch.ones(3, device="vgpu:0", requires_grad=True)
        loss = (w * 2).sum()
    with pytest.raises(RuntimeError, match=OF_ANOTHER):
        loss.backward()
    assert w.grad is None


def test_tensors_of_blocks_around_are_not_left(gpus):
    x = torch.ones(3, device="vgpu:0")
    with par.simulate(BOX, with_values=True):
        y = torch.ones(3, device="vgpu:0")
        with par.simulate(BOX, with_values=True):
            assert (x + y).tolist() == [2, 2, 2]
    assert (x + x).tolist() == [2, 2, 2]


def test_machines_that_take_over_memory_take_over_its_tensors(gpus):
    with par.emulate_cuda(2, verbose=False):
        x = torch.ones(3, device="cuda:1")
    with par.emulate_cuda(2, "8x-a100-nvswitch", verbose=False):
        assert (x + 1).tolist() == [2, 2, 2]
    assert (x + 1).tolist() == [2, 2, 2]


# --- blocks that end in another order, or in another thread ---------------------------------------


def emulation():
    return par.emulate_cuda(2, verbose=False)


def opened(block):
    """A generator that has stopped in a block."""

    def stopped():
        with block:
            yield

    generator = stopped()
    next(generator)
    return generator


def test_a_simulation_that_the_collector_ends_in_a_thread_has_ended_here(gpus):
    before = current_runtime()
    generators = [opened(par.simulate(BOX))]
    assert current_runtime() is not before
    in_thread(generators.clear)
    assert current_runtime() is before
    assert torch.ones(3, device="vgpu:0").tolist() == [1, 1, 1]


def test_a_copied_context_outlives_its_simulation(gpus):
    before = current_runtime()
    with par.simulate(BOX):
        context = contextvars.copy_context()
    assert context.run(current_runtime) is before


def test_an_emulation_that_ends_in_a_thread_has_ended_here(gpus):
    threads = []
    theirs, threading.excepthook = threading.excepthook, threads.append
    generators = [opened(emulation())]
    try:
        in_thread(generators.clear)
    finally:
        threading.excepthook = theirs
    assert not threads
    assert torch.ones(2).device.type == "cpu"
    with emulation():
        assert torch.ones(2, device="cuda:1").is_cuda
        assert len(torch.overrides._get_current_function_mode_stack()) == 1
    assert not torch.overrides._get_current_function_mode_stack()


def test_an_emulation_that_the_collector_ends_within_an_operation(gpus):
    """Where torch has put the block's mode aside."""
    torch.set_default_device("cpu")
    generators = [opened(emulation())]

    class Ends:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            generators.clear()
            return "ended"

    try:
        assert torch.add(Ends(), 1) == "ended"
        assert torch.ones(2).device.type == "cpu"
        assert torch.get_default_device().type == "cpu"
    finally:
        torch.set_default_device(None)
    with emulation():
        pass
    assert not torch.overrides._get_current_function_mode_stack()


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_function_modes_of_programs_go_on_when_an_emulation_ends_first(gpus):
    block, counting = emulation(), Counting()
    block.__enter__()
    counting.__enter__()
    block.__exit__(None, None, None)
    torch.ones(2)
    counting.__exit__(None, None, None)
    assert counting.calls == 1
    assert not torch.overrides._get_current_function_mode_stack()


def test_function_modes_of_programs_may_end_before_an_emulation(gpus):
    counting, block = Counting(), emulation()
    counting.__enter__()
    block.__enter__()
    counting.__exit__(None, None, None)
    block.__exit__(None, None, None)
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_default_device_of_the_block_ends_beneath_one_that_goes_on(gpus):
    block, device = emulation(), torch.device("cuda:0")
    block.__enter__()
    torch.set_default_device("cuda:1")
    device.__enter__()
    block.__exit__(None, None, None)
    device.__exit__(None, None, None)
    assert torch.ones(2).device.type == "cpu"
    assert not torch.overrides._get_current_function_mode_stack()


def test_what_others_have_replaced_and_put_back_stays_so(gpus):
    zeros = torch.zeros
    patch, block = mock.patch("torch.zeros", return_value="mocked"), emulation()
    patch.start()
    block.__enter__()
    patch.stop()
    block.__exit__(None, None, None)
    assert torch.zeros is zeros


def test_what_others_have_replaced_in_the_block_goes_on_after_it(gpus, monkeypatch):
    # What a mock puts back that began in the block is our stand-in for torch's function, which does
    # the same; TorchScript, of later tests, knows the function itself.
    monkeypatch.setattr(torch, "zeros", torch.zeros)
    block, patch = emulation(), mock.patch("torch.zeros", return_value="mocked")
    block.__enter__()
    patch.start()
    block.__exit__(None, None, None)
    assert torch.zeros(2) == "mocked"
    patch.stop()
    assert torch.zeros(2).tolist() == [0, 0]


def test_blocks_without_nccl_may_end_in_another_order(gpus):
    def broadcast():
        with par.record() as timeline:
            torch.nn.parallel.comm.broadcast(torch.ones(4, device="vgpu:0"), [0, 1])
        return any("broadcast" in span.name for span in timeline.spans)

    first, second = opened(par.without_nccl()), opened(par.without_nccl())
    first.close()
    assert not broadcast()
    second.close()
    assert broadcast()


def test_of_threads_that_emulate_at_once_one_does_and_the_others_are_refused(gpus):
    begin, told = threading.Barrier(4), []

    def emulate():
        begin.wait()
        try:
            with emulation():
                told.append(torch.ones(2, device="cuda:1").tolist())
                begin.wait()
        except RuntimeError as error:
            told.append(str(error)[:30])
            begin.wait()

    threads = [threading.Thread(target=emulate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, told)) == ["CUDA is being emulated already"] * 3 + ["[1.0, 1.0]"]
    gc.collect()
    with emulation():
        assert torch.ones(2, device="cuda").is_cuda


# --- the first use, of several threads ------------------------------------------------------------

FIRST_USES = {
    "a tensor": "torch.ones(3, device=devices()[0]).sum().item()",
    "a simulation": (
        "[torch.ones(3, device=gpu).sum().item() for simulation in "
        "[par.simulate('2x-v100-textbook', with_values=True)] for gpu in simulation.__enter__()][1]"
    ),
    "torch.vgpu": (
        "len(devices()) and torch.vgpu.synchronize() or torch.vgpu.Stream(device=1) "
        "and torch.vgpu.device_count() + 1.0"
    ),
    "modules": (
        "torch.nn.LSTM(3, 4).to(devices()[1])(torch.ones(2, 3, 3, device='vgpu:1'))[0].sum()"
        ".backward() or 3.0"
    ),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_several_threads_may_use_devices_first(use):
    done = warm_process.run(f"""
import sys, threading
import torch, d2lpar as par
sys.setswitchinterval(1e-6)
torch.set_num_threads(1)
begin, found = threading.Barrier(8), []
def devices():
    return par.devices(2, kind="virtual", verbose=False)
def work():
    begin.wait()
    found.append({FIRST_USES[use]})
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found)
""")
    assert not done.stderr
    assert done.stdout.strip() == str([3.0] * 8)


def test_threads_that_ask_for_streams_at_once_get_different_ones(gpus):
    with par.simulate(BOX):
        rt = current_runtime()
    begin, numbers, interval = threading.Barrier(4), [], sys.getswitchinterval()

    def ask():
        begin.wait()
        numbers.extend([rt.new_stream(0) for _ in range(2400)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert Counter(numbers) == dict.fromkeys(range(1, 33), 300)
