"""A prediction is asked for, kept, and shown beside the answer; a lesson runs without one."""

import json

import pytest

from d2lpar.plots import predict, prediction
from d2lpar.timeline import kept

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


def test_what_is_typed_into_the_box_is_kept(folder):
    asked = predict(QUESTION)
    control = asked._control()
    control.observe(lambda change: asked._typed(change["new"]), names="value")
    control.value = " 1,5 "
    assert asked.value == 1.5
    control.value = "many"
    assert asked.value == 1.5
    assert json.loads((folder / "predictions.json").read_text()) == {QUESTION: 1.5}


def test_a_choice(capsys):
    asked = predict("Which sends the least?", choices=["data", "layers"])
    control = asked._control()
    assert [value for _, value in control.options] == [None, "data", "layers"]
    control.observe(lambda change: asked._typed(change["new"]), names="value")
    control.value = "data"
    asked.beside("layers")
    assert said(capsys) == "You predicted data. The answer is layers."


def test_a_kept_choice_that_there_is_no_more_is_forgotten():
    predict("Which?", "a", choices=["a", "b"])
    assert predict("Which?", choices=["b", "c"]).value is None


def test_the_control_has_the_question_for_its_name():
    assert predict(QUESTION)._control().description == QUESTION


@pytest.mark.parametrize(
    ("value", "choices", "told"),
    [("c", ["a", "b"], "'c' is none of the choices: a, b"), ("much", [], "not 'much'")],
)
def test_wrong_values_are_named(value, choices, told):
    with pytest.raises(ValueError, match=told):
        predict("Which?", value, choices=choices)


def test_outside_a_notebook_the_question_is_printed(capsys):
    predict("Which sends the least?", choices=["data", "layers"])
    assert said(capsys) == "Your prediction: Which sends the least? · data or layers"


def test_a_page_without_a_kernel_shows_the_question(monkeypatch):
    shown = []
    monkeypatch.setattr(prediction, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    predict(QUESTION)
    assert shown[0]["text/plain"] == f"Your prediction: {QUESTION}"
