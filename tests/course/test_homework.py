"""Homework: written without solutions, in otter's format, and graded whatever is handed in."""

import contextlib
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import psutil
import puzzle_answers
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from test_cores import cores

from d2lpar import locale
from d2lpar.checks import exercise_grading
from d2lpar.checks.by_name import exercises
from d2lpar.checks.challenges import scores
from d2lpar.checks.challenges.puzzles import PUZZLES
from d2lpar.checks.exercise_grading import BY_HAND
from d2lpar.checks.grader import CLIENT, GraderError, client
from d2lpar.checks.grader.source import graded_part
from d2lpar.command import cli
from d2lpar.command.course import assignment, grading, otter_format, reports, submission
from d2lpar.trials import answering
from d2lpar.trials.confinement import Limits

ROOT = Path(__file__).parents[2]
SOLUTIONS = ROOT / "notebooks" / "solutions"
LESSONS = ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10"]
PARALLEL = pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork there are no limits")

RIGHT = """
def shards_seen(images, devices):
    size = -(-images // devices)
    return [min(size, images - start) for start in range(0, images, size)]
"""
HEAD = "def shards_seen(images, devices):\n    "
# Whatever is handed in: the status of the answer, and a part of what is said of it.
HANDED_IN = {
    "right": (RIGHT, "right", "equal shards"),
    "wrong": (HEAD + "return [images // devices] * devices", "wrong", "these are 8 images"),
    "crashing": (HEAD + "return [images / (devices - 2)]", "wrong", "ZeroDivisionError"),
    "endless": (HEAD + "while True:\n        pass", "wrong", "took longer than 2 s"),
    "sleeping": ("import time\n" + HEAD + "time.sleep(1e6)", "wrong", "took longer than 2 s"),
    "greedy": (HEAD + "return [bytearray(10**12)]", "wrong", "MemoryError"),
    "ending": (HEAD + "raise SystemExit", "wrong", "SystemExit"),
    "stub": (HEAD + "raise NotImplementedError", "not attempted yet", "write the function"),
    "missing": ("def shard_seen(images, devices):\n    return []", "missing", "no cell defines"),
    "broken": (HEAD + "return [", "missing", "cell 2 is no Python"),
    "reaching": (
        "import d2lpar.checks.multi_gpu_concise as l\n" + HEAD + "l.Wrong = 1",
        "wrong",
        "PermissionError",
    ),
    "killing": ("import os\n" + HEAD + "os.kill(os.getppid(), 9)", "wrong", "OSError"),
    "equal": (
        "class Any(list):\n    def __eq__(self, other):\n        return True\n"
        + HEAD
        + "return Any()",
        "wrong",
        "expected [15, 15], got []",
    ),
    "equal by name": (
        HEAD + "return type('Any', (list,), {'__eq__': lambda *_: True})()",
        "wrong",
        "expected [15, 15], got []",
    ),
    "writing": (HEAD + "torch.ones(1).numpy().tofile('here')", "wrong", "PermissionError"),
    "printing": (RIGHT.replace("    size", "    print('x' * 10**6)\n    size"), "right", "equal"),
    # oneDNN prints in C, to the stream that reports go to.
    "verbose": (
        RIGHT.replace(
            "    size",
            "    with torch.backends.mkldnn.verbose(1):\n"
            "        nn.Conv2d(3, 3, 3)(torch.rand(1, 3, 9, 9))\n    size",
        ),
        "right",
        "equal shards",
    ),
    "reading": (HEAD + "return open('/etc/passwd').read()", "wrong", "PermissionError"),
}


@pytest.fixture(autouse=True)
def no_process_left():
    yield
    CLIENT.close()


@pytest.fixture(scope="module")
def question():
    return next(q for q in assignment.questions(ROOT, "05") if q.name == "shards_seen")


def notebook(*sources, lesson="05"):
    cells = [new_markdown_cell("# Homework"), *map(new_code_cell, sources)]
    return new_notebook(cells=cells, metadata={assignment.METADATA: lesson})


def hand_in(folder, name, *sources, lesson="05"):
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{name}.ipynb"
    path.write_text(nbformat.writes(notebook(*sources, lesson=lesson)), encoding="utf-8")
    return path


def graded(paths, *asked, limit_s=2):
    return list(
        grading.grade(grading.read_all(paths), asked, limit_s=limit_s, limit_bytes=2 * 10**9)
    )


# --- what is handed out ---------------------------------------------------------------------------


def test_every_exercise_and_challenge_is_in_one_homework():
    asked = [q.name for lesson in LESSONS for q in assignment.questions(ROOT, lesson)]
    # `flat` is worked out in lesson 05 itself, and so are the cores of all lessons.
    own = {"flat", *BY_HAND, *(name for _, name in cores())}
    # Nobody is sent to the museum.
    own |= {name for name, check in exercises().items() if check.__module__.endswith(".museum")}
    puzzles = {name for name, puzzle in PUZZLES.items() if not puzzle.example}
    assert sorted(asked) == sorted(({*exercises()} | puzzles) - own)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_homework_has_no_solution_and_leads_nowhere_else(lesson, tmp_path):
    files = assignment.write(ROOT, lesson, tmp_path / "a")
    asked = assignment.questions(ROOT, lesson)
    book = nbformat.read(tmp_path / f"a/student/homework_{lesson}.ipynb", as_version=4)
    nbformat.validate(book)
    text = "\n".join(cell.source for cell in book.cells)
    assert all(not cell.outputs for cell in book.cells if cell.cell_type == "code")
    assert text.count("raise NotImplementedError") == len(asked)
    assert not re.search(r"\]\((?!https?:)", text)
    assert not any("solutions" in path.read_text() for path in files)
    for name in (q.name for q in asked):
        (cell,) = [c for c in book.cells if c.source.startswith(f"def {name}(")]
        before = book.cells[book.cells.index(cell) - 1]
        assert before.cell_type == "markdown" or lesson == "10"


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson != "10"])
def test_the_tasks_of_both_halves_are_numbered_on_under_one_heading(lesson):
    asked = assignment.questions(ROOT, lesson)
    cells = assignment.student_notebook(lesson, "A title", asked).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert re.findall(r"^## .+", text, re.MULTILINE) == ["## Exercises"]
    numbers = [int(number) for number in re.findall(r"^### (\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(asked) + 1))


def test_a_question_comes_with_what_leads_to_it():
    (unstuck,) = [q for q in assignment.questions(ROOT, "10") if q.name == "unstuck"]
    sources = [cell.source for cell in unstuck.cells]
    assert sources[0].startswith("### 4.")
    assert "\ndef hangs(" in sources[1]


def test_a_homework_is_not_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["course", "assignment", "4", "--to", str(tmp_path)]) == 0
    assert "homework_04.ipynb" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert cli.main(["course", "assignment", "05", "--to", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_lesson_without_exercises_says_which_have_some(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert cli.main(["course", "assignment", "11"]) == 2
    assert "lesson 11 has no exercise: 01, 02, 03, 04" in capsys.readouterr().err


def test_what_is_graded_by_hand_is_named(tmp_path):
    assignment.write(ROOT, "06", tmp_path / "a")
    assert "mended. Grade that by hand" in (tmp_path / "a/README.md").read_text()


@pytest.mark.parametrize(("kind", "points"), assignment.POINTS.items())
def test_points_are_the_same_for_otter(kind, points):
    names = {}
    exec(otter_format.test("some", kind), names)
    (suite,) = names["test"]["suites"]
    assert sum(case["points"] for case in suite["cases"]) == points
    for case in suite["cases"]:
        assert doctest.DocTestParser().get_examples(case["code"])[-1].want.startswith("'r")


# --- what is taken of a submission ----------------------------------------------------------------


def picked(*sources, name="f"):
    cells = dict(enumerate(sources, start=1))
    return submission.Submission(Path("a.ipynb"), cells).answer(name)


def test_only_the_function_and_what_it_needs_is_taken():
    answer = picked(
        "%matplotlib inline\nimport math as m\nimport os\nnet = train_for_hours()",
        "LIMIT = 3\n@decorated\ndef helper(x):\n    return m.sqrt(x)\nprint('a')",
        "%%px\ndef f(net): pass",
        "!ls\ndef f(net, x=LIMIT):\n    y = net\n    return helper(y) + x",
        "raise RuntimeError('not run')",
    )
    assert answer.cells == (1, 2, 4)
    assert answer.text.count("def ") == 2
    assert "import math" in answer.text
    assert "@decorated" in answer.text
    for other in ("import os", "train_for_hours", "print", "RuntimeError", "ls"):
        assert other not in answer.text


def test_a_verdict_names_the_line_where_the_student_finds_it():
    first = "import math\nimport os\nhalf = 0.5"
    answer = picked(first, "\n\n# mine\ndef f():\n    x = half\n    return os.x")
    lines = answer.text.splitlines()
    assert [(lines.index(text), answer.places[lines.index(text)]) for text in (
        "import os", "half = 0.5", "    return os.x",
    )] == [
        (0, "line 2 of cell 1"), (2, "line 3 of cell 1"), (6, "line 6 of cell 2"),
    ]  # fmt: skip
    said = grading._as_student_sees_it
    assert said("line 1 imports os: no", answer) == "line 2 of cell 1 imports os: no"
    assert said("raised E: in line 9 in line 7 (`x`)", answer).endswith("6 of cell 2 (`x`)")
    assert said("line 99 is none", answer) == "line 99 is none"


def test_a_program_has_lines_and_no_cells(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbf" + RIGHT.encode())  # Windows begins some files so
    answer = submission.read(path).answer("shards_seen")
    assert (answer.problem, answer.cells) == ("", ())
    assert answer.places[0] == "line 2"


def test_of_several_definitions_the_last_that_is_no_stub_counts():
    stub = "def f():\n    raise NotImplementedError"
    assert picked("def f():\n    return 1", stub).cells == (1,)
    assert picked("def f():\n    return 1", "def f():\n    return 2", stub).cells == (2,)
    assert picked(stub).cells == (1,)
    assert picked("def g(): return 1", "def f(): return g()", "def g(): return 2").cells == (1, 2)


def test_a_local_name_does_not_take_the_notebooks_variable_along():
    text = "net = par.devices(2)\ndef f(net):\n    return [net for _ in net]\n"
    assert "devices" not in graded_part(text, "f")


@pytest.mark.parametrize(
    "text",
    [
        "N = 1\nN += 1", "for N in (1, 2): pass", "with open('a') as N: pass", "(N := 3)",
        "try:\n    N = 1\nexcept E: pass", "if True:\n    N = 3", "match 3:\n    case N: pass",
        "N = 1\ndel N", "async def N(): pass", "@deco\ndef N(): pass", "from math import *",
        "def g():\n    global N\n    N = 3\ng()", "N = {}\nN['a'] = 1\nN.update(b=2)",
        "[N := i for i in range(3)]", "import N.a", "while True:\n    N = 1", "N: int = 3",
        "L, N = 1, 2", "class N: pass", "%%time\nN = 3", "%time N = train()", "!ls\nN = 3",
        "%matplotlib inline\nN = 3", "N = !ls",
    ],
)  # fmt: skip
def test_whatever_gives_a_name_is_taken(text):
    answer = picked(text, "def f():\n    return N")
    assert (answer.problem, answer.cells) == ("", (1, 2))
    kept = answer.text.split("\n")
    for line in text.split("\n"):
        if line and line[0] not in "%!" and "!" not in line:
            assert line in kept


def test_what_a_cell_changes_is_taken_with_what_it_was():
    cells = ("N = [1]", "N += [2]", "def f():\n    return N")
    assert picked(*cells).cells == (1, 2, 3)
    assert picked("N = [0]", *cells).cells == (2, 3, 4)  # a new value hides the first


def test_statements_on_one_line_are_apart():
    answer = picked("a = train(); N = 2; b = 3\ndef f():\n    return N")
    assert answer.text.split("\n")[0] == "N = 2"


@pytest.mark.parametrize("end", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"])
def test_lines_end_where_python_ends_them(end):
    answer = picked(f"X = 'a{end}b'\n# {end}\nN = 5\ndef f():\n    return N, '{end}', X")
    names = {}
    exec(answer.text, names)
    assert names["f"]() == (5, end, f"a{end}b")
    lines = answer.text.split("\n")
    assert answer.places[lines.index("N = 5")] == "line 3 of cell 1"


@pytest.mark.parametrize(("ends", "line"), [("\r\n", 3), ("\r", 3), ("\n", 3)])
def test_lines_of_every_system_are_lines(ends, line):
    answer = picked(ends.join(["", "", "def f():", "    return 1"]))
    assert answer.places[0] == f"line {line} of cell 1"
    assert answer.text.startswith("def f():\n    return 1")


def test_lines_under_a_magic_keep_their_numbers():
    answer = picked("\n\n%%time\n!pip install x\n\ndef f():\n    %time y = 1\n    return y")
    names = {}
    exec(answer.text, names)
    assert (names["f"](), answer.places[0]) == (1, "line 6 of cell 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%%bash\ndef f(): pass", "cell 1 begins with %%bash, which is not run here"),
        ("def f():\n    return [", "cell 1 is no Python"),
        ("def f():\n    return " + "-" * 100_000 + "1", "cell 1 is nested too deeply"),
        ("def f():\n    return " + "(" * 500 + ")" * 500, "cell 1 is no Python"),
        ("def f():\n    return a" + ".a" * 20_000, "cell 1 is nested too deeply"),
        ("def f(): '\0'", "cell 1 is no Python"),
    ],
)
def test_a_cell_that_cannot_be_read_says_so(text, said):
    assert picked(text).problem.startswith(said)
    assert picked(text, "def f():\n    return 1").problem == ""  # others go on


def test_an_answer_that_lacks_what_could_not_be_read_is_told_so():
    answer = picked("%%px\nlimit = 3", "def f():\n    return limit")
    assert answer.unread == "cell 1 begins with %%px, which is not run here"
    assert picked("%%px\nother = 3", "def f():\n    return limit").unread == ""


def raw(*cells, **changed):
    """The text of a notebook's file, as other programs may write it."""
    own = [{"cell_type": "code", "source": each, "metadata": {}} for each in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": own} | changed)


RIGHT_F = "def f():\n    return 1"
OLD = {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [
    {"cells": [{"cell_type": "code", "input": RIGHT_F, "outputs": [], "language": "python"}]}
]}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        raw(RIGHT_F).encode(),  # without names of cells, outputs, numbers
        raw(RIGHT_F).encode("utf-16"),
        raw(RIGHT_F).encode("utf-8-sig"),
        raw(None, [], RIGHT_F).encode(),
        raw(RIGHT_F.splitlines(keepends=True)).encode(),
        json.dumps(OLD).encode(),
    ],
)
def test_what_other_programs_write_is_read(content, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(content)
    answer = submission.read(path).answer("f")
    assert answer.problem == ""
    assert answer.text.startswith(RIGHT_F)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ipynb", raw(7).encode()), ("a.ipynb", raw({"a": 1}).encode()),
        ("a.ipynb", raw("é").replace("\\u00e9", "é").encode("latin-1")),
        ("a.ipynb", b"[" * 200_000), ("a.ipynb", b'{"nbformat": 9, "cells": []}'),
        ("a.ipynb", b'{"nbformat": 4, "cells": {"a": 1}}'), ("a.ipynb", b"3"), ("a.ipynb", b""),
        ("a.py", "é = 1".encode("latin-1")), ("a.py", b"# coding: nonsense"),
        ("challenges.json", b'{"challenges": {"rent": 3}}'), ("challenges.json", b"[" * 200_000),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_with_the_reason(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "z.py").write_text(RIGHT_F)
    first, second = grading.read_all([tmp_path])
    assert first.problem.startswith("the file cannot be read: ")
    assert "\n" not in first.problem
    assert second.answer("f").problem == ""


def test_a_folder_named_as_a_notebook_is_a_folder(tmp_path):
    hand_in(tmp_path / "anna.ipynb", "a", RIGHT)
    assert [path.name for path in submission.files([tmp_path])] == ["a.ipynb"]


@pytest.mark.parametrize("option", ["--limit-s", "--limit-gb"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "1e30", "many", ""])
def test_a_limit_that_is_none_is_refused_by_name(option, value, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    hand_in(tmp_path, "anna", RIGHT)
    with pytest.raises(SystemExit):
        cli.main(["course", "grade", str(tmp_path), f"{option}={value}"])
    said = capsys.readouterr().err
    assert option in said
    assert repr(value) in said


def test_what_nobody_is_to_blame_for_is_an_error_and_no_failure():
    result = grading.Result("f", "not graded", "busy", 0, 10, (2,))
    one = grading.Graded(Path("a.ipynb"), (result,))
    root = ElementTree.fromstring(reports.junit([one], "05", ["no -- Landlock"]))
    assert (root[0].get("errors"), root[0].get("failures")) == ("1", "0")
    assert json.loads(reports.scores([one], "05", ["no"]))["boundary_lacks"] == ["no"]
    assert "not graded, busy" in reports.in_words(one)


def test_a_check_that_fails_itself_blames_nobody(monkeypatch, tmp_path, question):
    """In this process, where a check can be broken."""

    def grade(judge, name, text, *, limit_s, limit_bytes):
        return exercise_grading.grade(name, text, Limits(limit_s, limit_bytes))

    monkeypatch.setattr(CLIENT, "grade", grade)
    monkeypatch.setattr("d2lpar.checks.multi_gpu_concise.is_whole", lambda _: 1 / 0)
    (one,) = graded([hand_in(tmp_path, "a", RIGHT)], question)
    assert one.results[0].status == "not graded"
    assert "the check of shards_seen has failed itself, with ZeroDiv" in one.results[0].text


def test_a_grader_that_gives_up_blames_nobody(monkeypatch, tmp_path, question):
    def gives_up(*_, **__):
        raise GraderError("no answer in 3 s")

    monkeypatch.setattr(CLIENT, "grade", gives_up)
    (one,) = graded([hand_in(tmp_path, "a", RIGHT)], question)
    assert one.results[0].status == "not graded"
    assert "may be right: no answer in 3 s" in one.results[0].text


@pytest.mark.parametrize("points", [10**6, 11, 10])
def test_no_report_gives_more_than_all_points(points, monkeypatch, tmp_path, question):
    told = {"status": "right", "text": "yes", "points": points}
    monkeypatch.setattr(CLIENT, "grade", lambda *_, **__: told)
    (one,) = graded([hand_in(tmp_path, "a", RIGHT)], question)
    assert one.points == 10


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}', '{"nbformat": 4}', "\0\udcff"])
def test_what_cannot_be_read_says_so(content, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(content.encode(errors="surrogateescape"))
    answer = submission.read(path).answer("f")
    assert "cannot be read" in answer.problem or "no cell defines" in answer.problem


def test_which_files_are_submissions(tmp_path):
    hand_in(tmp_path / "b" / ".ipynb_checkpoints", "a")
    hand_in(tmp_path / "b", "a")
    (tmp_path / "b" / "c.txt").write_text("")
    (tmp_path / "a.py").write_text("")
    found = [path.name for path in submission.files([tmp_path])]
    assert found == ["a.py", "a.ipynb"]
    with pytest.raises(ValueError, match="neither a folder nor a file"):
        submission.files([tmp_path / "b" / "c.txt"])


def test_what_is_left_out_is_named_but_for_what_was_handed_out(tmp_path, question):
    hand_in(tmp_path / "anna", "a")
    tests = tmp_path / "anna" / "tests"
    tests.mkdir()
    (tests / "shards_seen.py").write_text(otter_format.test("shards_seen", "check"))
    names = (".hidden", ".late.ipynb", "b.zip", "c.pdf", "folder", "linked.ipynb", "pipe.ipynb")
    others = [tmp_path / name for name in names]
    (tmp_path / ".hidden").mkdir()
    hand_in(tmp_path / ".hidden", "c")
    for path in others[1:4]:
        path.write_text("")
    others[4].symlink_to("/usr")
    others[5].symlink_to("/etc/passwd")  # what is in it must be in no report
    os.mkfifo(others[6])  # who opens it waits for ever
    assert [path.name for path in submission.files([tmp_path])] == ["a.ipynb"]
    assert submission.left_out([tmp_path]) == others
    said = reports.left_out_in_words(others)
    for path, kind in zip(names, ["hidden"] * 2 + [""] * 2 + ["link"] * 2 + ["pipe"], strict=True):
        assert f"{path} ({kind})" in said if kind else path in said
    assert reports.left_out_in_words(others * 2).endswith("and 4 more")


def test_a_notebook_of_another_homework_says_so(tmp_path, question):
    hand_in(tmp_path, "a", RIGHT, lesson="06")
    (one,) = grading.of_homework(grading.read_all([tmp_path]), "05")
    assert one.answer("shards_seen").problem == "this is homework 06"
    (same,) = grading.of_homework(grading.read_all([tmp_path]), "06")
    assert same.answer("shards_seen").problem == ""


def test_which_homework_it_is(tmp_path):
    hand_in(tmp_path, "a", lesson="05")
    (tmp_path / "b.ipynb").write_text("unreadable")
    assert grading.lesson_of(grading.read_all([tmp_path])) == "05"
    hand_in(tmp_path, "c", lesson="06")
    with pytest.raises(ValueError, match=r"The files name 05, 06; say it with --lesson"):
        grading.lesson_of(grading.read_all([tmp_path]))


# --- grading --------------------------------------------------------------------------------------


FEW = ("crashing", "endless", "reaching", "missing", "verbose", "writing", "right")


@pytest.fixture(scope="module")
def few(tmp_path_factory, question):
    """What came of a few submissions, graded one after the other: by their names."""
    folder = tmp_path_factory.mktemp("few")
    found = graded([hand_in(folder, case, HANDED_IN[case][0]) for case in FEW], question)
    return {each.path.stem: each.results for each in found}


@PARALLEL
@pytest.mark.parametrize("case", FEW)
def test_one_submission(case, few):
    _, status, said = HANDED_IN[case]
    (result,) = few[case]
    assert (result.status, said in result.text) == (status, True), result
    assert result.points == (10 if status == "right" else 0)
    assert len(result.printed) <= 2000
    assert result.cells == (() if case == "missing" else (2,))


@PARALLEL
def test_an_answer_may_let_a_block_load_what_opens_a_library():
    """`timed` is called in `emulate_cuda`, which loads torch's launcher, which opens one in C."""
    (asked,) = (q for q in assignment.questions(ROOT, "03") if q.name == "timed")
    (one,) = graded([SOLUTIONS / "auto_parallelism.py"], asked, limit_s=60)
    assert one.results[0].status == "right", one.results[0]


@PARALLEL
@pytest.mark.slow
def test_twenty_in_a_row_whatever_they_do(tmp_path, question):
    for number, (name, (text, *_)) in enumerate(HANDED_IN.items()):
        hand_in(tmp_path, f"{number:02} {name}", "print('not run')", text)
    (tmp_path / "15 torn.ipynb").write_text('{"cells": [')
    (tmp_path / "16 program.py").write_text("import os\nos.abort()\n" + RIGHT)
    (tmp_path / "17 empty.ipynb").write_text("")
    (tmp_path / "18 again.py").write_text(HEAD + "while True: pass")
    (tmp_path / "19 last.py").write_text(RIGHT)
    found = graded([tmp_path], question)
    assert len(found) == len(HANDED_IN) + 5
    results = {each.path.stem.split(" ", 1)[1]: each.results[0] for each in found}
    for name, (_, status, said) in HANDED_IN.items():
        said = said.replace("cell 2", "cell 3")
        assert (results[name].status, said in results[name].text) == (status, True), results[name]
    assert [results[name].status for name in ("torn", "empty")] == ["unreadable", "unreadable"]
    assert [results[name].points for name in ("program", "again", "last")] == [10, 0, 10]
    right = [name for name, (_, status, _) in HANDED_IN.items() if status == "right"]
    assert sum(each.points for each in found) == 10 * (len(right) + 2)


@PARALLEL
@pytest.mark.slow
@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson != "10"])
def test_solutions_earn_all_points(lesson, tmp_path):
    (page,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    asked = assignment.questions(ROOT, lesson)
    (one,) = graded([SOLUTIONS / f"{page.stem[3:]}.py"], *asked, limit_s=60)
    done = [result for result in one.results if result.status != "missing"]
    assert len(done) == len(asked)
    assert [result for result in done if result.points < result.of] == []


@pytest.mark.slow
@PARALLEL
def test_a_file_of_scores_is_graded_by_its_answers(tmp_path):
    text = puzzle_answers.RENT
    (rent,) = [q for q in assignment.questions(ROOT, "10") if q.name == "rent"]
    paths = []
    for name, source in (("right", text), ("wrong", "def rent(*_):\n    return 8\n")):
        paths.append(tmp_path / f"{name}.json")
        entry = {"points": 100, "figure": 0, "source": source}
        paths[-1].write_text(json.dumps({"format": 1, "challenges": {"rent": entry}}))
    found = {each.path.stem: each for each in graded(paths, rent, limit_s=60)}
    assert (found["right"].points, found["right"].of) == (100, 100)
    assert found["wrong"].points == 0
    assert scores.read(paths[1])["rent"]["points"] == 100  # what it claims


def test_a_grader_that_talks_is_no_report(monkeypatch):
    monkeypatch.setattr(client, "PROGRAM", "print('onednn_verbose,v1', flush=True)")
    with pytest.raises(GraderError, match="it said 'onednn_verbose,v1"):
        client.Client().grade("judge", "f", "")


@PARALLEL
def test_an_answer_that_sleeps_ends_with_the_grader(monkeypatch, tmp_path):
    program = f"""
import os, pathlib, time
pid = pathlib.Path({str(tmp_path / "pid")!r})
if os.fork() == 0:
    pid.write_text(f"{{os.getpid()}}.")
    time.sleep(600)
while not pid.exists() or not pid.read_text().endswith("."):
    time.sleep(0.01)
print("{{}}", flush=True)
time.sleep(600)
"""
    monkeypatch.setattr(client, "PROGRAM", program)
    with pytest.raises(GraderError, match="no answer in 0 s"):
        client.Client().grade("judge", "f", "", limit_s=-3)
    pid = int((tmp_path / "pid").read_text().rstrip("."))
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        gone, _ = psutil.wait_procs([process], timeout=10)
        assert gone or process.status() == psutil.STATUS_ZOMBIE


def test_a_slow_start_is_explained(monkeypatch, capfd):
    monkeypatch.setattr(client, "SOON_S", 0.1)
    program = (
        "import time; time.sleep(2); print('{}', flush=True); input(); print('{\"number\": 1}')"
    )
    monkeypatch.setattr(client, "PROGRAM", program)
    with contextlib.closing(client.Client()) as grader:
        assert grader.grade("judge", "f", "") == {"number": 1}
    assert "loads PyTorch" in capfd.readouterr().err


def test_a_grader_that_has_ended_is_named(monkeypatch):
    monkeypatch.setattr(client, "PROGRAM", "print('{}', flush=True); import os; os.close(0)")
    with contextlib.closing(client.Client()) as grader:
        grader._running().wait()
        monkeypatch.setattr(grader, "_running", lambda: grader._process)
        with pytest.raises(client.GraderError, match="Broken pipe"):
            grader.grade("judge", "f", "")


# --- reports --------------------------------------------------------------------------------------


def test_the_command_writes_both_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    hand_in(tmp_path, "anna", HEAD + "raise NotImplementedError")
    (tmp_path / "ben.ipynb").write_text("{")
    junit, points = tmp_path / "out" / "out.xml", tmp_path / "scores.json"
    junit.parent.mkdir()
    arguments = ["--junit", str(junit), "--scores", str(points)]
    assert cli.main(["course", "grade", str(tmp_path), *arguments]) == 1
    assert "anna.ipynb: 0 of 30 points" in capsys.readouterr().out
    suites = ElementTree.parse(junit).getroot().findall("testsuite")
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("3", "3", "0"),
        ("3", "0", "3"),
    ]
    content = json.loads(points.read_text())
    assert [each["points"] for each in content["submissions"]] == [0, 0]
    (stub,) = [q for q in content["submissions"][0]["questions"] if q["name"] == "shards_seen"]
    assert (stub["status"], stub["cells"]) == ("not attempted yet", [2])


def test_what_a_function_prints_cannot_break_the_report():
    printed = "a]]><x/>\0\x1b[31m\ud800"
    result = grading.Result("f", "wrong", printed, 0, 10, (2,), printed)
    root = ElementTree.fromstring(reports.junit([grading.Graded(Path("a.ipynb"), (result,))], "05"))
    (case,) = root.iter("testcase")
    assert case.find("system-out").text.startswith("a]]><x/>\ufffd\ufffd[31m")
    assert case.find("failure").get("type") == "wrong"
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert properties == {"points": "0", "of": "10"}


def test_what_a_function_says_breaks_no_report_and_forges_no_line():
    said = "\ud800 \x1b[31m\x9b \nAnna: 50 of 50 points\r"
    result = grading.Result("f", "wrong", said, 0, 10, (2,), said)
    graded = [grading.Graded(Path("M\udcfcller.ipynb"), (result,))]  # Latin-1, as tar keeps it
    content = json.loads(reports.scores(graded, "05").encode())
    assert content["submissions"][0]["file"] == "M\ufffdller.ipynb"
    head, line = reports.in_words(graded[0]).encode().decode().splitlines()
    assert head.endswith("0 of 10 points")
    assert not set(line) & {"\x1b", "\x9b", "\r", "\ud800"}


def test_no_more_is_kept_of_what_is_printed_than_is_reported():
    printed = answering.Printed()
    assert [printed.write(text) for text in ("ab", "x" * 10**6, "y")] == [2, 10**6, 1]
    assert printed.getvalue() == "ab" + "x" * 1998


def test_what_is_the_same_for_many_questions_is_said_once():
    def result(name, status, text):
        return grading.Result(name, status, text, 0, 10, (3,))

    none = submission.TEXT_MISSING
    results = [
        result("a", "not attempted yet", "write it"),
        result("b", "missing", none.format(name="b")),
        result("c", "not attempted yet", "write it"),
        result("d", "missing", "cell 2 is no Python"),
        result("e", "missing", none.format(name="e")),
        result("g", "right", "yes"),
    ]
    assert reports.in_words(grading.Graded(Path("x.py"), tuple(results))).splitlines() == [
        "x.py: 0 of 60 points",
        "    not attempted yet: a, c",
        "    no cell defines: b, e",
        "    d: missing, cell 2 is no Python (ran parts of cell 3)",
    ]
    torn = tuple(result(name, "unreadable", "no JSON") for name in "ab")
    words = reports.in_words(grading.Graded(Path("x.py"), torn))
    assert words == "x.py: 0 of 20 points\n    no JSON"


def test_a_report_that_cannot_be_written_is_refused_before_the_grading(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(grading, "grade", None)
    hand_in(tmp_path, "anna", RIGHT)
    assert cli.main(["course", "grade", str(tmp_path), "--junit", str(tmp_path / "no/a.xml")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def otter(*arguments, folder):
    command = [sys.executable, "-m", "otter", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lesson", "name", "text", "points", "said"),
    [
        ("05", "shards_seen", RIGHT, 10, "All test cases passed"),
        ("05", "shards_seen", HANDED_IN["wrong"][0], 0, "every image must go somewhere, once"),
        ("10", "toy_ddp", puzzle_answers.DDP, 100, "All test cases passed"),
    ],
)
def test_otter_takes_it(lesson, name, text, points, said, tmp_path):
    pytest.importorskip("otter", reason="otter-grader is not installed")
    folder = tmp_path / "a"
    assignment.write(ROOT, lesson, folder)
    # What is graded besides takes minutes, and proves the same.
    for path in (folder / "autograder/tests").iterdir():
        if path.stem != name:
            path.unlink()
    path = folder / "student" / f"homework_{lesson}.ipynb"
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        if cell.source.startswith(f"def {name}("):
            cell.source = text
    path.write_text(nbformat.writes(book), encoding="utf-8")
    options = ["-t", "tests", "-r", "requirements.txt", "-c", "otter_config.json"]
    made = otter("generate", *options, folder=folder / "autograder")
    assert made.returncode == 0, made.stderr
    archive = folder / "autograder" / "autograder.zip"
    ran = otter("run", "-a", str(archive), path.name, folder=path.parent)
    assert ran.returncode == 0, ran.stderr
    results = json.loads((path.parent / "results.json").read_text())["tests"]
    (result,) = [each for each in results if each["name"] == name]
    assert result["score"] == points, result
    assert said in " ".join(result["output"].split())


# --- in another language --------------------------------------------------------------------------


def test_a_homework_in_another_language_asks_for_the_same_and_is_graded_alike(
    tmp_path, monkeypatch, question
):
    english = assignment.questions(ROOT, "04")
    monkeypatch.setenv(locale.VARIABLE, "zh")
    asked = assignment.questions(ROOT, "04")
    assert [each.name for each in asked] == [each.name for each in english]
    written = {file.name: file for file in assignment.write(ROOT, "04", tmp_path / "homework")}
    text = written["homework_04.ipynb"].read_text(encoding="utf-8")
    assert "作业" in text
    assert "分" in written["README.md"].read_text(encoding="utf-8")

    wrong = hand_in(tmp_path, "a", HANDED_IN["wrong"][0])
    (result,) = graded([wrong], question)[0].results
    assert (result.status, HANDED_IN["wrong"][2] in result.text) == ("wrong", True)
