"""What a lesson does where somebody looks on, and leaves where nobody does."""

import re
import shutil
import threading
from pathlib import Path

import nbformat
import pytest
from lab_in_browser import (
    do,
    in_chromium,
    open_notebook,
    running_lab,
    shown,
    until,
    wait_for,
)
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import setup_env
from d2lpar.checks import exercises, still_running
from d2lpar.checks.challenges import PUZZLES, scores
from d2lpar.command.course.command import main
from d2lpar.plots import predict
from d2lpar.plots.widgets import progress
from d2lpar.timeline import kept

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
NAME = "03_a_lesson.ipynb"
ANSWER = """def linear_intensity(n, inputs, outputs, bytes_each):
    {body}
    floats = n * inputs + n * outputs + inputs * outputs + outputs
    return 2 * n * inputs * outputs / (bytes_each * floats)


par.check(linear_intensity)
"""
LESSON = {
    "import": (
        "import d2lpar as par, d2lpar.checks.still_running as it\n"
        "it.FIRST_S = 1\n"
        "run = lambda _, cell: exec(cell, globals())\n"
        "get_ipython().register_magic_function(run, 'cell', 'own')"
    ),
    "magic": "%%own\nx = 1",
    "ask": "guess = par.predict('How many?', unit='times')",
    "guess": "guess.enter('2 times')",
    "tell": "guess.beside(3)",
    "right": ANSWER.format(body="pass"),
    "wrong": "def batch_at_ridge(*_):\n    return 0.0\n\n\npar.check(batch_at_ridge)",
    "slow": ANSWER.format(body="import time; time.sleep(3)  # here"),
    "end": "print(x, 'is there')",
}
INDEX = {name: index for index, name in enumerate(LESSON)}
MARK = re.compile(r"[✓✗]")
COLOR = "element => getComputedStyle(element).color"


def lesson():
    return new_notebook(cells=[new_code_cell(text) for text in LESSON.values()], metadata=KERNEL)


# Where nobody looks on


def test_a_program_that_runs_a_lesson_gets_nothing_that_only_a_reader_needs(tmp_path):
    notebook = lesson()
    notebook.cells[INDEX["slow"]].source = "missing"
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=60, allow_errors=True, resources=resources).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [each.output_type for each in outputs[INDEX["slow"]]] == ["error"]
    assert [each.data for each in outputs[INDEX["right"]]] == [
        {"text/plain": "✓ right: FLOP and bytes of a linear layer"}
    ]
    assert "\x1b" not in str(outputs[INDEX["wrong"]])
    (told,) = outputs[INDEX["tell"]]
    assert told.text == "You predicted 2 times. The answer is 3 times.\n"


def test_a_check_says_which_line_of_the_answer_runs():
    def answer():
        return still_running.where(threading.get_ident())  # this line

    assert "# this line" in answer()


def test_a_check_that_is_not_in_the_answer_says_so():
    names = {"where": still_running.where, "me": threading.get_ident()}
    exec(compile("found = where(me)", "<the cell that calls the check>", "exec"), names)
    assert names["found"] == still_running.IN_CHECK


def test_of_an_answer_on_ranks_each_rank_has_its_line():
    come, go = threading.Barrier(2), threading.Event()

    def rank():
        come.wait()
        go.wait()  # this rank waits

    waiting = threading.Thread(target=rank, name="rank 1")
    waiting.start()
    come.wait()
    while "# this rank waits" not in (said := still_running.where(threading.get_ident())):
        pass
    go.set()
    waiting.join()
    assert "rank 1 in test_habits.py" in said


def test_a_student_is_told_how_far_every_lesson_is(tmp_path, monkeypatch, capsys):
    """What a page asks for is read off the page itself, whoever has changed it."""
    monkeypatch.delenv(kept.VARIABLE, raising=False)
    monkeypatch.delenv("D2LPAR_SCORES", raising=False)
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    shutil.copytree(NOTEBOOKS, tmp_path / "my")
    monkeypatch.chdir(tmp_path / "my")
    predict("Two GPUs: how many times as fast as one?", 0, unit="times")
    kept.write(progress.EXERCISES, "split_batch", "right")
    scores.keep("toy_ddp", {"points": 100, "figure": 1.0}, "")
    monkeypatch.chdir(tmp_path / "my" / "museum")
    kept.write(progress.EXERCISES, "read_back", "right")
    monkeypatch.chdir(tmp_path)
    assert main(["progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {
        "lesson 02: 0 of 1 exercise, 0 of 4 predictions",
        "lesson 04: 1 of 3 exercises, 1 of 2 predictions",
        "lesson 04, deeper half: 0 of 3 exercises",
        "museum: 1 of 12 exercises",
    } <= {*lines}
    assert any(re.fullmatch("lesson 10: 1 of .* exercises", line) for line in lines)


def test_every_function_of_an_exercise_is_asked_for_and_no_other():
    pages = (NOTEBOOKS, NOTEBOOKS / "deeper", NOTEBOOKS / "museum")
    asked = [name for page in pages for each in progress.asked_in(page) for name in each.exercises]
    of_par = {name for name, puzzle in PUZZLES.items() if not puzzle.example}
    assert sorted(asked) == sorted({*exercises(), *of_par} - {"flat"})  # lesson 05 shows its check


def test_what_is_no_notebook_or_no_python_asks_for_nothing(tmp_path):
    (tmp_path / "01_a.ipynb").write_text("[]")
    (tmp_path / "02_a.ipynb").write_text("{")
    broken = [new_code_cell("par.predict('?'"), new_code_cell("# par.check(f)")]
    nbformat.write(new_notebook(cells=broken), tmp_path / "03_a.ipynb")
    assert progress.asked_in(tmp_path) == []


# In JupyterLab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab whose kernels are configured as `make lab` has it, with checks soon slow."""
    home, course = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("course")
    config = home / "ipythondir" / "profile_default" / "ipython_config.py"
    config.parent.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup_env, "KERNEL_CONFIG", str(config))
        setup_env.configure_kernels()
    with running_lab(home, course, "my", D2LPAR_KEEP=".d2lpar") as lab:
        yield lab._replace(address=f"{lab.address}own/", notebooks=lab.notebooks / "own")


@pytest.fixture
def opened(lab, page):
    """The lesson, opened anew, with a fresh kernel."""
    shutil.rmtree(lab.notebooks, ignore_errors=True)  # with what was done before
    lab.notebooks.mkdir()
    nbformat.write(lesson(), lab.notebooks / NAME)
    open_notebook(page, lab, NAME)
    yield page
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


def run(page, name):
    """The cell, once it has run."""
    cell = shown(page, INDEX[name])
    before = cell.locator(".jp-InputPrompt").inner_text()
    do(page, "notebook:run-cell")
    prompt = cell.locator(".jp-InputPrompt")
    done = re.compile(r"\[\d+\]:")
    until(page, prompt.inner_text, lambda now: now != before and done.match(now), seconds=60)
    return cell


def output_of(cell):
    return " ".join(cell.locator(".jp-OutputArea").inner_text().split())


@in_chromium
@pytest.mark.parametrize(("name", "said"), [("end", "1 is there"), ("magic", "")])
def test_a_cell_in_the_middle_has_a_button_that_runs_those_above(opened, name, said):
    cell = run(opened, name)
    assert cell.get_by_text("not defined" if said else "not found").count()
    cell.get_by_role("button", name="Run all cells above, then this one").click()
    until(opened, lambda: output_of(cell), lambda now: now == said, seconds=60)
    above = INDEX[name]
    counts = [*range(2, above + 3)]
    state = wait_for(opened, lambda now: now["counts"][: above + 1] == counts, seconds=60)
    assert state["errors"] == []


@in_chromium
def test_marks_have_colours_and_the_lesson_says_how_much_is_done(opened):
    for name in ("import", "ask", "guess"):
        run(opened, name)
    told = output_of(run(opened, "tell"))
    assert told.endswith("lesson 03: 0 of 2 exercises, 1 of 1 prediction")
    right, wrong = run(opened, "right"), run(opened, "wrong")
    assert output_of(right).endswith("lesson 03: 1 of 2 exercises, 1 of 1 prediction")
    assert "lesson 03" not in output_of(wrong)
    marks = [cell.locator(".jp-OutputArea span").filter(has_text=MARK) for cell in (right, wrong)]
    colors = [mark.first.evaluate(COLOR) for mark in marks]
    assert len(set(colors)) == 2


@in_chromium
def test_a_check_that_takes_long_says_where_it_is_and_then_nothing_of_that(opened):
    run(opened, "import")
    cell = shown(opened, INDEX["slow"])
    do(opened, "notebook:run-cell")
    until(opened, lambda: output_of(cell), lambda now: "line 2 (`import time" in now, seconds=30)
    until(opened, lambda: output_of(cell), lambda now: now.startswith("✓ right"), seconds=60)
    assert "checking" not in output_of(cell)
