"""Five ways to points that were found, and earn none now; and what else makes challenges fair."""

import ast
import json
import random
import re
import textwrap
from pathlib import Path

import pytest
import torch
from puzzle_answers import DDP, RENT
from test_challenges import (  # two fixtures among them
    BEST,
    CHEATS,
    COUNTED,
    GOOD,
    WRONG,
    no_process_left,  # noqa: F401
    own_scores,  # noqa: F401
)

import d2lpar as par
from d2lpar.checks import challenges
from d2lpar.checks.challenges import capstone, copies, grading, of_pipelines, of_plans, scores
from d2lpar.checks.challenges.puzzles import PUZZLES
from d2lpar.checks.grader import CLIENT, source
from d2lpar.command.course import working_copy
from d2lpar.trials import gpus, timelines

ROOT = Path(__file__).parents[2]


def graded(name, text, **seed):
    return CLIENT.grade(grading.__name__, name, textwrap.dedent(text), **seed)


def functions(text):
    """Each function of a text, alone, with the imports above all of them."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.unparse(ast.Module([*imports, node], []))


# --- 1. records beside the page, and copies -------------------------------------------------------


def test_no_record_lies_in_a_students_copy(tmp_path):
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    list(working_copy.update(tmp_path))
    mine = [path for path in (tmp_path / "my").rglob("*") if path.suffix in (".py", ".ipynb")]
    assert mine
    for name, text in functions(BEST):
        record = copies.prints(text, name)
        for path in mine:
            own = path.read_text(encoding="utf-8")
            if path.suffix == ".py" and f"def {name}(" in own:
                assert copies.prints(own, name).isdisjoint(record), (path, name)
    assert not any("challenge_records" in path.name for path in mine)


@pytest.mark.parametrize("text", [GOOD, BEST], ids=["solutions", "records"])
def test_every_solution_is_known_by_its_fingerprint(text):
    for name, own in functions(text):
        if name in COUNTED:
            assert copies.is_own(own, name), f"{name}: run tools/challenges.py"


GPIPE = """
def toy_gpipe(gpu):
    for m in gpu.batches:
        gpu.recv(m, gpu.before)
        for i in gpu.layers:
            gpu.forward(i, m)
        gpu.send(m, gpu.after)
    for m in gpu.batches:
        gpu.recv(m, gpu.after)
        for i in gpu.layers[::-1]:
            gpu.backward(i, m)
        gpu.send(m, gpu.before)
    for i in gpu.layers:
        gpu.update(i)
"""


def test_where_hardly_another_program_is_possible_nobody_is_told_that_theirs_is_a_copy():
    """An honest GPipe is the course's, but for names."""
    assert copies.is_own(GPIPE, "toy_gpipe")
    attempt = challenges.challenge_source("toy_gpipe", GPIPE)
    assert (attempt.status, attempt.points) == ("right", 100), attempt
    assert "earns no points" not in attempt.text


@pytest.mark.parametrize("name", ["rent", "toy_ddp", "read_timeline", "schedule", "cut"])
def test_a_copy_of_a_solution_is_right_and_earns_nothing(name):
    attempt = challenges.challenge_source(name, f"# mine\n{source.graded_part(GOOD, name)}")
    assert attempt.status == "right"
    assert attempt.points == 0
    assert "earns no points" in attempt.text
    assert scores.read(scores.path()) == {}


def test_other_names_spaces_and_comments_make_no_other_answer():
    own = dict(functions(GOOD))["schedule"]
    renamed = re.sub(r"\bahead\b", "early", re.sub(r"\border\b", "todo", own))
    assert renamed != own
    assert copies.is_own(renamed.replace("return", "# at last\n    return"), "schedule")
    assert not copies.is_own(own.replace("ranks - 1 - rank", "ranks - rank - 1"), "schedule")


def test_short_answers_are_nobodys_but_for_the_very_words():
    """Two who write six lines may well write the same, but for names."""
    own = dict(functions(GOOD))["small_gpt"]
    assert copies.is_own(own, "small_gpt")
    assert not copies.is_own(re.sub(r"\bx\b", "hidden", own), "small_gpt")


def test_answers_of_ones_own_are_no_copies():
    for name, (text, _) in (WRONG | CHEATS).items():
        assert not copies.is_own(textwrap.dedent(text), name)
    assert not copies.is_own(RENT, "rent")
    assert not copies.is_own(DDP, "toy_ddp")


# --- 2. expected values in messages ---------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_no_message_says_what_is_expected(name):
    """Places, sizes and types are asked for, values are not told."""
    text = graded(name, WRONG[name][0], seed=3)["text"]
    assert not re.search(r"expected (?!a |\d+ )|should be", text) or re.search(
        r"expected \S+ ?\d* (on vgpu:\d|of shape)", text
    ), text


def test_neither_share_nor_loss_nor_choice_is_told():
    drawn = capstone.spans(random.Random(3))
    timeline = timelines.timeline_of(drawn)
    exchanged = timeline.on("vgpu:0", "copy", "collective")
    hidden = exchanged.overlap_s(timeline.on("vgpu:0", "compute"))
    share = (exchanged.busy_s - hidden) / timeline.duration_s
    said = graded("read_timeline", "def read_timeline(timeline):\n    return 0.987\n", seed=3)
    assert "0.9870 is too large" in said["text"]
    assert f"{share:.2f}" not in said["text"]
    said = graded("rent", "def rent(*_):\n    return 64\n", seed=3)["text"]
    assert re.fullmatch(
        r"int 64 is not the choice where hours=.*: (it costs|it takes) .* \(its cases.*seed=3\)",
        said,
    )


def test_a_wrong_tensor_is_told_by_its_gap_alone():
    # A seed of its own, because a drawn value may be as short as 0.1, which a gap may be, too.
    wrong = "def broadcast(x, devices):\n    return [x + 1 for _ in devices]\n"
    said = graded("broadcast", wrong, seed=3)
    right = gpus.random(3, 3)
    assert "copy 0 is off by up to 1" in said["text"]
    assert "0% of its values are right" in said["text"]
    assert not any(f"{value:.4g}" in said["text"] for value in right.tolist())


# --- 3. fixed cases -------------------------------------------------------------------------------


def test_two_runs_have_other_cases_and_a_seed_has_the_same(monkeypatch):
    wrong = "def rent(*_):\n    return -1\n"
    first, second = graded("rent", wrong), graded("rent", wrong)
    assert first["seed"] != second["seed"]
    assert first["text"] != second["text"]
    again = graded("rent", wrong, seed=first["seed"])
    assert again["text"] == first["text"]
    assert f"seed={first['seed']}" in first["text"]


def test_who_knows_one_case_knows_one_case():
    """A table of what is right for the cases of one seed."""
    names = {}
    exec(RENT, names)
    known = {repr(case): names["rent"](*case) for case in capstone.rent_cases(7)}
    text = f"KNOWN = {known!r}\n\ndef rent(*case):\n    return KNOWN.get(repr(case))\n"
    assert graded("rent", text, seed=7)["status"] == "right"
    assert graded("rent", text, seed=8)["status"] == "wrong"


def test_a_case_that_was_asked_for_by_its_seed_earns_nothing():
    def rent():
        pass

    attempt = challenges.challenge_source("rent", RENT, seed=7)
    assert attempt.status == "right"
    assert attempt.seed == 7
    assert "nothing is kept" in attempt.text
    assert scores.read(scores.path()) == {}
    with pytest.raises(TypeError, match="a seed is a whole number, not 'x'"):
        par.challenge(rent, seed="x")


def test_seeds_draw_others():
    assert gpus.spread_sizes(1) != gpus.spread_sizes(2)
    assert sorted(gpus.spread_sizes(1)) == sorted(gpus.spread_sizes(2))  # and the same work
    assert capstone.spans(random.Random(1)) != capstone.spans(random.Random(2))
    assert of_pipelines.networks(1)[0][0] != of_pipelines.networks(2)[0][0]
    assert not torch.equal(gpus.random(1, 9), gpus.random(2, 9))


def test_cut_is_worth_drawing():
    """Whatever is drawn, equal parts are over the limit, and balanced ones are within it."""
    for seed in range(3):
        for (seconds, sent, stages), best in of_pipelines.networks(seed):
            layers = len(seconds)
            equal = [layers // stages + (i < layers % stages) for i in range(stages)]
            ratio = of_pipelines.cut_run(equal, seconds, sent).step_s / best.step_s
            assert not PUZZLES["cut"].allows(100 * ratio)


# --- 4. plans from another cell -------------------------------------------------------------------

MIX = "def mix(model, machine, gpus, batch{more}):\n    {line}\n"
SEARCHED = "par.planner.plans(model, machine, batch=batch)[0].layout"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (MIX.format(more="", line="return PLANS[model.name]"), "wrong", "NameError"),
        (MIX.format(more=", found=PLANS", line="return found"), "wrong", "no function mix"),
        (MIX.format(more="", line="return __main__.PLANS"), "refused", "calls __main__"),
        (
            "import __main__\n" + MIX.format(more="", line="return __main__.PLANS[0]"),
            "refused",
            "imports __main__",
        ),
        (
            f"PLANS = lambda model, machine, batch: {SEARCHED}\n\n"
            + MIX.format(more="", line="return PLANS(model, machine, batch)"),
            "refused",
            "uses par.planner.plans: to find the mix is the puzzle",
        ),
        (
            MIX.format(more="", line="return getattr(par.planner, 'pl' + 'ans')(model)"),
            "refused",
            "calls getattr",
        ),
        (
            "import operator\n\n"
            + MIX.format(more="", line="return operator.attrgetter('pl' + 'ans')(par.planner)"),
            "refused",
            "uses operator.attrgetter",
        ),
        (
            "import typing\n\nclass A:\n    x: 'par.planner.pl' 'ans'\n\n"
            + MIX.format(more="", line="return typing.get_type_hints(A)['x'](model)"),
            "refused",
            "uses typing.get_type_hints",
        ),
        (
            MIX.format(more="", line="match par.planner:\n        case object(plans=f): return f"),
            "refused",
            "by a pattern",
        ),
        (
            "from d2lpar.parallelism.planner import choice\n\n"
            + MIX.format(more="", line="return choice"),
            "refused",
            "imports d2lpar.parallelism.planner",
        ),
    ],
)
def test_no_plan_comes_from_elsewhere(text, status, said):
    report = graded("mix", text)
    assert (report["status"], said in report["text"]) == (status, True), report


def test_nothing_of_the_notebook_is_there(monkeypatch):
    """A plan that a cell has found with the planner: the grader takes the cell's text alone."""
    names = {"PLANS": {}, "par": par}
    text = "def rent(*_):\n    return PLANS\n"
    exec(text, names)
    monkeypatch.setattr(challenges.attempt.source, "source_of", lambda _: text)
    attempt = par.challenge(names["rent"])
    assert attempt.status == "wrong"
    assert "NameError" in attempt.text
    assert "sees only the cell" in attempt.text


# --- 5. constants ---------------------------------------------------------------------------------


def test_layouts_that_fit_one_draw_fit_no_other():
    layouts = "{8: (8, 1, 1), 64: (8, 1, 8)}"
    text = f"""
    def mix(model, machine, gpus, batch):
        data, pipeline, tensor = {layouts}[gpus]
        mesh = par.planner.Mesh(data, pipeline, tensor)
        return par.planner.Layout(mesh, 2, 4, zero=1, recompute="full")
    """
    assert graded("mix", text)["status"] == "wrong"


def test_networks_of_two_draws_have_other_sizes():
    drawn = {
        (model.layers, model.hidden)
        for seed in range(20)
        for model in [of_plans._network(random.Random(seed), (25, 45))]
    }
    assert len(drawn) > 3
    for layers, hidden in drawn:
        assert 25 <= 12 * layers * hidden**2 / 1e9 <= 45


def test_an_order_that_is_written_down_is_no_schedule():
    names = {}
    exec(dict(functions(GOOD))["schedule"], names)
    table = {rank: names["schedule"](rank, 4, 12) for rank in range(4)}
    text = f"def schedule(rank, ranks, micro_batches):\n    return {table!r}[rank]\n"
    assert graded("schedule", text)["status"] == "wrong"


@pytest.mark.parametrize("first", [2, 3, 4])
def test_to_recompute_the_first_blocks_is_not_always_right(first):
    """It lacks memory for one network, or recomputes much too much for the other."""
    text = f"def recompute(*_):\n    return [i < {first} for i in range(10)]\n"
    for seed in range(2):
        report = graded("recompute", text, seed=seed)
        assert report["status"] in ("wrong", "right, but over the limit"), report


def test_verbs_that_are_written_down_are_no_program():
    """DDP for the job that the page shows."""
    lines = [f"gpu.forward({layer}, gpu.rank)" for layer in range(4)]
    for layer in (3, 2, 1, 0):
        lines += [f"gpu.backward({layer}, gpu.rank)", f"gpu.reduce_scatter({layer})"]
        lines += [f'gpu.all_gather("gradients", {layer})']
    lines += [f"gpu.update({layer})" for layer in (3, 2, 1, 0)]
    report = graded("toy_ddp", "def toy_ddp(gpu):\n    " + "\n    ".join(lines) + "\n")
    assert report["status"] == "wrong", report


def test_a_constant_is_no_choice_share_or_cut():
    for name, line in (
        ("rent", "return 64"),
        ("read_timeline", "return 1 / 3"),
        ("cut", "return [3, 3, 3, 3]"),
        ("unsynced", "return [1.0] * 12"),
    ):
        report = graded(name, f"def {name}(*_):\n    {line}\n")
        assert report["status"] != "right", (name, report)
        assert not report.get("points")


# --- what is fair ---------------------------------------------------------------------------------


def test_slow_is_not_wrong():
    attempt = challenges.challenge_source("broadcast", textwrap.dedent(WRONG["broadcast"][0]))
    assert attempt.status == "right, but over the limit"
    assert repr(attempt).startswith("◐ right, but 1.3")
    assert "✗" not in repr(attempt)
    assert attempt.points == 0
    assert not attempt
    assert attempt.picture is not None


def test_waiting_is_not_wrong_either():
    attempt = challenges.challenge_source("unsynced", textwrap.dedent(WRONG["unsynced"][0]))
    assert repr(attempt).startswith("◐ right, but the host waited 12 times")


@pytest.mark.parametrize("name", [name for name in COUNTED if PUZZLES[name].unit == "ms"])
def test_no_point_hinges_on_less_than_the_simulators_error(name):
    puzzle = PUZZLES[name]
    for figure, points in ((puzzle.limit, 60), (puzzle.par, 80), (puzzle.record, 100)):
        assert puzzle.points(1.09 * figure) >= points
        assert puzzle.allows(1.09 * figure)


def test_an_example_earns_nothing_and_is_right():
    attempt = challenges.challenge_source(
        "toy_accumulate", source.graded_part(GOOD, "toy_accumulate")
    )
    assert attempt.status == "right"
    assert attempt.points == 0
    assert "is the example" in attempt.text
    assert attempt.picture is not None
    assert scores.read(scores.path()) == {}
    assert "toy_accumulate" not in challenges.score_table()


def test_an_answer_of_ones_own_earns_its_points_every_time():
    for _ in range(3):
        attempt = challenges.challenge_source("toy_ddp", DDP)
        assert (attempt.status, attempt.points) == ("right", 100), attempt
    assert list(json.loads(scores.path().read_text())["challenges"]) == ["toy_ddp"]
    assert challenges.challenge_source("rent", RENT).points == 100
