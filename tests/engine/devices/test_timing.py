"""`Timer` and `measure` read the clock that belongs to the devices."""

import pytest
import torch

import d2lpar as par
from d2lpar import timing
from d2lpar.vgpu.sim.pricing.kernel_cost import Cost, Kernel
from d2lpar.vgpu.sim.pricing.tiles import Product

MATRIX_BYTES = 4 * 1000**2
PRODUCT_S = Cost(
    Kernel(2 * 1000**3, 3 * MATRIX_BYTES, Product(1000, 1000, 1000, 1), written=MATRIX_BYTES)
).seconds(par.machines.machine("2x-v100-textbook").accelerators[0])


@pytest.fixture
def wall(monkeypatch):
    """A wall clock that moves by a second each time it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))


def product(device):
    a = torch.ones(1000, 1000, device=device)
    torch.vgpu.synchronize(device)
    return lambda: a @ a


def test_a_timer_waits_for_the_work_on_both_sides(fresh_gpus):
    work = product(fresh_gpus[0])
    work()  # still under way when the timer starts
    timer = par.Timer()
    first = timer.stop()
    assert first == 0
    timer.start()
    work()
    assert timer.stop() == pytest.approx(PRODUCT_S + 8e-6, rel=1e-6)  # and its dispatch
    assert timer.times_s[0] == first
    assert timer.total_s == sum(timer.times_s)
    assert timer.mean_s == timer.total_s / 2


def test_devices_limit_what_is_waited_for(fresh_gpus):
    work = product(fresh_gpus[0])
    timer = par.Timer(fresh_gpus[1])
    work()
    assert timer.stop() < PRODUCT_S
    before = timing.now_s(wait=False)
    timing.synchronize()
    assert timing.now_s(wait=False) - before > PRODUCT_S / 2


def test_the_host_has_a_wall_clock(gpus, wall):
    assert timing.clock_name("cpu") == "measured"
    assert par.Timer("cpu").stop() == 1
    assert par.measure(lambda: None, devices="cpu", repeats=3).times_s == (1, 1, 1)


def test_the_clock_is_named(fresh_gpus):
    assert timing.clock_name() == "simulated on 2x-v100-textbook"
    assert timing.clock_name(fresh_gpus[:1]) == timing.clock_name("vgpu:1") == timing.clock_name()


def test_measuring_repeats_after_warming_up(fresh_gpus):
    calls = []
    work = product(fresh_gpus[0])
    found = par.measure(lambda: calls.append(work()), repeats=4, warm_up=2)
    assert (len(calls), len(found.times_s)) == (6, 4)
    assert found.spread_s == pytest.approx(0, abs=1e-12)
    assert found.median_s == pytest.approx(PRODUCT_S + 8e-6, rel=1e-6)
    assert str(found).endswith("(simulated on 2x-v100-textbook)")


def test_median_and_spread():
    found = timing.Measurement((1.0, 5.0, 2.0), "measured")
    assert (found.median_s, found.spread_s, str(found)) == (2, 4, "2 s ± 2 (measured)")


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"warm_up": -1}])
def test_wrong_numbers_of_repeats(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} of measure must be"):
        par.measure(lambda: None, **wrong)


def test_real_gpus_are_synchronised(monkeypatch, wall):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert par.Timer("cuda:0").stop() == 1
    assert waited == [torch.device("cuda", 0)] * 2
    assert timing.clock_name("cuda:0") == "measured"


def test_host_work_is_for_simulated_clocks(fresh_gpus):
    timer = par.Timer()
    par.host_work(2.5, "load")
    assert timer.stop() == pytest.approx(2.5)
