"""The lines on how far a run is, and what the program prints: no line is shared."""

import re
import sys
import threading

import pytest

from d2lpar.vgpu.programs import progress

OURS = "d2lpar: 1 s"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_S", 0.01)
    monkeypatch.setattr(progress, "MOST_S", 0.01)


def pause():
    threading.Event().wait(0.02)


def lines_of(program, capfd):
    """What a terminal shows, line by line: a carriage return goes back to the line's beginning."""
    with progress.progress(lambda seconds: OURS):
        program()
    shown = []
    for line in capfd.readouterr().err.split("\n"):
        text = ""
        for part in re.split("\r", line):
            text = part + text[len(part) :]
        shown.append(text.rstrip())
    return shown


def test_numbers_one_after_the_other_stay_in_their_line(capfd):
    def program():
        for i in range(30):
            print(i, end=" ", file=sys.stderr, flush=True)
            pause()
            if i % 10 == 9:
                print(file=sys.stderr)

    shown = lines_of(program, capfd)
    assert OURS in shown  # between two lines of the program
    theirs = [line for line in shown if line and line != OURS]
    assert theirs == [" ".join(map(str, range(i, i + 10))) for i in (0, 10, 20)]


def test_a_bar_is_not_written_over(capfd):
    def program():
        for i in range(10):
            print(f"\r{i + 1} of 10", end="", file=sys.stderr, flush=True)
            pause()
        print(file=sys.stderr)
        pause()

    shown = [line for line in lines_of(program, capfd) if line]
    assert shown[0] in ("10 of 10", OURS)
    assert set(shown) == {"10 of 10", OURS}


def test_a_bar_that_was_wiped_out_is_none(capfd):
    def program():
        print("\r5 of 10", end="", file=sys.stderr)
        pause()
        for part in ("\r" + 7 * " ", "\r"):
            print(part, end="", file=sys.stderr)
        pause()

    assert set(lines_of(program, capfd)) == {OURS, ""}


def test_streams_are_as_before_when_the_program_ends(capfd):
    lines_of(pause, capfd)
    assert "write" not in {**vars(sys.stdout), **vars(sys.stderr)}


def test_stdout_counts_where_it_goes_to_the_same_place(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stderr)

    def program():
        print("begun", end="")
        pause()
        print(" and ended")
        pause()

    shown = lines_of(program, capfd)
    assert "begun and ended" in shown
    assert OURS in shown
