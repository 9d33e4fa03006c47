"""Ways to share out a network over devices."""

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from d2lpar.plots import FONT_PT, INK, PALE, Picture

from .parts import DEVICES

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
    _sign(ax, 6.6, "→")
    _matrix(ax, (7, 1), (3.2, 2), [("H₀", 0), ("H₁", 1)], "nothing is sent")
    _sign(ax, 10.6, "×")
    _matrix(ax, (11, 0.4), (2, 3.2), [("B₀", 0), ("B₁", 1)], "rows of B", across=False)
    _sign(ax, 13.4, "=")
    _matrix(ax, (13.8, 1), (2, 2), [("H₀ B₀", 0)], "")
    _sign(ax, 16.2, "+")
    _matrix(ax, (16.6, 1), (2, 2), [("H₁ B₁", 1)], "")
    ax.text(16.2, 0.25, "one all-reduce", ha="center", va="center", size=FONT_PT, color=INK)
    ax.text(
        8.6,
        3.75,
        "H₀ = GELU(X A₀), H₁ = GELU(X A₁)",
        ha="center",
        va="center",
        size=FONT_PT,
        color=INK,
    )
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
