"""Lesson 06's cells: when DDP and Horovod send gradients, worked by hand; its program."""

import ast

import cells
import nbformat
import numpy as np
import pytest

from d2lpar.command import cli
from d2lpar.parallelism.scaling import DeviceStep, Gradient

MB = 10**6
READY_MS = {1: 10 * MB, 4: 20 * MB, 12: 70 * MB, 13: MB}  # when: how many bytes
END_MS, BACKWARD_END_MS = 20, 14


@pytest.fixture(scope="module")
def lesson():
    return cells.functions("06", np=np)


@pytest.fixture(scope="module")
def step():
    gradients = tuple(Gradient(size, ms / 1e3) for ms, size in READY_MS.items())
    return DeviceStep(BACKWARD_END_MS / 1e3, END_MS / 1e3, gradients)


def ends_with(exchanged_ms: float) -> object:
    """The seconds of a step whose last exchange ends after backward."""
    return pytest.approx((END_MS + exchanged_ms - BACKWARD_END_MS) / 1e3)


def test_horovod_sends_together_what_is_ready_every_five_ms(lesson, step):
    """The first two at 5 ms, the large one alone, as it is above 64 MB, and then the last."""
    ms = {size: 1e3 * lesson.exchange_s(size * MB) for size in (30, 70, 1)}
    assert 25 < 5 + ms[30] < 30  # so that the next cycle is that of 30 ms
    assert 80 < 30 + ms[70] < 85
    assert lesson.horovod_step(step) == ends_with(85 + ms[1])


def test_ddp_sends_a_bucket_when_it_is_full(lesson, step):
    """The first two are 25 MB and more; each of the others waits for the network."""
    ms = 1e3 * lesson.exchange_s(sum(READY_MS.values()))
    assert lesson.step_model(step, lesson.exchange_s) == ends_with(4 + ms)


@pytest.mark.parametrize("rule", ["horovod_step", "step_model"])
def test_an_exchange_that_ends_before_backward_costs_nothing(lesson, rule):
    step = DeviceStep(BACKWARD_END_MS / 1e3, END_MS / 1e3, (Gradient(MB, 1e-3),))
    more = (lesson.exchange_s,) if rule == "step_model" else ()
    assert getattr(lesson, rule)(step, *more) == END_MS / 1e3


@pytest.fixture
def program():
    """The program that the lesson's cell holds as a text."""
    (path,) = cells.LESSONS.glob("06_*.ipynb")
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c.id == "program")
    (assigned,) = ast.parse(cell.source).body
    return ast.literal_eval(assigned.value)


def test_its_program_has_a_gpu_for_each_process_where_there_are_gpus(program, tmp_path, capfd):
    told = '\nline = f"GPU {torch.cuda.current_device()} has X: {X.device}"\n'
    told += "os.write(1, (line + os.linesep).encode())\n"
    file = tmp_path / "program.py"
    file.write_text(program + told)
    assert cli.main(["run", "--quiet", "--nproc-per-node", "2", str(file)]) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    sums = [f"{rank}: [3.0, 3.0]" for rank in range(2)]
    assert lines == sums + [f"GPU {gpu} has X: cuda:{gpu}" for gpu in range(2)]
