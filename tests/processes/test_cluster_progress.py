"""The start of ranks is watched where somebody looks on, and nothing of that stays.

That clusters show it, test_cluster says; that a notebook run by a program has no such output,
test_cluster_notebook.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

ROOT = str(Path(__file__).parents[2])
START = """
from d2lpar.processes.cluster.progress import Progress
with Progress() as progress:
    progress.controller(1)
    progress.engines(0, 1)
    progress.group(1)
print('inside')
"""
STAGES = ["controller |  ", " 0 of 1 processes are there |#", " process group |###"]


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", ROOT)


def on_terminal(code):
    """What a program writes to a terminal."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", code])
    written = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how Linux tells of the end
            break
        if not piece:
            break
        written += piece
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, written.decode()
    return written.decode()


def seen(written):
    """What is to be seen on the terminal at last: a carriage return goes back, and removes none."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown.rstrip())
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore:.*use of forkpty:DeprecationWarning")
def test_a_terminal_has_a_bar_that_goes_away():
    written = on_terminal(START)
    places = [written.find(stage) for stage in STAGES]
    assert -1 < places[0] < places[1] < places[2]
    assert seen(written) == "inside\n"


def test_a_start_that_fails_takes_its_bar_away(capfd, monkeypatch):
    from d2lpar.processes.cluster.progress import Progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def fail(progress):
        with progress:
            progress.controller(3)
            progress.engines(2, 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(Progress())
    written = capfd.readouterr().err
    assert "2 of 3 processes are there |############" in written
    assert seen(written) == ""


class FrontEnd(NotebookClient):
    """Runs cells as JupyterLab does, which says of each request which cell it belongs to."""

    heard: list

    async def async_execute_cell(self, cell, cell_index, **others):
        request = self.kc.session.msg

        def naming_the_cell(kind, content=None, **kwargs):
            return request(kind, content, **kwargs, metadata={"cellId": cell["id"]})

        self.kc.session.msg = naming_the_cell
        try:
            return await super().async_execute_cell(cell, cell_index, **others)
        finally:
            self.kc.session.msg = request

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.heard.append(msg["content"]["data"].get("text/plain"))
        return super().process_message(msg, cell, cell_index)


def executed():
    cell = nbformat.v4.new_code_cell(START)
    client = FrontEnd(
        nbformat.v4.new_notebook(cells=[cell]),
        timeout=120,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
    )
    client.heard = []
    client.execute()
    return cell.outputs, client.heard


def test_a_front_end_gets_an_output_that_is_empty_at_last():
    outputs, heard = executed()
    assert [out.output_type for out in outputs] == ["display_data", "stream"]
    assert outputs[0].data == {}
    assert outputs[1].text == "inside\n"
    *bars, last = heard
    assert last is None
    places = [next(i for i, bar in enumerate(bars) if stage in bar) for stage in STAGES]
    assert places[0] < places[1] < places[2]
