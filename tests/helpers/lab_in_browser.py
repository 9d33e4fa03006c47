"""Headless Chromium, and JupyterLab on a copy of the course in it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

SCREEN = {"width": 1280, "height": 720}
SMALLEST_PX, SMALLEST_CODE_PX = 20, 16  # that can be read from the last row of a class

TOKEN = "a-secret-of-this-test"
START_S = 180

# In the page, `jupyterapp` is JupyterLab itself: it knows the cells that are scrolled out of view.
OPENED = """name => {
    const widget = window.jupyterapp?.shell.currentWidget;
    return widget?.context?.path.endsWith(name) && widget.context.isReady;
}"""
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
SHOW = """async index => {
    const {content} = window.jupyterapp.shell.currentWidget;
    content.activeCellIndex = index;
    await content.scrollToItem(index, 'start');
}"""
DO = "([command, args]) => { void window.jupyterapp.commands.execute(command, args); }"
LET_GO = """async () => {
    const {context, sessionContext} = window.jupyterapp.shell.currentWidget;
    await sessionContext.shutdown();
    await context.save();
}"""


class Lab(NamedTuple):
    """A running JupyterLab: the address of its notebooks, and the folder that they are in."""

    address: str
    notebooks: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_chromium(test: Any) -> Any:
    """Marks a test that needs a browser."""
    reason = "no Chromium: set CHROMIUM to its path"
    return pytest.mark.slow(pytest.mark.skipif(CHROMIUM is None, reason=reason)(test))


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Playwright's `Browser`; skips the test where Playwright is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET])
        yield chromium
        chromium.close()


def environment(home: Path) -> dict[str, str]:
    """The recorded world, and folders of its own for all that Jupyter keeps of a user."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    return {
        **os.environ,
        **project["tool"]["d2lpar"]["recorded-world"],
        **{name: str(home / name.lower()) for name in folders},
        "JUPYTER_CONFIG_PATH": os.pathsep.join(  # as `make lab` has it
            [str(ROOT / ".jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
        ),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


@contextmanager
def running_lab(
    home: Path, course: Path, folder: str = "notebooks", **settings: str
) -> Iterator[Lab]:
    """JupyterLab on a copy of the course in the folder `course`, with `home` for what it keeps.

    The notebooks lie in `folder` of it; `settings` are further environment variables.
    """
    shutil.copytree(ROOT / "imgs", course / "imgs")
    shutil.copytree(ROOT / "notebooks", course / folder)
    command = [
        sys.executable, "-m", "jupyter", "lab", "--log-level=ERROR", "--no-browser",
        f"--port={free_port()}", f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={course}", "--expose-app-in-browser",
        *(["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []),
    ]  # fmt: skip
    env = environment(home) | settings
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, cwd=course, stdout=log, stderr=log)
    try:
        address = _address(server, Path(env["JUPYTER_RUNTIME_DIR"]), home / "log")
        yield Lab(f"{address}lab/tree/{folder}/", course / folder)
    finally:
        server.terminate()  # it ends its kernels, too
        try:
            server.wait(START_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: subprocess.Popen, runtime: Path, log: Path) -> str:
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


def open_notebook(page: Any, lab: Lab, name: str) -> None:
    """The notebook in the page, with a kernel that waits for cells."""
    page.goto(f"{lab.address}{name}?reset&token={TOKEN}")  # no tabs of notebooks before
    page.wait_for_function(OPENED, arg=name, timeout=START_S * 1000)
    wait_for(page, lambda state: state["kernel"] == "idle", seconds=START_S)


def wait_for(page: Any, condition: Callable[[dict], object], *, seconds: float) -> dict:
    """The notebook's state as soon as the condition holds for it."""
    return until(page, lambda: page.evaluate(STATE), condition, seconds=seconds)


def until(
    page: Any, look: Callable[[], Any], condition: Callable[[Any], object], *, seconds: float
) -> Any:
    """What `look()` sees as soon as the condition holds for it."""
    deadline = time.monotonic() + seconds
    while not condition(seen := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {seen}")
        page.wait_for_timeout(200)
    return seen


def do(page: Any, command: str, **args: object) -> None:
    """Have JupyterLab execute one of its commands, without waiting for it."""
    page.evaluate(DO, [command, args])


def shown(page: Any, index: int) -> Any:
    """The cell at `index`, scrolled into view."""
    page.evaluate(SHOW, index)
    cell = page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')
    cell.wait_for(timeout=START_S * 1000)
    return cell


def picture(cell: Any) -> str | None:
    """What the cell's last picture consists of."""
    images = cell.locator(".jp-OutputArea-output img")
    return images.last.get_attribute("src") if images.count() else None


def let_go(page: Any) -> None:
    """End the notebook's kernel, so that it takes nothing from the next lesson."""
    page.evaluate(LET_GO)
