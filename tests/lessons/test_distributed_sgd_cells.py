"""Lesson 06's cells: when DDP and Horovod send gradients, worked by hand; its program."""

from types import SimpleNamespace

import cells
import nbformat
import numpy as np
import pytest
import running
import torch

import d2lpar as par
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
    ms = {size: 1e3 * lesson.ring_s(size * MB) for size in (30, 70, 1)}
    assert 25 < 5 + ms[30] < 30  # so that the next cycle is that of 30 ms
    assert 80 < 30 + ms[70] < 85
    assert lesson.horovod_step(step) == ends_with(85 + ms[1])


def test_ddp_sends_a_bucket_when_it_is_full(lesson, step):
    """The first two are 25 MB and more; each of the others waits for the network."""
    ms = 1e3 * lesson.ring_s(sum(READY_MS.values()))
    assert lesson.step_model(step, lesson.ring_s) == ends_with(4 + ms)


@pytest.mark.parametrize("rule", ["horovod_step", "step_model"])
def test_an_exchange_that_ends_before_backward_costs_nothing(lesson, rule):
    step = DeviceStep(BACKWARD_END_MS / 1e3, END_MS / 1e3, (Gradient(MB, 1e-3),))
    more = (lesson.ring_s,) if rule == "step_model" else ()
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


def test_its_program_has_a_gpu_for_each_process_where_there_are_gpus(program, tmp_path):
    told = '    line = f"GPU {torch.cuda.current_device()} has X: {X.device}"\n'
    told += "    safe.os.write(1, (line + safe.os.linesep).encode())\n"
    text = program.read_text()
    assert text.count("    sgd.zero_grad()\n") == 1
    program.write_text(text.replace("    sgd.zero_grad()\n", f"{told}    sgd.zero_grad()\n"))
    checkpoint = str(tmp_path / "checkpoint")
    found = running.run("--quiet", "--nproc-per-node", 2, program, checkpoint)
    assert found.status == 0
    lines = sorted(line for line in found.lines if line)
    steps = [f"rank 1 has done step {step}" for step in range(1, 5)]
    gpus = [f"GPU {gpu} has X: cuda:{gpu}" for gpu in range(2) for _ in range(4)]
    assert lines == [*gpus, *steps]


def alone(steps):
    """The same training in one process, with the pieces of both ranks in one step."""
    text = par.CourseText()
    torch.manual_seed(1)
    net = par.models.gpt(len(text.vocabulary))
    for step in range(steps):
        X, y = text.batch(8, step=step)
        net.zero_grad()
        par.models.next_word_loss(net(X), y).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.5 * p.grad
    return net.state_dict()


def test_its_program_takes_the_steps_of_one_process(program, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    assert running.run("--quiet", "--nproc-per-node", 2, program, checkpoint).status == 0
    step, weights = torch.load(checkpoint, map_location="cpu")
    assert step == 4
    expected = alone(4)
    assert weights.keys() == expected.keys()
    for name, p in weights.items():
        torch.testing.assert_close(p, expected[name], atol=1e-5, rtol=1e-4)


class NoText:
    """Whose batches do not matter."""

    def batch(self, samples, *, step):
        return None, None


@pytest.fixture(scope="module")
def waiting():
    """The cells on who waits, with a network of one weight w and the loss w ** 2 / 2."""
    models = SimpleNamespace(next_word_loss=lambda scores, y: scores**2 / 2)
    return cells.functions(
        "06",
        np=np,
        torch=torch,
        text=NoText(),
        small=None,
        par=SimpleNamespace(models=models),
        functional_call=lambda net, weights, inputs: weights["w"],
    )


def trained(way, *how):
    weights = {"w": torch.tensor(1.0, requires_grad=True)}
    return *way(weights, *how), weights["w"].item()


def test_whoever_waits_makes_as_many_updates_as_the_slowest_allows(waiting):
    updates, oldest, w = trained(waiting.synchronous, (1, 1, 1, 4), 20, 0.5)
    assert (updates, oldest, w) == (5, 0, 0.5**5)


def test_whoever_does_not_wait_applies_gradients_of_what_was_pulled_before(waiting):
    """By hand: 1, then 1 - 0.5, 0.5 - 0.5 of the other worker's 1, 0 - 0.25, -0.25 - 0."""
    assert trained(waiting.asynchronous, (1, 1), 2, 0.5) == (4, 1, -0.25)


def test_a_slow_worker_is_late_by_what_the_others_have_done(waiting):
    updates, oldest, _ = trained(waiting.asynchronous, (1, 1, 1, 4), 20, 0.01)
    assert (updates, oldest) == (65, 12)
