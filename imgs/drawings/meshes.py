"""A mesh of GPUs, and which split to choose."""

from itertools import product

from matplotlib.patches import Polygon

from d2lpar.plots import BLUE, GREEN, INK, ORANGE, PALE, Picture

from .parts import LARGE_PT, arrow, part, sheet, words

# Along which way an axis of the mesh goes in the picture, its line, and what its GPUs exchange.
AXES = {
    "copies": ((3.6, 0), {"color": GREEN, "lw": 3, "ls": ":"}, "gradients, already cut"),
    "shards": (
        (0, 2.3), {"color": BLUE, "lw": 4, "ls": "--"}, "parameters, gradients,\nlayer by layer"
    ),
    "channel": ((1.25, 0.85), {"color": ORANGE, "lw": 8}, "activations,\nin every layer"),
}  # fmt: skip
CORNER = (1.1, 0.85)


def mesh_cube() -> Picture:
    """Eight GPUs as a cube, whose edges join those that exchange something."""
    picture, ax = sheet("A mesh of 2 × 2 × 2 GPUs", 5.3)
    for copy in range(2):
        face = [_place(copy, *corner) for corner in ((0, 0), (0, 1), (1, 1), (1, 0))]
        ax.add_patch(Polygon(face, facecolor=PALE, alpha=0.5, zorder=0))
        x, y = _place(copy, 1, 1)
        words(ax, (x - 0.4, y + 0.5), f"copy {copy}", weight="bold")
    for here in product(range(2), repeat=3):
        for axis, (_, line, _) in enumerate(AXES.values()):
            there = tuple(1 if i == axis else place for i, place in enumerate(here))
            ax.plot(*zip(_place(*here), _place(*there), strict=True), zorder=1, **line)
        rank = 4 * here[0] + 2 * here[1] + here[2]
        ax.plot(*_place(*here), "o", ms=34, mfc="white", mec=INK, mew=2, zorder=2)
        words(ax, _place(*here), str(rank), weight="bold", zorder=3)
    words(ax, (2.9, 0.45), "copies")
    words(ax, (0.6, 2.0), "shards", rotation=90)
    words(ax, (6.0, 1.05), "channel")
    words(
        ax, (7.4, 4.8), "What do neighbours exchange?", weight="bold", ha="left", size=LARGE_PT - 1
    )
    for i, (name, (_, line, exchanged)) in enumerate(reversed(AXES.items())):
        y = 3.95 - 1.4 * i
        ax.plot((7.4, 8.2), (y, y), **line)
        words(ax, (8.4, y), name, weight="bold", ha="left")
        words(ax, (8.4, y - 0.22), exchanged, ha="left", va="top")
    return picture


def which_split() -> Picture:
    """Four questions that lead to a first mix."""
    picture, ax = sheet("Which split? A decision tree", 6.6)
    _question(ax, (6.4, 6.1), "Is one layer too large for a GPU?")
    _question(ax, (4.6, 4.6), "Enough words for each GPU?")
    _question(ax, (2.6, 3.1), "Does it all fit on one GPU?")
    _question(ax, (8.4, 3.1), "NVLink between them?")
    _answer(ax, "no", (5.6, 5.73), (4.9, 4.97))
    _answer(ax, "yes", (3.6, 4.23), (2.9, 3.47))
    _answer(ax, "no", (6.1, 4.23), (7.6, 3.47))
    _answer(ax, "yes", (1.9, 2.73), (1.4, 1.8))
    _answer(ax, "no", (3.7, 2.73), (4.3, 1.8))
    _answer(ax, "no", (7.8, 2.73), (7.4, 1.8))
    _answer(ax, "yes", (9.5, 2.73), (10.2, 1.8))
    ax.plot((9.12, 11.3), (6.1, 6.1), color=INK, lw=2)
    arrow(ax, (11.3, 6.1), (11.3, 1.8))
    words(ax, (9.6, 6.3), "yes", weight="bold")
    part(ax, (0.1, 0.9), (2.7, 0.85), "data\nparallelism", BLUE, "white", LARGE_PT)
    part(ax, (3.1, 0.9), (2.7, 0.85), "FSDP", BLUE, "white", LARGE_PT)
    part(ax, (6.1, 0.9), (2.7, 0.85), "pipeline,\ndata around it", ORANGE, INK, LARGE_PT)
    part(ax, (9.1, 0.9), (2.8, 0.85), "channels,\ndata around them", ORANGE, INK, LARGE_PT)
    words(ax, (6, 0.35), "Several fit? Estimate them, and measure the ties.")
    return picture


def _question(ax, middle: tuple, text: str) -> None:
    width = 0.15 * len(text) + 0.35
    part(ax, (middle[0] - width / 2, middle[1] - 0.32), (width, 0.64), text, PALE, INK, LARGE_PT)


def _answer(ax, text: str, start: tuple, end: tuple) -> None:
    arrow(ax, start, end)
    side = 0.5 if end[0] > start[0] else -0.5
    words(ax, ((start[0] + end[0]) / 2 + side, (start[1] + end[1]) / 2), text, weight="bold")


def _place(*steps: int) -> tuple[float, float]:
    """Where a GPU is drawn that is so many steps along each axis."""
    ways = [way for way, *_ in AXES.values()]
    return tuple(
        start + sum(step * way[i] for step, way in zip(steps, ways, strict=True))
        for i, start in enumerate(CORNER)
    )
