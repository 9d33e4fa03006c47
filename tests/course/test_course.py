"""Copies of the lessons: made, brought up to date without loss, reset, rehearsed, saved."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output

from d2lpar.command import cli
from d2lpar.command.course import (
    former_names,
    merging,
    notebook_file,
    rehearsal,
    saving,
    working_copy,
)
from d2lpar.command.course.former_names import FORMER_NAMES
from d2lpar.timeline import waits
from d2lpar.vgpu.programs import progress

ROOT = Path(__file__).parents[2]
NAME = "03_from_scratch.ipynb"


def cell(name, source, *outputs):
    return new_code_cell(source, id=name, outputs=list(outputs), execution_count=1)


def book(**sources):
    return new_notebook(cells=[cell(name, source) for name, source in sources.items()])


def sources(notebook):
    return [each.source for each in notebook.cells]


def save(path, notebook):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(notebook))


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course, and we are in its folder."""
    save(tmp_path / "notebooks" / "00_start_here.ipynb", book(a="print(0)"))
    save(tmp_path / "notebooks" / NAME, book(a="1", b="2", c="3"))
    save(tmp_path / "notebooks/deeper" / NAME, book(a="deeper"))
    (tmp_path / "notebooks/PROMISES.md").write_text("")  # for maintainers: no copy has it
    (tmp_path / "notebooks/scripts").mkdir()
    (tmp_path / "notebooks/scripts/train.py").write_text("version = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def update(folder):
    return {step.file.name: step for step in working_copy.update(folder)}


# Cells


BASE = {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("own", "new", "expected"),
    [
        ({}, {"b": "two"}, ["1", "two", "3"]),
        ({"b": "mine"}, {}, ["1", "mine", "3"]),
        ({"b": "mine"}, {"c": "three"}, ["1", "mine", "three"]),
        ({"b": "mine"}, {"b": "two"}, ["1", "mine", "two", "3"]),
        ({"b": "two"}, {"b": "two"}, ["1", "two", "3"]),
        ({"b": None}, {}, ["1", "3"]),  # the student has deleted it
        ({"b": None}, {"b": "two"}, ["1", "two", "3"]),
        ({}, {"b": None}, ["1", "3"]),  # the course has
        ({"b": "mine"}, {"b": None}, ["1", "mine", "3"]),
        ({"d": "added"}, {"e": "new"}, ["1", "2", "3", "added", "new"]),
    ],
)
def test_what_one_side_has_changed_is_taken_and_nothing_of_the_students_is_lost(own, new, expected):
    def version(changes):
        return book(**{k: v for k, v in (BASE | changes).items() if v is not None})

    assert sources(merging.merge(version(own), book(**BASE), version(new)).notebook) == expected


def test_where_both_have_changed_it_says_where_and_tags_the_new_one():
    merged = merging.merge(book(a="mine\nmore"), book(a="1"), book(a="one"))
    assert merged.both == ["mine"]
    assert [notebook_file.tags(each) for each in merged.notebook.cells] == [[], ["new-version"]]


def test_a_second_update_replaces_the_first_new_version():
    once = merging.merge(book(a="mine"), book(a="1"), book(a="2")).notebook
    again = merging.merge(once, book(a="2"), book(a="2")).notebook
    assert sources(again) == ["mine", "2"]
    assert sources(merging.merge(again, book(a="2"), book(a="3")).notebook) == ["mine", "3"]


def test_cells_that_the_student_has_added_stay_where_they_were():
    own = book(x="top", a="1", y="after 1", z="and this", b="2")
    merged = merging.merge(own, book(a="1", b="2"), book(a="1", n="new", b="2"))
    assert sources(merged.notebook) == ["top", "1", "after 1", "and this", "new", "2"]


def test_results_of_a_cell_that_is_not_new_stay():
    own, base = book(a="1"), book(a="1")
    own.cells[0].outputs = [new_output("stream", text="my result")]
    merged = merging.merge(own, base, book(a="1", b="2")).notebook
    assert merged.cells[0].outputs[0].text == "my result"
    nbformat.validate(merged)


def test_a_new_version_that_the_student_has_worked_on_is_not_replaced_by_the_next():
    once = merging.merge(book(a="mine"), book(a="1"), book(a="2")).notebook
    once.cells[1].source = "2, and mine"
    again = merging.merge(once, book(a="2"), book(a="3")).notebook
    assert sources(again) == ["mine", "3", "2, and mine"]
    nbformat.validate(again)
    assert sources(merging.merge(again, book(a="3"), book(a="3")).notebook) == sources(again)


def test_tags_kernel_and_metadata_of_the_student_stay_and_those_of_the_course_come():
    own, base, new = book(a="1", b="2"), book(a="1", b="2"), book(a="one", b="2")
    for each in (own, base, new):
        each.metadata.update(kernelspec={"name": "python3"}, title="old")
        each.cells[0].metadata.tags = ["dropped", "kept"]
    own.metadata.update(kernelspec={"name": "my-env"}, mine=1)
    own.cells[0].metadata.tags.append("remember")
    own.cells[1].metadata.slideshow = {"slide_type": "skip"}
    new.metadata.update(title="new")
    new.cells[0].metadata.tags = ["kept", "added"]
    merged = merging.merge(own, base, new).notebook
    assert merged.metadata == {"kernelspec": {"name": "my-env"}, "mine": 1, "title": "new"}
    assert sources(merged) == ["one", "2"]
    assert merged.cells[0].metadata.tags == ["kept", "remember", "added"]
    assert merged.cells[1].metadata.slideshow == {"slide_type": "skip"}


def test_the_order_that_the_student_gave_the_cells_stays():
    own = book(c="3", mine="my cell", a="1", b="2")
    merged = merging.merge(own, book(**BASE), book(**(BASE | {"b": "two"}), d="4")).notebook
    assert sources(merged) == ["3", "my cell", "4", "1", "two"]
    moved = book(c="3", a="1", b="2")  # by the course
    assert sources(merging.merge(book(**BASE), book(**BASE), moved).notebook) == ["3", "1", "2"]


def test_cells_without_names_or_with_one_twice_are_not_lost():
    own = book(a="1", b="2", x="another")
    del own.cells[1]["id"]  # as programs of the older format save it
    own.cells[2].id = "a"
    merged = merging.merge(own, book(a="1", b="2"), book(a="1", b="two")).notebook
    assert sources(merged) == ["1", "two", "another"]
    nbformat.validate(merged)


cells = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "1", "2", "3"]), max_size=6)


@given(cells, cells, cells)
def test_no_source_that_only_the_student_wrote_is_ever_lost(own, base, new):
    merged = merging.merge(book(**own), book(**base), book(**new)).notebook
    nbformat.validate(merged)
    names = [each.id for each in merged.cells]
    assert len(set(names)) == len(names)
    for name, source in own.items():
        if base.get(name) != source:
            assert source in [each.source for each in merged.cells if each.id == name]
    for name, source in new.items():
        if base.get(name) != source:
            assert source in sources(merged)


# Files


def test_the_first_update_makes_the_copy_and_the_second_does_nothing(course):
    assert set(update(course)) == {"00_start_here.ipynb", NAME, "train.py"}
    copied = {path.relative_to(course / "my") for path in (course / "my").rglob("*.*")}
    assert {Path(NAME), Path("deeper") / NAME, Path("scripts/train.py")} <= copied
    assert update(course) == {}


def test_a_lesson_that_was_only_run_gets_the_new_version(course):
    update(course)
    own = notebook_file.read(course / "my" / NAME)
    own.cells[0].outputs = [new_output("stream", text="ran")]
    own.metadata["language_info"] = {"name": "python", "version": "3.99"}
    save(course / "my" / NAME, own)
    save(course / "notebooks" / NAME, book(a="1", b="two", c="3"))
    step = update(course)[NAME]
    assert (step.what, step.where) == ("1 cells are new", ())
    assert sources(notebook_file.read(course / "my" / NAME)) == ["1", "two", "3"]


def test_an_update_that_is_interrupted_is_finished_by_the_next(course, monkeypatch):
    update(course)
    save(course / "my" / NAME, book(a="1", b="mine", c="3"))
    save(course / "notebooks" / NAME, book(a="one", b="2", c="3"))
    copy = working_copy._copy
    monkeypatch.setattr(working_copy, "_copy", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        update(course)
    monkeypatch.setattr(working_copy, "_copy", copy)
    update(course)
    assert sources(notebook_file.read(course / "my" / NAME)) == ["one", "mine", "3"]


def test_a_script_that_both_have_changed_is_there_twice(course):
    update(course)
    (course / "my/scripts/train.py").write_text("mine\n")
    (course / "notebooks/scripts/train.py").write_text("version = 2\n")
    assert update(course)["train.py"].what.endswith("the new version is train (new).py")
    assert (course / "my/scripts/train.py").read_text() == "mine\n"
    assert (course / "my/scripts/train (new).py").read_text() == "version = 2\n"
    assert update(course) == {}


def test_files_of_the_students_with_names_that_an_update_might_want_stay(course):
    update(course)
    theirs = {
        course / "my/scripts" / name: f"the student's {name}"
        for name in ("train (new).py", "train.py.tmp", "train.py", f"train.py.{os.getpid()}")
    }
    for path, text in theirs.items():
        path.write_text(text)
    (course / "my" / f"{NAME}.tmp").write_text("notes")
    (course / "notebooks/scripts/train.py").write_text("version = 2\n")
    save(course / "notebooks" / NAME, book(a="one"))
    assert update(course)["train.py"].what.endswith("the new version is train (new 2).py")
    assert {path: path.read_text() for path in theirs} == theirs
    assert (course / "my" / f"{NAME}.tmp").read_text() == "notes"
    assert (course / "my/scripts/train (new 2).py").read_text() == "version = 2\n"
    assert not list((course / "my").rglob(".d2lpar*"))


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("changed", [False, True], ids=["as it was", "worked on"])
def test_an_old_page_that_is_saved_over_an_update_hides_no_cell_for_ever(course, updates, changed):
    update(course)
    own = course / "my" / NAME
    page = notebook_file.read(own)  # a tab that stays open
    if changed:
        page.cells[1].source = "mine"
    for number in range(updates):
        new = {f"new{i}": f"new cell {i}" for i in range(number + 1)}
        save(course / "notebooks" / NAME, book(a="1", b="2", c="three", **new))
        update(course)
    save(own, page)
    assert update(course)[NAME].what.endswith("cells are new")
    mine = ["mine" if changed else "2"]
    news = [f"new cell {i}" for i in range(updates)]
    assert sources(notebook_file.read(own)) == ["1", *mine, "three", *news]
    assert update(course) == {}


@pytest.mark.parametrize("updates", [1, 2])
def test_an_old_script_that_is_saved_over_an_update_hides_no_new_one_for_ever(course, updates):
    update(course)
    theirs, mine = course / "notebooks/scripts/train.py", course / "my/scripts/train.py"
    opened = mine.read_text()
    for number in range(updates):
        theirs.write_text(f"version = {number + 2}\n")
        update(course)
    mine.write_text(opened)
    assert update(course)["train.py"].what == "the new version"
    assert mine.read_text() == f"version = {updates + 1}\n"
    mine.write_text(f"{opened}mine = True\n")
    assert update(course) == {}
    assert mine.read_text() == f"{opened}mine = True\n"
    assert [path.name for path in mine.parent.iterdir()] == ["train.py"]


def test_an_old_page_is_known_where_what_saved_it_kept_no_metadata(course):
    update(course)
    save(course / "notebooks" / NAME, book(a="1", b="2", c="3", d="4"))
    update(course)
    save(course / "my" / NAME, book(a="1", b="mine", c="3"))
    update(course)
    assert sources(notebook_file.read(course / "my" / NAME)) == ["1", "mine", "3", "4"]


def test_a_new_cell_that_the_student_deletes_stays_deleted(course):
    update(course)
    save(course / "notebooks" / NAME, book(a="1", b="2", c="3", d="4"))
    update(course)
    own = notebook_file.read(course / "my" / NAME)
    del own.cells[3]
    save(course / "my" / NAME, own)
    assert update(course) == {}
    save(course / "notebooks" / NAME, book(a="one", b="2", c="3", d="4"))
    update(course)
    assert sources(notebook_file.read(course / "my" / NAME)) == ["one", "2", "3"]


@pytest.mark.parametrize("what", ["copy", "notebook", "hard"])
@pytest.mark.skipif(sys.platform == "win32", reason="links need a permission there")
def test_links_stay_links(course, tmp_path_factory, what):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    copy, own = course / "my", course / "my" / NAME
    if what == "copy":
        copy.symlink_to(elsewhere)
    update(course)
    save(own, book(a="1", b="mine", c="3"))
    if what == "notebook":
        own.replace(elsewhere / NAME)
        own.symlink_to(elsewhere / NAME)
    elif what == "hard":
        (elsewhere / NAME).hardlink_to(own)
    save(course / "notebooks" / NAME, book(a="one", b="2", c="3"))
    update(course)
    assert sources(notebook_file.read(elsewhere / NAME)) == ["one", "mine", "3"]
    assert copy.is_symlink() == (what == "copy")
    assert own.is_symlink() == (what == "notebook")
    assert own.samefile(elsewhere / NAME)


def test_a_link_that_leads_nowhere_is_told_and_left(course):
    update(course)
    own = course / "my" / NAME
    own.unlink()
    own.symlink_to(course / "stick" / NAME)
    save(course / "notebooks" / NAME, book(a="one"))
    for _ in range(2):  # it was not brought up, so that the next has to say so again
        assert "leads to" in update(course)[NAME].what
    assert own.is_symlink()


def test_two_updates_at_once_are_one_after_the_other(course, monkeypatch):
    update(course)
    monkeypatch.setattr(waits, "SAY_AFTER_S", 0.1)
    monkeypatch.setattr(waits, "LOCK_S", 0.3)
    save(course / "notebooks" / "00_start_here.ipynb", book(a="print(1)"))
    save(course / "notebooks" / NAME, book(a="one"))
    first = working_copy.update(course)
    next(first)
    with pytest.raises(TimeoutError, match=rf"held by process {os.getpid()} since 2"):
        update(course)
    first.close()
    assert NAME in update(course)


def test_a_file_that_the_student_has_deleted_comes_back_only_when_it_is_new(course):
    update(course)
    (course / "my" / NAME).unlink()
    assert update(course) == {}
    save(course / "notebooks" / NAME, book(a="another"))
    assert update(course)[NAME].what == "new"


def test_a_copy_that_is_no_notebook_any_more_is_put_aside(course):
    update(course)
    (course / "my" / NAME).write_text("{half a notebo")
    save(course / "notebooks" / NAME, book(a="new"))
    assert "it is 03_from_scratch before" in update(course)[NAME].what
    [aside] = (course / "my").glob("03_from_scratch before*")
    assert aside.read_text() == "{half a notebo"
    assert sources(notebook_file.read(course / "my" / NAME)) == ["new"]


def test_reset_of_a_lesson_leaves_the_museum_s_room_of_that_number_alone(course):
    save(course / "notebooks/museum/03_a_bug.ipynb", book(a="room"))
    update(course)
    save(course / "my/museum/03_a_bug.ipynb", book(a="repaired"))
    assert [step.file.name for step in working_copy.reset(course, "3")] == [NAME, NAME]
    assert sources(notebook_file.read(course / "my/museum/03_a_bug.ipynb")) == ["repaired"]


def test_reset_gives_a_fresh_copy_and_keeps_the_old_ones(course):
    update(course)
    for number in range(2):
        save(course / "my" / NAME, book(a=f"mine {number}"))
        assert len(list(working_copy.reset(course, "3"))) == 2  # with its deeper half
    assert sources(notebook_file.read(course / "my" / NAME)) == ["1", "2", "3"]
    old = sorted((course / "my").glob("03_from_scratch before*"))
    assert [sources(notebook_file.read(path)) for path in old] == [["mine 1"], ["mine 0"]] or [
        sources(notebook_file.read(path)) for path in old
    ] == [["mine 0"], ["mine 1"]]


# Names that have changed


OLD, RENAMED = "07_old.ipynb", "08_new.ipynb"


@pytest.fixture
def second_edition(course, monkeypatch):
    """A course with new names, and a copy with the old ones: 06 has got the number that 07 had."""
    names = {"06_own.ipynb": "07_own.ipynb", OLD: RENAMED, "lesson07.py": "new.py"}
    monkeypatch.setattr(former_names, "FORMER_NAMES", names)
    monkeypatch.setattr(working_copy, "FORMER_NAMES", names)
    save(course / "notebooks/06_own.ipynb", book(x="six"))
    save(course / "notebooks" / OLD, book(a="1", b="2", c="3"))
    save(course / "notebooks/deeper" / OLD, book(a="deeper"))
    (course / "notebooks/solutions").mkdir()
    (course / "notebooks/solutions/lesson07.py").write_text("answer = 1\n")
    update(course)
    save(course / "my" / OLD, book(a="1", b="mine", c="3", d="added"))
    for old, new in names.items():
        for path in (course / "notebooks").rglob(old):
            path.rename(path.with_name(new))
    save(course / "notebooks" / RENAMED, book(a="one", b="two", c="3"))
    return course


def test_a_copy_follows_a_lesson_to_its_new_name_with_the_students_cells(second_edition):
    steps = update(second_edition)
    mine = second_edition / "my"
    assert sources(notebook_file.read(mine / RENAMED)) == ["one", "mine", "two", "3", "added"]
    assert steps[RENAMED].was == Path("my", "deeper", OLD)  # the last of two of that name
    assert sources(notebook_file.read(mine / "07_own.ipynb")) == ["six"]
    assert (mine / "solutions/new.py").read_text() == "answer = 1\n"
    left = {path.name for path in mine.rglob("*") if ".course" not in path.parts}
    assert not left & {"06_own.ipynb", OLD, "lesson07.py"}
    assert update(second_edition) == {}


def test_update_says_from_where_to_where_also_when_quiet(second_edition, capsys):
    assert cli.main(["course", "update", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert f"my/{RENAMED}: your my/{OLD} until now; 1 cells are new" in said
    assert "both changed, the new one follows yours: mine" in said
    assert cli.main(["course", "update", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_what_stands_under_the_new_name_stays_and_the_old_copy_is_put_beside_it(second_edition):
    own = second_edition / "my" / RENAMED
    save(own, book(z="theirs"))
    steps = [step for step in working_copy.update(second_edition) if step.file.parent == Path("my")]
    assert sources(notebook_file.read(own)) == ["theirs"]
    [aside] = own.parent.glob("08_new before*")
    assert sources(notebook_file.read(aside)) == ["1", "mine", "3", "added"]
    assert (Path("my", aside.name), Path("my", OLD)) in [(step.file, step.was) for step in steps]
    assert not (own.parent / OLD).exists()
    assert update(second_edition) == {}


def test_a_page_that_was_open_saves_its_old_name_again_and_is_put_beside_the_new(second_edition):
    update(second_edition)
    save(second_edition / "my" / OLD, book(a="saved late"))
    update(second_edition)
    [aside] = (second_edition / "my").glob("08_new before*")
    assert sources(notebook_file.read(aside)) == ["saved late"]
    assert "mine" in sources(notebook_file.read(second_edition / "my" / RENAMED))
    assert not (second_edition / "my" / OLD).exists()


def test_a_copy_with_a_former_name_is_put_aside_by_reset(second_edition):
    list(working_copy.reset(second_edition, "08"))
    mine = second_edition / "my"
    assert sources(notebook_file.read(mine / RENAMED)) == ["one", "two", "3"]
    [aside] = mine.glob("08_new before*")
    assert "mine" in sources(notebook_file.read(aside))
    assert not (mine / OLD).exists()


@pytest.mark.parametrize("command", ["reset", "rehearse", "notes"])
def test_a_former_name_is_told_the_present_one(second_edition, capsys, command):
    assert cli.main(["course", command, "07_old"]) == 2
    assert "07_old is called 08_new now: say 08" in capsys.readouterr().err


def test_former_names_lead_to_files_that_are_there_and_stand_for_no_others():
    there = {path.name for path in (ROOT / "notebooks").rglob("*")}
    assert set(FORMER_NAMES.values()) <= there
    assert not set(FORMER_NAMES) & there


# The command


def test_the_command_says_what_has_happened(course, capsys):
    assert cli.main(["course", "update", "--quiet"]) == 0
    assert "made my/ with 4 files: work there; notebooks/ stays" in capsys.readouterr().out
    assert cli.main(["course", "update", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    save(course / "my" / NAME, book(a="1", b="mine", c="3"))
    save(course / "notebooks" / NAME, book(a="1", b="two", c="3"))
    assert cli.main(["course", "update", "--quiet"]) == 0
    assert "both changed, the new one follows yours: mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reset", "12"], "no lesson '12': there are 00, 03"),
        (["reset", ""], "no lesson '': there are 00, 03"),
        (["rehearse", "12"], "no lesson '12': there are 00, 03"),
        (["notes", "*"], "no lesson '*': there are 00, 03"),
        (["notes", "03"], "no lesson 03 in my/: call `make update` first"),
    ],
)
def test_a_lesson_that_there_is_not_is_named(course, capsys, words, told):
    assert cli.main(["course", *words]) == 2
    assert told in capsys.readouterr().err


def test_outside_the_course_it_says_where_to_go(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["course", "update"]) == 2
    assert "go to the folder with notebooks/00_start_here.ipynb" in capsys.readouterr().err


def test_it_needs_no_torch(course):
    program = "import sys; from d2lpar.command.cli import main; main(['course', 'update']);"
    program += "assert 'torch' not in sys.modules"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], check=True, env=env, stdout=subprocess.DEVNULL)


# Rehearsals


def test_a_rehearsal_tells_times_and_differences_and_leaves_the_file_alone(course):
    path = course / "lesson.ipynb"
    stored = book(a="import time; time.sleep(0.2)", b="print(3)", c="print(4)")
    stored.cells[1].outputs = [new_output("stream", name="stdout", text="3\n")]
    stored.cells[2].outputs = [new_output("stream", name="stdout", text="5\n")]
    save(path, stored)
    before = path.read_bytes()
    found = rehearsal.rehearse(path)
    assert [number for number, _, _ in found.cells] == [1, 2, 3]
    assert found.cells[0][2] >= 0.2
    assert found.differences == [(3, ["5 -> 4"])]
    assert "In [3] differs: 5 -> 4" in str(found)
    assert path.read_bytes() == before


def test_a_long_rehearsal_says_how_far_it_is(course, monkeypatch, capfd):
    monkeypatch.setattr(progress, "FIRST_S", 0.5)
    save(course / "lesson.ipynb", book(a="1", b="import time; time.sleep(3)"))
    rehearsal.rehearse(course / "lesson.ipynb")
    assert re.search(r"lesson: [01] of 2 cells have run after \d+ s", capfd.readouterr().err)


def test_a_rehearsal_says_where_a_lesson_stops(course):
    save(course / "lesson.ipynb", book(a="1", b="1 / 0", c="3"))
    found = rehearsal.rehearse(course / "lesson.ipynb")
    assert "ZeroDivisionError" in found.error
    assert "stopped: ZeroDivisionError" in str(found)


# Saving


def test_what_is_saved_refers_to_no_widget(course):
    view = {notebook_file.WIDGET_VIEW: {"model_id": "a"}, "text/plain": "move the sliders"}
    notebook = book(a="slider()")
    notebook.cells[0].outputs = [new_output("display_data", view)]
    notebook.metadata["widgets"] = {"state": {}}
    model = {"type": "notebook", "content": notebook}
    saving.leave_out_widget_views(model, path="a.ipynb", contents_manager=None)
    [output] = model["content"].cells[0].outputs
    assert output.data == {"text/plain": "move the sliders"}
    assert "widgets" not in model["content"].metadata
    saving.leave_out_widget_views({"type": "file", "content": "text"})


def test_the_server_of_make_lab_saves_so(course, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(ROOT / ".jupyter"))
    from jupyter_server.serverapp import ServerApp

    app = ServerApp()
    app.load_config_file()
    assert app.config.ContentsManager.pre_save_hook is saving.leave_out_widget_views


def test_cells_have_names_of_their_own_in_every_lesson():
    for path in (ROOT / "notebooks").rglob("[0-9]*.ipynb"):
        names = [each.get("id") for each in notebook_file.read(path).cells]
        assert None not in names
        assert len(set(names)) == len(names), path.name


def test_one_file_that_cannot_be_brought_up_to_date_leaves_the_others(course):
    others = ["01_a.ipynb", "02_b.ipynb"]
    for name in others:
        save(course / "notebooks" / name, book(a="1"))
    update(course)
    (course / "my" / NAME).unlink()
    (course / "my" / NAME).mkdir()  # a folder
    (course / "my" / "01_a.ipynb").write_bytes(b"[" * 200_000)
    save(course / "my" / "02_b.ipynb", book(a="mine"))
    for name in (NAME, *others):
        save(course / "notebooks" / name, book(a="1", b="new"))
    steps = update(course)
    assert "is no file; it is 03_from_scratch before" in steps[NAME].what
    assert (
        "could not be read (it is nested too deeply); it is 01_a before" in steps["01_a.ipynb"].what
    )
    assert sources(notebook_file.read(course / "my" / "02_b.ipynb")) == ["mine", "new"]
    assert update(course) == {}


def test_a_copy_whose_cells_have_lost_their_names_is_merged(course):
    save(course / "notebooks" / NAME, book(a="1", b="2"))
    update(course)
    own = json.loads((course / "my" / NAME).read_text())
    for cell in own["cells"]:
        del cell["id"]
    own["cells"][1]["source"] = "mine"
    own["nbformat_minor"] = 4
    (course / "my" / NAME).write_text(json.dumps(own))
    save(course / "notebooks" / NAME, book(a="one", b="2", c="3"))
    assert update(course)[NAME].what.endswith("cells are new")
    assert sources(notebook_file.read(course / "my" / NAME)) == ["one", "mine", "3"]
