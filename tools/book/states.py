"""Draws the figures with sliders in their other positions, and keeps timelines, for pages behind
which no kernel runs.

    PYTHONPATH=tools python -m book.states [notebook ...]

Runs each notebook up to its last such figure, in the world in which notebooks are recorded, and
writes pictures and timelines to build/slider-states. Neither notebooks nor their outputs change.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from PIL import Image

import build
from book import timelines
from d2lpar.command.course.notebook_file import code_cells, read
from d2lpar.plots.texts import SLIDERS

if TYPE_CHECKING:
    from ipywidgets import Widget
    from nbformat import NotebookNode

    from d2lpar.plots.widgets.sliders import SliderFigure

ROOT = build.ROOT
STATES = ROOT / "build" / "slider-states"
MOST_POSITIONS, MOST_STATES = 9, 48  # a slider, a figure: about 15 kB a state

RUNNING = "{path} runs, for figures with sliders, and timelines: {figures}"
STORE = """\
import sys

sys.path.insert(0, {tools!r})
from book.states import store

store(_oh[max(_oh)], {folder!r}, {key!r})"""


# In the kernel


def store(figure: SliderFigure, folder: str, key: str) -> None:
    """Draw the figure in each of its states, and write the pictures and their list to `folder`."""
    target = Path(folder)
    target.mkdir(parents=True)
    names = list(figure.controls)
    wanted = positions(list(figure.controls.values()))
    states = {}
    for place in places(list(figure.controls.values()), wanted):
        values = (each[i][1] for each, i in zip(wanted, place, strict=True))
        picture = figure._drawn(dict(zip(names, values, strict=True)))
        data = smaller(picture.png())
        file = f"{hashlib.sha256(data).hexdigest()[:16]}.webp"
        (target / file).write_bytes(data)
        states[" ".join(map(str, place))] = {"file": file, "alt": picture.alt}
    controls = [
        {
            "label": figure.controls[name].description,
            "slides": slides(figure.controls[name]),
            "options": [label for label, _ in options],
            "start": start_of(figure.controls[name], options),
        }
        for name, options in zip(names, wanted, strict=True)
    ]
    width, height = figure._size_px
    text = json.dumps(
        {"key": key, "width": width, "height": height, "controls": controls, "states": states},
        ensure_ascii=False,
    )
    (target / "states.json").write_text(text, encoding="utf-8")


def smaller(png: bytes) -> bytes:
    """The same pixels as WebP without loss, in about two thirds of the bytes."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(buffer, "WEBP", lossless=True, method=4)
    return buffer.getvalue()


def slides(control: Widget) -> bool:
    """Whether one moves along its values, and does not pick one of them."""
    return type(control).__name__.endswith("Slider")


def positions(controls: Sequence[Widget]) -> list[list[tuple[str, Any]]]:
    """(label, value) of the positions that each control takes in the states of a figure.

    What one picks from keeps all its options; sliders get fewer positions, always with both ends
    and the one that they start at, until the figure has few enough states.
    """
    found = [options(control) for control in controls]
    sliding = [slides(control) for control in controls]
    counts = [
        min(len(each), MOST_POSITIONS) if moves else len(each)
        for each, moves in zip(found, sliding, strict=True)
    ]
    while number_of_states(counts, sliding) > MOST_STATES:
        most, i = max(((n, i) for i, n in enumerate(counts) if sliding[i]), default=(0, 0))
        if most <= 3:
            break
        counts[i] -= 1
    return [
        thinned(each, start_of(control, each), count)
        for control, each, count in zip(controls, found, counts, strict=True)
    ]


def number_of_states(counts: Sequence[int], sliding: Sequence[bool]) -> int:
    """How many states a figure has whose controls have so many positions each."""
    if is_grid(counts, sliding):
        return math.prod(counts)
    moved = sum(n - 1 for n, moves in zip(counts, sliding, strict=True) if moves)
    return picked(counts, sliding) * (1 + moved)


def picked(counts: Sequence[int], sliding: Sequence[bool]) -> int:
    """The number of combinations of what does not slide."""
    return math.prod(n for n, moves in zip(counts, sliding, strict=True) if not moves)


def is_grid(counts: Sequence[int], sliding: Sequence[bool]) -> bool:
    """Whether all combinations are drawn, and not only those with one slider moved at a time."""
    return sum(sliding) < 2 or (sum(sliding) == 2 and picked(counts, sliding) <= 2)


def places(
    controls: Sequence[Widget], wanted: Sequence[Sequence[tuple[str, Any]]]
) -> Iterator[tuple[int, ...]]:
    """The states: for each control, which of its positions it is at.

    They are all combinations where these are few. Otherwise all of what one picks, with one slider
    moved at a time.
    """
    sliding = [slides(control) for control in controls]
    starts = [start_of(*pair) for pair in zip(controls, wanted, strict=True)]
    counts = [len(each) for each in wanted]
    for place in itertools.product(*map(range, counts)):
        moved = sum(
            moves and i != start for i, start, moves in zip(place, starts, sliding, strict=True)
        )
        if moved < 2 or is_grid(counts, sliding):
            yield place


def start_of(control: Widget, among: Sequence[tuple[str, Any]]) -> int:
    """At which of these (label, value) a control stands when it is shown."""
    return [value for _, value in among].index(control.value)


def options(control: Widget) -> list[tuple[str, Any]]:
    """(label, value) of all that a control can be set to, in order."""
    kind = type(control).__name__
    if hasattr(control, "options"):
        return [pair if isinstance(pair, tuple) else (str(pair), pair) for pair in control.options]
    if kind == "Checkbox":
        return [("no", False), ("yes", True)]
    if kind in ("IntSlider", "FloatSlider"):
        steps = round((control.max - control.min) / control.step)
        values = {round(control.min + i * control.step, 9) for i in range(steps + 1)}
        values = sorted(values | {control.value})
        return [(f"{value:g}" if kind == "FloatSlider" else f"{value}", value) for value in values]
    raise TypeError(f"a {kind} has no positions to choose from; use a slider, a list or a bool")


def thinned(values: Sequence[Any], start: int, count: int) -> list[Any]:
    """`count` of the values, evenly spread, with the first, the last and the one at `start`."""
    if count >= len(values):
        return list(values)
    spread = [round(i * (len(values) - 1) / (count - 1)) for i in range(count)]
    inner = spread[1:-1]
    if start not in spread and inner:
        inner[min(range(len(inner)), key=lambda i: abs(inner[i] - start))] = start
    return [values[i] for i in sorted({spread[0], *inner, spread[-1], start})]


# Around it


def has_sliders(cell: NotebookNode) -> bool:
    """Whether a cell's stored outputs are a figure with sliders."""
    return cell.cell_type == "code" and any(is_fallback(output) for output in cell.outputs)


def is_fallback(output: NotebookNode) -> bool:
    """Whether an output is what is stored in place of sliders."""
    text = output.get("data", {}).get("text/plain", "")
    return text.startswith(SLIDERS.partition("{")[0])


def keys(notebook: NotebookNode) -> dict[str, str]:
    """For each figure with sliders or timeline, by its cell's id: a digest of the code that draws
    it, which is all code down to its cell."""
    digest, found = hashlib.sha256(), {}
    for cell in code_cells(notebook):
        if build.INSTALL_TAG not in build.tags(cell):
            digest.update(cell.source.encode() + b"\0")
        if has_sliders(cell) or timelines.has_timelines(cell):
            found[cell.id] = digest.hexdigest()[:16]
    return found


def folder_of(path: Path, cell_id: str) -> Path:
    """Where the states of a figure in the notebook at `path` are."""
    return STATES / path.parent.name / path.stem / cell_id


def compute(path: Path) -> int:
    """Run the notebook at `path` down to its last figure with sliders or timeline, and store them.

    Returns the number of figures; raises build.BuildError where a cell fails.
    """
    notebook = read(path)
    wanted = keys(notebook)
    cells, needed = [], len(wanted)
    for cell in notebook.cells:
        if not needed:
            break
        cells.append(cell)
        if cell.cell_type == "code" and cell.id in wanted:
            needed -= 1
            target = folder_of(path, cell.id)
            shutil.rmtree(target, ignore_errors=True)
            if not has_sliders(cell):
                continue
            tools, key = str(Path(__file__).resolve().parents[1]), wanted[cell.id]
            source = STORE.format(tools=tools, folder=str(target), key=key)
            cells.append(nbformat.v4.new_code_cell(source))
    if wanted:
        notebook.cells = cells
        with tempfile.TemporaryDirectory() as kept:
            build.execute(notebook, folder=path.parent, kept=kept, widgets=True)
        for cell in (c for c in cells if c.id in wanted and timelines.has_timelines(c)):
            timelines.store(notebook, cell, folder_of(path, cell.id), wanted[cell.id])
    return len(wanted)


def report(path: Path, ids: Iterable[str]) -> None:
    """Say how many states each figure of a notebook has, or that it is a timeline, and how large
    that is."""
    for cell_id in ids:
        folder = folder_of(path, cell_id)
        drawn, what = folder / "states.json", "timeline"
        if drawn.exists():
            what = f"{len(json.loads(drawn.read_text(encoding='utf-8'))['states'])} states"
        size_kb = sum(file.stat().st_size for file in folder.iterdir()) / 1e3
        print(f"{path.relative_to(ROOT)} {cell_id}: {what}, {size_kb:.0f} kB", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute the states of the notebooks that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of the course")
    chosen = [path.resolve() for path in parser.parse_args(arguments).notebooks]
    failed = False
    for path in chosen or build.course(ROOT / "notebooks"):
        figures = len(keys(read(path)))
        if figures:
            print(RUNNING.format(path=path.name, figures=figures), flush=True)
        try:
            compute(path)
            report(path, keys(read(path)))
        except build.BuildError as error:
            failed = True
            print(f"{path.name}: no states: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
