"""What several pictures are made of: a sheet, and boxes, arrows and words on it."""

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from d2lpar.plots import BLUE, FONT_PT, INK, ORANGE, Picture

WIDTH_PX, UNIT_PX = 960, 80
LARGE_PT = FONT_PT + 2
DEVICES = ((BLUE, "white", "GPU 0"), (ORANGE, INK, "GPU 1"))
CENTRED = {"ha": "center", "va": "center", "color": INK, "size": LARGE_PT}
ARROW = {"arrowstyle": "-|>", "mutation_scale": 18, "linewidth": 2, "color": INK}
ARROW |= {"shrinkA": 0, "shrinkB": 0}


def sheet(summary: str, height: float) -> tuple:
    """A picture of 12 × `height` units of 80 pixels, and axes in these units without any frame."""
    picture = Picture(summary=summary, size_px=(WIDTH_PX, round(UNIT_PX * height)))
    ax = picture.add_subplot()
    ax.set(xlim=(0, WIDTH_PX / UNIT_PX), ylim=(0, height))
    ax.axis("off")
    return picture, ax


def words(ax, place: tuple, text: str, **how) -> None:
    """Large text, in the middle of its place unless told otherwise."""
    ax.text(*place, text, **{**CENTRED, **how})


def key(ax, place: tuple, colour: str, text: str) -> None:
    """What a colour means, right of `place`."""
    words(ax, place, "■", color=colour, ha="left")
    words(ax, (place[0] + 0.27, place[1]), text, ha="left")


def arrow(ax, start: tuple, end: tuple, **how) -> None:
    ax.add_patch(FancyArrowPatch(start, end, **{**ARROW, **how}))


def part(ax, corner: tuple, size: tuple, text: str, colour: str, ink: str, size_pt=FONT_PT) -> None:
    ax.add_patch(
        FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.12", color=colour)
    )
    middle = [c + s / 2 for c, s in zip(corner, size, strict=True)]
    ax.text(*middle, text, ha="center", va="center", color=ink, size=size_pt, linespacing=1.15)


def way(ax, start: tuple, end: tuple, width: float, text: str, shift: tuple) -> None:
    """A link as wide as it is fast."""
    ax.plot(*zip(start, end, strict=True), color=ORANGE, linewidth=width, zorder=0)
    middle = [(s + e) / 2 + d for s, e, d in zip(start, end, shift, strict=True)]
    ax.text(*middle, text, ha="center", va="center", size=FONT_PT, color=INK)
