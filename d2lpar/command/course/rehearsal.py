"""A lesson run once before class: how long its cells take here, and what differs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from ...vgpu.programs.progress import progress
from . import notebook_file
from .notebook_file import code_cells, shortened

LIMIT_S = 600
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal
LONG_S = 2.0  # what a class waits for
RUNNING = "{lesson}: {done} of {of} cells have run after {seconds:.0f} s"


@dataclass(frozen=True)
class Rehearsal:
    """Seconds of each code cell that ran, what differs from the stored outputs, and the error."""

    lesson: str
    cells: list[tuple[int, str, float]]
    differences: list[tuple[int, list[str]]]
    error: str = ""

    @property
    def seconds(self) -> float:
        """How long all cells took."""
        return sum(seconds for _, _, seconds in self.cells)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.lesson}: {len(self.cells)} cells in {self.seconds:.0f} s on this machine"
        for number, line, seconds in self.cells:
            if seconds >= LONG_S:
                yield f"  In [{number}] takes {seconds:5.1f} s  {shortened(line)}"
        if self.error:
            yield f"  stopped: {self.error}"
        elif not self.differences:
            yield "  every output that is compared is as it is stored"
        for number, lines in self.differences:
            yield from (f"  In [{number}] differs: {line}" for line in lines)


def rehearse(path: Path) -> Rehearsal:
    """Run a lesson from top to bottom on this machine, as a class will. The file is left as it is.

    It runs in the world of whoever calls: with real GPUs on those, and with the data that is there.
    """
    old = notebook_file.read(path)
    notebook = deepcopy(old)
    error = ""
    of = len(code_cells(notebook))
    with _timed(notebook, path.parent) as (client, seconds):

        def so_far(passed_s: float) -> str:
            return RUNNING.format(lesson=path.stem, done=len(seconds), of=of, seconds=passed_s)

        try:
            with progress(so_far):
                client.execute(env=dict(os.environ))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as failure:
            error = COLOURS.sub("", str(failure)).strip().splitlines()[-1]
    cells = code_cells(notebook)
    ran = [
        (number, cell.source.strip().splitlines()[0], seconds[cell.id])
        for number, cell in enumerate(cells, 1)
        if cell.id in seconds
    ]
    return Rehearsal(path.stem, ran, [] if error else notebook_file.changes(old, notebook), error)


@contextmanager
def _timed(
    notebook: NotebookNode, folder: Path
) -> Iterator[tuple[NotebookClient, dict[str, float]]]:
    """A client for the notebook, and the seconds of each cell that it has run, by the cell's id."""
    begun: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def begin(cell: NotebookNode, **_: object) -> None:
        begun[cell.id] = time.perf_counter()

    def end(cell: NotebookNode, **_: object) -> None:
        seconds[cell.id] = time.perf_counter() - begun[cell.id]

    client = NotebookClient(
        notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(folder)}},
        on_cell_execute=begin, on_cell_executed=end, store_widget_state=False,
        extra_arguments=["--log-level=ERROR"], coalesce_streams=True,
    )  # fmt: skip
    yield client, seconds
