"""What the simulator predicts for one real GPU, and what that GPU takes: `make gpu`.

It finds the GPU, simulates every row of `rows.csv` for the catalogue's machine that has it, and
writes the predictions; then it measures, in the same file, with the same programs; then lessons run
on virtual GPUs whose arithmetic the real one does. Nothing takes longer than its limit, and all of
it at most eight minutes.
"""

import argparse
import datetime
import importlib.util
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import card
import figures
import lessons
import summary
from children import Child
from figures import Figures, Row

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LIMIT_S = 470.0  # of all; with Python's own start it is less than eight minutes
START_S = 60.0  # until a process has imported torch
PREDICTING_S = 150.0
LESSONS_S = 140.0  # are kept for them
SLOW = 5  # times as long as all of this may take emulation, on whatever processor there is
# Seconds that a table may take before the rest of it is left out.
LIMITS_S = {
    "products": 25,
    "copies": 40,
    "streams": 15,
    "attention": 25,
    "norms": 25,
    "launches": 40,
    "steps": 50,
    "replicas": 15,
    "graphs": 25,
    "memory": 40,
    "compile": 90,
}
NEEDED = {"torch": "torch (2.11 or newer, built for CUDA)", "numpy": "numpy"}


def main() -> int:
    """The status of the command: 2 where there is nothing to measure with."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    try:
        missing = [text for name, text in NEEDED.items() if not importlib.util.find_spec(name)]
        if missing:
            raise card.NoGpuError(
                f"{sys.executable} has no {', '.join(missing)}: say which Python has, as in "
                "`make gpu PYTHON=/opt/torch/bin/python3`"
            )
        name = f"emulated {options.emulate}" if options.emulate else card.name_of_gpu()
        machine = options.emulate or options.machine or card.machine_of(name)
        tables = [table for table in options.tables.split(",") if table]
        chosen = figures.rows_of(tables, machine, f"gpu-{datetime.date.today()}-")
        run = Run(Figures(options.csv, chosen), options, name)
        run.all()
    except (card.NoGpuError, ValueError) as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    print(*summary.lines(run.figures.rows), "", f"{options.csv} has all of it.", sep="\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--csv", type=Path, default=REPOSITORY / "build" / "gpu.csv")
    parser.add_argument("--machine", default="", help="the machine to predict for")
    parser.add_argument("--emulate", default="", help="no GPU: measure on an emulated machine")
    parser.add_argument("--tables", default="", help="only these, with commas between them")
    parser.add_argument("--budget-s", type=float, help="seconds for the repeats of a program")
    parser.add_argument(
        "--lessons", default="01,02,03,04,05,06", help="lessons to run; '' for none"
    )
    return parser.parse_args()


class Run:
    """One run of the whole: predictions, measurements, lessons."""

    def __init__(self, kept: Figures, options: argparse.Namespace, gpu: str) -> None:
        self.figures, self._options = kept, options
        self._slow = SLOW if options.emulate else 1
        self._lessons = [name for name in options.lessons.split(",") if name]
        self._end_s = time.monotonic() + self._slow * LIMIT_S
        self._measured_s = self._end_s - (self._slow * LESSONS_S if self._lessons else 0)
        self._log = options.csv.with_suffix(".log")
        self._log.write_text("")
        self._gpu, self._software = gpu, ""
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        self._env = {**os.environ, "PYTHONPATH": path}

    def all(self) -> None:
        """Predict, then measure, then run lessons. Raises NoGpuError if torch finds no GPU."""
        self._predict()
        print(f"{self._gpu}: predicted and measured")
        waiting = [row for row in self.figures.rows if row["predicted"]]
        while waiting and time.monotonic() < self._measured_s:
            waiting = self._measure(waiting)
        for name in self._lessons:
            self.figures.add(lessons.row(name))
        self._learn()

    # --- predictions --------------------------------------------------------------------------

    def _predict(self) -> None:
        """Write all predictions. No process of these sees a GPU."""
        parts = min(4, os.cpu_count() or 1)
        deadline_s = time.monotonic() + self._slow * PREDICTING_S
        command = self._python("measure.py", str(self._options.csv))
        env = {**self._env, "CUDA_VISIBLE_DEVICES": ""}
        words = ""
        with ExitStack() as stack:
            for child in [
                stack.enter_context(Child([*command, "--part", f"{i}/{parts}"], env, self._log))
                for i in range(parts)
            ]:
                try:
                    while (told := child.answer(deadline_s)) is not None:
                        self.figures.change(told.pop("id"), quiet=True, **told)
                    words = child.last_words
                except TimeoutError:
                    words = f"{self._slow * PREDICTING_S:.0f} s were over"
        for row in self.figures.rows:
            if not row["predicted"] and row["no_figure"] == figures.WAITING:
                self.figures.change(row["id"], no_figure=f"no prediction: {words}")

    # --- measurements -------------------------------------------------------------------------

    def _measure(self, waiting: list[Row]) -> list[Row]:
        """Measure rows in one process, until it ends or a table takes too long; the rows left."""
        left, begun, table = list(waiting), "", ""
        deadline_s = min(time.monotonic() + self._slow * START_S, self._measured_s)
        with Child(self._measuring(left[0]["id"]), self._env, self._log) as child:
            try:
                while left:
                    told = child.answer(deadline_s)
                    if told is None:
                        return self._after_an_end(left, begun, child.last_words)
                    if "refused" in told:
                        raise card.NoGpuError(told["refused"])
                    if "torch" in told:
                        self._software = f"torch {told['torch']}, CUDA {told['cuda']}"
                    elif "begin" in told:
                        begun = told["begin"]
                        if left[0]["table"] != table:
                            table = left[0]["table"]
                            limit_s = self._slow * LIMITS_S[table]
                            deadline_s = min(time.monotonic() + limit_s, self._measured_s)
                    else:
                        self._keep(left.pop(0), told)
            except TimeoutError:
                return self._after_a_limit(left, table)
        return []

    def _keep(self, row: Row, told: dict[str, str]) -> None:
        """A figure, with where it comes from."""
        assert told.pop("id") == row["id"]
        today = str(datetime.date.today())
        how = "emulated, not measured" if self._options.emulate else "measured by us"
        host = f"{_processor()}, Python {platform.python_version()}, {self._software}"
        self.figures.change(
            row["id"],
            source=f"d2lpar: make gpu, {how} ({today})",
            note=f"{how} on {self._gpu}, {host}; the prediction was written before",
            apart="" if self._options.emulate else today,
            **told,
        )

    def _after_an_end(self, left: list[Row], begun: str, words: str) -> list[Row]:
        """The rows left when a process has ended by itself. What it had begun is given up, or all
        of them if it did not come so far."""
        if not begun:
            for row in left:
                self.figures.change(row["id"], no_figure=f"failed: nothing can start: {words}")
            return []
        if left[0]["id"] == begun:
            self.figures.change(begun, no_figure=f"failed: its process ended: {words}")
            return left[1:]
        return left

    def _after_a_limit(self, left: list[Row], table: str) -> list[Row]:
        """The rows left when time was up: those of other tables, if it was the table's."""
        is_over = time.monotonic() >= self._measured_s or not table
        late = [row for row in left if is_over or row["table"] == table]
        for row in late:
            whose = "all figures" if is_over else f"the {table}"
            self.figures.change(row["id"], no_figure=f"not measured: the time of {whose} was over")
        return left[len(late) :]

    # --- lessons ------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Run all lessons at once: the GPU only does arithmetic for them, and no time is taken."""
        backing = "cpu" if self._options.emulate else "cuda:0"
        env = {**self._env, **lessons.recorded_world(), "D2LPAR_BACKING": backing}
        started_s = time.monotonic()
        with ExitStack() as stack:
            children = {
                f"lesson-{name}": stack.enter_context(
                    Child(self._python("lessons.py", name), env, self._log)
                )
                for name in self._lessons
            }
            for name, child in children.items():
                try:
                    told = child.answer(self._end_s) or {"no_figure": f"failed: {child.last_words}"}
                except TimeoutError:
                    over_s = self._end_s - started_s
                    told = {"no_figure": f"failed: {over_s:.0f} s were over"}
                self.figures.change(name, **told)

    # --- commands -----------------------------------------------------------------------------

    def _python(self, script: str, *arguments: str) -> list[str]:
        return [sys.executable, str(HERE / script), *arguments]

    def _measuring(self, first: str) -> list[str]:
        budget_s = self._options.budget_s
        arguments = [str(self._options.csv), "--from", first]
        arguments += [] if budget_s is None else ["--budget-s", str(budget_s)]
        if not self._options.emulate:
            return self._python("measure.py", *arguments)
        emulation = ["-m", "d2lpar", "run", "--quiet", "--shapes-only"]
        emulation += ["--machine", self._options.emulate, str(HERE / "measure.py")]
        return [sys.executable, *emulation, *arguments]


def _processor() -> str:
    """The host's processor by its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names: Iterator[str] = (
        text.partition(":")[2].strip() for text in lines if "model name" in text
    )
    return next(names, platform.machine())


if __name__ == "__main__":
    sys.exit(main())
