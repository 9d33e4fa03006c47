"""Options of all commands: what is no number, or an absurd one, is refused by name, at once."""

import argparse
import time
from pathlib import Path

import pytest

from d2lpar.command import cli
from d2lpar.command.course import grading
from d2lpar.machines.measuring import calibrating

ROOT = Path(__file__).parents[2]
COMMANDS = {  # and what they need besides options
    ("run",): ["{program}"],
    ("calibrate",): [],
    ("machines",): [],
    ("validate",): [],
    ("doctor",): [],
    ("bug",): ["1"],
    ("course", "update"): [],
    ("course", "reset"): ["05"],
    ("course", "rehearse"): ["05"],
    ("course", "notes"): ["05"],
    ("course", "assignment"): ["05"],
    ("course", "grade"): ["{home}"],
}
NO_NUMBERS = ("nan", "inf", "-inf", "-1", "1e308", "5e-324", "True", "x", "")
TEXTS = (*NO_NUMBERS, "0", "1000000000", "9" * 400, "*")
AT_ONCE_S = 15.0  # on a busy machine
EVERY = {"--gpus", "--nnodes", "--max-ms-per-step", "--max-memory", "--seconds", "--limit-s"}
EVERY |= {"--limit-gb"}


class WorkError(Exception):
    """A command has begun to work: its options are good ones."""


@pytest.fixture
def asked(tmp_path, monkeypatch, capsys):
    """Runs a command up to where its work begins; gives what it says on stderr, or None."""

    def works(*_, **__):
        raise WorkError

    for place in (
        "d2lpar.vgpu.programs.runner._run_as_planned",
        "d2lpar.validation.command.validate",
        "d2lpar.command.course.rehearsal.rehearse",
        "d2lpar.command.course.assignment.write",
        "d2lpar.command.course.working_copy.course_folder",
        "d2lpar.command.diagnosis.doctor",
    ):
        monkeypatch.setattr(place, works)
    monkeypatch.setattr(grading, "grade", works)
    monkeypatch.setattr(calibrating, "calibrate", works)
    (tmp_path / "program.py").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "anna.py").write_text("def f():\n    return 1\n")
    monkeypatch.chdir(tmp_path)

    def run(*words):
        begin_s = time.monotonic()
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = end.code
        except WorkError:
            return None
        assert time.monotonic() - begin_s < AT_ONCE_S, words
        told = capsys.readouterr().err
        assert status == 2, (words, status)
        assert "Traceback" not in told
        return told

    return run


def needed(command):
    return [word.format(program="program.py", home="home") for word in COMMANDS[command]]


def options_of(command, monkeypatch):
    """The options with a value, as its parser has them: the type of each by its longest name."""
    found = {}
    add = argparse.ArgumentParser.add_argument

    def noted(self, *names, **how):
        if self.prog.split()[1:] == list(command) and "action" not in how and names[0][0] == "-":
            found[max(names, key=len)] = how.get("type")
        return add(self, *names, **how)

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "add_argument", noted)
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
    return found


def test_no_option_with_a_number_is_left_out(monkeypatch, capsys):
    found = [options_of(command, monkeypatch) for command in COMMANDS]
    assert {"--report", "--timeline", "--junit", "--lesson", *EVERY} <= {
        name for options in found for name in options
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_refuses_by_name_or_the_work_begins(asked, command, monkeypatch, capsys):
    options = options_of(command, monkeypatch)
    capsys.readouterr()
    for option, kind in options.items():
        for text in TEXTS:
            told = asked(*command, f"{option}={text}", *needed(command))
            number = kind not in (None, Path, str)
            assert number == (option in EVERY), "a number that is not listed"
            if number and text in NO_NUMBERS:
                assert told is not None, (option, text)
            if told is not None:
                assert option in told or text[:20] in told, (option, text, told)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "words",
    [
        ("--nproc-per-node={}",),
        ("torchrun", "--nproc-per-node={}"),
        ("torchrun", "--nnodes={}"),
        ("torchrun", "--nnodes=1:{}"),
    ],
    ids=" ".join,
)
def test_so_many_ranks_are_refused(asked, words, text):
    told = asked("run", *(word.format(text) for word in words), "program.py")
    assert told, "there are not so many"


@pytest.mark.parametrize("lesson", ["*", "-1", "nan", "[0-9]*", "../04", "1e308", "9" * 400, ""])
@pytest.mark.parametrize("command", ["reset", "rehearse", "notes", "assignment", "grade"])
def test_what_is_no_lesson_is_named(tmp_path, monkeypatch, capsys, command, lesson):
    monkeypatch.chdir(ROOT)
    (tmp_path / "anna.py").write_text("def f():\n    return 1\n")
    words = [f"--lesson={lesson}", str(tmp_path)] if command == "grade" else ["--", lesson]
    assert cli.main(["course", command, *words]) == 2
    told = capsys.readouterr().err
    assert "lesson" in told or "homework" in told
    assert lesson[:20] in told


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out.startswith("d2lpar 1.")
