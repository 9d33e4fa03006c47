"""What runs when."""

import torch
from matplotlib.patches import Rectangle
from torch import nn

import d2lpar as par
from d2lpar.plots import BLUE, INK, ORANGE, VERMILION, Picture
from d2lpar.plots.gantt_chart import draw_legend
from d2lpar.plots.style import GREY, dress

from .parts import arrow, sheet, words


def step_on_two_gpus() -> Picture:
    """One training step under nn.DataParallel, as the simulated clock saw it."""
    with par.simulate("2x-v100-textbook") as gpus:
        net = nn.DataParallel(_network().to(gpus[0]), device_ids=[0, 1])
        X = torch.zeros(128, 1, 28, 28)
        net(X).sum().backward()
        par.timing.synchronize(gpus)
        with par.record() as timeline:
            net(X).sum().backward()
            par.timing.synchronize(gpus)
    title = "A training step on two virtual GPUs"
    return par.plots.gantt(timeline, title=title, width_px=960)


def _network() -> nn.Module:
    layers = []
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64 * 49, 10))


def schedules() -> Picture:
    """Three schedules of a pipeline of four stages, on one scale of time."""
    stage = par.pipeline.StageCost(forward_s=0.01, backward_s=0.02)
    picture = Picture(summary="Three schedules of a pipeline", note="simulated", size_px=(960, 620))
    names = {"gpipe": "GPipe", "1f1b": "1F1B", "zero_bubble_h1": "zero bubble (H1)"}
    runs = {
        name: par.pipeline.simulate(
            par.pipeline.orders(par.pipeline.SCHEDULES[key](4, 8)), [stage] * 4
        )
        for key, name in names.items()
    }
    window_s = (0, max(run.end_s for run in runs.values()))
    for ax, (name, run) in zip(picture.subplots(3, 1), runs.items(), strict=True):
        par.plots.schedule(run, ax=dress(ax), title=name, window_s=window_s)
        ax.set(xlim=(0, 1e3 * window_s[1]), xlabel="")
    keys = {}
    for legend in list(picture.legends):  # each chart brings one
        keys |= {handle.get_label(): handle for handle in legend.legend_handles}
        legend.remove()
    draw_legend(picture, list(keys.values()))
    ax.set_xlabel("time (ms)")
    return picture


def stream_and_event() -> Picture:
    """Products in one stream and copies in another, each of which waits for its event."""
    picture, ax = sheet("Two streams, and events between them", 4.5)
    for y, name in ((3.8, "host"), (2.4, "computing"), (0.7, "copying")):
        words(ax, (0.1, y), name, weight="bold", ha="left")
        ax.plot((2.3, 11.9), (y - 0.45, y - 0.45), color=INK, lw=1)
    _bar(ax, 2.3, 3.8, 2.1, "queues all", GREY, INK)
    words(ax, (4.6, 3.8), "and goes on, without waiting", ha="left")
    for i in range(3):
        start, done = 2.5 + 2.5 * i, 5.0 + 2.5 * i
        _bar(ax, start, 2.4, 2.5, f"product {i}", BLUE, "white")
        _bar(ax, done, 0.7, 1.8, f"copy {i}", ORANGE, INK)
        arrow(ax, (done, 1.9), (done, 1.18), color=VERMILION, linewidth=3)
        ax.plot(done, 1.95, "D", ms=13, color=VERMILION, zorder=3)
        words(ax, (done + 0.25, 1.6), f"event {i}", ha="left")
    words(ax, (3.7, 0.7), "waits")
    words(ax, (11.9, 0.08), "time →", ha="right")
    return picture


def _bar(ax, left: float, middle: float, length: float, text: str, colour: str, ink: str) -> None:
    bar = Rectangle((left, middle - 0.4), length, 0.8, facecolor=colour, edgecolor="white", lw=3)
    ax.add_patch(bar)
    words(ax, (left + length / 2, middle), text, color=ink)
