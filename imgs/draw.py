"""Draws the pictures of this folder: `python imgs/draw.py`."""

from pathlib import Path

import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from torch import nn

import d2lpar as par
from d2lpar.plots import BLUE, FONT_PT, GREEN, INK, ORANGE, PALE, Picture
from d2lpar.plots.gantt_chart import explain
from d2lpar.plots.style import dress

HERE = Path(__file__).parent
DEVICES = ((BLUE, "white", "GPU 0"), (ORANGE, INK, "GPU 1"))
LANES_GB_PER_S = 15.75  # 16 lanes of PCIe 3.0, one way
LAYERS, LEFT, WIDTH, HEIGHT, GAP = 4, 0.9, 2.2, 0.62, 0.28


def three_ways_to_split() -> Picture:
    """The same four layers, shared out over two devices in three ways."""
    picture = Picture(summary="Three ways to split a network over two devices", size_px=(960, 440))
    axes = picture.subplots(1, 3)
    titles = ("across layers", "inside layers", "across data")
    for ax, title, draw in zip(axes, titles, (_by_layers, _by_channels, _by_data), strict=True):
        draw(ax)
        ax.set(xlim=(0, 4), ylim=(-1.7, 3.6))
        ax.set_title(title, size=FONT_PT + 3, color=INK)
        ax.axis("off")
    for x, (colour, _, name) in zip((0.41, 0.51), DEVICES, strict=True):
        picture.text(x, 0.03, f"■ {name}", color=colour, size=FONT_PT, weight="bold")
    return picture


def _by_layers(ax) -> None:
    for layer in range(LAYERS):
        _box(ax, layer, LEFT, WIDTH, DEVICES[layer // 2], f"layer {layer + 1}")
        _arrow(ax, (2, _top(layer - 1)), (2, _bottom(layer)))
    _input(ax, 2, "batch")
    _note(ax, "activations at one cut")


def _by_channels(ax) -> None:
    half = WIDTH / 2 - 0.08
    for layer in range(LAYERS):
        for side, device in enumerate(DEVICES):
            _box(ax, layer, LEFT + side * (half + 0.16), half, device, f"½ {layer + 1}")
        centres = (LEFT + half / 2, LEFT + WIDTH - half / 2)
        for start in centres:
            for end in centres:
                _arrow(ax, (start, _top(layer - 1)), (end, _bottom(layer)))
    _input(ax, 2, "batch")
    _note(ax, "activations of every layer")


def _by_data(ax) -> None:
    for side, device in enumerate(DEVICES):
        left = 0.25 + 1.85 * side
        for layer in range(LAYERS):
            _box(ax, layer, left, 1.65, device, f"layer {layer + 1}")
            _arrow(ax, (left + 0.82, _top(layer - 1)), (left + 0.82, _bottom(layer)))
        _input(ax, left + 0.82, "½ batch")
    for layer in range(LAYERS):
        _arrow(ax, (1.9, _middle(layer)), (2.1, _middle(layer)), "<->")
    _note(ax, "gradients of all parameters")


def _bottom(layer: int) -> float:
    return layer * (HEIGHT + GAP)


def _top(layer: int) -> float:
    return _bottom(layer) + HEIGHT


def _middle(layer: int) -> float:
    return _bottom(layer) + HEIGHT / 2


def _box(ax, layer: int, left: float, width: float, device: tuple, text: str) -> None:
    colour, ink, _ = device
    style = "round,pad=0,rounding_size=0.1"
    ax.add_patch(
        FancyBboxPatch((left, _bottom(layer)), width, HEIGHT, boxstyle=style, color=colour)
    )
    ax.text(left + width / 2, _middle(layer), text, ha="center", va="center", color=ink, size=12)


def _arrow(ax, start: tuple[float, float], end: tuple[float, float], style: str = "->") -> None:
    start = (start[0], max(start[1], -0.3))
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle=style, mutation_scale=10, color=INK, shrinkA=0, shrinkB=0
        )
    )


def _input(ax, x: float, text: str) -> None:
    ax.text(x, -0.62, text, ha="center", size=FONT_PT - 2, color=INK)


def _note(ax, text: str) -> None:
    ax.text(2, -1.1, f"sends {text}", ha="center", size=FONT_PT - 1, color=INK)


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


def columns_then_rows() -> Picture:
    """Two layers split over two devices: by columns, then by rows, and one sum at the end."""
    summary = "A layer split by columns, the next by rows, over two devices"
    picture = Picture(summary=summary, size_px=(960, 285))
    ax = picture.add_subplot()
    ax.set(xlim=(0, 19.2), ylim=(-1.5, 4.2))
    ax.axis("off")
    _matrix(ax, (0.2, 1), (2, 2), [("X", None)], "every rank has X")
    _sign(ax, 2.6, "×")
    _matrix(ax, (3, 1), (3.2, 2), [("A₀", 0), ("A₁", 1)], "columns of A")
    _sign(ax, 6.6, "=")
    _matrix(ax, (7, 1), (3.2, 2), [("X A₀", 0), ("X A₁", 1)], "nothing is sent")
    _sign(ax, 10.6, "×")
    _matrix(ax, (11, 0.4), (2, 3.2), [("B₀", 0), ("B₁", 1)], "rows of B", across=False)
    _sign(ax, 13.4, "=")
    _matrix(ax, (13.8, 1), (2, 2), [("H₀ B₀", 0)], "")
    _sign(ax, 16.2, "+")
    _matrix(ax, (16.6, 1), (2, 2), [("H₁ B₁", 1)], "")
    ax.text(16.2, 0.25, "one all-reduce", ha="center", va="center", size=FONT_PT, color=INK)
    ax.text(8.6, 3.75, "H = GELU(X A)", ha="center", va="center", size=FONT_PT, color=INK)
    for x, (colour, _, name) in zip((0.2, 2.6), DEVICES, strict=True):
        ax.text(x, -1.2, f"■ {name}", color=colour, size=FONT_PT, weight="bold")
    return picture


def _matrix(
    ax, corner: tuple, size: tuple, parts: list, below: str, *, across: bool = True
) -> None:
    """Parts side by side, or one over the other, each in its device's colour."""
    width, height = (size[0] / len(parts), size[1]) if across else (size[0], size[1] / len(parts))
    for i, (text, device) in enumerate(parts):
        colour, ink, _ = (PALE, INK, "") if device is None else DEVICES[device]
        down = len(parts) - 1 - i
        left, bottom = corner[0] + i * width * across, corner[1] + down * height * (not across)
        place = (left + 0.04, bottom + 0.04)
        ax.add_patch(Rectangle(place, width - 0.08, height - 0.08, facecolor=colour))
        middle = (left + width / 2, bottom + height / 2)
        ax.text(*middle, text, ha="center", va="center", color=ink, size=FONT_PT)
    middle = corner[0] + size[0] / 2
    ax.text(middle, corner[1] - 0.4, below, ha="center", va="center", size=FONT_PT, color=INK)


def _sign(ax, x: float, text: str) -> None:
    ax.text(x, 2, text, ha="center", va="center", size=FONT_PT + 4, color=INK)


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
    explain(picture, list(keys.values()))
    ax.set_xlabel("time (ms)")
    return picture


def four_gpu_server() -> Picture:
    """A server with four GPUs, and how many bytes a second pass where."""
    picture = Picture(summary="A server with four GPUs", size_px=(960, 430))
    ax = picture.add_subplot()
    ax.set(xlim=(0, 12), ylim=(0, 5.2))
    ax.axis("off")
    _part(ax, (0.3, 4.1), (2.6, 0.9), "network card\n10 Gbit/s", PALE, INK)
    _part(ax, (4.2, 4.1), (3.6, 0.9), "processor and\nmain memory", GREEN, "white")
    _part(ax, (9.1, 4.1), (2.6, 0.9), "disks", PALE, INK)
    _part(ax, (3.0, 2.2), (6.0, 0.7), "PCIe switch", PALE, INK)
    _way(ax, (2.9, 4.55), (4.2, 4.55), 1.5, f"{10 / 8} GB/s", (0, 0.22))
    _way(ax, (7.8, 4.55), (9.1, 4.55), 1.5, "4 lanes", (0, 0.22))
    _way(ax, (6.0, 4.1), (6.0, 2.9), 6, f"16 lanes for all: {LANES_GB_PER_S} GB/s", (1.9, 0))
    for gpu in range(4):
        x = 0.4 + 2.9 * gpu
        _part(ax, (x, 0.2), (2.5, 0.9), f"GPU {gpu}", BLUE, "white")
        _way(ax, (x + 1.25, 1.1), (3.75 + 1.5 * gpu, 2.2), 6, "", (0, 0))
    ax.text(6.0, 1.55, f"16 lanes each: together {4 * LANES_GB_PER_S:.0f} GB/s", ha="center",
            size=FONT_PT, color=INK, bbox={"fc": "white", "ec": "none"})  # fmt: skip
    return picture


def cluster_with_servers() -> Picture:
    """Two machines of four GPUs, their parameter servers, and the three levels of an exchange."""
    picture = Picture(summary="A GPU cluster with parameter servers", size_px=(960, 500))
    ax = picture.add_subplot()
    ax.set(xlim=(0, 12), ylim=(0, 6.1))
    ax.axis("off")
    for server in range(2):
        _part(ax, (2.1 + 4.6 * server, 5.0), (3.2, 1.0), f"server {server}: keeps half\n"
              "of the parameters", ORANGE, INK)  # fmt: skip
    _part(ax, (3.2, 3.6), (5.6, 0.6), "network switch", PALE, INK)
    for machine in range(2):
        left = 0.2 + 6.0 * machine
        ax.add_patch(Rectangle((left, 0.1), 5.6, 2.75, facecolor="none", edgecolor=INK))
        ax.text(left + 0.12, 2.55, f"machine {machine}", size=FONT_PT, color=INK, va="center")
        ax.text(left + 5.45, 2.55, "PCIe: faster", size=FONT_PT, color=INK, va="center", ha="right")
        _part(ax, (left + 1.4, 1.55), (2.8, 0.7), "sum of 4 gradients", GREEN, "white")
        for gpu in range(4):
            x = left + 0.2 + 1.32 * gpu
            _part(ax, (x, 0.25), (1.24, 0.6), f"GPU {gpu}", BLUE, "white")
            _way(ax, (x + 0.62, 0.85), (left + 1.95 + 0.57 * gpu, 1.55), 5, "", (0, 0))
        _way(ax, (left + 2.8, 2.25), (3.9 + 4.2 * machine, 3.6), 1.5, "", (0, 0))
        _way(ax, (3.7 + 4.6 * machine, 5.0), (4.2 + 3.6 * machine, 4.2), 1.5, "", (0, 0))
    for y, text in ((4.6, "push gradients, pull parameters"), (3.15, "network: slow")):
        ax.text(6.0, y, text, ha="center", va="center", size=FONT_PT, color=INK)
    return picture


def _part(ax, corner: tuple, size: tuple, text: str, colour: str, ink: str) -> None:
    ax.add_patch(
        FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.12", color=colour)
    )
    middle = [c + s / 2 for c, s in zip(corner, size, strict=True)]
    ax.text(*middle, text, ha="center", va="center", color=ink, size=FONT_PT, linespacing=1.15)


def _way(ax, start: tuple, end: tuple, width: float, text: str, shift: tuple) -> None:
    """A link as wide as it is fast."""
    ax.plot(*zip(start, end, strict=True), color=ORANGE, linewidth=width, zorder=0)
    middle = [(s + e) / 2 + d for s, e, d in zip(start, end, shift, strict=True)]
    ax.text(*middle, text, ha="center", va="center", size=FONT_PT, color=INK)


def main() -> None:
    drawings = (
        three_ways_to_split, four_gpu_server, cluster_with_servers, step_on_two_gpus, schedules,
        columns_then_rows,
    )  # fmt: skip
    for draw in drawings:
        (HERE / f"{draw.__name__}.png").write_bytes(draw().png())


if __name__ == "__main__":
    main()
