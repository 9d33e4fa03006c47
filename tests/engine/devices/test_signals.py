"""Handlers of signals: what they raise gets out, once, wherever the engine is."""

import gc
import os
import random
import signal
import threading
import time

import pytest
import torch
import warm_process

import d2lpar as par
from d2lpar.vgpu import signals
from d2lpar.vgpu.memory.caching_allocator import CachingAllocator

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="handlers are Python's own without it"
)


class Interrupted(BaseException):
    pass


@pytest.fixture
def number():
    """A signal whose handler raises Interrupted."""
    heard = signal.SIGVTALRM

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(heard, interrupt)
    yield heard
    signal.signal(heard, before)


@pytest.fixture
def device():
    return par.devices(1, kind="virtual", verbose=False)[0]


def test_a_signal_while_memory_is_freed_interrupts_the_program(device, number, monkeypatch, capfd):
    held = [torch.ones(3, device=device)]
    free = CachingAllocator.free

    def interrupted(memory, allocation):
        signal.raise_signal(number)
        free(memory, allocation)

    monkeypatch.setattr(CachingAllocator, "free", interrupted)
    before = torch.vgpu.memory_allocated(device)

    def let_go():
        held.clear()
        time.sleep(1000)

    with pytest.raises(Interrupted):
        let_go()
    assert torch.vgpu.memory_allocated(device) < before
    assert not capfd.readouterr().err  # as Python says what a finalizer raises


def test_signals_at_any_time_interrupt_once_and_cost_no_memory(device, number):
    """Some come while torch asks for the guard of the device, where an exception would end the
    process, some in the allocator, and some before a tensor has got what was allocated for it."""
    net, x = torch.nn.Linear(8, 8, device=device), torch.ones(4, 8, device=device)

    def step():
        net(x).sum().backward()
        net.zero_grad()

    def interrupted_after(seconds):
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        while True:
            step()

    def held():
        step()
        gc.collect()
        return torch.vgpu.memory_allocated(device)

    before = held()
    draw = random.Random(0)
    for _ in range(150):
        with pytest.raises(Interrupted):
            interrupted_after(draw.uniform(2e-4, 2e-3))
    assert held() == before


def test_what_collects_garbage_swallows_no_interrupt(device, number, capfd):
    """As hypothesis measures the time of it, for one: Python only prints what is raised there."""
    before = list(gc.callbacks)
    gc.callbacks.append(lambda *_: signal.raise_signal(number))

    def collect():
        gc.collect()
        time.sleep(1000)

    try:
        with pytest.raises(Interrupted):
            collect()
    finally:
        gc.callbacks[:] = before
    assert not capfd.readouterr().err


def test_who_does_not_come_back_is_urged_less_and_less(monkeypatch):
    """Else the handlers of a busy machine would interrupt one another without end."""
    sent = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *to: sent.append(to))
    monkeypatch.setitem(signals._waiting, 0, lambda frame: None)
    urging = threading.Thread(target=signals._urge)
    urging.start()
    time.sleep(0.6)
    del signals._waiting[0]
    urging.join()
    assert 4 < len(sent) < 16


def test_who_sleeps_is_interrupted(device, number):
    threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), number)).start()
    with pytest.raises(Interrupted):
        time.sleep(1000)


def test_a_kernel_sets_the_handler_of_its_interrupts_so():
    """It does for each cell, by the name that it has imported."""
    done = warm_process.run(
        "import signal, ipykernel.kernelbase as kernel\n"
        "theirs = signal.signal\n"
        "import d2lpar as par\n"
        "par.devices(1, kind='virtual', verbose=False)\n"
        "assert kernel.signal is signal.signal is not theirs\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "send",
    [lambda number: signal.raise_signal(number), lambda number: os.kill(os.getpid(), number)],
)
def test_what_a_program_sends_itself_is_heard_at_once(device, number, send):
    heard = []
    signal.signal(number, lambda *of: heard.append(of))
    send(number)
    assert [number_ for number_, _ in heard] == [number]


def test_a_program_finds_the_handlers_that_it_has_set(device, number):
    first, second = (lambda *_: None), (lambda *_: None)
    signal.signal(number, first)
    assert signal.getsignal(number) is first
    assert signal.signal(number, second) is first
    assert signal.signal(number, signal.SIG_IGN) is second
    assert signal.getsignal(number) == signal.SIG_IGN
