"""What runs when."""

import torch
from torch import nn

import d2lpar as par
from d2lpar.plots import Picture
from d2lpar.plots.gantt_chart import draw_legend
from d2lpar.plots.style import dress


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
