"""A reader runs cells again: one twice, or an earlier one after later ones, in the same kernel."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

import build

ROOT = Path(__file__).parents[2]
NOTEBOOKS = build.course(ROOT / "notebooks")
INSTALL, MAY_FAIL = "install", "raises-exception"


def failures(path: Path, kept: Path) -> Iterator[str]:
    """What fails where each cell is run twice in a row, and then all from the last to the first.

    What the notebook keeps for later ones goes into the folder `kept`.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = [
        (number, cell)
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and cell.source.strip() and INSTALL not in build.tags(cell)
    ]
    client = NotebookClient(
        notebook,
        timeout=build.project()["cell-limit-s"],
        kernel_name=build.METADATA["kernelspec"]["name"],
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=ERROR"],
        store_widget_state=False,
    )
    env = os.environ | build.project()["recorded-world"] | {build.KEEP: str(kept)}
    twice = [("twice", *each) for each in cells for _ in range(2)]
    with client.setup_kernel(env=env):
        for how, number, cell in twice + [("backwards", *each) for each in reversed(cells)]:
            try:
                client.execute_cell(cell, number)
            except CellExecutionError as error:
                if MAY_FAIL not in build.tags(cell):
                    yield f"cell {number}, run {how}: {error.ename}: {error.evalue}"


@pytest.fixture
def course(tmp_path):
    """A copy of the course, for what cells write beside their notebook."""
    for folder in ("notebooks", "imgs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda path: str(path.relative_to(ROOT / "notebooks").with_suffix(""))
)
def test_every_cell_runs_twice_and_after_later_ones(course, path):
    assert list(failures(course / path.relative_to(ROOT), course / "kept")) == []


def test_a_cell_that_cannot_run_again_is_found(tmp_path):
    sources = ("a = {1: 2}", "del a[1]", "b = [1]", "b[0]", "b = []")
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    found = list(failures(tmp_path / "a.ipynb", tmp_path / "kept"))
    assert found == [
        "cell 1, run twice: KeyError: 1",
        "cell 3, run backwards: IndexError: list index out of range",
        "cell 1, run backwards: KeyError: 1",
    ]
