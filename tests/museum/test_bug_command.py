"""`d2lpar bug`: the list, one bug in a terminal, and numbers that no room has."""

import re
from pathlib import Path

import pytest

from d2lpar.command import cli, museum

ROOT = Path(__file__).parents[2]
ROOMS = museum.rooms(ROOT)


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs `d2lpar bug …` in the course; gives its exit status and what it wrote."""
    monkeypatch.chdir(ROOT / "notebooks")

    def bug(*words):
        return cli.main(["bug", *words]), *capsys.readouterr()

    return bug


def test_bugs_are_listed_with_number_title_and_a_line(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    for room in ROOMS:
        assert f"{room.number:3}  {room.title}\n     {room.line}\n" in out


@pytest.mark.parametrize("asked", ["1", "01"])
def test_a_bug_is_told_shown_and_run(run, asked):
    status, out, err = run(asked)
    assert (status, err) == (0, "")
    room = ROOMS[0]
    assert f"1. {room.title}" in out
    assert "manueldiaz96" in out
    assert "<https://github.com/pytorch/pytorch/issues/54059>" in out
    assert str(room.path.relative_to(ROOT)) in out
    # The report of the ranks names lines of the listing.
    lines = dict(re.findall(r"^ +(\d+)  (.+)$", out, flags=re.MULTILINE))
    called = dict(re.findall(r"rank (\d) called at 01_only_rank_0\.py:(\d+)", out))
    assert lines[called["0"]].strip().startswith("loss = F.cross_entropy(net(X)")
    assert lines[called["1"]].strip() == "dist.barrier()"


@pytest.mark.parametrize("asked", ["0", "13", "-1", "seven", "1.0", ""])
def test_a_number_that_no_room_has_is_refused_with_the_range(run, asked):
    arguments = ["--", asked] if asked.startswith("-") else [asked]
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert repr(asked) in err
    assert "rooms 1 to 12" in err


def test_outside_of_the_course_it_says_where_to_go(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("7")
    assert (status, out) == (2, "")
    assert "go to the folder with notebooks/00_start_here.ipynb" in err
