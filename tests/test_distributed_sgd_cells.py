"""Lesson 06's cells: when DDP and Horovod send gradients, worked by hand; its program."""

import cells
import nbformat
import numpy as np
import pytest
import torch

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
def program(tmp_path):
    """The program that the lesson's cells write into files."""
    (path,) = cells.LESSONS.glob("06_*.ipynb")
    for cell in nbformat.read(path, as_version=4).cells:
        line, _, text = cell.source.partition("\n")
        if line.startswith("%%writefile "):
            file = tmp_path / line.split()[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    return tmp_path / "launched/train.py"


def test_its_program_has_a_gpu_for_each_process_where_there_are_gpus(program, tmp_path, capfd):
    told = '\n    line = f"GPU {torch.cuda.current_device()} has w: {w.device}"\n'
    told += "    os.write(1, (line + os.linesep).encode())\n"
    state = program.with_name("state.py")
    text = state.read_text()
    own = "    w = w.to(device)" + told + "    return step, w"
    assert "    return step, w.to(device)" in text
    state.write_text(text.replace("    return step, w.to(device)", own))
    checkpoint = str(tmp_path / "checkpoint")
    command = ["run", "--quiet", "--nproc-per-node", "2", str(program), checkpoint]
    assert cli.main(command) == 0
    lines = sorted(line for line in capfd.readouterr().out.splitlines() if line)
    saved = [f"rank 0 has saved {steps} steps" for steps in (2, 4, 6)]
    gpus = [f"GPU {gpu} has w: cuda:{gpu}" for gpu in range(2)]
    assert lines == [*gpus, "rank 0 begins with step 0", *saved]


def alone(steps):
    """The same training, with the samples of both ranks in one step."""
    w = torch.zeros(3)
    for step in range(steps):
        X = torch.cat([_samples(2 * step + rank) for rank in range(2)])
        w = w - 0.03 * (X.T @ (X @ w - X.sum(1)))
    return w


def _samples(seed):
    torch.manual_seed(seed)
    return torch.randn(8, 3)


def test_its_program_takes_the_steps_of_one_process(program, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    command = ["run", "--quiet", "--nproc-per-node", "2", str(program), str(checkpoint)]
    assert cli.main(command) == 0
    step, w = torch.load(checkpoint)
    assert step == 6
    torch.testing.assert_close(w, alone(6))
