"""A prediction is asked for, kept, and shown beside the answer; a lesson runs without one."""

import ast
import json
import threading
from pathlib import Path

import nbformat
import pytest

from d2lpar.plots import predict
from d2lpar.plots.widgets import prediction
from d2lpar.plots.widgets.typed_number import number_in
from d2lpar.timeline import kept, whole_file

LESSONS = sorted(Path(__file__).parents[2].glob("notebooks/0*.ipynb"))

QUESTION = "Two GPUs: how many times as fast?"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    return tmp_path


def said(capsys):
    return capsys.readouterr().out.splitlines()[-1]


def test_without_a_prediction_the_answer_stands_alone(capsys):
    predict(QUESTION, unit="times").beside(1.789)
    assert said(capsys) == "The answer is 1.79 times. (You made no prediction.)"


def test_a_typed_value_is_kept_for_the_next_run(capsys):
    predict(QUESTION, 2, unit="times").beside(1.789)
    assert said(capsys) == "You predicted 2 times. The answer is 1.79 times."
    assert predict(QUESTION, unit="times").value == 2


def test_a_broken_file_is_put_aside_and_said(capsys, folder):
    (folder / "predictions.json").write_text('{"Two GPUs')
    assert predict(QUESTION, unit="times").value is None
    predict(QUESTION, 2, unit="times")
    assert predict(QUESTION, unit="times").value == 2
    (aside,) = folder.glob("predictions before *.json")
    assert aside.read_text() == '{"Two GPUs'
    told = capsys.readouterr().err
    assert aside.name in told
    assert told.count("\n") == 1


def test_two_who_keep_at_the_same_time_lose_nothing(monkeypatch):
    """The second begins after the first has read, and before that has written."""
    between = []

    def held_up(file, text):
        if not between:
            between.append(threading.Thread(target=kept.write, args=("predictions", "b", 2)))
            between[0].start()
            between[0].join(0.2)  # it waits for the first, or is done
        theirs(file, text)

    theirs = whole_file.write
    monkeypatch.setattr(whole_file, "write", held_up)
    kept.write("predictions", "a", 1)
    between[0].join(30)
    assert kept.read("predictions") == {"a": 1, "b": 2}


def box_of(asked):
    """The box that a prediction is typed into, and the note under it."""
    return asked.control().children


@pytest.mark.parametrize(
    ("unit", "typed", "number"),
    [
        ("s", "460 ms", 0.46),
        ("s", "460ms", 0.46),
        ("s", "2 µs", 2e-6),
        ("s", "2 us", 2e-6),
        ("s", "1/2 min", 30),
        ("s", "1.5 h", 5400),
        ("s", "3 seconds", 3),
        ("s", "~0,46", 0.46),
        ("ms", "2 s", 2000),
        ("times", "1/2", 0.5),
        ("times", "2x", 2),
        ("times", "×2", 2),
        ("times", "1.5-fold", 1.5),
        ("times", "−2", -2),
        ("%", "6,25", 6.25),
        ("%", "6.25 %", 6.25),
        ("%", "1/16", 6.25),
        ("GB/s", "1.2 TB/s", 1200),
        ("GiB", "512 MiB", 0.5),
        ("TFLOP/s", "312 TFLOPS", 312),
        ("images/s", "1e3 images/s", 1000),
        ("", "4", 4),
        ("", "0,125", 0.125),
        ("", "1234,567", 1234.567),
        ("", "1.500e3", 1500),
        ("", "80 %", 0.8),
    ],
)
def test_a_number_is_read_with_its_unit(unit, typed, number):
    assert number_in(unit, typed) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(
    ("unit", "typed"),
    [
        ("s", "about one second"),
        ("s", "2 or 3"),
        ("s", "2-3 s"),
        ("s", "2 s 5"),
        ("s", "5 000"),
        ("s", "1,500"),  # one and a half, or 1500?
        ("s", "1.500"),  # in some languages 1500
        ("s", "1.000,5"),
        ("s", "1e3 4"),
        ("s", "10^3"),
        ("s", "3 GB"),
        ("s", "3 %"),
        ("s", "3 m"),  # minutes, or metres?
        ("s", "2x"),
        ("times", "50 %"),  # half as fast, or half as fast again?
        ("%", "2x"),
        ("GB/s", "8 Gbit/s"),
        ("", "4 s"),
        ("", "1/0"),
        ("", "1.2.3"),
        ("", "1e999"),
        ("", "9" * 400),
        ("", "nan"),
        ("", "½"),
        ("", ""),
    ],
)
def test_what_is_not_one_number_in_the_unit_is_none(unit, typed):
    assert number_in(unit, typed) is None


def test_what_is_typed_into_the_box_is_kept_as_it_was_typed(folder, capsys):
    asked = predict(QUESTION, unit="s")
    box, note = box_of(asked)
    assert not box.continuous_update
    box.value = "460 ms"
    assert asked.value == 0.46
    assert "0.46 s" in note.value
    assert json.loads((folder / "predictions.json").read_text()) == {QUESTION: "460 ms"}
    again = predict(QUESTION, unit="s")
    assert box_of(again)[0].value == "460 ms"
    again.beside(0.5)
    assert said(capsys) == "You predicted 0.46 s. The answer is 0.5 s."


def test_what_is_no_number_is_refused_beside_the_box_and_changes_nothing(folder):
    asked = predict(QUESTION, unit="s")
    box, note = box_of(asked)
    box.value = "about one second"
    assert asked.value is None
    assert all(part in note.value for part in ("about one second", "1.5 s"))
    assert not (folder / "predictions.json").exists()
    box.value = "2"
    box.value = "much"
    assert asked.value == 2
    assert all(part in note.value for part in ("much", "2 s stays"))
    assert predict(QUESTION, unit="s").value == 2


@pytest.mark.parametrize("typed", ["1,500", "1.500 s"])
def test_what_has_two_readings_is_refused_with_both(typed):
    asked = predict(QUESTION, unit="s")
    box, note = box_of(asked)
    box.value = typed
    assert asked.value is None
    assert all(part in note.value for part in (typed, "1.5 ", "1500"))


@pytest.mark.parametrize(
    ("typed", "told"),
    [("1024", "1024"), ("12345.5", "12345.5"), ("1 h", "3600"), ("1/3", "0.333333")],
)
def test_a_prediction_is_told_as_no_other_number(capsys, typed, told):
    """An answer is rounded to three digits; what somebody has typed is not."""
    predict(QUESTION, typed, unit="s").beside(1)
    assert said(capsys) == f"You predicted {told} s. The answer is 1 s."


def test_an_emptied_box_takes_the_prediction_back():
    asked = predict(QUESTION, 2, unit="s")
    box, note = box_of(asked)
    assert box.value == "2 s"
    box.value = " "
    assert asked.value is None
    assert note.value == ""
    assert predict(QUESTION, unit="s").value is None


@pytest.mark.parametrize("kept_before", ["many", [1], float("nan"), True])
def test_what_cannot_be_read_any_more_is_no_prediction(folder, kept_before):
    kept.write("predictions", QUESTION, kept_before)
    assert predict(QUESTION, unit="s").value is None


def test_no_two_questions_of_the_course_share_what_is_kept():
    """A reader who answered one would find the answer in the other's box."""
    asked = [question for path in LESSONS for question in questions(path)]
    assert len(asked) >= 10
    assert [question for question in asked if asked.count(question) > 1] == []


def questions(path):
    """The questions of a notebook: what `par.predict` is called with, in words or by a name."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "par.predict(" in cell.source:
            named = {}
            for node in ast.walk(ast.parse(cell.source)):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=text)):
                        named[name] = text
                    case ast.Call(func=ast.Attribute(attr="predict"), args=[asked, *_]):
                        yield named[asked.id] if isinstance(asked, ast.Name) else asked.value


def test_the_control_has_the_question_for_its_name():
    assert box_of(predict(QUESTION))[0].description == QUESTION


@pytest.mark.parametrize(
    ("value", "told"), [("much", "much.*such as 1.5"), ("1,500", "1,500"), (float("inf"), "inf")]
)
def test_wrong_values_are_named(value, told):
    with pytest.raises(ValueError, match=told):
        predict("Which?", value)


def test_outside_a_notebook_the_question_is_printed(capsys):
    predict("How many send?")
    assert said(capsys) == "Your prediction: How many send?"


def test_a_page_without_a_kernel_shows_the_question(monkeypatch):
    shown = []
    monkeypatch.setattr(prediction, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    predict(QUESTION)
    assert shown[0]["text/plain"] == f"Your prediction: {QUESTION}"
