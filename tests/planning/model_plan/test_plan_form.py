"""A plan in a notebook says what `d2lpar plan` prints, whatever its controls are set to."""

import html
import re
import threading

import IPython.display
import lab_in_browser
import nbformat
import pytest
from lab_in_browser import in_chromium

import d2lpar as par
from d2lpar.command import cli
from d2lpar.parallelism.model_plan.shown.form import form
from d2lpar.plots import picture
from d2lpar.plots.widgets.form import Form
from d2lpar.vgpu import current_runtime

MODEL, MACHINE = "qwen3-0.6b", "4x-rtx-4090"
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
CLOSED = re.compile(r"</?(?:p|li|span|b|i|u|ul|section|div)\b[^>]*>")
DRAWN = re.compile(r"\|[ █·]*\|")


def shown(one: Form) -> list[str]:
    """The words of the answer."""
    text = CLOSED.sub(" ", STYLE.sub("", one.answer.value))
    return html.unescape(re.sub(r"<[^>]*>", "", text)).split()


def printed(capsys, *words) -> list[str]:
    """The words that the command prints, without its bars."""
    assert cli.main(["plan", *map(str, words)]) == 0
    return DRAWN.sub(" ", capsys.readouterr().out).split()


def refused(capsys, *words) -> str:
    """What the command says of an error."""
    assert cli.main(["plan", *map(str, words)]) != 0
    return capsys.readouterr().err


@pytest.fixture
def small():
    return form(par.plan_model(MODEL, MACHINE, batch=8), par.plan_model)


def set_to(one: Form, **values):
    for name, value in values.items():
        one.controls[name.replace("_", " ")].value = value


def test_it_starts_with_what_was_asked(small, capsys):
    assert shown(small) == printed(capsys, MODEL, "--machine", MACHINE, "--batch", 8)
    asked = {"model": MODEL, "machine": MACHINE, "batch": "8", "GPUs": "", "for": False}
    assert small.values == asked | {"sequence": "", "precision": None, "ZeRO stage": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": "16", "GPUs": "2"}, ["--batch", 16, "--gpus", 2]),
        ({"ZeRO_stage": "2", "sequence": "512"}, ["--batch", 8, "--zero", 2, "--sequence", 512]),
        ({"precision": "fp32"}, ["--batch", 8, "--precision", "fp32"]),
        ({"for": "inference"}, ["--batch", 8, "--inference"]),
        ({"model": "llama-3.1-70b"}, ["--batch", 8]),
        ({"machine": "1x-a10", "model": "bert-base-uncased"}, ["--batch", 8]),
    ],
)
def test_what_is_set_is_answered_as_in_a_terminal(small, capsys, changes, words):
    set_to(small, **changes)
    model, machine = changes.get("model", MODEL), changes.get("machine", MACHINE)
    assert shown(small) == printed(capsys, model, "--machine", machine, *words)


def test_what_has_no_control_stays_as_it_was_given(capsys):
    plan = par.plan_model(MODEL, MACHINE, batch=8, tensor=2, recompute="full", price=0.5)
    one = form(plan, par.plan_model)
    given = ("--tensor", 2, "--price", 0.5)
    set_to(one, batch="16")
    words = (MODEL, "--machine", MACHINE, "--batch", 16, *given)
    assert shown(one) == printed(capsys, *words, "--recompute", "full")
    set_to(one, **{"for": "inference"})  # recomputation is of training
    assert shown(one) == printed(capsys, *words, "--inference")


def test_a_model_and_a_machine_without_a_name_stay(capsys):
    fields = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}
    fields |= {"model_type": "llama", "intermediate_size": 512, "vocab_size": 1000}
    machine = par.machines.machine("1x-a10", memory_bytes=2 * 10**9, name="mine")
    one = form(par.plan_model(fields, machine, batch=2, sequence=64), par.plan_model)
    first = shown(one)
    set_to(one, batch="4")
    assert "mine," in shown(one)
    set_to(one, batch="2")
    assert shown(one) == first


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("machine", "8x-h1000", "--machine"),
        ("model", "gpt-17", None),
        ("GPUs", "9", "--gpus"),
        ("batch", "0", None),
        ("batch", "many", None),
        ("sequence", "-3", None),
    ],
)
def test_what_is_wrong_is_refused_and_kept(small, capsys, name, value, option):
    before = shown(small)
    set_to(small, **{name: value})
    assert small.controls[name].value == value
    assert "Does" not in shown(small)
    if option or name == "model":
        asked = {"model": MODEL, "machine": MACHINE, "GPUs": None} | {name: value}
        words = [asked["model"], "--machine", asked["machine"], "--batch", 8]
        words += ["--gpus", asked["GPUs"]] if asked["GPUs"] else []
        error = refused(capsys, *words)
        assert error.removeprefix("d2lpar: ").split() == shown(small)
    else:
        assert {name + ":", "whole", f"{value!r}"} <= set(shown(small))
    small.controls[name].value = {"machine": MACHINE, "model": MODEL, "batch": "8"}.get(name, "")
    assert shown(small) == before


def test_names_are_not_taken_for_html(small):
    set_to(small, model="<b>x</b>")
    assert "<b>x" not in small.answer.value


def test_it_answers_in_another_thread_and_the_clock_of_the_cell_stands(small, gpus, capsys):
    before_s = current_runtime().now_s()
    thread = threading.Thread(target=set_to, args=(small,), kwargs={"batch": "32"})
    thread.start()
    thread.join()
    assert shown(small) == printed(capsys, MODEL, "--machine", MACHINE, "--batch", 32)
    assert current_runtime().now_s() == before_s


def test_where_no_kernel_runs_the_text_stands(monkeypatch, capsys):
    outputs = []
    monkeypatch.setattr(picture, "in_notebook", lambda: True)
    monkeypatch.setattr(
        IPython.display, "display", lambda data, **options: outputs.append((data, options))
    )
    plan = par.plan_model(MODEL, MACHINE, batch=8)
    plan._ipython_display_()
    ((data, options),) = outputs
    assert options == {"raw": True}
    assert data["text/plain"] == str(plan)
    assert picture.WIDGET_VIEW in data


def test_outside_a_notebook_it_is_printed(capsys):
    plan = par.plan_model(MODEL, MACHINE, batch=8)
    plan._ipython_display_()
    assert capsys.readouterr().out == f"{plan}\n"


@in_chromium
def test_in_jupyterlab_it_answers_and_its_text_stays(tmp_path, browser, capsys):
    call = f'import d2lpar as par\n\npar.plan_model("{MODEL}", "{MACHINE}", batch=8)'
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(call)], metadata=kernel)
    (tmp_path / "home").mkdir()
    with lab_in_browser.running_lab(tmp_path / "home", tmp_path / "course") as lab:
        nbformat.write(notebook, lab.notebooks / "plan.ipynb")
        page = browser.new_page(viewport=lab_in_browser.SCREEN)
        lab_in_browser.open_notebook(page, lab, "plan.ipynb")
        lab_in_browser.do(page, "notebook:run-all-cells")
        page.get_by_text("Yes: it needs").wait_for(timeout=lab_in_browser.START_S * 1000)
        box = page.get_by_label("batch")
        for typed, said in (("many", "batch: it takes a whole number"), ("16", "16 samples of")):
            box.fill(typed)
            box.press("Enter")
            page.locator(".model-plan").get_by_text(said).wait_for()
        answered = page.locator(".model-plan").inner_text().split()
        lab_in_browser.let_go(page)  # it saves
        page.close()
        (cell,) = nbformat.read(lab.notebooks / "plan.ipynb", 4).cells
    (stored,) = cell.outputs
    words = (MODEL, "--machine", MACHINE, "--batch")
    assert answered == printed(capsys, *words, 16)
    assert DRAWN.sub(" ", stored.data["text/plain"]).split() == printed(capsys, *words, 8)
