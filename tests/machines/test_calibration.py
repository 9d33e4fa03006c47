"""Calibrating: what is measured against other ways to measure it, and what is kept of it.

On a virtual GPU the readings must be the figures of the machine that it simulates.
"""

import itertools
import json
import math
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import d2lpar as par
from d2lpar import machines
from d2lpar.machines.measuring import calibration, microbenchmarks, system
from d2lpar.machines.measuring.calibration import CalibratedGpu, Calibration
from d2lpar.machines.measuring.microbenchmarks import Stopwatch
from d2lpar.machines.measuring.readings import Reading

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Working sets up to 8 MiB only, so that the tests stay quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbenchmarks, "WORKING_SETS", microbenchmarks.WORKING_SETS[:12])
        patch.setattr(microbenchmarks, "COPY_BYTES", 2**22)
        yield


@pytest.fixture(scope="module")
def measured(small):
    """The CPU of this machine, on one thread, in about a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield par.calibrate(budget_s=1, device="cpu")
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, where this machine was not calibrated yet."""
    file = tmp_path / "cache" / "calibration.json"
    monkeypatch.setattr(calibration, "default_path", lambda: file)
    return file


def reading(probe, case, size=1, best=1.0, *, device="cpu", unit="B/s"):
    """A reading whose repeats were all alike."""
    return Reading(device, probe, case, size, unit, best, best, best, best, 3)


# --- What is measured -----------------------------------------------------------------------------


def test_everything_is_measured(measured):
    assert {r.case for r in measured.of("matmul")} == set(microbenchmarks.DTYPES)
    assert [r.size for r in measured.of("convolution")] == [*microbenchmarks.CONVOLUTIONS]
    assert {r.case for r in measured.of("memory")} == {"read", "strided read", "copy", "update"}
    assert [r.case for r in measured.of("dispatch")] == ["operation", "view"]
    assert {r.case for r in measured.of("copy")} >= {"pageable", "pageable, latency"}
    threads = [r.size for r in measured.of("threads")]
    assert (threads[0], threads[-1]) == (1, system.cores())
    assert all(r.repeats >= 3 for r in measured.readings)
    assert (measured.device, measured.gpu, measured.threads) == ("cpu", None, 1)
    assert measured.cores == system.cores()
    assert measured.torch_version == torch.__version__


def test_rates_are_those_of_a_direct_measurement(measured):
    n = 256
    A = torch.ones(n, n)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        A @ A
        times.append(time.perf_counter() - start)
    direct = 2 * n**3 / min(times)
    assert direct / 5 < measured.accelerator().rate("float32") < direct * 5


def test_what_must_hold_on_any_machine(measured):
    rate = {(r.case, r.size): r.best for r in measured.of("memory")}
    largest = max(size for _, size in rate)
    # A cache line holds 16 floats: using one of them cannot be as fast as using all.
    assert rate["strided read", largest] < rate["read", largest]
    operation, view = measured.of("dispatch")
    assert 1e-8 < view.best < 1e-3
    assert 1e-8 < operation.best < 1e-3
    small = [r.best for r in measured.of("matmul", "float32") if r.size == 64]
    assert measured.accelerator().rate("float32") >= small[0]


def test_a_strided_pass_loads_its_lines_itself():
    """As fast as passes of one call each, if the working set is so large that a call is cheap."""
    size, budget_s = 2**20, 0.05
    cpu = torch.device("cpu")
    with microbenchmarks.threads(1):
        readings = microbenchmarks.memory(cpu, 17 * 4 * budget_s, limit_bytes=2**28)
        line = torch.ones(size // 4)[::16]
        own = microbenchmarks.Stopwatch(cpu).reading(
            "memory", "own", size, line.sum, budget_s, amount=4 * len(line), unit="B/s"
        )
    [found] = [r for r in readings if (r.case, r.size) == ("strided read", size)]
    assert found.best < 2 * own.best


def test_the_settings_of_torch_stay(monkeypatch):
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            par.calibrate(budget_s=0.1, device="cpu")
            drawn = torch.rand(1)
            torch.manual_seed(0)
            assert torch.equal(drawn, torch.rand(1))
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.is_grad_enabled()
        assert torch.get_num_threads() == before[0]
        monkeypatch.setattr(torch, "mm", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            microbenchmarks.thread_scaling(4, 0.1)
        assert torch.get_num_threads() == before[0]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_threads_double_up_to_the_cores(cores, counts, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "mm", lambda *_, **__: used.append(torch.get_num_threads()))
    found = microbenchmarks.thread_scaling(cores, 0.01)
    assert [r.size for r in found] == counts
    assert list(dict.fromkeys(used)) == counts


def test_large_products_are_left_out_where_time_is_short(monkeypatch):
    monkeypatch.setattr(microbenchmarks, "DTYPES", ("float32",))
    few = microbenchmarks.matmul(CPU, 1e-6)
    assert [r.size for r in few] == [64]
    more = microbenchmarks.matmul(CPU, 0.2)
    assert [r.size for r in more] == list(microbenchmarks.SIDES[: len(more)])
    assert len(more) > 1


def test_a_stopwatch_repeats_and_divides(monkeypatch):
    calls = []
    times = Stopwatch(CPU).times_s(lambda: calls.append(1), 0.0)
    assert len(times) == microbenchmarks.LEAST_REPEATS
    assert len(calls) > 100  # a call is much shorter than LEAST_S, so many are timed at once
    times = Stopwatch(CPU).times_s(lambda: time.sleep(0.002), 0.05)
    assert microbenchmarks.LEAST_REPEATS <= len(times) <= 25
    assert min(times) >= 0.002


def test_median_quartiles_and_best():
    found = microbenchmarks.summary(CPU, "x", "y", 8, [1.0, 2.0, 4.0, 5.0, 10.0])
    assert (found.lower_quartile, found.median, found.upper_quartile, found.best) == (2, 4, 5, 1)
    assert found.spread == 3 / 8
    rates = microbenchmarks.summary(
        CPU, "x", "y", 8, [1.0, 2.0, 4.0, 5.0, 10.0], amount=20, unit="B/s"
    )
    quartiles = (rates.lower_quartile, rates.median, rates.upper_quartile, rates.best)
    assert quartiles == (4, 5, 10, 20)


def test_wrong_devices_and_budgets():
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"budget_s of calibrate must be .*, not"):
            par.calibrate(budget_s=wrong)
    with pytest.raises(ValueError, match="'toaster' is no device"):
        par.calibrate(device="toaster")
    with pytest.raises(ValueError, match="there is no cuda:99 to measure here"):
        par.calibrate(device="cuda:99")
    with pytest.raises(ValueError, match="there is no meta to measure here"):
        par.calibrate(device="meta")


# --- A virtual GPU stands for a real one ----------------------------------------------------------


def test_a_device_is_measured_by_its_own_clock(gpus):
    """Rates as in a machine with no losses, latencies as they are added by hand."""
    toy = machines.Accelerator(
        "toy", {"float32": 1e12, "float64": 5e11}, 1e12, 10**10, 4e-6, measured=True
    )
    box = machines.Machine(
        "toy",
        (toy, toy),
        machines.Host("toy", dispatch_s=1e-6, view_s=0.0),
        machines.Link("bus", 5e-6, 1e10, measured=True),
        machines.Link("peer", 5e-6, 1e11, measured=True),
    )
    with par.simulate(box) as (_, device):  # the last one has a peer, too
        products = microbenchmarks.matmul(device, 2.0)
        memory = microbenchmarks.memory(device, 0.1, limit_bytes=2**23)
        copies = microbenchmarks.copies(device, 0.1, limit_bytes=2**40)
        dispatch = microbenchmarks.dispatch(device, 0.1)
    for r in products:
        rate = toy.rate(r.case)
        longest_s = max(2 * r.size**3 / rate, 3 * r.size**2 * _size(r.case) / 1e12)
        # Events are recorded on an idle device: the first kernel waits for its dispatch, too.
        expected_s = longest_s + toy.kernel_latency_s
        assert 2 * r.size**3 / r.best == pytest.approx(expected_s, rel=0.02, abs=1.1e-6)
    by_case = {(r.case, r.size): r.best for r in memory}
    assert 2**24 / by_case["copy", 2**23] == pytest.approx(2**24 / 1e12 + 4e-6, abs=1.1e-6)
    assert by_case["read", 2**20] == pytest.approx(1e12, rel=0.05)
    by_case = {r.case: r.best for r in copies}
    for case, rate in (("pinned to device", 1e10), ("pinned from device", 1e10), ("to peer", 1e11)):
        assert 2**22 / by_case[case] == pytest.approx(2**22 / rate + 5e-6, abs=2.1e-6)
    assert by_case["pageable to device"] < by_case["pinned to device"]
    assert by_case["pinned to device, latency"] == pytest.approx(5e-6, abs=2.1e-6)
    kernel = [r for r in dispatch if r.case == "kernel"]
    assert kernel[0].median == pytest.approx(4e-6, rel=0.01)


def _size(dtype):
    return getattr(torch, dtype).itemsize


def test_the_largest_working_set_does_not_fit_in_the_cache():
    """Whatever memory the host has: what fits would be taken for the memory's rate."""
    most = microbenchmarks.WORKING_SETS[-1]
    assert microbenchmarks.working_sets(2**40)[-1] == most
    assert microbenchmarks.working_sets(2**20)[-1] == 2**20
    assert microbenchmarks.working_sets(2**20, cache_bytes=40 * 2**20)[-1] == 2**27
    assert microbenchmarks.working_sets(2**40, cache_bytes=most)[-1] == 4 * most


def test_a_gpu_becomes_a_machine(monkeypatch):
    questions = itertools.count()  # a millisecond each: how busy this machine is decides nothing
    monkeypatch.setattr(microbenchmarks, "perf_counter", lambda: next(questions) / 1000)
    with par.simulate("8x-a100-nvswitch", 1) as (device,):
        found = par.calibrate(budget_s=1, device=device)
    assert found.device == "vgpu:0"
    assert found.gpu.name.startswith("A100")
    here = found.machine()
    (gpu,) = here.accelerators
    catalogue = machines.A100
    assert gpu.measured
    assert gpu.memory_bytes == catalogue.memory_bytes
    assert gpu.kernel_latency_s == pytest.approx(catalogue.kernel_latency_s, rel=0.01)
    # The larger a product, the better it fills a GPU.
    assert 0.2 < gpu.rate("float16") / catalogue.rate("float16") < 1
    assert max(r.size for r in found.of("memory", device="vgpu:0")) > 2 * catalogue.l2_bytes
    assert 0.5 < gpu.memory_bytes_per_s / catalogue.memory_bytes_per_s < 1
    assert 0.5 < here.host_link.bytes_per_s / 31.5e9 < 1
    assert here.host.dispatch_s == found.of("dispatch", "operation")[0].best
    assert here.host.flops_per_s == found.accelerator("cpu").rate("float32")
    assert "A100" in str(found)


def test_gpus_that_reach_each_other():
    def both(device, factor):
        return [
            reading("matmul", "float32", 64, factor * 1e11, device=device, unit="FLOP/s"),
            reading("memory", "copy", 2**20, factor * 1e10, device=device),
            reading("dispatch", "operation", 0, 4e-6, device=device, unit="s"),
            reading("dispatch", "view", 0, 1e-6, device=device, unit="s"),
        ]

    cpu, gpu = both("cpu", 1), both("cuda:0", 10)
    gpu.append(reading("dispatch", "kernel", 0, 3e-6, device="cuda:0", unit="s"))
    for case, rate in (("pinned to device", 2e10), ("pinned from device", 1e10), ("to peer", 9e10)):
        gpu.append(reading("copy", case, 2**26, rate, device="cuda:0"))
        gpu.append(reading("copy", f"{case}, latency", 4, 5e-6, device="cuda:0", unit="s"))
    found = Calibration(
        "2026-01-01T00:00:00+00:00",
        "toy",
        4,
        4,
        10**10,
        "2.15",
        9.0,
        (*cpu, *gpu),
        CalibratedGpu("cuda:0", "Toy GPU", 10**9, 100, 4, peer_access=True),
    )
    here = found.machine()
    assert [a.name for a in here.accelerators] == ["Toy GPU"] * 4
    assert here.accelerators[0].rate("float32") == 1e12
    assert here.accelerators[0].multiprocessors == 100
    assert here.accelerators[0].kernel_latency_s == 3e-6
    assert (here.host_link.bytes_per_s, here.peer.bytes_per_s) == (1e10, 9e10)
    assert (here.host.dispatch_s, here.host.view_s) == (4e-6, 1e-6)
    assert (here.host.flops_per_s, here.host.memory_bytes_per_s) == (1e11, 1e10)
    apart = replace(found, gpu=replace(found.gpu, peer_access=False))
    assert apart.machine().peer is None
    assert len(apart.machine(2).accelerators) == 2


# --- What is made of it ---------------------------------------------------------------------------


def test_the_cpu_becomes_a_machine(measured):
    here = measured.machine()
    (cpu,) = here.accelerators
    assert (here.name, cpu.name) == ("this machine", system.processor())
    assert cpu.measured
    assert cpu.memory_bytes == system.memory_bytes()
    product, convolution = (
        max(r.best for r in measured.of(probe, "float32")) for probe in ("matmul", "convolution")
    )
    assert cpu.rate("float32") == max(product, convolution)
    assert cpu.reached["product"] * cpu.rate("float32") == pytest.approx(product)
    assert cpu.reached["convolution"] * cpu.rate("float32") == pytest.approx(convolution)
    copies = [r for r in measured.of("memory") if r.case == "copy"]
    assert cpu.memory_bytes_per_s == max(copies, key=lambda r: r.size).best
    assert cpu.kernel_latency_s == measured.of("dispatch", "operation")[0].best
    assert here.host.dispatch_s == 0  # a CPU computes in the thread that queues
    assert here.host_link == here.peer
    assert here.host_link.measured
    assert len(measured.machine(3).accelerators) == 3


def test_a_simulation_takes_measured_rates_as_they_are(measured):
    n = 1024
    with par.simulate(measured) as (device,), par.record() as timeline:
        A = torch.empty(n, n, device=device)
        A @ A
    (product,) = [span for span in timeline if span.name.endswith("mm") and span.kind == "compute"]
    cpu = measured.accelerator()
    rate = max(r.best for r in measured.of("matmul", "float32"))
    arithmetic_s, memory_s = 2 * n**3 / rate, 12 * n**2 / cpu.memory_bytes_per_s
    expected_s = cpu.kernel_latency_s + max(arithmetic_s, memory_s)
    assert product.end_s - product.start_s == pytest.approx(expected_s, rel=1e-6)


def test_nothing_that_was_measured_lies_above_the_roof(measured):
    for r in measured.of("matmul") + measured.of("convolution"):
        assert r.best <= measured.attainable(1e9, 1.0, r.case)
    for r in (r for r in measured.of("memory") if r.case != "strided read"):
        assert r.best <= measured.attainable(1e-6 * r.size, r.size) * 1.000001e6
    largest = measured.of("memory", "copy")[-1].size
    small = measured.attainable(1e-6, 4096) / 1e-6 * 4096
    assert small >= measured.attainable(1e-6, 2 * largest) / 1e-6 * 2 * largest
    with pytest.raises(ValueError, match="count what is moved"):
        measured.attainable(1.0, 0)


def test_the_slope_of_the_roof_is_that_of_the_fastest_way_through_memory():
    """Of an update in place nothing is fetched only to be overwritten, as a copy's target is."""
    rates = {"read": 1e10, "copy": 1.5e10, "update": 3e10, "strided read": 9e10}
    readings = (
        reading("matmul", "float32", 64, 1e15, unit="FLOP/s"),
        *(reading("memory", case, 2**20, rate) for case, rate in rates.items()),
        reading("memory", "copy", 2**24, 5e9),
        reading("dispatch", "view", 0, 1e-9, unit="s"),
    )
    found = Calibration("2026-01-01T00:00:00+00:00", "toy", 4, 4, 10**10, "2.15", 9.0, readings)
    assert found.attainable(2**20, 2**20) == 3e10
    assert found.attainable(2**21, 2**21) == 3e10  # 2**20 are read and written
    assert found.attainable(2**25, 2**25) == 5e9


def test_products_and_convolutions_run_at_their_own_rates():
    both = (
        reading("matmul", "float32", 64, 1e11, unit="FLOP/s"),
        reading("matmul", "bfloat16", 64, 4e11, unit="FLOP/s"),
        reading("convolution", "float32", 64, 2e11, unit="FLOP/s"),
        reading("memory", "copy", 2**20, 1e15),
        reading("dispatch", "operation", 0, 1e-9, unit="s"),
        reading("dispatch", "view", 0, 1e-9, unit="s"),
        reading("copy", "pageable", 2**20, 1e15),
        reading("copy", "pageable, latency", 4, 1e-9, unit="s"),
    )
    found = Calibration("2026-01-01T00:00:00+00:00", "toy", 4, 4, 10**10, "2.15", 9.0, both)
    assert found.attainable(1e9, 1) == 2e11
    with par.simulate(found) as (device,), par.record() as timeline:
        a, half = torch.ones(64, 64, device=device), torch.ones(64, 64, device=device).bfloat16()
        a @ a
        half @ half
        torch.conv2d(a.view(1, 64, 8, 8), torch.ones(64, 64, 3, 3, device=device), padding=1)
    spans = [s for s in timeline.on(device, "compute") if s.flops]
    rates = [s.flops / (s.duration_s - 1e-9) for s in spans]
    assert rates == pytest.approx([1e11, 4e11, 2e11], rel=1e-3)


def test_the_report_tells_all(measured):
    report = str(measured)
    for words in (system.processor(), "float64", "strided read", "view", "pageable", "1 thread"):
        assert words in report
    (line,) = [line for line in report.splitlines() if line.startswith("  1 thread ")]
    shown = float(line.split()[2]) * 1e9
    assert shown == pytest.approx(measured.of("threads")[0].median, rel=0.005)  # three digits
    assert len(repr(measured)) < 200
    assert max(map(len, report.splitlines()[1:])) < 100


def test_a_calibration_that_was_disturbed_says_so(measured):
    def alike(spread, rates):
        """Readings of this spread, and products of these rates on one, two, … threads."""
        steady = [
            replace(r, lower_quartile=r.median, upper_quartile=r.median * (1 + 2 * spread))
            for r in measured.readings
            if r.probe != "threads"
        ]
        steady += [reading("threads", "float32", 1 + i, rate) for i, rate in enumerate(rates)]
        return str(replace(measured, readings=tuple(steady)))

    assert calibration.NOT_ALONE not in alike(0.1, [5.0, 9.0])
    assert calibration.NOT_ALONE not in alike(0.1, [5.0])
    assert calibration.NOT_ALONE in alike(0.5, [5.0, 9.0])
    assert calibration.NOT_ALONE in alike(0.1, [5.0, 9.0, 4.0])


def test_the_report_in_a_notebook(measured):
    from IPython.lib.pretty import pretty

    assert pretty(measured) == str(measured)


# --- What is kept ---------------------------------------------------------------------------------


def test_saved_and_loaded(measured, cache):
    assert measured.save() == cache
    assert Calibration.load() == measured
    assert json.loads(cache.read_text())["version"] == calibration.VERSION
    assert machines.machine("this machine") == measured.machine()
    assert machines.machine(cache) == machines.machine(measured) == measured.machine()


@given(
    median=st.floats(1e-9, 1e15),
    spread=st.tuples(st.floats(0.1, 1), st.floats(1, 10)),
    text=st.text(),
    size=st.integers(0, 10**12),
)
def test_any_reading_survives_a_file(median, spread, text, size, measured, tmp_path_factory):
    low, high = median * spread[0], median * spread[1]
    odd = Reading("cpu", text, text, size, "s", median, low, high, low, 3)
    whole = replace(measured, processor=text, readings=(*measured.readings, odd))
    file = whole.save(tmp_path_factory.mktemp("calibration") / "c.json")
    assert Calibration.load(file) == whole


def test_devices_simulate_this_machine(measured, cache, capsys):
    with pytest.raises(ValueError, match=r"not calibrated yet: call d2lpar\.calibrate"):
        machines.machine("this machine")
    measured.save()
    with par.simulate("this machine", 2) as devices:
        torch.ones(3, device=devices[1])
    assert len(devices) == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 0, "schema version 0 is unknown, .* make the file anew"),
        ("kind", "d2lpar machine", "'kind' must be 'd2lpar calibration'"),
        ("readings", [], "needs a reading of matmul, float32 on the CPU"),
        ("readings", [{}], r"the field 'device' is missing in readings\[0\]"),
        ("cores", "two", 'cores must be a whole number, not "two"'),
        ("gpu", 3, "gpu must be an object, not 3"),
        ("when", None, "when must be a text, not null"),
    ],
)
def test_wrong_files_are_named(measured, cache, field, value, message):
    measured.save()
    whole = json.loads(cache.read_text())
    cache.write_text(json.dumps({**whole, field: value}))
    with pytest.raises(ValueError, match=message) as raised:
        Calibration.load()
    assert str(raised.value).startswith(f"{cache}: ")


def test_wrong_readings_are_refused(measured):
    good = measured.readings[0]
    for change in ({"median": -1.0}, {"upper_quartile": good.median / 2}, {"best": math.nan}):
        with pytest.raises(ValueError, match="must be"):
            replace(good, **change)
    with pytest.raises(ValueError, match="repeats from 1 on"):
        replace(good, repeats=0)
