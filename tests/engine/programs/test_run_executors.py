"""`ProcessPoolExecutor` of programs that use virtual GPUs, beside real ones on the processor."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import multiprocessing as mp
import sys
import concurrent.futures
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
import torch

DEVICE, METHOD = sys.argv[1:]
calls = []

def begin(scale):
    global weights
    where = f"cuda:{torch.cuda.device_count() - 1}" if DEVICE == "cuda" else "cpu"
    weights = torch.full((4, 4), float(scale), device=where)

def work(i, power=2):
    return (weights * i).pow(power).sum().item()

def count(i):
    calls.append(i)
    return len(calls)

def fail(i):
    if i == 2:
        raise KeyError("two")
    return i

class Named(ProcessPoolExecutor):
    def submit(self, fn, *args):
        names.append(fn.__name__)
        return super().submit(fn, *args)

names = []

async def in_a_loop(executor):
    loop = asyncio.get_running_loop()
    return await asyncio.gather(*(loop.run_in_executor(executor, work, i) for i in range(3)))

def main():
    context = mp.get_context(METHOD)
    with ProcessPoolExecutor(2, context, begin, (3,)) as executor:
        print(isinstance(executor, concurrent.futures.Executor))
        print(list(executor.map(work, range(5))), list(executor.map(work, (1, 2), (2, 3))))
        print(list(executor.map(work, range(5), chunksize=2)))
        future, told = executor.submit(work, 3, power=3), []
        future.add_done_callback(lambda done: told.append(done.result()))
        print(future.result(), told, future.done(), future.exception())
        futures = {executor.submit(fail, i): i for i in range(4)}
        print(sorted(futures[future] for future in as_completed(futures)))
        print([repr(future.exception()) for future in futures])
        try:
            list(executor.map(fail, range(4)))
        except KeyError as error:
            print(repr(error), type(error.__cause__).__name__)
        done, others = wait([executor.submit(work, i) for i in range(3)])
        print(sorted(future.result() for future in done), others)
        print(asyncio.run(in_a_loop(executor)))
        wrong = type(executor.submit(lambda: 1).exception()).__name__
        print(wrong in ("PicklingError", "AttributeError"))
    try:
        executor.submit(work, 1)
    except RuntimeError as error:
        print(error)
    with Named(1, context) as executor:
        print([executor.submit(count, i).result() for i in range(3)], names)
        print(isinstance(executor, Named), isinstance(executor, ProcessPoolExecutor))
    executor = ProcessPoolExecutor(1, context)
    futures = [executor.submit(count, i) for i in range(9)]
    executor.shutdown(cancel_futures=True)
    print(futures[-1].cancelled())
    for wrong in ({"max_workers": 0}, {"initializer": 3}, {"max_tasks_per_child": 0}):
        try:
            ProcessPoolExecutor(**wrong)
        except (ValueError, TypeError) as error:
            print(error)

if __name__ == "__main__":
    main()
"""
RESULTS = """\
True
[0.0, 144.0, 576.0, 1296.0, 2304.0] [144.0, 3456.0]
[0.0, 144.0, 576.0, 1296.0, 2304.0]
11664.0 [11664.0] True None
[0, 1, 2, 3]
['None', 'None', "KeyError('two')", 'None']
KeyError('two') _RemoteTraceback
[0.0, 144.0, 576.0] set()
[0.0, 144.0, 576.0]
True
cannot schedule new futures after shutdown
[1, 2, 3] ['count', 'count', 'count']
True True
True
max_workers must be greater than 0
initializer must be a callable
max_tasks_per_child must be >= 1
""".splitlines()


SLOW = pytest.param("spawn", marks=pytest.mark.slow)  # each worker imports torch


@pytest.mark.parametrize("method", [SLOW, "fork"])
def test_executors_give_what_real_ones_give(run_on_two, method):
    status, lines, err = run_on_two(PROGRAM, "cuda", method)
    assert (status, err) == (0, "")
    assert lines[: len(RESULTS)] == RESULTS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_real_executors_give_the_same(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), "cpu", method]
    real = subprocess.run(words, check=True, capture_output=True, text=True)
    assert real.stdout.splitlines() == RESULTS
