"""Inside `emulate_cuda` the user's clocks are simulated, and everybody else's are real."""

import logging
import re
import subprocess
import sys
import time
import timeit
from time import perf_counter as bound_before

import pytest
import torch
import torch.utils.benchmark
from IPython.core.interactiveshell import InteractiveShell

import d2lpar as par
from d2lpar import machines

PRODUCT_S = 2 * 500**3 / 15.7e12  # at the datasheet's peak of the V100


@pytest.fixture
def x():
    torch.set_num_threads(1)
    with par.emulate_cuda(1, verbose=False):
        yield torch.rand(500, 500, device="cuda")


CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")


@pytest.mark.parametrize("name", CLOCKS)
def test_every_clock_is_the_simulated_one(x, name):
    clock, in_ns = getattr(time, name), getattr(time, f"{name}_ns")
    begin_s, begin_ns = clock(), in_ns()
    time.sleep(3600)
    assert clock() - begin_s == pytest.approx(3600)
    assert in_ns() - begin_ns == pytest.approx(3600e9)
    assert isinstance(in_ns(), int)


def test_reading_a_clock_does_not_wait_for_devices(x):
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(100):
        x @ x
    queued = time.time() - begin
    torch.cuda.synchronize()
    done = time.time() - begin
    assert 0 < queued < 100 * PRODUCT_S < done


@pytest.mark.parametrize("of", ["event", "stream"])
def test_a_loop_that_asks_whether_a_device_is_done_ends_when_it_is(x, of):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(50):
        x @ x
    event = torch.cuda.current_stream().record_event()
    query, asked = event.query if of == "event" else torch.cuda.current_stream().query, 1
    queued = time.perf_counter()
    while not query():
        asked += 1
    polled = time.perf_counter()
    event.synchronize()
    assert time.perf_counter() == polled > begin + 50 * PRODUCT_S
    host = machines.machine("2x-v100-textbook").host
    assert polled - queued == pytest.approx(asked * host.query_s)
    assert asked > 10


def test_plain_python_takes_no_simulated_time(x):
    begin = time.perf_counter()
    sum(range(100_000))
    assert time.perf_counter() == begin
    par.host_work(0.5, "thinking")
    assert time.perf_counter() - begin == pytest.approx(0.5)


def test_names_bound_before_and_inside(x):
    from time import perf_counter as bound_inside

    begin = bound_before(), bound_inside()
    time.sleep(10)
    assert bound_before() - begin[0] == bound_inside() - begin[1] == pytest.approx(10)


def test_libraries_read_the_real_clock(x):
    time.sleep(10**6)
    record = logging.LogRecord("name", logging.INFO, "path", 1, "text", (), None)
    assert record.created > 1.7e9  # seconds since 1970
    assert 0 <= time.time() < 1.7e9


def test_timeit(x):
    names = {"x": x, "torch": torch}
    seconds = timeit.timeit("x @ x; torch.cuda.synchronize()", globals=names, number=4)
    assert 4 * PRODUCT_S < seconds < 40 * PRODUCT_S
    times = timeit.repeat("f()", "f = x.relu", number=2, repeat=3, globals=names)
    assert len(times) == 3
    assert times[1] == pytest.approx(times[2], rel=1e-6)
    begin = timeit.default_timer()
    x @ x
    assert 0 < timeit.default_timer() - begin < PRODUCT_S


def test_the_timer_is_found_by_its_name(x):
    timer = timeit.default_timer
    assert getattr(sys.modules[timer.__module__], timer.__name__) is time.perf_counter


def test_repetitions_are_not_sought_for_ever(x):
    called = []
    number, seconds = timeit.Timer(lambda: called.append(x.relu())).autorange()
    assert number == len(called) <= 100
    assert seconds > 0
    benchmark = pytest.importorskip("torch.utils.benchmark")
    timed = benchmark.Timer("x @ x", globals={"x": x}).timeit(3)
    assert timed.median > PRODUCT_S
    with pytest.raises(RuntimeError, match="take no simulated time"):
        benchmark.Timer("1 + 1").blocked_autorange()


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 5.0, 3600.0])
def test_a_loop_that_waits_for_the_clock_ends(x, seconds):
    begin, reads = time.time(), 0
    while time.time() - begin < seconds:
        reads += 1
        assert reads < 5000
    assert seconds <= time.time() - begin < 1.02 * seconds


def test_a_few_reads_take_no_time(x):
    x @ x
    assert len({time.perf_counter() for _ in range(50)}) == 1


def test_benchmarks_of_torch_end_soon(x):
    runs = []

    def product():
        runs.append(x @ x)

    torch.cuda.synchronize()
    timed = torch.utils.benchmark.Timer("f()", globals={"f": product}).blocked_autorange()
    assert len(runs) < 100
    assert timed.median > PRODUCT_S / 2


def test_replicas_may_not_read_a_clock_that_has_no_time_yet():
    class Reader(torch.nn.Module):
        def forward(self, x):
            return x * time.time()

    with (
        par.emulate_cuda(2, verbose=False),
        pytest.raises(RuntimeError, match="cannot be read inside a replica"),
    ):
        torch.nn.DataParallel(Reader())(torch.ones(2, 1))


# --- IPython --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext d2lpar\nimport asyncio, torch, time")
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell):
    found = shell.run_cell(cell)
    found.raise_error()
    return found.result


def test_the_cell_magic(shell, capsys):
    run(shell, "import torch, time; from time import perf_counter as before")
    magic = "%%emulate_cuda 2 --machine 8x-a100-nvswitch\n"
    cell = (
        "y = torch.ones(3, device='cuda:1')\nbegin = before()\ny.sum()\nbefore() - begin, y.device"
    )
    seconds, device = run(shell, magic + cell)
    assert 0 < seconds < 1e-4
    assert str(device) == "cuda:1"
    assert "A100" in capsys.readouterr().out
    run(shell, magic + "y")
    assert "device='cuda:1'" in capsys.readouterr().out
    assert run(shell, "before is time.perf_counter") is True
    assert str(run(shell, "y.device")) == "vgpu:1"
    assert run(shell, "%%emulate_cuda --quiet\ny;") is None
    with pytest.raises(ZeroDivisionError):
        run(shell, "%%emulate_cuda -q\n1 / 0")
    for option in ("--shapes-only", "--shape-only"):
        total = "torch.ones(2, device='cuda').sum().item()"
        assert run(shell, f"%%emulate_cuda -q {option}\n{total}") != 2.0


def test_a_traceback_shows_the_cell_and_not_the_magic(shell, capsys):
    shell.run_cell("%%emulate_cuda -q\none = 1\none / 0")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "----> 2 one / 0" in shown
    assert "magic.py" not in shown


CELL_STARTS = """%%emulate_cuda -q 4
import os, torch, torch.multiprocessing as mp
from torch.distributed import all_reduce, destroy_process_group, init_process_group
def work(rank, world_size):
    os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='29571')
    init_process_group('nccl', rank=rank, world_size=world_size)
    x = torch.full((2,), rank + 1.0, device=rank)
    all_reduce(x)
    print(rank, x.tolist(), x.device, flush=True)
    destroy_process_group()
mp.start_processes(work, args=(4,), nprocs=4, start_method='fork')
"""


def test_a_cell_may_start_processes(shell, capfd):
    run(shell, CELL_STARTS)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"{r} [10.0, 10.0] cuda:{r}" for r in range(4)]


def test_a_cell_that_spawns_its_own_function_is_told_how_to_start_it(shell, monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    found = shell.run_cell(CELL_STARTS.replace("'fork'", "'spawn'"))
    with pytest.raises(RuntimeError, match=r"work is defined in a cell.*d2lpar run"):
        found.raise_error()


def test_a_notebook_that_imports_the_package_has_the_magic():
    """In a process of its own: IPython loads its own magics when they are first used."""
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(cell):
    found = shell.run_cell(cell)
    found.raise_error()
    return found.result
run("import d2lpar")
print([name for name in ("torch", "d2lpar.vgpu.cuda") if name in sys.modules])
run("%%emulate_cuda -q\\nx = %timeit -o -q -n 2 1 + 1")
run("%%emulate_cuda -q\\n%%timeit -q -n 3 -r 1 -v y\\n1 + 1")
for _ in range(2):
    run("%load_ext d2lpar")
run("z = %timeit -o -q -n 4 -r 1 1 + 1")
print(run("x.loops, y.loops, z.loops, x.average, y.average;"), run("z.average > 0;"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[]"
    assert done.stdout.splitlines()[-1] == "(2, 3, 4, 0.0, 0.0) True"


def test_a_cell_may_await(shell, capsys):
    cell = (
        "%%emulate_cuda -q 2\n"
        "torch.cuda.set_device(1)\n"
        "async def ones(): await asyncio.sleep(0); return torch.ones(2, device='cuda')\n"
        "{}"
    )
    run(shell, cell.format("y = await ones(); print(y.device, torch.cuda.device_count())"))
    assert capsys.readouterr().out == "cuda:1 2\n"
    assert str(run(shell, "y.device")) == "vgpu:1"
    run(shell, cell.format("sum(await asyncio.gather(ones(), ones()))"))
    assert "tensor([2., 2.], device='cuda:1')" in capsys.readouterr().out
    assert run(shell, cell.format("await ones();")) is None
    with pytest.raises(ZeroDivisionError):
        run(shell, cell.format("await ones()\n1 / 0"))
    assert run(shell, "torch.cuda.device_count()") == 0  # the block has ended
    with pytest.raises(SyntaxError):
        run(shell, "%%emulate_cuda -q\ndef f(): await ones()")


def test_magics_of_whole_cells(shell, capsys):
    run(shell, "%%emulate_cuda -q\n%%time\ntime.sleep(7200)")
    assert "Wall time: 2h" in capsys.readouterr().out
    run(shell, "%%time\n%%emulate_cuda -q\ntime.sleep(7200)")
    assert "Wall time: 2h" not in capsys.readouterr().out  # the whole block took real time
    run(shell, "%%capture found\n%%emulate_cuda\nprint(1)\ntorch.ones(1, device='cuda')")
    run(shell, "%%emulate_cuda -q\n%%capture inside\nprint(1)\ntorch.ones(1, device='cuda')")
    assert capsys.readouterr().out == ""
    found, inside = run(shell, "found, inside")
    assert [len(each.outputs) for each in (found, inside)] == [1, 1]
    assert "cuda:0" in found.outputs[0].data["text/plain"]
    assert inside.stdout == "1\n"


def test_a_number_of_gpus_that_is_none_is_named(shell, capsys):
    shell.run_cell("%%emulate_cuda two\n1")
    shown = "".join(capsys.readouterr())
    assert "invalid int value: 'two'" in shown
    assert "Traceback" not in shown


def test_magics_that_time(shell, capsys):
    cell = "%%emulate_cuda -q\nz = torch.rand(300, 300, device='cuda')\n"
    found = run(shell, cell + "%timeit -o -r 2 z @ z")
    assert found.loops == 10
    assert 0 < found.best < 1e-4
    assert run(shell, cell + "%timeit -o -n 3 -r 2 z @ z").loops == 3
    capsys.readouterr()
    run(shell, cell + "%time z @ z;")
    assert "Wall time: 0 ns" not in capsys.readouterr().out
    run(shell, cell + "%time time.sleep(7200)")
    assert "Wall time: 2h" in capsys.readouterr().out
    timeit_magic = shell.magics_manager.magics["line"]["timeit"]
    assert "emulation" not in timeit_magic.__module__
    assert not hasattr(timeit_magic, "__wrapped__")
