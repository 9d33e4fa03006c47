"""A lesson presented: slides in JupyterLab whose cells run, and what the speaker is told."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from lab_in_browser import (
    SCREEN,
    SMALLEST_CODE_PX,
    SMALLEST_PX,
    START_S,
    TOKEN,
    Lab,
    in_chromium,
    running_lab,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from d2lpar.command.course.command import main
from d2lpar.command.course.notes import Note, described, minutes_to_present, notes_in

ROOT = Path(__file__).parents[2]
PRESENT = ROOT / ".jupyter" / "present"
LESSONS = sorted((ROOT / "notebooks").glob("0[1-9]_*.ipynb"))
WIDTH, HEIGHT = SCREEN.values()
SETTLE_MS = 250  # JupyterLab moves the focus after the cell
LOOKS = 40
SHORT = "a_short_lesson.ipynb"
UNSHOWN = ("skip", "notes")


def cell_of(kind, source, slide_type):
    new = new_markdown_cell if kind == "markdown" else new_code_cell
    return new(source, metadata={"slideshow": {"slide_type": slide_type}})


# What the speaker is told


def test_notes_stand_under_their_headings_with_the_minutes_they_take():
    notebook = new_notebook(
        cells=[
            cell_of("markdown", "# Clocks", "slide"),
            cell_of("markdown", "Ask: who believes these?\n(2 min)", "notes"),
            cell_of("code", "# not a heading", "fragment"),
            cell_of("markdown", "## Queues\n\ntext", "slide"),
            cell_of("markdown", "Ask: why? (3 min) Then vote (1 min)", "notes"),
        ]
    )
    notes = list(notes_in(notebook))
    assert [(note.heading, note.minutes) for note in notes] == [("Clocks", 2), ("Queues", 4)]
    assert described("02", notebook).splitlines() == [
        "02: about 7 minutes to present, 6 of them questions to the class",
        "  Clocks: Ask: who believes these? (2 min)",
        "  Queues: Ask: why? (3 min) Then vote (1 min)",
    ]
    assert described("03", new_notebook()) == "03: about 0 minutes to present, no notes"
    assert Note("a", "no time").minutes == 0


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_presented_in_45_minutes(path):
    assert 30 < minutes_to_present(nbformat.read(path, 4)) <= 45


def test_text_that_slides_leave_out_takes_no_time_to_present():
    cells = [cell_of("markdown", "word " * 260, kind) for kind in ("slide", "skip")]
    assert minutes_to_present(new_notebook(cells=cells)) == 2


def test_the_command_tells_the_notes_of_a_lesson(tmp_path, monkeypatch, capsys):
    for folder in ("notebooks", "my"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "00_start_here.ipynb").touch()
        cells = [
            cell_of("markdown", "# A", "slide"),
            cell_of("markdown", "Ask: b (5 min)", "notes"),
        ]
        nbformat.write(new_notebook(cells=cells), tmp_path / folder / "02_a.ipynb")
    monkeypatch.chdir(tmp_path)
    assert main(["notes", "2"]) == 0
    assert capsys.readouterr().out == (
        "02_a: about 5 minutes to present, 5 of them questions to the class\n  A: Ask: b (5 min)\n"
    )


def test_the_settings_can_be_read_and_keep_presenting_apart_from_working():
    for file in sorted(PRESENT.rglob("*.jupyterlab-settings")):
        text = re.sub(r"^ *//.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert json.loads(text)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"cp -R (\S+) build/present", makefile) == [".jupyter/present"]
    assert 'JUPYTERLAB_SETTINGS_DIR="$$PWD/build/present/settings"' in makefile


# In a browser


def in_browser(test):
    """Marks a test that presents in Chromium."""
    missing = not importlib.util.find_spec("jupyterlab_deck")
    return in_chromium(pytest.mark.skipif(missing, reason="jupyterlab-deck is not installed")(test))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab that presents, and the folder with what it presents."""
    home, course = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("course")
    shutil.copytree(PRESENT, home / "present")
    settings = {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "present" / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "present" / "workspaces"),
    }
    with running_lab(home, course, "my", **settings) as lab:
        yield lab


# In the page, `jupyterapp` is JupyterLab itself.
READY = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return document.body.dataset.jpDeckMode === 'presenting' && panel?.context?.isReady
        && panel.sessionContext.session?.kernel?.status === 'idle'
        && panel.content.activeCell.node.matches('.jp-deck-mod-visible')
        && document.activeElement.closest('.jp-Cell');
}"""
AT = "index => window.jupyterapp.shell.currentWidget.content.activeCellIndex === index"
DRAWN = """() => {
    const {node} = window.jupyterapp.shell.currentWidget.content.activeCell;
    return node.matches('.jp-deck-mod-visible') && node.getBoundingClientRect().height >= 1;
}"""
END = "() => window.jupyterapp.shell.currentWidget.dispose()"
# The cells on the screen, how much of the active one is seen, how far right text and pictures
# reach, and the smallest type of prose and of code.
SEEN = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const shown = notebook.widgets.map((cell, index) => [cell.node, index]).filter(
        ([node]) => node.matches('.jp-deck-mod-visible') && node.checkVisibility());
    const {top, bottom} = notebook.activeCell.node.getBoundingClientRect();
    const text = shown.flatMap(([node]) => [...node.querySelectorAll('*')]).filter(
        element => element.checkVisibility({visibilityProperty: true})
            && [...element.childNodes].some(
                child => child.nodeType === Node.TEXT_NODE && child.textContent.trim())
            && element.getBoundingClientRect().height);
    const size = element => parseFloat(getComputedStyle(element).fontSize);
    const code = element => element.closest('pre, code, table, .cm-line, .jupyter-widgets');
    const right = element => {
        const range = document.createRange();
        range.selectNodeContents(element);
        return range.getBoundingClientRect().right;
    };
    const inMarkdown = element => element.closest('.jp-RenderedMarkdown') && !code(element);
    return {
        active: notebook.activeCellIndex,
        cells: shown.map(([, index]) => index),
        top, bottom,
        text: notebook.activeCell.node.innerText.trim().slice(0, 60),
        right: Math.max(0, ...text.map(right)),
        prose: Math.min(99, ...text.filter(inMarkdown).map(size)),
        code: Math.min(99, ...text.filter(code).map(size)),
        modules: notebook.node.querySelectorAll('.jupyter-widgets').length,
    };
}"""


def present(page, lab: Lab, name: str) -> None:
    page.goto(f"{lab.address}{name}?reset&token={TOKEN}")  # no tabs of notebooks before
    page.wait_for_function(READY, timeout=START_S * 1000)
    page.wait_for_timeout(4 * SETTLE_MS)


def next_cell(page, index: int) -> dict:
    """Press a clicker's key; what is seen once the cell at `index` is the active one.

    JupyterLab may swallow a key while it still draws a notebook that was just opened, so the key is
    pressed again where nothing has moved. A key that leads elsewhere fails.
    """
    before = page.evaluate(SEEN)["active"]
    page.keyboard.press("PageDown")
    page.wait_for_timeout(SETTLE_MS)
    if page.evaluate(SEEN)["active"] == before:
        page.wait_for_timeout(4 * SETTLE_MS)
        if page.evaluate(AT, before):
            page.keyboard.press("PageDown")
    page.wait_for_function(AT, arg=index)
    for _ in range(LOOKS):
        page.wait_for_timeout(SETTLE_MS)
        if page.evaluate(DRAWN):
            break
    return page.evaluate(SEEN)


@in_browser
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_cell_of_a_lesson_comes_onto_the_screen_whole_and_large_enough(page, lab, path):
    present(page, lab, path.name)
    types = [cell.metadata.slideshow.slide_type for cell in nbformat.read(path, as_version=4).cells]
    seen = [page.evaluate(SEEN)]
    shown = [index for index, kind in enumerate(types) if kind not in UNSHOWN]
    seen += [next_cell(page, index) for index in shown if index > seen[0]["active"]]
    page.evaluate(END)
    assert [found["active"] for found in seen] == shown
    assert [found for found in seen if found["active"] not in found["cells"]] == []
    empty = [found for found in seen if not found["text"] or found["bottom"] - found["top"] < 1]
    assert empty == []
    cut = [found for found in seen if found["top"] < -1 or found["bottom"] > HEIGHT + 1]
    assert cut == []
    assert [found for found in seen if found["prose"] < SMALLEST_PX] == []
    assert [found for found in seen if found["code"] < SMALLEST_CODE_PX] == []
    assert [found for found in seen if found["right"] > WIDTH] == []


@in_browser
def test_cells_of_a_slide_run_and_a_prediction_can_be_typed(page, lab):
    cells = [
        cell_of("markdown", "# A short lesson", "slide"),
        cell_of("code", "import d2lpar as par\n6 * 7", "fragment"),
        cell_of("markdown", "Ask: who dares? (2 min)", "notes"),
        cell_of("code", "guess = par.predict('How many?', unit='times')", "slide"),
        cell_of("code", "guess.beside(3)", "fragment"),
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), lab.notebooks / SHORT)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    present(page, lab, SHORT)
    assert page.evaluate(SEEN)["cells"] == [0]
    next_cell(page, 1)
    page.keyboard.press("Shift+Enter")
    on_screen = page.locator(".jp-deck-mod-visible")
    page.keyboard.press("PageUp")
    page.wait_for_function(AT, arg=1)
    on_screen.get_by_text("42", exact=True).wait_for(timeout=START_S * 1000)
    assert page.locator("p").get_by_text("who dares?").is_hidden()
    next_cell(page, 3)
    page.keyboard.press("PageUp")
    page.wait_for_function(AT, arg=1)
    next_cell(page, 3)
    page.keyboard.press("Control+Enter")
    box = on_screen.locator("input[type=text]")
    box.wait_for(timeout=START_S * 1000)
    box.fill("2.5")
    box.press("Enter")
    page.keyboard.press("Escape")
    page.evaluate("() => document.activeElement.blur()")
    next_cell(page, 4)
    page.keyboard.press("Shift+Enter")
    on_screen.get_by_text("You predicted 2.5 times.").wait_for(timeout=START_S * 1000)
    assert wrong == []
    page.evaluate(END)


@in_chromium
def test_a_slide_whose_cells_above_were_not_run_has_a_button_that_runs_them(page, lab):
    texts = ("import d2lpar", "answer = 42", "answer")
    cells = [cell_of("code", text, "slide") for text in texts]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), lab.notebooks / SHORT)
    present(page, lab, SHORT)
    page.keyboard.press("Control+Enter")
    next_cell(page, 1)
    next_cell(page, 2)
    page.keyboard.press("Control+Enter")
    on_screen = page.locator(".jp-deck-mod-visible")
    button = on_screen.get_by_role("button", name="Run all cells above")
    button.wait_for(timeout=START_S * 1000)
    button.click()
    on_screen.get_by_text("42", exact=True).wait_for(timeout=START_S * 1000)
    assert page.evaluate(AT, 2)
    page.evaluate(END)
