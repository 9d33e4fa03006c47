"""A student's first quarter of an hour: the course in JupyterLab, in a real browser."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ROOT = Path(__file__).parents[1]
FRONT_PAGE = "00_start_here.ipynb"
LESSON = "03_multi_gpu_from_scratch.ipynb"
DEEPER_HALF = f"deeper/{LESSON}"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

TOKEN = "a-secret-of-this-test"
START_S, RUN_S, REDRAW_S = 60, 600, 60

LIVE, SLIDERS = "accuracy and ", "Run this cell to move the sliders"  # how text/plain begins
CONTROLS = "[role=slider], select"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: set CHROMIUM to its path"),
]

# In the page, `jupyterapp` is JupyterLab itself: it knows the cells that are scrolled out of view.
STATE = """() => {
    const {content, sessionContext} = window.jupyterapp.shell.currentWidget;
    const cells = [...content.model.cells].filter(
        cell => cell.type === 'code' && cell.sharedModel.source.trim());
    return {
        kernel: sessionContext.session?.kernel?.status,
        counts: cells.map(cell => cell.executionCount),
        errors: cells.flatMap(cell => cell.sharedModel.outputs)
            .filter(output => output.output_type === 'error').map(output => output.evalue),
    };
}"""
OPENED = """name => {
    const widget = window.jupyterapp?.shell.currentWidget;
    return widget?.context?.path.endsWith(name) && widget.context.isReady;
}"""
SHOW = """async index => {
    const {content} = window.jupyterapp.shell.currentWidget;
    content.activeCellIndex = index;
    await content.scrollToItem(index, 'start');
}"""


class Lab(NamedTuple):
    address: str
    notebooks: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(home: Path) -> dict[str, str]:
    """The recorded world, and folders of its own for all that Jupyter keeps of a user."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    return {
        **os.environ,
        **project["tool"]["d2lpar"]["recorded-world"],
        **{name: str(home / name.lower()) for name in folders},
        "JUPYTER_CONFIG_PATH": str(ROOT / ".jupyter"),  # as `make lab` has it
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab on a copy of the course: its address, and the copy's notebooks."""
    home = tmp_path_factory.mktemp("home")
    course = tmp_path_factory.mktemp("course")
    for folder in ("notebooks", "imgs"):
        shutil.copytree(ROOT / folder, course / folder)
    command = [
        sys.executable, "-m", "jupyter", "lab", "--log-level=ERROR", "--no-browser",
        f"--port={free_port()}", f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={course}", "--expose-app-in-browser",
        *(["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []),
    ]  # fmt: skip
    env = environment(home)
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, cwd=course, stdout=log, stderr=log)
    try:
        address = running(server, Path(env["JUPYTER_RUNTIME_DIR"]), home / "log")
        yield Lab(f"{address}lab/tree/notebooks/", course / "notebooks")
    finally:
        server.terminate()  # it ends its kernels, too
        try:
            server.wait(START_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def running(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """The server's address, once it answers to it."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(file.read_text())["url"]
            except ValueError:  # half written
                pass
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield page
    page.close()


@pytest.fixture
def screenshots(tmp_path):
    folder = Path(os.environ.get("D2LPAR_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_notebook(page, lab: Lab, name: str) -> None:
    page.goto(f"{lab.address}{name}?token={TOKEN}")
    page.wait_for_function(OPENED, arg=name, timeout=START_S * 1000)
    wait_for(page, lambda state: state["kernel"] == "idle", seconds=START_S)


def wait_for(page, condition, *, seconds: float) -> dict:
    """The notebook's state as soon as the condition holds for it."""
    deadline = time.monotonic() + seconds
    while not condition(state := page.evaluate(STATE)):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {state}")
        page.wait_for_timeout(300)
    return state


def cell_with(text: str, *, notebook: Path) -> tuple[int, int]:
    """(place among all cells, place among code cells) of the first whose output begins so."""
    code = 0
    for index, cell in enumerate(nbformat.read(notebook, as_version=4).cells):
        outputs = cell.get("outputs", [])
        if any(output.get("data", {}).get("text/plain", "").startswith(text) for output in outputs):
            return index, code
        code += cell.cell_type == "code" and bool(cell.source.strip())
    raise LookupError(f"{notebook.name} has no output that begins with {text!r}")


def shown(page, index: int):
    """The cell at `index`, scrolled into view."""
    page.evaluate(SHOW, index)
    cell = page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')
    cell.wait_for(timeout=START_S * 1000)
    return cell


def picture(cell) -> str | None:
    """What the cell's last picture consists of."""
    images = cell.locator(".jp-OutputArea-output img")
    return images.last.get_attribute("src") if images.count() else None


def live_pictures(page, cell, *, number: int, enough: int) -> set[str]:
    """Pictures that a cell, the `number`-th of code, shows while it runs: all, or `enough`."""
    seen = set()
    deadline = time.monotonic() + RUN_S
    while page.evaluate(STATE)["counts"][number] is None and len(seen) < enough:
        seen |= {picture(cell)} - {None}
        page.wait_for_timeout(100)
        if time.monotonic() > deadline:
            pytest.fail(f"code cell {number + 1} has shown {len(seen)} pictures in {RUN_S} s")
    return seen


def test_the_front_page_opens(page, lab, screenshots):
    open_notebook(page, lab, FRONT_PAGE)
    assert page.locator(".jp-Notebook h1").count() == 1
    page.screenshot(path=screenshots / "front_page.png")


def run_all(page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def wait_for_all(page) -> None:
    """Until all cells have run, in order and without an error."""
    state = wait_for(page, lambda now: now["kernel"] == "idle" and now["counts"][-1], seconds=RUN_S)
    assert state["errors"] == []
    assert state["counts"] == list(range(1, len(state["counts"]) + 1))


def test_a_lesson_runs_live_from_top_to_bottom(page, lab, screenshots):
    open_notebook(page, lab, LESSON)
    page.screenshot(path=screenshots / "first_screen.png")
    assert len(page.evaluate(STATE)["counts"]) > 20

    run_all(page)
    index, number = cell_with(LIVE, notebook=lab.notebooks / LESSON)
    pictures = live_pictures(page, shown(page, index), number=number, enough=12)
    page.screenshot(path=screenshots / "live_plot.png")
    assert len(pictures) >= 3
    wait_for_all(page)


def test_a_slider_of_a_deeper_half_redraws_its_figure(page, lab, screenshots):
    open_notebook(page, lab, DEEPER_HALF)
    run_all(page)
    wait_for_all(page)
    index, _ = cell_with(SLIDERS, notebook=lab.notebooks / DEEPER_HALF)
    figure = shown(page, index)
    control = figure.locator(CONTROLS).first
    control.wait_for(timeout=START_S * 1000)
    assert SLIDERS not in figure.inner_text()
    page.screenshot(path=screenshots / "slider_figure.png")
    before = picture(figure)
    control.focus()
    page.keyboard.press("ArrowLeft")  # sliders of lessons do not start at their left end
    deadline = time.monotonic() + REDRAW_S
    while picture(figure) == before and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert picture(figure) != before
    page.screenshot(path=screenshots / "slider_moved.png")
