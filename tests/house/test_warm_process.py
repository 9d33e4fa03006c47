"""Processes that are forked from a warm one behave as fresh ones."""

import os

import pytest
import torch
import warm_process

LOOK = """
import gc, os, sys, threading, torch
print(sorted(os.environ), os.getcwd(), sys.argv, threading.active_count(), gc.get_freeze_count())
print(torch._C._get_privateuse1_backend_name(), torch.cuda.is_initialized(), __name__)
print(repr(sys.stdin.read()), file=sys.stderr)
"""


def test_nothing_has_happened_in_it_yet():
    for _ in range(2):  # what the first has done is not in the second
        run = warm_process.run(LOOK + "torch.manual_seed(3)\nimport d2lpar.vgpu.torch_backend")
        first, second = run.stdout.splitlines()
        assert first == f"{sorted({*os.environ, 'PYTHONPATH'})} {os.getcwd()} ['-c'] 1 0"
        assert second == "privateuseone False __main__"
        assert (run.stderr, run.returncode) == ("''\n", 0)
    world = {"A": "b"}
    assert warm_process.run(LOOK, world).stdout.startswith("['A', 'PYTHONPATH'] ")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; print('x'); sys.exit(3)", 3, ""),
        ("import os; os.abort()", -6, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import sys; sys.stderr.write('last words')", 0, "last words"),
    ],
)
@pytest.mark.skipif(not warm_process.HAS_FORK, reason="without fork Python is started")
def test_it_ends_as_a_program_does(code, status, said):
    run = warm_process.run(code)
    assert run.returncode == status
    assert said in run.stderr
    assert run.stdout == ("x\n" if status == 3 else "")


def test_its_random_numbers_are_those_of_torch():
    run = warm_process.run("import torch; torch.manual_seed(5); print(torch.rand(1).item())")
    torch.manual_seed(5)
    assert float(run.stdout) == torch.rand(1).item()
