"""Pools of processes that use virtual GPUs, beside the same pools on the processor."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
import torch.multiprocessing as mp

DEVICE, METHOD = sys.argv[1:]
calls = []

def begin(scale):
    global weights
    number = mp.current_process()._identity[-1]
    where = f"cuda:{number % torch.cuda.device_count()}" if DEVICE == "cuda" else "cpu"
    weights = torch.full((4, 4), float(scale), device=where)

def work(i, power=2):
    calls.append(i)
    return (weights * i).pow(power).sum().item()

def count(i):
    calls.append(i)
    return len(calls)

def fail(i):
    if i == 2:
        raise KeyError("two")

def main():
    with mp.get_context(METHOD).Pool(2, begin, (3,)) as pool:
        print(pool.map(work, range(5)), pool.starmap(work, [(1, 2), (2, 3)]))
        told = []
        result = pool.apply_async(work, (3,), {"power": 3}, callback=told.append)
        print(result.get(), told, result.successful())
        print(list(pool.imap(work, range(4), 2)), sorted(pool.imap_unordered(work, range(4))))
        for each in (pool.map, lambda *args: list(pool.imap(*args))):
            try:
                each(fail, range(4))
            except KeyError as error:
                print(repr(error), type(error.__cause__).__name__)
        pool.close()
        pool.join()
        try:
            pool.apply(work, (1,))
        except ValueError as error:
            print(error)
    with mp.get_context(METHOD).Pool(1) as pool:
        print([pool.apply(count, (i,)) for i in range(4)])
    with mp.get_context(METHOD).Pool(2, maxtasksperchild=1) as pool:
        print(pool.map(count, range(4), chunksize=1))

if __name__ == "__main__":
    main()
"""
RESULTS = """\
[0.0, 144.0, 576.0, 1296.0, 2304.0] [144.0, 3456.0]
11664.0 [11664.0] True
[0.0, 144.0, 576.0, 1296.0] [0.0, 144.0, 576.0, 1296.0]
KeyError('two') RemoteTraceback
KeyError('two') RemoteTraceback
Pool not running
[1, 2, 3, 4]
[1, 1, 1, 1]
""".splitlines()


SLOW = pytest.param("spawn", marks=pytest.mark.slow)  # each worker imports torch


@pytest.mark.parametrize("method", [SLOW, "fork"])
def test_pools_give_what_real_ones_give(run_on_two, method):
    status, lines, err = run_on_two(PROGRAM, "cuda", method)
    assert (status, err) == (0, "")
    assert lines[: len(RESULTS)] == RESULTS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_real_pools_give_the_same(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), "cpu", method]
    real = subprocess.run(words, check=True, capture_output=True, text=True)
    assert real.stdout.splitlines() == RESULTS
