"""What a student sees: every lesson in JupyterLab, in a real browser.

    make test-browser LESSON=04    (without LESSON, all)

D2LPAR_SCREENSHOTS=folder keeps pictures of the pages.
"""

import base64
import io
import itertools
import os
import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from lab_in_browser import (
    CHROMIUM,
    ROOT,
    SCREEN,
    START_S,
    do,
    let_go,
    open_notebook,
    picture,
    running_lab,
    shown,
    until,
    wait_for,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

FRONT_PAGE, PLAIN, PREDICTION = "00_start_here.ipynb", "plain.ipynb", "a_prediction.ipynb"
NOTEBOOKS = ROOT / "notebooks"
LESSONS = sorted(
    path.relative_to(NOTEBOOKS).as_posix()
    for place in (NOTEBOOKS, NOTEBOOKS / "deeper", NOTEBOOKS / "museum")
    for path in place.glob("[0-9]*.ipynb")
)
RUN_S, REDRAW_S = 900, 20
AXE = "axe-core@4.14.1"
NO_AXE = f"{AXE} cannot be had: npm says {{reason}}. AXE=path/to/axe.min.js names a copy"

# How the text of a picture begins that grows while its cell runs, and of what stands for sliders.
LIVE = re.compile("Curves of |accuracy and .* over |Gantt chart of a run, drawn while")
SLIDERS = "Run this cell to move the sliders"
CONTROLS = ".noUi-handle, select"
ENOUGH = 4  # pictures: the empty one, two while the cell runs, and the one that stays
STOPPED_LINES = 24  # the cell, and one function of the lesson on the way to its line
WIDE = 60  # characters, from which on a line may be cut
PROJECTORS = (SCREEN, {"width": 1024, "height": 768})
ZOOMED = {"width": 640, "height": 360}  # what 200 % leaves of the first
WHITE = (255, 255, 255)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: set CHROMIUM to its path"),
]

# Every picture that a cell shows while it runs, also out of view, by cell.
WATCH = """() => {
    window.shownPictures = {};
    [...window.jupyterapp.shell.currentWidget.content.model.cells].forEach((cell, index) => {
        if (cell.type !== 'code') return;
        const seen = (window.shownPictures[index] = new Set());
        cell.outputs.changed.connect(() => {
            for (let i = 0; i < cell.outputs.length && cell.executionCount === null; ++i) {
                const data = cell.outputs.get(i).data['image/png'];
                if (data) seen.add(`${data.length} ${data.slice(-60)}`);
            }
        });
    });
}"""
BREAKS = """() => [...document.querySelectorAll('.jp-OutputArea-output pre')]
    .map(text => getComputedStyle(text).wordBreak)"""
FORGET = "index => window.shownPictures[index].clear()"
SEEN = "index => window.shownPictures[index].size"
# Where a cell with a picture stands, and how high it is, in each frame in which that changed.
FOLLOW = """index => {
    const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
    const places = (window.places = []);
    const look = () => {
        if (window.places !== places) return;
        if (cell.model.executionCount === null && cell.node.querySelector('.jp-RenderedImage')) {
            const {top, height} = cell.node.getBoundingClientRect();
            const last = places[places.length - 1];
            if (!last || last[0] !== top || last[1] !== height) places.push([top, height]);
        }
        requestAnimationFrame(look);
    };
    look();
}"""
PLACES = "() => { const places = window.places; window.places = null; return places; }"
OUTPUTS = """index => {
    const {outputs} = window.jupyterapp.shell.currentWidget.content.model.cells.get(index);
    return Array.from({length: outputs.length}, (_, i) => outputs.get(i).toJSON());
}"""
CELL_STATE = """index => {
    const widget = window.jupyterapp.shell.currentWidget;
    return [widget.content.model.cells.get(index).executionCount,
            widget.sessionContext.session.kernel.status];
}"""
BUSY = """() => {
    const code = 'import time\\nfor _ in range(6000): time.sleep(0.1)';
    const {kernel} = window.jupyterapp.shell.currentWidget.sessionContext.session;
    const asked = kernel.requestExecute({code});
    window.runs = false;
    asked.onIOPub = message => { window.runs ||= message.header.msg_type === 'execute_input'; };
    void asked.done.finally(() => { window.runs = false; });
}"""
FAILURE = re.compile(r"\w+(Error|Exception|Warning): ")
RUNS = "() => window.runs"  # a slider's answer makes the kernel's status "idle" while a cell runs
INTERRUPT = """() => {
    void window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt();
}"""
FOCUSED = """([index, controls]) => {
    const cell = window.jupyterapp.shell.currentWidget.content.widgets[index].node;
    return cell.contains(document.activeElement) && document.activeElement.matches(controls);
}"""
CUT = """index => {
    const cell = window.jupyterapp.shell.currentWidget.content.widgets[index].node;
    const {scrollWidth, clientWidth} = cell.querySelector('.cm-scroller');
    return scrollWidth - clientWidth;
}"""
# Controls, and their values, that stand beside the notebook's window or out of it.
OUT_OF_VIEW = """index => {
    const {content} = window.jupyterapp.shell.currentWidget;
    const window_ = content.node.getBoundingClientRect();
    const parts = content.widgets[index].node.querySelectorAll(
        '.noUi-handle, .widget-readout, select, input');
    return [...parts].filter(part => part.getClientRects().length).flatMap(part => {
        const {left, right} = part.getBoundingClientRect();
        const inView = left >= window_.left && right <= Math.min(window_.right, innerWidth) + 1;
        return inView ? [] : [`${part.className || part.tagName} from ${left} to ${right}`];
    });
}"""
DRAW_ALL_CELLS = """async () => {
    const {content} = window.jupyterapp.shell.currentWidget;
    content.notebookConfig = {...content.notebookConfig, windowingMode: 'none'};
    await new Promise(done => setTimeout(done, 1000));
}"""
JUDGE = """async () => {
    const {violations} = await axe.run('.jp-Notebook', {resultTypes: ['violations']});
    return violations.flatMap(({id, help, nodes}) => nodes.map(({html}) => [id, help, html]));
}"""
THEME_IS = "light => document.body.dataset.jpThemeLight === String(light)"


class Lesson(NamedTuple):
    """A lesson that was run in a page, the errors of that, and the places of cells of each kind."""

    page: Any
    name: str
    errors: list[str]
    wide: list[int]
    live: list[int]
    sliders: list[int]
    pictures: list[int]
    screenshots: Path

    def shoot(self, what: str) -> None:
        stem = self.name.replace("/", "_").removesuffix(".ipynb")
        self.page.screenshot(path=self.screenshots / f"{stem}_{what}.png")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    home, course = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("course")
    with running_lab(home, course) as lab:
        plain = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("1")])
        plain.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(plain, lab.notebooks / PLAIN)
        yield lab


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
    folder = Path(os.environ.get("D2LPAR_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The text of axe-core, which judges whether a page can be used without seeing it."""
    if given := os.environ.get("AXE"):
        return Path(given).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), AXE]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_S)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(NO_AXE.format(reason=getattr(error, "stderr", None) or error))
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        return files.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(scope="module")
def theirs(lab, browser, axe):
    """The rules that JupyterLab breaks by itself, with next to nothing in a notebook."""
    page = browser.new_page(viewport=PROJECTORS[0])
    open_notebook(page, lab, PLAIN)
    rules = {rule for rule, *_ in judged(page, axe)}
    let_go(page)
    page.close()
    return rules


@pytest.fixture(scope="module", params=LESSONS)
def lesson(request, lab, browser, screenshots):
    """A lesson that has been run from top to bottom, in a page of its own."""
    page = browser.new_page(viewport=PROJECTORS[0])
    open_notebook(page, lab, request.param)
    page.screenshot(path=screenshots / f"{request.param.replace('/', '_')}.png")
    try:
        page.evaluate(WATCH)
        do(page, "notebook:run-all-cells")
        state = wait_for(page, has_run, seconds=RUN_S)
        yield Lesson(
            page,
            request.param,
            state["errors"],
            **cells_of_each_kind(lab.notebooks / request.param),
            screenshots=screenshots,
        )
    finally:
        let_go(page)
        page.close()


def has_run(state: dict) -> bool:
    return state["kernel"] == "idle" and all(state["counts"])


def cells_of_each_kind(path: Path) -> dict[str, list[int]]:
    """Where a stored notebook has wide code, live pictures, sliders and pictures."""
    found = {"wide": [], "live": [], "sliders": [], "pictures": []}
    for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code" or cell.metadata.get("jupyter", {}).get("source_hidden"):
            continue  # JupyterLab shows no line of what is folded
        data = [output.get("data", {}) for output in cell.outputs]
        texts = [each.get("text/plain", "") for each in data]
        is_a = {
            "wide": max(map(len, cell.source.splitlines()), default=0) >= WIDE,
            "live": any(map(LIVE.match, texts)),
            "sliders": any(text.startswith(SLIDERS) for text in texts),
            "pictures": any("image/png" in each for each in data),
        }
        for kind in found:
            found[kind] += [index] * is_a[kind]
    return found


# Tests, for each lesson in turn: pytest opens it once for all of them.


def test_its_code_is_not_cut_on_a_projector(lesson):
    found = []
    for size in PROJECTORS:
        lesson.page.set_viewport_size(size)
        for index in lesson.wide:
            shown(lesson.page, index)
            if (px := lesson.page.evaluate(CUT, index)) > 1:
                found.append(f"cell {index}: {px} px are cut at {size['width']}")
    lesson.page.set_viewport_size(PROJECTORS[0])
    assert found == []


def test_its_text_goes_on_between_words(lesson):
    breaks = lesson.page.evaluate(BREAKS)
    require(breaks, "printed text")
    assert set(breaks) == {"normal"}


def test_all_its_cells_run(lesson):
    assert lesson.errors == []


def test_its_live_pictures_move(lesson):
    """In the run that is over, each was brought several times."""
    require(lesson.live, "live picture")
    counts = {index: lesson.page.evaluate(SEEN, index) for index in lesson.live}
    assert min(counts.values()) >= ENOUGH, counts


def test_its_sliders_move_by_keyboard(lesson):
    """Reached with Tab and moved with an arrow key, the first of a cell draws another picture."""
    require(lesson.sliders, "slider")
    found = [move(lesson, index, by_tab=True) for index in lesson.sliders]
    assert [problem for problem in found if problem] == []


def test_its_sliders_move_while_a_cell_runs(lesson):
    require(lesson.sliders, "slider")
    page = lesson.page
    page.evaluate(BUSY)
    try:
        until(page, lambda: page.evaluate(RUNS), bool, seconds=START_S)
        problem = move(lesson, lesson.sliders[0], by_tab=False)
        still_runs = page.evaluate(RUNS)
    finally:
        page.evaluate(INTERRUPT)
        wait_for(page, lambda now: now["kernel"] == "idle", seconds=START_S)
    assert problem is None
    assert still_runs


def test_its_controls_stay_in_view_at_200_percent(lesson):
    require(lesson.sliders, "slider")
    page = lesson.page
    page.set_viewport_size(ZOOMED)
    found = {}
    for index in lesson.sliders:
        shown(page, index)
        page.wait_for_timeout(500)
        lesson.shoot(f"zoomed_{index}")
        found[index] = page.evaluate(OUT_OF_VIEW, index)
    page.set_viewport_size(PROJECTORS[0])
    assert not any(found.values()), found


def test_its_pictures_have_white_ground(lesson):
    """So they can be read in the dark theme, too."""
    require(lesson.pictures, "picture")
    assert {corner for index in lesson.pictures for corner in corners(lesson, index)} == {WHITE}


def test_a_screen_reader_can_read_it(lesson, axe, theirs):
    """As well as a notebook with a title and a cell of one line: the rest is JupyterLab's own."""
    found = judged(lesson.page, axe)
    assert [problem for problem in found if problem[0] not in theirs] == []


def test_its_live_pictures_stay_put_and_can_be_stopped(lesson):
    """Run again and interrupted, a cell leaves its picture and a few lines; nothing jumps."""
    require(lesson.live, "live picture")
    assert [problem for index in lesson.live for problem in stop_at(lesson, index)] == []


def test_the_front_page_opens(page, lab, screenshots):
    open_notebook(page, lab, FRONT_PAGE)
    assert page.locator(".jp-Notebook h1").count() == 1
    page.screenshot(path=screenshots / "front_page.png")


def test_a_prediction_is_read_once_it_is_entered_and_refused_beside_its_box(page, lab):
    ask = "import d2lpar as par\nguess = par.predict('How long?', unit='s')"
    asks = new_notebook(cells=[new_code_cell(ask), new_code_cell("guess.beside(0.5)")])
    asks.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(asks, lab.notebooks / PREDICTION)
    open_notebook(page, lab, PREDICTION)
    do(page, "notebook:run-all-cells")
    box, note = page.locator(".widget-text input"), page.locator(".widget-text + .widget-html")
    box.press_sequentially("460 ms", delay=100)
    box.press("Enter")
    note.get_by_text("0.46 s").wait_for()
    box.fill("about one second")
    page.locator(".jp-CodeCell .cm-content").last.click()
    note.get_by_text("about one second").wait_for()
    assert box.input_value() == "about one second"
    page.keyboard.press("Control+Enter")
    page.get_by_text("You predicted 0.46 s.").wait_for()
    page.set_viewport_size(ZOOMED)
    page.wait_for_timeout(500)
    assert page.evaluate(OUT_OF_VIEW, 0) == []


# What they look at


def require(found: Sequence[object], kind: str) -> None:
    if not found:
        pytest.skip(f"has no {kind}")


def move(lesson: Lesson, index: int, *, by_tab: bool) -> str | None:
    """Move the cell's first control; the problem, if that draws no other picture."""
    page = lesson.page
    cell = shown(page, index)
    control = cell.locator(CONTROLS).first
    control.wait_for(timeout=START_S * 1000)
    before = picture(cell)
    if not by_tab:
        control.focus()
    elif not tabbed_to(page, index):
        return f"cell {index}: Tab does not reach a control"
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight"):  # it may stand at an end
        page.keyboard.press(key)
        if changed(page, cell, before):
            lesson.shoot(f"slider_{index}")
            said = said_of_picture(cell)
            return f"cell {index}: {said}" if FAILURE.match(said) else None
    return f"cell {index}: an arrow key draws no other picture"


def corners(lesson: Lesson, index: int) -> set[tuple[int, ...]]:
    """The colours in the corners of a cell's pictures; () stands for what can be seen through."""
    found = set()
    for output in lesson.page.evaluate(OUTPUTS, index):
        if png := output.get("data", {}).get("image/png"):
            image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
            right, bottom = image.width - 1, image.height - 1
            for place in ((0, 0), (right, 0), (0, bottom), (right, bottom)):
                *color, alpha = image.getpixel(place)
                found.add(tuple(color) if alpha == 255 else ())
    return found


def stop_at(lesson: Lesson, index: int) -> list[str]:
    page = lesson.page
    shown(page, index)
    page.evaluate(FORGET, index)
    page.evaluate(FOLLOW, index)
    do(page, "notebook:run-cell")
    until(
        page,
        lambda: (page.evaluate(SEEN, index), *page.evaluate(CELL_STATE, index)),
        lambda seen: seen[0] >= ENOUGH - 1 or seen[1:] == (seen[1] or 0, "idle"),
        seconds=RUN_S,
    )
    lesson.shoot(f"live_{index}")
    do(page, "notebook:interrupt-kernel")
    wait_for(page, lambda now: now["kernel"] == "idle", seconds=START_S)
    places = page.evaluate(PLACES)
    lesson.shoot(f"stopped_{index}")
    return [
        *(f"cell {index} {problem}" for problem in jumps(places)),
        *(f"cell {index} {problem}" for problem in leftovers(page.evaluate(OUTPUTS, index))),
    ]


def jumps(places: list[list[float]]) -> list[str]:
    """How a cell has moved, or shrunk, from one of its pictures to the next."""
    tops, heights = [top for top, _ in places], [height for _, height in places]
    moved = max(tops, default=0) - min(tops, default=0) > 1
    shrunk = any(after < before - 1 for before, after in itertools.pairwise(heights))
    return [f"jumps: (top, height) were {places}"] if moved or shrunk else []


def leftovers(outputs: list[dict]) -> list[str]:
    """What is wrong with the outputs of a cell that was stopped; nothing, if it was faster."""
    errors = [output for output in outputs if output["output_type"] == "error"]
    lines = sum(line.count("\n") + 1 for error in errors for line in error["traceback"])
    found = [f"stopped, writes {lines} lines"] if lines > STOPPED_LINES else []
    if not any("image/png" in output.get("data", {}) for output in outputs):
        found.append("stopped, leaves no picture")
    return found


def tabbed_to(page: Any, index: int) -> bool:
    """Whether Tab, from the cell on, comes to one of its controls."""
    do(page, "notebook:enter-command-mode")
    page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]').focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED, [index, CONTROLS]):
            return True
    return False


def said_of_picture(cell: Any) -> str:
    """The text in place of the cell's last picture, which names an error if drawing failed."""
    return cell.locator(".jp-OutputArea-output img").last.get_attribute("alt") or ""


def changed(page: Any, cell: Any, before: str | None) -> bool:
    for _ in range(REDRAW_S * 10):
        if picture(cell) != before:
            return True
        page.wait_for_timeout(100)
    return False


def theme(page: Any, name: str) -> None:
    do(page, "apputils:change-theme", theme=f"JupyterLab {name}")
    page.wait_for_function(THEME_IS, arg=name == "Light", timeout=START_S * 1000)


def judged(page: Any, axe: str) -> list[tuple[str, ...]]:
    """What axe-core finds in the notebook, in both themes: (rule, help, the element)."""
    page.add_script_tag(content=axe)
    page.evaluate(DRAW_ALL_CELLS)
    found = []
    for name in ("Dark", "Light"):
        theme(page, name)
        found += [(f"{rule} ({name})", *rest) for rule, *rest in page.evaluate(JUDGE)]
    return found
