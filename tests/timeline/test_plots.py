"""Pictures: drawn while a cell runs, left behind once, equal for nbval, readable for everybody."""

import ast
import copy
import graphlib
import io
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections import namedtuple
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from jupyter_client.manager import start_new_kernel
from matplotlib import pyplot
from matplotlib.colors import to_hex
from matplotlib.text import Annotation
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

import d2lpar as par
from d2lpar import plots
from d2lpar.plots import (
    LiveGantt,
    LivePlot,
    TrainingPlot,
    gantt,
    picture,
    slider_figure,
    style,
    texts,
)
from d2lpar.plots.live import live, live_gantt, screens, training_plot
from d2lpar.plots.live.curve import Curve
from d2lpar.plots.live.pace import Pace
from d2lpar.plots.style import CURVE_STYLES
from d2lpar.plots.widgets import sliders
from d2lpar.timeline import MemorySample, Timeline
from d2lpar.timeline import Span as TimelineSpan
from d2lpar.timeline.streaming import recording

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "d2lpar"
TIMEOUT_S = 120


class Recorder:
    """Stands for an output of a cell and keeps what it was given to show."""

    def __init__(self):
        self.opened, self.updates, self.picture = 0, [], None

    def open(self, picture, png):
        self.opened += 1
        self.update(picture, png)

    def update(self, picture, png):
        self.picture = picture
        self.updates.append(png)


@pytest.fixture
def place(monkeypatch):
    """As in a notebook, but the pictures end here."""
    recorder = Recorder()
    for module in (live, training_plot):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    for module in (screens, sliders):
        monkeypatch.setattr(module, "PictureSlot", lambda: recorder)
    return recorder


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def words(figure) -> set[str]:
    """Every text that is drawn on a figure."""
    is_text = lambda artist: hasattr(artist, "get_text") and artist.get_visible()  # noqa: E731
    return {artist.get_text() for artist in figure.findobj(is_text)}


# In a real kernel

LIVE_CELL = """
import d2lpar as par
from d2lpar import plots
from d2lpar.plots import LivePlot
with LivePlot(curves=("loss", "accuracy"), xlabel="epoch", note="synthetic", max_fps={fps}) as plot:
    for i in {points}:
        plot.add(i, {{"loss": 1 / (1 + i), "accuracy": 1 - 1 / (1 + i)}})
        {then}
"""

BUSY_SLIDER_CELL = """
import time
from d2lpar.plots import slider_figure
figure = slider_figure(lambda ax, a=3: ax.plot([0, a]), a=(1, 9, 1))
print(figure.controls["a"].model_id)
"""


@pytest.fixture(scope="module", autouse=True)
def kernels_find_the_package():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def pictures(messages) -> list:
    return [m for m in messages if m["msg_type"] in ("display_data", "update_display_data")]


def test_pictures_arrive_while_the_cell_runs(kernel, tmp_path):
    """The cell goes on until the client, having seen five pictures, tells it to stop."""
    _, client = kernel
    stop = tmp_path / "stop"
    messages = []

    def hook(message):
        messages.append(message)
        if len(pictures(messages)) == 5:
            stop.touch()

    code = "import itertools, pathlib, time\n" + LIVE_CELL.format(
        fps=50,
        points="itertools.count()",
        then=f"time.sleep(0.001)\n        if pathlib.Path({str(stop)!r}).exists(): break",
    )
    reply = client.execute_interactive(code, output_hook=hook, timeout=TIMEOUT_S)
    assert reply["content"]["status"] == "ok"
    shown = pictures(messages)
    assert [m["msg_type"] for m in shown] == ["display_data"] + ["update_display_data"] * (
        len(shown) - 1
    )
    assert len({m["content"]["transient"]["display_id"] for m in shown}) == 1
    dates = [m["header"]["date"] for m in shown]
    assert dates == sorted(set(dates))
    assert len({m["content"]["data"]["text/plain"] for m in shown}) == 1


def test_an_interrupted_cell_leaves_its_last_state(kernel):
    manager, client = kernel
    messages = []

    def hook(message):
        messages.append(message)
        if len(pictures(messages)) == 3:
            manager.interrupt_kernel()

    code = "import itertools, time\n" + LIVE_CELL.format(
        fps=50, points="itertools.count()", then="time.sleep(0.001)"
    )
    reply = client.execute_interactive(code, output_hook=hook, timeout=TIMEOUT_S)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert re.fullmatch(r"stopped in line \d+ of the cell", reply["content"]["evalue"])
    assert sum(line.count("\n") + 1 for line in reply["content"]["traceback"]) < 14
    first, *_, last = shown = pictures(messages)
    assert [m["msg_type"] for m in shown].count("display_data") == 1
    assert "no points" in first["content"]["metadata"]["image/png"]["alt"]
    assert "loss" in last["content"]["metadata"]["image/png"]["alt"]
    assert messages.index(last) < [m["msg_type"] for m in messages].index("error")


def test_a_slider_answers_while_a_cell_runs(kernel):
    """On a subshell, as JupyterLab asks it to; the cell waits until the picture has come."""
    _, client = kernel
    message = client.session.msg("create_subshell_request")
    client.control_channel.send(message)
    subshell = client.get_control_msg(timeout=TIMEOUT_S)["content"]["subshell_id"]
    printed = []
    client.execute_interactive(
        BUSY_SLIDER_CELL, timeout=TIMEOUT_S, output_hook=lambda m: printed.append(m["content"])
    )
    [control] = [content["text"].strip() for content in printed if "text" in content]
    update = {"method": "update", "state": {"value": 7}, "buffer_paths": []}

    def hook(message):
        if message["msg_type"] == "execute_input":
            move = client.session.msg("comm_msg", {"comm_id": control, "data": update})
            move["header"]["subshell_id"] = subshell
            client.shell_channel.send(move)

    code = "while figure.values == {'a': 3}: time.sleep(0.01)"
    reply = client.execute_interactive(code, output_hook=hook, timeout=TIMEOUT_S)
    assert reply["content"]["status"] == "ok"


def executed(*cells: str, allow_errors: bool = False):
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, allow_errors=allow_errors, store_widget_state=False
    )
    return client.execute()


def test_each_cell_leaves_one_picture_and_no_open_figure():
    notebook = executed(
        LIVE_CELL.format(fps="float('inf')", points="range(8)", then="pass"),
        LIVE_CELL.format(fps=4, points="range(3)", then="assert i < 2, 'as planned'"),
        "%matplotlib inline\nfrom matplotlib import pyplot\nfrom d2lpar.plots import axes\n"
        "axes(summary='nothing yet').figure",
        "pyplot.get_fignums()",
        allow_errors=True,
    )
    live, failed, static, numbers = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in live] == ["display_data"]
    assert [output.output_type for output in failed] == ["display_data", "error"]
    assert failed[1].evalue == "as planned"
    assert "epoch 2" in failed[0].metadata["image/png"]["alt"]
    assert [output.output_type for output in static] == ["display_data"]
    assert numbers[0].data["text/plain"] == "[]"
    for output in (*live, failed[0], *static):
        assert set(output.data) == {"image/png", "text/plain"}
        assert " at 0x" not in output.data["text/plain"]
        assert {"alt", "width", "height"} == set(output.metadata["image/png"])


SLIDER_CELL = """
from d2lpar.plots import slider_figure
def halves(ax, *, start=8):
    "Halves."
    ax.plot([start / 2**n for n in range(4)])
slider_figure(halves, start=(1, 16), note="model")
"""
GANTT_CELL = """
from d2lpar.plots import gantt
from types import SimpleNamespace as Record
span = Record(device="vgpu:0", stream=0, kind="compute", name="conv", start_s=0.0, end_s=1.0)
gantt(Record(spans=[span], clock="measured"))
"""


@pytest.fixture(scope="module")
def recorded():
    live = "import time\n" + LIVE_CELL.format(
        fps=1000, points="range(5)", then="plot.status(str(time.time()))"
    )
    return executed(live, SLIDER_CELL, GANTT_CELL)


@pytest.mark.slow
def test_strict_nbval_accepts_the_pictures_and_their_stored_fallbacks(recorded, tmp_path):
    live, slider, chart = recorded.cells
    controls, picture = slider.outputs
    assert set(controls.data) == {picture.WIDGET_VIEW, "text/plain"}
    assert set(picture.data) == {"image/png", "text/plain"}
    without_widgets, tampered = copy.deepcopy(slider), copy.deepcopy(live)
    del without_widgets.outputs[0].data[picture.WIDGET_VIEW]
    tampered.outputs[0].data["text/plain"] += "!"
    without_widgets.id, tampered.id = "without-widgets", "tampered"
    cells = [live, slider, chart, without_widgets, tampered]
    notebook = new_notebook(cells=cells, metadata=recorded.metadata)
    nbformat.write(notebook, tmp_path / "lesson.ipynb")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider",
         "-q", "-rf", "--color=no", f"--rootdir={tmp_path}", str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path,
    )  # fmt: skip
    assert "1 failed, 4 passed" in run.stdout, run.stdout
    assert "FAILED lesson.ipynb::Cell 4" in run.stdout


def test_a_page_without_a_kernel_shows_the_default_figure(recorded):
    html, _ = HTMLExporter().from_notebook_node(recorded)
    assert "Run this cell to move the sliders: start 8" in html
    assert len(re.findall(r'<img[^>]*src="data:image/png;base64,', html)) == 3
    assert "widgets" not in recorded.metadata


# Live plots


def test_updates_are_throttled_by_the_clock(place):
    now_s = 0.0
    with LivePlot(curves=["loss"], max_fps=4, clock=lambda: now_s) as plot:
        counts = []
        for now_s in (0.0, 0.1, 0.24, 0.25, 0.3, 0.6, 0.7):
            plot.add(now_s, {"loss": 1.0})
            counts.append(len(place.updates))
        plot.draw()
        assert len(place.updates) == counts[-1] + 1
    assert counts == [2, 2, 2, 3, 3, 4, 4]
    assert place.opened == 1
    assert len(place.updates) == 6  # the last is left behind


def test_steps_that_end_late_make_pictures_no_rarer_than_asked(place):
    step_s, steps, now_s = 0.12, 100, 0.0
    with LivePlot(curves=["loss"], max_fps=4, clock=lambda: now_s) as plot:
        for step in range(steps):
            now_s = step * step_s
            plot.add(now_s, {"loss": 1.0})
    assert len(place.updates) == pytest.approx(4 * step_s * steps, rel=0.05)


def test_the_program_has_half_a_pause_however_long_pictures_take():
    now_s = 0.0
    pace = Pace(4, lambda: now_s)
    now_s = 10.0  # the first picture took that long
    pace.drawn()
    now_s = 10.12
    assert not pace.due
    now_s = 10.13
    assert pace.due


def test_a_point_costs_the_same_however_many_came_before(place):
    names = ("a", "b", "c")
    artists, drawn = {}, {}
    with LivePlot(curves=names, xlim=(0, 5000), ylim=(-1, 1), clock=lambda: 0.0) as plot:
        figure = place.picture
        for i in range(1, 5001):
            plot.add(i, {name: math.sin(i + k) for k, name in enumerate(names)})
            if i in (5, 500, 1200, 5000):
                plot.draw()
                artists[i] = len(figure.findobj())
                drawn[i] = figure.axes[0].lines[0].get_xdata()
    assert len(set(artists.values())) == 1
    assert [len(xs) for xs in drawn.values()][:2] == [5, 500]
    assert max(len(xs) for xs in drawn.values()) <= 1003
    assert (drawn[5000][0], drawn[5000][-1]) == (1, 5000)
    assert pyplot.get_fignums() == []


def test_limits_left_out_follow_the_data_with_few_redrawn_backgrounds(place, monkeypatch):
    redrawn = []
    canvas = picture.FigureCanvasAgg
    draw = canvas.draw
    monkeypatch.setattr(canvas, "draw", lambda self: redrawn.append(draw(self)))
    with LivePlot(curves=["loss"], ylim=(0, 1), max_fps=math.inf) as plot:
        for i in range(1, 301):
            plot.add(i, {"loss": 7.0})
            low, high = place.picture.axes[0].get_xlim()
            assert low <= 1 <= i <= high
        assert place.picture.axes[0].get_ylim() == (0, 1)
    assert len(redrawn) <= 3 * math.log2(300)
    assert place.picture.axes[0].get_xlim() == pytest.approx((1 - 0.05 * 299, 300 + 0.05 * 299))


def test_places_of_the_x_axis_have_names(place):
    with LivePlot(curves=["GB/s"], xscale="log", places={"L1": 32, "L2": 512}) as plot:
        for kib in (8, 64, 1024):
            plot.add(kib, {"GB/s": 1.0})
    axes = place.picture.axes[0]
    dotted = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted == [32, 512]
    assert [text.get_text().strip() for text in axes.texts] == ["L1", "L2"]


def test_pictures_have_one_size_white_ground_and_say_where_their_data_come_from(place):
    note = "synthetic images · simulated clock"
    curves = ("loss", "accuracy")
    with LivePlot(curves=curves, note=note, size_px=(500, 300), max_fps=math.inf) as plot:
        plot.title = "LeNet"
        for i in range(4):
            plot.add(i, {"loss": i, "accuracy": -i})
        plot.status("epoch 3")
    *live, last = map(pixels, place.updates)
    assert {image.shape for image in live} == {(300, 500, 3)}
    assert last.shape == (600, 1000, 3)
    assert all((image[[0, 0, -1, -1], [0, -1, 0, -1]] >= 254).all() for image in (*live, last))
    assert {note, "LeNet", "epoch 3", *curves} <= words(place.picture)
    assert all(word in place.picture.alt for word in (note, "LeNet", "epoch 3", "accuracy -3"))
    assert place.picture.summary == f"Curves of loss, accuracy over x · {note}"


def test_every_curve_is_drawn_in_its_colour_however_late_it_comes(place):
    names = [f"curve {i}" for i in range(len(CURVE_STYLES))]
    with LivePlot(curves=names, xlim=(0, 1), ylim=(0, 1), max_fps=math.inf) as plot:
        before = pixels(place.updates[-1]).astype(int)
        for name, (color, *_) in zip(names, CURVE_STYLES, strict=True):
            plot.add(0.5, {name: 0.5})  # over the one before
            after = pixels(place.updates[-1]).astype(int)
            wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
            changed = after[np.abs(after - before).sum(-1) > 60]
            assert np.abs(changed - wanted).sum(-1).min() < 30, name


def test_the_curves_are_drawn_in_their_colours(place):
    with LivePlot(curves=["loss"], xlim=(0, 1), ylim=(0, 1), max_fps=math.inf) as plot:
        before = pixels(place.updates[-1])
        plot.add(0, {"loss": 0.5})
        plot.add(1, {"loss": 0.5})
        after = pixels(place.updates[-1])
    rows, columns = np.nonzero(np.abs(after.astype(int) - before).sum(-1) > 60)
    assert columns.max() - columns.min() > 550  # from end to end
    assert rows.max() - rows.min() < 20  # and level: nothing else changed
    blue = np.array([0x00, 0x72, 0xB2])
    assert np.abs(after[rows, columns].astype(int) - blue).sum(-1).min() < 30


def test_an_update_leaves_no_trace_of_the_one_before(place):
    with LivePlot(curves=["loss"], max_fps=math.inf) as plot:
        for text in ("short", "a longer status", "short"):
            plot.status(text)
    _, short, longer, again, _ = place.updates
    assert short == again != longer


def test_curves_differ_without_colour_too():
    marks = [(style, marker) for _, style, marker in style.CURVE_STYLES]
    assert len(set(marks)) == len(marks)
    assert len({marker for _, marker in marks}) == len(marks)
    hatches = [hatch for _, hatch in style.KIND_STYLES.values()]
    assert hatches.count("") == 2  # compute and dispatch, dark and pale
    assert len(set(hatches)) == len(hatches) - 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"curves": "loss"}, "'loss'"),
        ({"curves": ()}, r"\(\)"),
        ({"curves": ("a", "a")}, "'a', 'a'"),
        ({"curves": ["a"], "max_fps": 0}, "max_fps must be positive, not 0"),
        ({"curves": ["a"], "xlim": (0, math.nan)}, "xlim"),
        ({"curves": ["a"], "ylim": (1, 1)}, r"ylim must be .* not \(1, 1\)"),
        ({"curves": ["a"], "xscale": "logarithmic"}, "not 'logarithmic'"),
        ({"curves": ["a"], "yscale": "log", "ylim": (0, 1)}, "y must be above zero, not 0"),
        ({"curves": ["a"], "marks": ["b"]}, "'b'.* are a"),
    ],
)
def test_wrong_options_are_named(options, told):
    with pytest.raises(ValueError, match=told):
        LivePlot(**options)


def test_wrong_points_are_named_and_leave_the_curves_alone(place):
    plot = LivePlot(curves=("loss", "accuracy"))
    with pytest.raises(RuntimeError, match="with LivePlot"):
        plot.status("too early")
    with plot:
        with pytest.raises(ValueError, match=r"'los'.* loss, accuracy"):
            plot.add(0, {"loss": 1, "los": 1})
        for x in (math.nan, math.inf):
            with pytest.raises(ValueError, match=f"finite number, not {x}"):
                plot.add(x, {"loss": 1})
        assert plot.chart.curves["loss"].points() == []
        plot.add(torch.tensor(2), {"loss": torch.tensor(0.5)})
        assert plot.chart.curves["loss"].points() == [(2.0, 0.5)]
    with pytest.raises(RuntimeError, match="with LivePlot"):
        plot.draw()


# On log scales, and points that no line joins


def test_a_roofline_fills_up_while_it_is_measured(place):
    reached = [(2.0**i, 2.0 ** (i / 2)) for i in range(-4, 12)]
    options = {"xscale": "log", "yscale": "log", "marks": ["reached"], "max_fps": math.inf}
    with LivePlot(curves=("roof", "reached"), **options) as plot:
        for x in (0.01, 10_000):
            plot.add(x, {"roof": x})
        for x, y in reached:
            plot.add(x, {"reached": y})
            ax = place.picture.axes[0]
            assert ax.get_xlim()[0] > 0
            assert ax.get_xlim()[0] < x < ax.get_xlim()[1]
            assert ax.get_ylim()[0] < y < ax.get_ylim()[1]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    roof, points = ax.get_lines()
    assert roof.get_linestyle() == "-"
    assert points.get_linestyle() == "None"
    assert len(points.get_xdata()) == len(reached)
    assert points.get_markevery() is None  # every measurement is seen
    assert math.log10(ax.get_xlim()[0]) == pytest.approx(-2 - 0.05 * 6)


def test_log_axes_write_decades_as_numbers():
    ax = par.plots.axes(summary="Rates")
    ax.plot([0.1, 1e5], [1e-9, 1e9])
    ax.set(xscale="log", yscale="log")
    ax.figure.png()
    written = {text.get_text() for text in ax.get_xticklabels()}
    assert {"0.1", "1", "10", "10,000"} <= written
    assert any("10^{" in text.get_text() for text in ax.get_yticklabels())  # far from 1


def test_log_axes_of_base_2_write_all_their_ticks():
    ax = par.plots.axes(summary="Rates")
    ax.semilogx([1, 1024], [0, 1], base=2)
    ax.figure.png()
    written = [text.get_text() for text in ax.get_xticklabels()]
    assert "" not in written
    assert {"4", "256", "1,024"} <= set(written)


def test_ticks_that_were_chosen_stay():
    ax = par.plots.axes(summary="Rates")
    ax.set(xscale="log", xlim=(0.5, 20))
    ax.set_xticks([1, 10], labels=["one", "ten"])
    ax.figure.png()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["one", "ten"]


def test_a_log_scale_names_what_it_cannot_show(place):
    with LivePlot(curves=["a"], xscale="log", yscale="log") as plot:
        with pytest.raises(ValueError, match="x must be above zero, not 0"):
            plot.add(0, {"a": 1})
        with pytest.raises(ValueError, match="y must be above zero, not -1"):
            plot.add(1, {"a": -1})
        assert plot.chart.curves["a"].points() == []


# Curves of any length


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400))
@example([2.0, 0.0, 5.0, *[1.0] * 13, 0.0, 5.0, 2.0])  # ends that are no extremes, thinned out
def test_a_thinned_out_curve_keeps_its_ends_its_extremes_and_its_order(values):
    curve = Curve(capacity=16)
    for i, y in enumerate(values):
        curve.add(i, y)
    xs, ys = zip(*curve.points(), strict=True)
    assert len(xs) <= 16 + 4
    assert list(xs) == sorted(set(xs))
    assert all(values[x] == y for x, y in zip(xs, ys, strict=True))
    assert (xs[0], xs[-1]) == (0, len(values) - 1)
    assert (min(ys), max(ys)) == (min(values), max(values)) == curve.y_range
    if len(values) < 16:
        assert list(ys) == values


def test_the_points_that_are_kept_lie_evenly():
    curve = Curve(capacity=1000)
    for i in range(100_000):
        curve.add(i, math.sin(i))
    gaps = np.diff([x for x, _ in curve.points()])
    assert 300 < len(gaps) <= 1003
    assert gaps.max() <= 2 * 100_000 / 300


def test_what_is_not_finite_leaves_a_gap():
    curve = Curve()
    for x, y in enumerate((1.0, math.nan, -math.inf, 2.0)):
        curve.add(x, y)
    np.testing.assert_equal(curve.points(), [(0, 1), (1, math.nan), (2, math.nan), (3, 2)])
    assert curve.y_range == (1, 2)
    assert curve.x_range == (0, 3)


def test_a_curve_that_diverges_for_good_can_still_be_drawn(place):
    with LivePlot(curves=["loss"], max_fps=math.inf) as plot:
        for x in range(3000):
            plot.chart.curves["loss"].add(x, math.nan)
        plot.draw()
        assert len(plot.chart.curves["loss"].points()) <= 1003
    assert "loss nan" in place.picture.alt


# Without a notebook


def test_progress_is_a_line_an_update_where_there_is_no_notebook(capsys):
    now_s = 0.0
    with LivePlot(curves=("a", "b"), xlabel="epoch", title="T", note="N", clock=lambda: now_s) as p:
        for now_s in (0.0, 0.1, 0.5):
            p.add(now_s, {"a": 2.34567})
        p.status("done")
        p.draw()
    assert capsys.readouterr().out.splitlines() == [
        "T · N", "epoch 0 · a 2.35", "epoch 0.5 · a 2.35", "epoch 0.5 · a 2.35 · done",
    ]  # fmt: skip


def test_progress_ends_with_the_last_state_when_the_script_fails(capsys):
    def script():
        with LivePlot(curves=["a"], clock=lambda: 0.0) as plot:
            plot.add(0, {"a": 1})
            plot.add(1, {"a": 2})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script()
    assert capsys.readouterr().out.splitlines() == ["x 0 · a 1", "x 1 · a 2"]


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    with LivePlot(curves=["a"], xlabel="epoch", xlim=(0, 4), max_fps=math.inf) as plot:
        for epoch in (1, 2, 4):
            plot.add(epoch, {"a": epoch / 10})
    frames = terminal.getvalue().split("\r")
    fills = [frame.count("#") for frame in frames if "epoch" in frame]
    assert fills == sorted(fills)
    assert fills[-1] == 20
    assert "epoch 4 · a 0.4" in frames[-1]


# Accuracy and time of several runs


def lines(figure) -> list[dict[str, list[float]]]:
    """The curves' y of each panel, by name."""
    return [{line.get_label(): list(line.get_ydata()) for line in ax.lines} for ax in figure.axes]


def test_runs_are_overlaid_accuracy_on_the_left_time_on_the_right(place):
    plot = TrainingPlot(xlabel="step", time="ms per step", note="synthetic images")
    with plot.run("1 GPU", clock="simulated on a box") as run:
        run.add(10, accuracy=0.5, time=3.0)
    with plot.run("2 GPUs", clock="simulated on a box") as run:
        run.add(10, accuracy=0.4, time=4.0)
        run.add(20, accuracy=0.6)
    left, right = place.picture.axes
    assert lines(place.picture) == [
        {"1 GPU": [0.5], "2 GPUs": [0.4, 0.6]}, {"1 GPU": [3.0], "2 GPUs": [4.0]},
    ]  # fmt: skip
    assert (left.get_ylim(), left.get_ylabel()) == ((0, 1), "accuracy")
    assert (right.get_ylim()[0], right.get_ylabel()) == (0, "ms per step")
    assert place.opened == 1  # the second is in the same cell
    assert {"1 GPU", "2 GPUs", "synthetic images · simulated on a box"} <= words(place.picture)
    assert "accuracy: step 20 · 1 GPU 0.5 · 2 GPUs 0.6" in place.picture.alt
    assert place.picture.summary == (
        "accuracy and ms per step of 1 GPU, 2 GPUs over step"
        " · synthetic images · simulated on a box"
    )


def test_runs_in_cells_of_their_own_leave_a_picture_each(place, monkeypatch):
    plot = TrainingPlot(xlabel="step", time="ms per step")
    for number in (1, 2, 2):
        monkeypatch.setattr(training_plot, "cell_number", lambda number=number: number)
        with plot.run(f"run {len(place.updates)}") as run:
            run.add(1, accuracy=0.1, time=1)
    assert place.opened == 2


def test_runs_of_different_clocks_say_which_is_theirs(place):
    plot = TrainingPlot(xlabel="step", time="ms per step")
    for name, clock in (("a", "simulated"), ("b", "measured")):
        with plot.run(name, clock=clock) as run:
            run.add(1, accuracy=0.1, time=1)
    assert list(lines(place.picture)[0]) == ["a (simulated)", "b (measured)"]


def test_a_run_again_takes_the_place_of_the_first(place):
    plot = TrainingPlot(xlabel="step", time="ms per step")
    for accuracy in (0.1, 0.2):
        with plot.run("a") as run:
            run.add(1, accuracy=accuracy, time=1)
    assert lines(place.picture)[0] == {"a": [0.2]}


def test_a_training_plot_draws_no_more_often_than_asked_and_survives_an_interrupt(place):
    now_s = 0.0
    plot = TrainingPlot(xlabel="step", time="ms per step", now=lambda: now_s)
    with pytest.raises(KeyboardInterrupt), plot.run("a") as run:  # noqa: PT012
        for now_s in (0.0, 0.1, 0.24, 0.25, 0.3):
            run.add(now_s, accuracy=0.5, time=1)
        raise KeyboardInterrupt
    assert len(place.updates) == 4  # empty, two on the way, the last
    with pytest.raises(RuntimeError, match=r"with plot\.run"):
        run.add(1, accuracy=0.5)


def test_an_interrupt_of_the_last_picture_waits_for_it(place, interrupts, monkeypatch):
    draw = picture.Picture.png

    def slow(self, **options):
        signal.raise_signal(signal.SIGINT)
        return draw(self, **options)

    monkeypatch.setattr(picture.Picture, "png", slow)
    stopped = pytest.raises(KeyboardInterrupt, match="while the last picture")
    with stopped, LivePlot(curves=["loss"]) as plot:
        plot.add(0, {"loss": 1.0})
    assert pixels(place.updates[-1]).shape == (800, 1400, 3)  # the one that stays


def test_outside_a_notebook_a_training_plot_prints_its_values(capsys):
    plot = TrainingPlot(xlabel="step", time="ms per step", note="N")
    with plot.run("a", clock="C") as run:
        run.add(5, accuracy=0.25, time=2)
    out = capsys.readouterr().out.splitlines()
    assert out == ["N · C", "accuracy: step 5 · a 0.25 · ms per step: step 5 · a 2"]


@pytest.mark.parametrize("name", ["", None])
def test_a_run_needs_a_name(name):
    with pytest.raises(ValueError, match="runs with names"):
        TrainingPlot(xlabel="step", time="ms").run(name)


# Gantt chart

Span = namedtuple("Span", "device stream kind name start_s end_s target", defaults=("",))
Record = namedtuple("Record", "spans clock")

STEP = [
    Span("link:0-1", "", "copy", "gradient", 3e-3, 4e-3),
    Span("vgpu:10", 0, "compute", "forward", 1e-3, 2e-3),
    Span("vgpu:2", 1, "copy", "shard", 0.5e-3, 1e-3),
    Span("vgpu:2", 0, "compute", "forward", 1e-3, 3e-3),
    Span("host", "main", "host", "load", 0.0, 0.5e-3),
    Span("host", "main", "wait", "a name too long for its bar", 3.9e-3, 4e-3),
]
CLOCK = "simulated on two V100"


def bars(ax) -> dict[str, list[tuple]]:
    """The bars (left, right, middle) of each kind."""
    return {
        group.get_label(): [
            (*path.vertices[:, 0][[0, 1]], path.vertices[:4, 1].mean())
            for path in group.get_paths()
        ]
        for group in ax.collections
    }


def test_rows_are_host_devices_links_from_top_to_bottom():
    ax = gantt(Record(STEP, CLOCK)).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "host · main", "vgpu:2 · stream 0", "vgpu:2 · stream 1", "vgpu:10 · stream 0", "link:0-1",
    ]  # fmt: skip
    bottom, top = ax.get_ylim()
    assert bottom > top


def test_the_host_is_on_top_its_main_thread_first():
    threads = [("host", f"thread for vgpu:{i}") for i in (10, 2)]
    rows = [("vgpu:0", 0), *threads, ("host", "thread for the host"), ("host", "main")]
    spans = [Span(*row, "host", "a", 0.0, 1.0) for row in rows]
    labels = gantt(Record(spans, CLOCK)).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [
        "host · main", "host · thread for the host", "host · thread for vgpu:2",
        "host · thread for vgpu:10", "vgpu:0 · stream 0",
    ]  # fmt: skip


def test_a_simulated_step_is_drawn_with_the_kinds_and_rows_it_has():
    with par.simulate("2x-v100-textbook") as gpus, par.record() as timeline:
        weights = [torch.ones(2000, 2000, device=gpu, requires_grad=True) for gpu in gpus]
        torch.stack([(w @ w).sum().to(gpus[0]) for w in weights]).sum().backward()
        par.host_work(1e-5, "next batch")
        par.timing.synchronize(gpus)
    ax = gantt(timeline).axes[0]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0] == "host · main"
    assert {"vgpu:0 · stream 0", "vgpu:1 · stream 0"} <= set(labels)
    assert sorted(labels, key=lambda label: not label.startswith("host")) == labels
    assert set(bars(ax)) >= {"compute", "copy", "dispatch", "host", "wait"}
    assert set(bars(ax)) <= set(style.KIND_STYLES) == set(texts.KINDS)


def test_bars_lie_where_the_spans_are():
    figure = gantt(Record(STEP, CLOCK), title="One step")
    ax = figure.axes[0]
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_xlim() == pytest.approx((0, 4))
    drawn = bars(ax)
    assert list(drawn) == ["compute", "copy", "host", "wait"]
    assert sum(map(len, drawn.values())) == len(STEP)
    np.testing.assert_allclose(sorted(drawn["compute"]), [(1, 2, 3), (1, 3, 1)])
    np.testing.assert_allclose(sorted(drawn["copy"]), [(0.5, 1, 2), (3, 4, 4)])
    assert {CLOCK, "One step", "forward", "load"} <= words(figure)
    assert "a name too long for its bar" not in words(figure)
    assert CLOCK in figure.summary
    assert "6 spans in 4 ms" in figure.alt


def test_a_kind_has_its_colour_and_hatch_in_every_chart():
    odd = Span("vgpu:2", 0, "barrier", "b", 0.0, 1e-3)
    colours = {}
    for spans in (STEP, STEP[:2], [*STEP, odd], [odd, *STEP]):
        for group in gantt(Record(spans, CLOCK)).axes[0].collections:
            look = to_hex(group.get_facecolor()[0]), group.get_hatch()
            assert colours.setdefault(group.get_label(), look) == look
    assert len(set(colours.values())) == len(colours) == 5
    assert colours["compute"] == (style.BLUE.lower(), "")


def test_a_window_cuts_and_times_count_from_its_start():
    ax = gantt(Record(STEP, CLOCK), window_s=(1.5e-3, 2.5e-3)).axes[0]
    assert ax.get_xlim() == pytest.approx((0, 1))
    np.testing.assert_allclose(sorted(bars(ax)["compute"]), [(0, 0.5, 1), (0, 1, 0)])


@pytest.mark.parametrize(
    ("length_s", "unit", "shown"),
    [(90, "s", 90), (2, "s", 2), (0.5, "ms", 500), (3e-5, "µs", 30), (4e-7, "ns", 400)],
)
def test_the_unit_fits_the_length(length_s, unit, shown):
    span = STEP[1]._replace(start_s=7.0, end_s=7.0 + length_s)
    ax = gantt(Record([span], CLOCK)).axes[0]
    assert ax.get_xlabel() == f"time ({unit})"
    assert ax.get_xlim()[1] == pytest.approx(shown, rel=1e-6)


def test_thousands_of_spans_are_a_few_artists():
    kinds = itertools.cycle(("compute", "copy"))
    many = [Span("vgpu:0", 0, next(kinds), "op", i * 1e-6, (i + 1) * 1e-6) for i in range(5000)]
    figure = gantt(Record(many, CLOCK))
    assert len(figure.axes[0].collections) == 2
    assert len(figure.findobj()) < 200
    edges = {to_hex(group.get_edgecolor()[0]) for group in figure.axes[0].collections}
    assert "#ffffff" not in edges  # wider than such bars
    painted = (pixels(figure.png(scale=1)) < 200).any(-1)
    assert painted.any(0).mean() > 0.7  # no bar is lost for being thin


def test_it_draws_on_given_axes_and_has_a_note_of_its_own():
    figure, ax = pyplot.subplots(layout="constrained")
    try:
        assert gantt(Record(STEP, CLOCK), ax=ax) is figure
        assert ax.get_xlabel() == f"time (ms) · {CLOCK}"
        assert sum(map(len, bars(ax).values())) == len(STEP)
    finally:
        pyplot.close(figure)
    assert "measured" in words(gantt(Record(STEP, CLOCK), note="measured"))


def test_one_instant_can_be_drawn_but_nothing_cannot():
    assert gantt(Record([STEP[1]._replace(end_s=STEP[1].start_s)], CLOCK)).axes[0].get_xlim()[1] > 0
    for window_s, spans in ((None, []), ((5, 6), STEP)):
        with pytest.raises(ValueError, match="no span"):
            gantt(Record(spans, CLOCK), window_s=window_s)


RUN = Timeline(
    CLOCK,
    [
        TimelineSpan("host", "main", "dispatch", "mm", 0, 1e-3, correlation=1),
        TimelineSpan("host", "main", "dispatch", "copy", 1e-3, 2e-3, correlation=2),
        TimelineSpan("vgpu:0", 0, "compute", "mm", 1e-3, 5e-3, correlation=1),
        TimelineSpan("vgpu:0", 0, "copy", "copy", 5e-3, 7e-3, correlation=2, target="vgpu:1"),
        TimelineSpan("vgpu:1", 0, "compute", "add", 7e-3, 8e-3),
        TimelineSpan("vgpu:1", 0, "copy", "back", 8e-3, 9e-3, target="host"),
        TimelineSpan("host", "main", "wait", "item", 2e-3, 9e-3),
    ],
    [
        MemorySample("vgpu:0", 1e-3, 4_000_000),
        MemorySample("vgpu:1", 2e-3, 1_000_000),
        MemorySample("vgpu:0", 6e-3, 0),
    ],
)


def arrows(ax) -> list[tuple]:
    """(time, row of the start, row of the end) of each arrow."""
    found = [t for t in ax.texts if isinstance(t, Annotation)]
    return [(t.xy[0], round(t.xyann[1]), round(t.xy[1])) for t in found]


def test_arrows_show_where_copies_go():
    ax = gantt(RUN).axes[0]  # rows: host, vgpu:0, vgpu:1
    assert arrows(ax) == [(7, 1, 2)]
    assert arrows(gantt(RUN, window_s=(0, 6e-3)).axes[0]) == []
    many = Timeline(CLOCK, [*RUN.spans, *[RUN.spans[3]] * 40])
    assert arrows(gantt(many).axes[0]) == []
    assert arrows(gantt(Record(STEP, CLOCK)).axes[0]) == []  # which do not say


def test_the_critical_path_runs_along_its_spans():
    figure = gantt(RUN, critical_path=True)
    [line] = figure.axes[0].lines
    assert to_hex(line.get_color()) == style.VERMILION.lower()
    xs, ys = line.get_data()
    np.testing.assert_allclose(xs, [0, 1, 1, 5, 5, 7, 7, 8, 8, 9], atol=1e-9)
    np.testing.assert_allclose(np.array(ys) - ys[0], [0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    assert "critical path" in words(figure)
    assert not gantt(RUN).axes[0].lines
    part = gantt(RUN, critical_path=True, window_s=(2e-3, 6e-3)).axes[0].lines[0]
    np.testing.assert_allclose(part.get_xdata(), [0, 3, 3, 4], atol=1e-9)
    beside = Timeline(CLOCK, [TimelineSpan("vgpu:0", 0, "compute", "mm", 0, 2e-3)])
    beside.add(TimelineSpan("vgpu:1", 0, "compute", "mm", 1e-3, 3e-3))
    [line] = gantt(beside, critical_path=True, window_s=(0, 0.5e-3)).axes[0].lines
    assert not len(line.get_xdata())


def test_memory_is_a_step_curve_a_device():
    figure = gantt(RUN, memory=True, critical_path=True)
    bars_ax, memory_ax = figure.axes
    first, second = memory_ax.lines
    assert (first.get_label(), second.get_label()) == ("memory · vgpu:0", "memory · vgpu:1")
    assert memory_ax.get_ylabel() == "MB"
    assert first.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(first.get_data(), [(0, 1, 6, 9), (0, 4, 0, 0)])
    np.testing.assert_allclose(second.get_data(), [(0, 2, 9), (0, 1, 1)])
    looks = {(line.get_color(), line.get_linestyle()) for line in (first, second, *bars_ax.lines)}
    assert len(looks) == 3
    assert memory_ax.get_xlim() == bars_ax.get_xlim()
    assert memory_ax.get_xlabel() == "time (ms)"
    later = gantt(RUN, memory=True, window_s=(3e-3, 7e-3)).axes[1].lines
    np.testing.assert_allclose(later[0].get_data(), [(0, 3, 4), (4, 0, 0)])
    assert gantt(Timeline(CLOCK, RUN.spans), memory=True).axes[1].lines[:] == []
    with pytest.raises(ValueError, match="memory has axes of its own"):
        gantt(RUN, memory=True, ax=bars_ax)


def test_names_stand_in_bars_that_are_wide_enough():
    name = "m" * 12  # as wide as letters get
    for length, is_named in ((5, False), (40, True)):
        spans = [STEP[1]._replace(name=name, start_s=0, end_s=length), STEP[1]._replace(
            name="x", start_s=length, end_s=100)]  # fmt: skip
        figure = gantt(Record(spans, CLOCK))
        assert (name in words(figure)) == is_named
        figure.draw_without_rendering()
        for text in figure.axes[0].texts:
            left, right = figure.axes[0].transData.transform([(0, 0), (length, 0)])[:, 0]
            if text.get_text() == name:
                box = text.get_window_extent()
                assert left <= box.x0 < box.x1 <= right


def test_the_legend_takes_the_lines_that_it_needs():
    kinds = [*style.KIND_STYLES, "barrier"]
    spans = [Span("vgpu:0", 0, kind, "x", i, i + 1) for i, kind in enumerate(kinds)]
    for width_px in (480, 760, 1200):
        figure = gantt(Record(spans, CLOCK), width_px=width_px)
        figure.draw_without_rendering()
        assert figure.legends[0].get_window_extent().x1 <= width_px


def test_thin_bars_keep_their_colour():
    spans = [Span("vgpu:0", 0, "compute", "x", i, i + 0.02) for i in range(100)]
    spans.append(Span("vgpu:0", 0, "compute", "x", 100, 150))
    [group] = gantt(Record(spans, CLOCK)).axes[0].collections
    colours = [to_hex(color) for color in group.get_edgecolor()]
    assert colours == [style.BLUE.lower()] * 100 + ["#ffffff"]


# Live Gantt chart


@pytest.fixture
def gantt_place(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(live_gantt, "in_notebook", lambda: True)
    monkeypatch.setattr(live_gantt, "PictureSlot", lambda: recorder)
    return recorder


def test_a_live_gantt_grows_in_place_and_leaves_the_whole_chart(gantt_place):
    now_s = 0.0
    chart = LiveGantt(
        recording(CLOCK), title="Run", clock=lambda: now_s, critical_path=True, memory=True
    )
    shown = []
    with chart as timeline:
        for span in RUN.spans:
            now_s += 1
            timeline.add(span)
            shown.append(pixels(gantt_place.updates[-1]))
        timeline.memory += RUN.memory
    assert gantt_place.opened == 1
    assert len(gantt_place.updates) == len(RUN.spans) + 1
    assert {image.shape for image in shown} == {(400, 760, 3)}
    assert all((a != b).any() for a, b in itertools.pairwise(shown))
    whole = gantt(
        RUN, title="Run", width_px=760, height_px=400, critical_path=True, memory=True
    ).png()
    assert gantt_place.updates[-1] == whole
    assert gantt_place.picture.summary == f"{texts.LIVE_GANTT} · {CLOCK}"
    assert timeline.listeners == []


def test_a_live_gantt_draws_no_more_often_than_asked(gantt_place):
    now_s = 0.0
    with LiveGantt(recording(CLOCK), max_fps=2, clock=lambda: now_s) as timeline:
        for i in range(100):
            now_s = i / 10
            timeline.add(Span("vgpu:0", 0, "compute", "k", i, i + 1))
    assert len(gantt_place.updates) == 20 + 1
    with pytest.raises(ValueError, match="max_fps must be positive, not 0"):
        LiveGantt(recording(CLOCK), max_fps=0)


def test_a_live_gantt_of_a_simulated_run_is_its_gantt(gantt_place, gpus):
    with LiveGantt(par.record(), max_fps=1e9) as timeline:
        x = torch.ones(50, 50, device=gpus[0])
        for _ in range(3):
            (x @ x).sum().item()
    assert len(gantt_place.updates) == len(timeline) + 1
    assert gantt_place.updates[-1] == gantt(timeline, height_px=400).png()


def test_a_live_gantt_shows_what_there_is_after_an_error_and_without_spans(gantt_place, tmp_path):
    with pytest.raises(ZeroDivisionError), LiveGantt(recording(CLOCK)) as timeline:
        timeline.add(RUN.spans[0]) or 1 / 0
    assert len(gantt_place.updates) == 2
    with LiveGantt(recording(CLOCK, to=tmp_path / "run.json")) as timeline:
        timeline.add(RUN.spans[0])
        timeline.add(RUN.spans[2])
    assert len(gantt_place.updates) == 2 + 2  # the second is drawn at the end
    with LiveGantt(recording(CLOCK)):
        pass
    assert len(gantt_place.updates) == 4


def test_the_bars_of_a_live_gantt_stay_few_and_lie_where_the_spans_are():
    bars = live_gantt._Bars()
    for i in range(50_000):
        bars.add(Span("vgpu:0", i % 2, "compute", "k", i * 1e-3, (i + 0.5) * 1e-3))
        if i % 1000 == 0:
            bars.add(Span("host", "main", "wait", "k", i * 1e-3, (i + 100) * 1e-3))
    assert sum(map(len, bars.boxes.values())) < 4 * 2 * live_gantt.TOLD_APART
    waits = [(round(start, 6), round(end, 6)) for start, end, _ in bars.boxes["wait"]]
    assert waits == [(i, pytest.approx(i + 0.1)) for i in range(50)]
    covered = sum(end - start for start, end, row in bars.boxes["compute"] if row[1] == 0)
    assert 12.5 <= covered <= 50
    backwards = live_gantt._Bars()
    for i in reversed(range(50_000)):
        backwards.add(Span("vgpu:0", 0, "compute", "k", i, i + 0.1))
    assert len(backwards.boxes["compute"]) < 8 * live_gantt.TOLD_APART


def test_outside_a_notebook_a_live_gantt_is_one_line(capsys):
    with LiveGantt(recording(CLOCK)) as timeline:
        timeline.spans += RUN.spans
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("Gantt chart of host · main, vgpu:0 · stream 0")
    assert line.endswith("7 spans in 9 ms")


# Figures with sliders


def halves(ax, batch=8, link="PCIe"):
    """Halves of a batch."""
    if batch == 13:
        raise ArithmeticError("an unlucky batch")
    ax.plot([batch / 2**n for n in range(4)])
    ax.set(title=link, ylim=(0, 16))


def test_a_slider_draws_the_figure_again(place):
    figure = slider_figure(halves, batch=(1, 16), link=["NVLink", "PCIe"], note="model")
    assert figure.values == {"batch": 8, "link": "PCIe"}
    figure._ipython_display_()
    default = place.updates[-1]
    figure.controls["batch"].value = 16
    moved = place.updates[-1]
    assert (pixels(default) != pixels(moved)).any()
    assert "batch 16, link PCIe" in place.picture.alt
    figure.controls["link"].value = "NVLink"
    assert "NVLink" in words(place.picture)
    assert "model" in words(place.picture)
    assert place.picture.summary == "Halves of a batch. · model"
    figure.controls["batch"].value, figure.controls["link"].value = 8, "PCIe"
    assert place.updates[-1] == default
    assert place.opened == 1
    drawn = len(place.updates)
    figure.refresh()  # as a call does that had to wait for another
    assert len(place.updates) == drawn


def test_an_error_while_sliding_is_shown_and_passes(place):
    figure = slider_figure(halves, batch=(1, 16))
    figure._ipython_display_()
    figure.controls["batch"].value = 13
    assert "ArithmeticError: an unlucky batch" in words(place.picture)
    assert figure.picture.alt == "ArithmeticError: an unlucky batch"
    figure.controls["batch"].value = 8
    assert "ArithmeticError: an unlucky batch" not in words(place.picture)
    with pytest.raises(ArithmeticError):
        slider_figure(lambda ax, batch: halves(ax, batch=batch), batch=[13])


def test_sliders_may_be_moved_from_other_threads(place):
    figure = slider_figure(halves, batch=(1, 12), link=["NVLink", "PCIe"])
    figure._ipython_display_()

    def slide(control, values):
        for value in values:
            control.value = value

    movers = [
        threading.Thread(target=slide, args=(figure.controls["batch"], range(1, 12))),
        threading.Thread(target=slide, args=(figure.controls["link"], ("NVLink", "PCIe") * 4)),
    ]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    last = place.updates[-1]
    assert figure.values == {"batch": 11, "link": "PCIe"}
    fresh = slider_figure(
        lambda ax, batch=11, link="PCIe": halves(ax, batch, link), batch=[11], link=["PCIe"]
    )
    assert last == figure.png == fresh.png


@pytest.mark.parametrize(
    ("spec", "kind", "start"),
    [
        ((1, 16), "IntSlider", 8),
        ([2, 8, 32], "SelectionSlider", 8),
        ([1.5, 3], "SelectionSlider", 1.5),  # draw's own default is not among them
        ([32, 8], "Dropdown", 8),
        (["8", "16"], "Dropdown", "8"),
        ([False, True], "Dropdown", False),
    ],
)
def test_numbers_in_order_slide_and_other_lists_are_chosen_from(place, spec, kind, start):
    figure = slider_figure(lambda ax, batch=8: None, batch=spec)
    assert type(figure.controls["batch"]).__name__ == kind
    assert figure.values == {"batch": start}


def test_a_control_that_cannot_be_made_is_named():
    with pytest.raises(ValueError, match="batch=<object"):
        slider_figure(halves, batch=object())


# The package


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, those of its own package with their dot."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = "." * node.level + (node.module or "")
            names |= {home} if node.module else {f".{alias.name}" for alias in node.names}
    return names


def test_no_other_module_imports_matplotlib_or_ipywidgets():
    drawing = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if {name.split(".")[0] for name in imported(path)} & {"matplotlib", "ipywidgets"}
    }
    assert drawing == {"plots"}


def test_its_modules_import_downwards_only():
    below = {path.stem: imported(path) for path in (PACKAGE / "plots").glob("*.py")}
    order = graphlib.TopologicalSorter(
        {name: {other for other in below if f".{other}" in uses} for name, uses in below.items()}
    )
    assert list(order.static_order())[-1] == "__init__"  # a cycle raises CycleError


def test_the_modules_do_not_hide_behind_the_functions():
    for name in plots.__all__:
        assert not isinstance(getattr(plots, name), types.ModuleType)


def test_stored_pictures_keep_their_main_colours_exactly():
    generator = np.random.default_rng(0)
    pixels = np.full((60, 80, 4), 255, np.uint8)
    pixels[10:30, 10:30, :3] = (0, 114, 178)
    pixels[40:50, :, :3] = generator.integers(0, 256, (10, 80, 3))  # far more colours than are kept
    image = Image.open(io.BytesIO(picture.encoded_to_stay(pixels))).convert("RGB")
    assert len(image.getcolors()) <= picture.STORED_COLORS
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((15, 15)) == (0, 114, 178)
    kept = np.array([color for _, color in image.getcolors()])
    before, after = pixels[40, :, :3].astype(int), np.asarray(image)[40].astype(int)
    distances = np.square(before[:, None] - kept).sum(axis=2)
    assert (np.square(before - after).sum(axis=1) == distances.min(axis=1)).all()
