"""A mesh of GPUs, and which split to choose."""

from itertools import product

from matplotlib.patches import Polygon

from d2lpar.plots import BLUE, GREEN, INK, ORANGE, PALE, Picture

from .parts import LARGE_PT, sheet, words

# Along which way an axis of the mesh goes in the picture, its line, and what its GPUs exchange.
AXES = {
    "copies": ((3.6, 0), {"color": GREEN, "lw": 3, "ls": ":"}, "gradients, already cut"),
    "shards": ((0, 2.3), {"color": BLUE, "lw": 4, "ls": "--"}, "parameters, gradients,\nlayer by layer"),
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


def _place(*steps: int) -> tuple[float, float]:
    """Where a GPU is drawn that is so many steps along each axis."""
    ways = [way for way, *_ in AXES.values()]
    return tuple(
        start + sum(step * way[i] for step, way in zip(steps, ways, strict=True))
        for i, start in enumerate(CORNER)
    )
