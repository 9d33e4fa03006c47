"""Challenges: right answers reach par and record, wrong ones hear why, and cheats earn nothing."""

import dataclasses
import inspect
import json
import math
import os
import re
import textwrap
import threading
from pathlib import Path

import nbformat
import puzzle_answers
import pytest
import torch

import d2lpar as par
from d2lpar.checks import challenges
from d2lpar.checks.challenges import grading, scores
from d2lpar.checks.challenges.attempt import par_runs
from d2lpar.checks.challenges.evidence import Evidence
from d2lpar.checks.challenges.puzzle import LEVELS
from d2lpar.checks.challenges.puzzles import PUZZLES
from d2lpar.checks.grader import CLIENT, source
from d2lpar.checks.verdict import Refused
from d2lpar.timeline import whole_file
from d2lpar.trials import tampering
from d2lpar.trials.confinement import Limits

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "notebooks" / "solutions"
GOOD = (SOLUTIONS / "challenges.py").read_text(encoding="utf-8")
BEST = (ROOT / "tools" / "challenge_records.py").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "notebooks" / "10_challenges.ipynb"
ONE_FORK = hasattr(os, "fork")
COUNTED = [name for name, puzzle in PUZZLES.items() if not puzzle.example]

# Plausible and wrong, or right and over a limit: what the student is told.
WRONG = {
    "toy_accumulate": (
        """
        def toy_accumulate(gpu):
            for batch in gpu.batches:
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
            for batch in gpu.batches:
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "line 5 has forward(0, 3) on rank 0: out of memory",
    ),
    "toy_ddp": (
        """
        def toy_ddp(gpu):
            for batch in gpu.batches:
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
            for layer in gpu.layers:
                gpu.reduce_scatter(layer)
                gpu.all_gather("gradients", layer)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "(limit 120, par 110, record 100) is over the limit",
    ),
    "toy_zero_1": (
        """
        def toy_zero_1(gpu):
            for batch in gpu.batches:
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
                    gpu.reduce_scatter(layer)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "at the end shard 1 of layer 0 on rank 0 is what it was at the start",
    ),
    "toy_fsdp": (
        """
        def toy_fsdp(gpu):
            for batch in gpu.batches:
                for layer in gpu.layers:
                    gpu.all_gather("weights", layer)
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
                    gpu.reduce_scatter(layer)
                    gpu.free(layer)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "out of memory",
    ),
    "toy_gpipe": (
        """
        def toy_gpipe(gpu):
            for batch in gpu.batches:
                gpu.recv(batch, gpu.before)
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
                gpu.send(batch, gpu.after)
                gpu.recv(batch, gpu.after)
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
                gpu.send(batch, gpu.before)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "is over the limit",
    ),
    "toy_1f1b": (
        """
        def toy_1f1b(gpu):
            for batch in gpu.batches:
                gpu.recv(batch, gpu.before)
                for layer in gpu.layers:
                    gpu.forward(layer, batch)
                gpu.send(batch, gpu.after)
            for batch in gpu.batches:
                gpu.recv(batch, gpu.after)
                for layer in reversed(gpu.layers):
                    gpu.backward(layer, batch)
                gpu.send(batch, gpu.before)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "out of memory, because that makes 26 GB, and a GPU has 24 GB (4 ranks",
    ),
    "spread": (
        """
        def spread(inputs, work, devices):
            return [work(X.to(devices[i % 8])) for i, X in enumerate(inputs)]
        """,
        "result 1 on vgpu:0, got it on vgpu:1",
    ),
    "broadcast": (
        """
        def broadcast(x, devices):
            return [x.to(device) for device in devices]
        """,
        "over the limit",
    ),
    "three_lanes": (
        """
        def three_lanes(inputs, outputs, work, device):
            vgpu = torch.get_device_module(device)
            side = vgpu.Stream(device)
            for X, output in zip(inputs, outputs):
                with vgpu.stream(side):
                    X = X.to(device, non_blocking=True)
                output.copy_(work(X), non_blocking=True)
            vgpu.synchronize(device)
        """,
        "the values happen to be right here",
    ),
    "unsynced": (
        """
        def unsynced(weights, batches, rate):
            A, B, C = weights
            losses = []
            for X, y in batches:
                Y = torch.relu(torch.relu(X @ A) @ B) @ C
                loss = ((Y - y) ** 2).mean()
                losses.append(loss.item())
                for W, g in zip(weights, torch.autograd.grad(loss, weights)):
                    W.data -= rate * g
            return losses
        """,
        "the host waited 12 times for a GPU, first in item (line 8); at most 1 may be",
    ),
    "relay": (
        """
        def relay(inputs, first, second, devices):
            results = []
            for X in inputs:
                Y = first(X)
                torch.get_device_module(devices[0]).synchronize(devices[0])
                results.append(second(Y.to(devices[1], non_blocking=True)))
            return results
        """,
        "it need not wait at all",
    ),
    "sum_gradients": (
        """
        def sum_gradients(gradients, devices):
            flat = [torch.cat([g.flatten() for g in own]) for own in gradients]
            par.collectives.all_reduce_naive(flat)
            for own, bucket in zip(gradients, flat):
                for i, piece in enumerate(bucket.split([g.numel() for g in own])):
                    own[i] = piece
        """,
        "of shape [64, 64, 3, 3], got [36864]",
    ),
    "unstuck": (
        """
        def unstuck(gradients):
            means = []
            for gradient in gradients:
                total = gradient.clone()
                dist.all_reduce(total)
                means.append(total / dist.get_world_size())
            return means
        """,
        "no rank can go on",
    ),
    "schedule": (
        """
        def schedule(rank, ranks, micro_batches):
            return [("F", m) for m in range(micro_batches)] + [
                ("B", m) for m in range(micro_batches)
            ]
        """,
        "rank 0 holds 8 micro-batches at once, and 3 may be",
    ),
    "cut": (
        """
        def cut(seconds, sent_bytes, stages):
            layers = len(seconds)
            return [layers // stages + (i < layers % stages) for i in range(stages)]
        """,
        "over the limit",
    ),
    "recompute": (
        """
        def recompute(seconds, kept_bytes, capacity_bytes):
            again = [False] * len(seconds)
            again[-1] = True
            return again
        """,
        "out of memory: with 1 of 10 blocks recomputed",
    ),
    "mix": (
        """
        def mix(model, machine, gpus, batch):
            return par.planner.Layout(par.planner.Mesh(gpus), 1, batch // gpus)
        """,
        "on 8 GPUs: a GPU needs",
    ),
    "small_gpt": (
        """
        def small_gpt(tokens, parts):
            x = parts.words(tokens)
            for block in parts.blocks:
                x = block(x)
            return parts.norm(x) @ parts.words.weight.T
        """,
        "the tensor of scores is off by up to",
    ),
    "train_on_ranks": (
        """
        def train_on_ranks(net, loss, batches, optimizer):
            losses = []
            for batch in batches:
                optimizer.zero_grad()
                mine = loss(net, batch.chunk(8)[dist.get_rank()])
                mine.backward()
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                optimizer.step()
                losses.append(mine.item())
            return losses
        """,
        "that is not the mean of the whole batch on one device",
    ),
    "read_timeline": (
        """
        def read_timeline(timeline):
            return timeline.on("vgpu:0", "collective").busy_s / timeline.duration_s
        """,
        "is too small",
    ),
    "mixes": (
        """
        def mixes(model, machine, batch):
            gpus = len(par.machines.machine(machine).accelerators)
            mesh = par.planner.Mesh(gpus)
            return par.planner.Layout(mesh, 1, batch // gpus)
        """,
        "a GPU needs",
    ),
    "rent": (
        """
        def rent(hours, price, most_per_hour, most_hours):
            return min(hours, key=lambda gpus: gpus * hours[gpus])
        """,
        "is not the choice where hours={8: ",
    ),
}

# What they try: the machine, the clock, the data, the grader, the expected result.
CHEATS = {
    "toy_accumulate": (
        """
        def toy_accumulate(gpu):
            gpu._job = None
            gpu.layers.clear()
        """,
        "was it updated",
    ),
    "toy_ddp": (
        """
        def toy_ddp(gpu):
            object.__setattr__(gpu._job, "batches", 1)
            for layer in gpu.layers:
                gpu.update(layer)
        """,
        "there is no whole gradient of layer 0 here",
    ),
    "toy_zero_1": (
        """
        def toy_zero_1(gpu):
            gpu.orders.append(("done", 0, 0, 0, "", 0))
        """,
        "has changed what was seen of it",
    ),
    "toy_fsdp": (
        """
        import dataclasses

        def toy_fsdp(gpu):
            gpu.update(0)
            gpu.orders[:] = [dataclasses.replace(gpu.orders[0], verb="finish")]
        """,
        "has changed what was seen of it",
    ),
    "toy_gpipe": (
        """
        def toy_gpipe(gpu):
            for layer in range(100):
                gpu.update(layer)
        """,
        "update: there is no layer 4: they are 0 to 3",
    ),
    "toy_1f1b": (
        """
        def toy_1f1b(gpu):
            while True:
                gpu.update(0)
        """,
        "more than 5000 verbs: is there a loop for ever?",
    ),
    "spread": (
        """
        def spread(inputs, work, devices):
            return [work(X.cpu()).to(devices[0]) for X in inputs]
        """,
        "the GPUs did 0 GFLOP",
    ),
    "broadcast": (
        """
        def broadcast(x, devices):
            x.zero_()
            return [x.to(device) for device in devices]
        """,
        "has changed its inputs",
    ),
    "three_lanes": (
        """
        def three_lanes(inputs, outputs, work, device):
            torch.equal = lambda a, b: True
        """,
        "line 3 changes torch.equal",
    ),
    "unsynced": (
        """
        from d2lpar.vgpu.sim.clock import Clock

        def unsynced(weights, batches, rate):
            Clock.kernel = None
        """,
        "line 2 imports d2lpar.vgpu.sim.clock",
    ),
    "relay": (
        """
        def relay(inputs, first, second, devices):
            with par.simulate("8x-h100-nvswitch") as devices:
                return [second(first(X)) for X in inputs]
        """,
        "line 3 uses par.simulate",
    ),
    "sum_gradients": (
        """
        def sum_gradients(gradients, devices):
            par.timing.now_s = lambda *_: 0.0
        """,
        "line 3 changes par.timing.now_s",
    ),
    "unstuck": (
        """
        def unstuck(gradients, shared=[]):
            shared.append(gradients)
            dist.barrier()
            here = gradients[0].device if gradients else f"vgpu:{dist.get_rank()}"
            rounds = max(map(len, shared[-dist.get_world_size():]))
            ranks = shared[-dist.get_world_size():]
            means = []
            for k in range(rounds):
                each = [own[k].cpu() for own in ranks if k < len(own)]
                means.append(torch.stack(each).mean(0).to(here))
            dist.barrier()
            return means
        """,
        "and the gradients have ",
    ),
    "schedule": (
        """
        import sys

        def schedule(rank, ranks, micro_batches):
            sys.modules["d2lpar.checks.challenges.of_pipelines"].HELD = 99
            return [("F", m) for m in range(micro_batches)]
        """,
        "raised KeyError",
    ),
    "cut": (
        """
        def cut(seconds, sent_bytes, stages):
            setattr(par.machines, "Link", None)
            return [1] * stages
        """,
        "expected a list of 4 whole numbers",
    ),
    "recompute": (
        """
        def recompute(seconds, kept_bytes, capacity_bytes):
            box = par.machines.machine("2x-v100-textbook")
            box.accelerators[0].memory_bytes = 10**12
            return [False] * 10
        """,
        "raised FrozenInstanceError",
    ),
    "mix": (
        """
        def mix(model, machine, gpus, batch):
            return par.planner.plans(model, machine, batch=batch)[0].layout
        """,
        "line 3 uses par.planner.plans: to find the mix is the puzzle",
    ),
    "small_gpt": (
        """
        def small_gpt(tokens, parts):
            parts.norm = nn.Identity()
            return parts.words(tokens) @ parts.words.weight.T
        """,
        "the tensor of scores is off by up to",
    ),
    "train_on_ranks": (
        """
        def train_on_ranks(net, loss, batches, optimizer):
            losses = []
            for batch in batches:
                optimizer.zero_grad()
                whole = loss(net, batch)
                whole.backward()
                optimizer.step()
                losses.append(whole.item())
            return losses
        """,
        "the ranks exchanged 0.00 MB",
    ),
    "read_timeline": (
        """
        def read_timeline(timeline):
            return timeline.exposed_communication_s("vgpu:0")
        """,
        "line 3 uses timeline.exposed_communication_s",
    ),
    "mixes": (
        """
        def mixes(model, machine, batch):
            gpus = len(par.machines.machine(machine).accelerators)
            layout = par.planner.Layout(par.planner.Mesh(gpus), 1, batch // gpus)
            object.__setattr__(layout, "precision", "fp8")
            return layout
        """,
        "leave precision as they are",
    ),
    "rent": (
        """
        def rent(hours, price, most_per_hour, most_hours):
            case = globals()["CASES"]
        """,
        "raised KeyError",
    ),
}


def cell(text):
    return textwrap.dedent(text)


def graded(name, text):
    return CLIENT.grade(grading.__name__, name, cell(text), seed=0)


@pytest.fixture(autouse=True)
def own_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("D2LPAR_SCORES", str(tmp_path / "scores"))


@pytest.fixture(scope="module", autouse=True)
def no_process_left():
    yield
    CLIENT.close()


@pytest.mark.parametrize("name", PUZZLES)
def test_a_good_solution_comes_to_par(name):
    report = graded(name, GOOD)
    assert report["status"] == "right", report
    assert report["figure"] <= PUZZLES[name].par * 1.02
    assert report["worth"] >= 80
    if PUZZLES[name].on_clock:
        assert report["figure"] == pytest.approx(PUZZLES[name].par, rel=1e-3)
        assert report["picture"] == par_runs()[name]  # which others are drawn beside


@pytest.mark.parametrize("name", [name for name in PUZZLES if f"def {name}(" in BEST])
def test_the_best_solution_comes_to_the_record(name):
    report = graded(name, BEST)
    assert report["status"] == "right", report
    assert report["figure"] == pytest.approx(PUZZLES[name].record, rel=1e-2)
    assert report["worth"] == 100
    assert PUZZLES[name].record < PUZZLES[name].par < PUZZLES[name].limit


@pytest.mark.parametrize("name", PUZZLES)
def test_a_plausible_wrong_answer_hears_why(name):
    text, said = WRONG[name]
    report = graded(name, text)
    slow = name in ("toy_ddp", "toy_gpipe", "broadcast", "unsynced", "relay", "cut")
    assert report["status"] == ("right, but over the limit" if slow else "wrong"), report
    assert said in report["text"]
    assert "seed=0" in report["text"]
    assert not report.get("points")
    if name.startswith("toy_") or (PUZZLES[name].on_clock and "raised" not in report["text"]):
        assert report["picture"], "what it did is drawn, right or wrong"


@pytest.mark.parametrize("name", PUZZLES)
def test_a_cheat_earns_nothing(name):
    text, said = CHEATS[name]
    report = graded(name, text)
    assert report["status"] in ("wrong", "refused"), report
    assert PUZZLES[name].on_clock <= (report["status"] == "refused")
    assert said in report["text"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exec('1')", "calls exec"),
        ("torch.sys.exit()", "uses torch.sys"),
        ("inputs.__class__", "a private name"),
        ("import gc", "imports gc"),
        ("import torch.multiprocessing", "imports torch.multiprocessing"),
        ("from torch import _C", "a private name"),
        ("p = par", "hands on par itself"),
        ("par.vgpu", "uses par.vgpu"),
        ("par.checks.challenges", "uses par.checks"),
        ("par.devices(8)", "machine and clock are the grader's"),
        ("del torch.equal", "changes torch.equal"),
        ("for math.pi in (3,): pass", "changes math.pi"),
    ],
)
def test_what_could_reach_the_clock_does_not_run(line, said):
    report = graded("relay", f"def relay(inputs, first, second, devices):\n    {line}\n")
    assert report["status"] == "refused"
    assert said in report["text"]


@pytest.mark.parametrize(
    "line",
    [
        "timeline.exposed_communication_s('vgpu:0')",
        "return getattr(timeline, 'exposed_communication_s')('vgpu:0')",
        "from d2lpar.timeline import exposed_communication_s",
    ],
)
def test_what_a_puzzle_asks_for_is_not_called(line):
    report = graded("read_timeline", f"def read_timeline(timeline):\n    {line}\n")
    assert report["status"] == "refused"
    assert "to work it out is the puzzle" in report["text"]


def test_who_trains_with_the_whole_batch_has_not_shared_it():
    text = CHEATS["train_on_ranks"][0].replace(
        "optimizer.step()",
        "dist.all_reduce(torch.cat([p.grad.flatten() for p in net.parameters()]))\n"
        "                optimizer.step()",
    )
    report = graded("train_on_ranks", text)
    assert report["status"] == "wrong"
    assert "train with an eighth of each batch" in report["text"]


def test_what_an_answer_needs_is_allowed():
    text = """
    import itertools
    from collections import deque
    import d2lpar as course

    LIMIT = 3

    def helper(x):
        return x + LIMIT

    def rent(hours, price, most_per_hour, most_hours):
        w = torch.zeros(2, requires_grad=True)
        w.grad = torch.ones(2)
        w.data = torch.ones(2)
        course.planner.Mesh(2)
        return helper(deque(itertools.chain([1]))[0])
    """
    assert "4 is not the choice where" in graded("rent", text)["text"]


@pytest.mark.parametrize("what", ["d2lpar.vgpu.sim.clock.Clock.kernel", "time.monotonic"])
def test_changes_of_the_clock_that_were_made_all_the_same_are_found(what, monkeypatch):
    before = tampering.state()
    assert tampering.changed(before) == ""
    owner, name = what.rsplit(".", 1)
    monkeypatch.setattr(f"{owner}.{name}", lambda *_: None)
    assert tampering.changed(before) == what


def test_a_changed_machine_is_found(monkeypatch):
    before = tampering.state()
    box = par.machines.CATALOGUE["2x-v100-textbook"]
    monkeypatch.setitem(par.machines.CATALOGUE, "2x-v100-textbook", box.with_accelerators(3))
    assert tampering.changed(before) == "the machine 2x-v100-textbook"


def evidence(**changed):
    found = {"result": [], "seconds": 1.0, "flops": 1e15, "sent_bytes": 0, "hazards": []}
    return Evidence(
        found | {"waits": [], "changed": "", "picture": {}} | changed, "8x-h100-nvswitch"
    )


@pytest.mark.parametrize("seconds", [0.0, 1e-9, -1.0, math.nan, math.inf, "1", None, True])
def test_a_time_that_the_machine_does_not_allow_is_refused(seconds):
    with pytest.raises(Refused):
        evidence(seconds=seconds).require_work(1e12, 8)
    with pytest.raises(Refused):
        evidence(seconds=seconds).require_bytes(1e9)


def test_work_that_was_not_done_is_refused():
    evidence().require_work(1e12, 8)
    evidence().require_bytes(1e9)
    with pytest.raises(Refused, match="GFLOP"):
        evidence(flops=1).require_work(1e12, 8)


@pytest.mark.parametrize(
    "found", [None, [], {"seconds": 1.0}, "x", {"result": 1, "seconds": 1.0, "flops": "many"}]
)
def test_what_is_no_evidence_is_refused(found):
    with pytest.raises(Refused, match="does not count"):
        Evidence(found, "8x-h100-nvswitch")


def test_a_forged_picture_is_none():
    rows = [["vgpu:0", 0, "compute", 0, 1]]
    for bad in (
        rows * 9999,
        [["vgpu:0", 0, "compute", 0, math.nan]],
        [[1, 2]],
        "x",
        [[[], 0, 0, 0, 0]],
    ):
        assert evidence(picture={"kind": "gantt", "spans": bad}).picture == {}
    assert evidence(picture={"kind": "gantt", "spans": rows}).picture["spans"] == rows


@pytest.mark.parametrize("figure", [-1e9, 0.0, 1e-12])
def test_nobody_has_more_than_a_hundred_points(figure):
    assert all(puzzle.points(figure) <= 100 for puzzle in PUZZLES.values())


def test_errors_have_the_line_of_the_cell():
    text = (
        "def rent(hours, price, most_per_hour, most_hours):\n    share = 0\n    return 1 / share\n"
    )
    said = graded("rent", text)["text"]
    assert said.startswith(
        "your function raised ZeroDivisionError: division by zero in line 3 (`return 1 / share`)"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "rent",
            """
            def rent(hours, price, most_per_hour, most_hours):
                return "64"
            """,
            "64' is not the choice where",
        ),
        (
            "broadcast",
            """
            def broadcast(x, devices):
                return [2 * x.to(device) for device in devices]
            """,
            "copy 0 is off by up to",
        ),
        (
            "relay",
            """
            def relay(inputs, first, second, devices):
                side = torch.cuda.Stream(devices[0])
            """,
            "take torch.get_device_module(device) for torch.cuda in line 3",
        ),
    ],
)
def test_messages_tell_what_was_expected_and_what_came(name, text, said):
    report = graded(name, text)
    assert report["status"] == "wrong"
    assert said in report["text"]


class TestJudgeThatFails:
    """In this process, where a judge can be broken."""

    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch):
        def judge(answer, seed):
            answer({8: 1.0}, 1.0, 1.0, 1.0)
            raise KeyError("typo")

        own = dataclasses.replace(PUZZLES["rent"], judge=judge)
        monkeypatch.setitem(grading.PUZZLES, "rent", own)
        monkeypatch.setattr(CLIENT, "grade", lambda _, name, text, **__: grading.grade(
            name, text, Limits(20.0, 4 * 10**9)
        ))  # fmt: skip

    def test_it_blames_no_answer(self):
        attempt = challenges.challenge_source("rent", RIGHT_RENT)
        assert attempt.status == "not graded"
        assert "the check of rent has failed itself, with KeyError: 'typo'" in repr(attempt)

    def test_nobody_says_that_the_file_is_wrong(self, capsys):
        scores.keep("rent", {"points": 100, "figure": 0.0}, RIGHT_RENT)
        (one,) = challenges.regrade([scores.path()])
        assert (one.claimed, one.points) == (100, None)
        assert not one.agrees

    def test_an_answer_that_fails_is_wrong_all_the_same(self):
        attempt = challenges.challenge_source("rent", "def rent(*_):\n    return 1 / 0\n")
        assert attempt.status == "wrong"


def test_names_of_other_cells_are_not_there():
    said = graded("rent", "def rent(*_):\n    return elsewhere\n")["text"]
    assert "NameError" in said
    assert "sees only the cell" in said


@pytest.mark.parametrize("name", ["spread", "small_gpt", "mix", "read_timeline", "broadcast"])
def test_a_function_that_returns_nothing_is_told_so(name):
    assert "returned nothing: end it with `return" in graded(name, f"def {name}(*_): pass")["text"]


# --- the grader's process -------------------------------------------------------------------------


RIGHT_RENT = puzzle_answers.RENT


@pytest.mark.skipif(not ONE_FORK, reason="without fork answers run one process each")
class TestProcess:
    def test_right_answers_are_kept(self, tmp_path):
        attempt = challenges.challenge_source("rent", RIGHT_RENT + "\n\npar.challenge(rent)\n")
        assert attempt, attempt
        assert attempt.points == 100
        file = tmp_path / "scores" / "challenges.json"
        (entry,) = json.loads(file.read_text())["challenges"].values()
        assert entry["points"] == 100
        assert entry["course"] == par.__version__
        assert entry["source"].startswith("def rent(")
        assert "par.challenge" not in entry["source"]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("while True: pass", "took longer than 2 s"),
            ("bytearray(10**11)", "more of this computer's memory"),
            ("raise SystemExit", "SystemExit"),
            ("return (lambda f: f(f))(lambda f: f(f))", "RecursionError"),
        ],
    )
    def test_limits(self, line, said):
        text = f"def rent(hours, price, most_per_hour, most_hours):\n    {line}\n"
        attempt = challenges.challenge_source("rent", text, limit_s=2)
        assert attempt.status == "wrong"
        assert said in attempt.text

    def test_files_are_not_written(self, tmp_path):
        file = tmp_path / "a.txt"
        text = f"def rent(*_):\n    torch.from_file({str(file)!r}, shared=True, size=9)\n"
        attempt = challenges.challenge_source("rent", text)
        assert attempt.status == "wrong"
        assert not file.exists() or not file.stat().st_size

    def test_a_process_that_has_ended_is_replaced(self):
        challenges.challenge_source("rent", RIGHT_RENT)
        CLIENT._process.kill()
        CLIENT._process.wait()
        assert challenges.challenge_source("rent", RIGHT_RENT)

    def test_what_the_notebook_changes_does_not_matter(self, monkeypatch):
        monkeypatch.setattr("d2lpar.checks.challenges.capstone.rent_cases", lambda _: ())
        monkeypatch.setattr(torch, "equal", lambda *_: True)
        text = "def rent(*_):\n    return 8\n"
        assert challenges.challenge_source("rent", text).status == "wrong"

    def test_files_are_graded_again(self, tmp_path):
        challenges.challenge_source("rent", RIGHT_RENT)
        file = tmp_path / "scores" / "challenges.json"
        assert [one.agrees for one in challenges.regrade([file])] == [True]
        content = json.loads(file.read_text())
        content["challenges"]["rent"]["source"] = "def rent(*_):\n    return 8\n"
        file.write_text(json.dumps(content))
        (one,) = challenges.regrade([file])
        assert (one.claimed, one.points, one.agrees) == (100, 0, False)


# --- scores, texts and pictures -------------------------------------------------------------------


def kept(points, figure):
    return scores.keep("cut", {"points": points, "figure": figure}, "def cut(): ...")


def test_the_best_answer_is_kept():
    assert [kept(70, 9.0), kept(60, 10.0), kept(80, 8.0), kept(80, 8.0)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert scores.read(scores.path())["cut"]["points"] == 80
    assert "80 of 2100 points" in challenges.score_table()


@pytest.mark.parametrize(
    "content", ["[]", '{"challenges": {"rent": 3}}', '{"challenges": {', "[" * 200_000, b"\xff"]
)
def test_a_file_of_something_else_is_put_aside_and_said(capsys, content):
    content = content if isinstance(content, bytes) else content.encode()
    scores.path().parent.mkdir()
    scores.path().write_bytes(content)
    assert kept(70, 9.0)
    told = capsys.readouterr().err
    (aside,) = scores.path().parent.glob("challenges before *.json")
    assert aside.read_bytes() == content
    assert aside.name in told
    assert told.count("\n") == 1
    assert scores.read(scores.path())["cut"]["points"] == 70


def test_two_who_keep_scores_at_the_same_time_lose_none(monkeypatch):
    """The second begins after the first has read, and before that has written."""
    another = []

    def held_up(file, text):
        if not another:
            report = {"points": 70, "figure": 1.0}
            words = ("rent", report, "def rent(): ...")
            another.append(threading.Thread(target=scores.keep, args=words))
            another[0].start()
            another[0].join(0.2)  # it waits for the first, or is done
        theirs(file, text)

    theirs = whole_file.write
    monkeypatch.setattr(whole_file, "write", held_up)
    assert kept(70, 9.0)
    another[0].join(30)
    assert sorted(scores.read(scores.path())) == ["cut", "rent"]


def test_scores_that_cannot_be_kept_lose_no_verdict(monkeypatch):
    scores.path().parent.write_text("a file")
    report = {"status": "right", "text": "fine", "points": 100, "figure": 0.0}
    monkeypatch.setattr(CLIENT, "grade", lambda *_, **__: report)
    attempt = challenges.challenge_source("rent", RIGHT_RENT)
    assert attempt.points == 100
    assert "could not be kept in" in attempt.text


def test_points():
    puzzle = challenges.Puzzle("p", None, 1, "ms", limit=10, par=5, record=4)
    figures = (12, 11, 10, 7.5, 5.5, 5, 4.5, 4.4, 4, 3)
    points = [0, 60, 60, 60, 80, 80, 80, 100, 100, 100]
    assert [puzzle.points(figure) for figure in figures] == points
    assert [puzzle.allows(figure) for figure in figures] == [each > 0 for each in points]


def test_a_figure_in_percent_counts_as_it_is():
    """A tenth more would make 110 % as good as the optimum."""
    puzzle = challenges.Puzzle("p", None, 1, "% of the best", limit=120, par=110, record=100)
    assert [puzzle.points(f) for f in (100, 100 + 1e-8, 100.1, 110, 110.1, 120, 120.1)] == [
        100, 100, 80, 80, 60, 60, 0,
    ]  # fmt: skip
    assert not puzzle.allows(120.1)
    assert not puzzle.is_new_record(100 - 1e-8)
    assert puzzle.is_new_record(99.9)


def test_the_table_of_scores_calls_puzzles_as_the_page_does():
    found, place = [], None
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if heading := re.search(r"^### (?:Step )?(\w+)[.:] ", cell.source, re.MULTILINE):
            place = f"C{heading[1]}" if "### Step" in cell.source else heading[1]
        if cell.cell_type == "code" and (name := re.search(r"par\.challenge\((\w+)", cell.source)):
            found += [(place, name[1])] if name[1] in COUNTED else []
    rows = [line.split()[:2] for line in challenges.score_table().splitlines()[1:-1]]
    assert [tuple(row) for row in rows] == found


def test_a_stub_is_not_attempted():
    def rent(hours, price, most_per_hour, most_hours):
        raise NotImplementedError

    text = textwrap.dedent(inspect.getsource(rent))
    assert challenges.challenge_source("rent", text).status == "not attempted yet"


def test_what_is_no_puzzle():
    def rend():
        pass

    with pytest.raises(ValueError, match="named 'rend'; did you mean 'rent'"):
        par.challenge(rend)
    with pytest.raises(TypeError, match="the function itself, not 3"):
        par.challenge(3)


@pytest.mark.parametrize("name", [name for name in PUZZLES if PUZZLES[name].on_clock])
def test_par_has_a_picture(name):
    from d2lpar.checks import pictures

    run = par_runs()[name]
    picture = pictures.beside(run, run, name)
    assert picture.png()


def test_the_notebook_says_the_limits():
    """But of puzzles whose right answers are all alike, and of one that is said in a table."""
    said, limit = {}, None
    for one in nbformat.read(NOTEBOOK, as_version=4).cells:
        if one.cell_type == "markdown":
            pattern = r"\*\*Limit\*\*[^.]*?(\d+(?:\.\d+)?) (ms|%|passes)"
            limit = limit if "<details>" in one.source else re.search(pattern, one.source)
        elif limit and "par.challenge(" in one.source:
            name = one.source.rstrip().rsplit("par.challenge(")[1].rstrip(")")
            said[name] = float(limit[1])
    assert said == {name: PUZZLES[name].limit for name in COUNTED if PUZZLES[name].limit}


def test_every_puzzle_stands_in_the_notebook():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    stubs = [c.source for c in cells if c.cell_type == "code" and "par.challenge(" in c.source]
    names = [re.search(r"par\.challenge\((\w+)", text)[1] for text in stubs]
    assert set(names) == set(PUZZLES)
    solved = [n for t, n in zip(stubs, names, strict=True) if not source.is_stub(t, n)]
    assert solved == [name for name in PUZZLES if PUZZLES[name].example]


def test_every_puzzle_has_its_level_and_hints():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    text = "\n".join(cell.source for cell in cells)
    parts = re.split(r"^(?=### )", text, flags=re.MULTILINE)[1:]
    for name in COUNTED:
        (part,) = [part for part in parts if f"par.challenge({name})" in part]
        assert part.splitlines()[0].endswith(f" {LEVELS[PUZZLES[name].level]}"), name
        assert part.count("<details>") >= 2, name
