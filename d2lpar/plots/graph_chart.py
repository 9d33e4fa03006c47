"""Dependency graphs: operations as boxes from left to right, a band for each place they ran on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import networkx
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from . import texts
from .picture import Picture
from .style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SMALL_PT,
    VERMILION,
    dress,
    figure_of,
    legend_above,
)

Rows = dict[str, int]
Bands = dict[str, tuple[int, int]]
Positions = dict[int, tuple[int, int]]

BOX = (0.82, 0.62)  # width of a generation's column, height of a row
COLUMN_PX, ROW_PX, MARGIN_PX = 66, 52, 110
LINE_LENGTH = 7  # characters of a label that fit into a box
STYLES = {  # of a node: face, ink
    "input": (PALE, INK),
    "copy": (ORANGE, INK),
    "host": (PURPLE, INK),
    "device": (BLUE, "white"),
}


class _Node(Protocol):
    """An operation, or an input, and the place ("host", a device) that it is on."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def is_input(self) -> bool: ...
    @property
    def is_copy(self) -> bool: ...


class _Graph(Protocol):
    """What is asked of a graph to draw it; those that `trace_graph` traces can say it."""

    def __len__(self) -> int: ...
    @property
    def nodes(self) -> Sequence[_Node]: ...
    @property
    def operations(self) -> Sequence[_Node]: ...
    @property
    def places(self) -> Sequence[str]: ...
    def digraph(self) -> networkx.DiGraph: ...
    def generations(self) -> Sequence[Sequence[_Node]]: ...
    def longest_chain(self) -> Sequence[_Node]: ...


def graph(
    graph: _Graph, *, longest_chain: bool = True, note: str = "", width_px: int = 0
) -> Picture:
    """Draw a traced `Graph`: an arrow leads from an operation to those that must come after it.

    Arrows that follow from others are left out. Operations in one column could run at the same
    time; rows are the places they ran on, and the longest chain of dependent ones is marked.
    Raises ValueError for a graph without nodes.
    """
    if not len(graph):
        raise ValueError(texts.ERROR_NO_NODES)
    columns = graph.generations()
    rows, bands = _rows(graph, columns)
    at = {
        node.number: (x, row)
        for x, column in enumerate(columns)
        for node, row in _stacked(column, rows)
    }
    height = max(last for _, last in bands.values()) + 1
    picture = Picture(
        summary=texts.GRAPH.format(operations=len(graph.operations), places=", ".join(bands)),
        note=note,
        size_px=(
            width_px or MARGIN_PX + max(COLUMN_PX * len(columns), 330),
            MARGIN_PX + ROW_PX * height,
        ),
    )
    ax = dress(picture.add_subplot())
    ax.set(xlim=(-0.6, len(columns) - 0.4), ylim=(height - 0.45, -0.55), xticks=[])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_yticks([(a + b) / 2 for a, b in bands.values()], labels=list(bands))
    for first, last in list(bands.values())[::2]:
        ax.axhspan(first - 0.5, last + 0.5, color="#F4F4F4", zorder=0)
    chain = {node.number for node in graph.longest_chain()} if longest_chain else set()
    _draw_edges(ax, graph, at, chain)
    for node in graph.nodes:
        _draw_node(ax, node, at[node.number], marked=node.number in chain)
    _explain(ax, graph, marked=bool(chain))
    return picture


def _rows(graph: _Graph, columns: Sequence[Sequence[_Node]]) -> tuple[Rows, Bands]:
    """The first row of each place, and the (first, last) rows of its band."""
    first: Rows = {}
    bands: Bands = {}
    row = 0
    for place in graph.places:
        tallest = max(Counter(n.place for n in column)[place] for column in columns)
        first[place], bands[place] = row, (row, row + tallest - 1)
        row += tallest
    return first, bands


def _stacked(column: Sequence[_Node], rows: Rows) -> Iterator[tuple[_Node, int]]:
    """The nodes of a column with their rows, from the top of each place's band."""
    seen: Counter[str] = Counter()
    for node in column:
        yield node, rows[node.place] + seen[node.place]
        seen[node.place] += 1


def _draw_edges(ax: Axes, graph: _Graph, at: Positions, chain: set[int]) -> None:
    for earlier, later in sorted(networkx.transitive_reduction(graph.digraph()).edges):
        (x0, y0), (x1, y1) = at[earlier], at[later]
        marked = {earlier, later} <= chain and x1 - x0 == 1
        ax.add_patch(
            FancyArrowPatch(
                (x0 + BOX[0] / 2, y0), (x1 - BOX[0] / 2, y1), arrowstyle="-|>", mutation_scale=9,
                color=VERMILION if marked else GREY, linewidth=2 if marked else 1,
                connectionstyle="arc3,rad=0" if y0 != y1 or x1 - x0 == 1 else "arc3,rad=-0.25",
                shrinkA=0, shrinkB=0, zorder=2 if marked else 1,
            )
        )  # fmt: skip


def _draw_node(ax: Axes, node: _Node, at: tuple[int, int], *, marked: bool) -> None:
    face, ink = STYLES[_style(node)]
    x, y = at
    ax.add_patch(
        FancyBboxPatch(
            (x - BOX[0] / 2, y - BOX[1] / 2), *BOX, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=face, edgecolor=VERMILION if marked else "white",
            linewidth=2 if marked else 1, zorder=3,
        )
    )  # fmt: skip
    lines = [node.name] if node.is_input else node.name.removesuffix("_data").split("_")
    label = "\n".join(lines)
    size = min(SMALL_PT - 1.2 * (len(lines) - 1), SMALL_PT * LINE_LENGTH / max(map(len, lines)))
    ax.text(x, y, label, ha="center", va="center", size=size, color=ink, zorder=4, linespacing=0.9)


def _style(node: _Node) -> str:
    if node.is_input:
        return "input"
    if node.is_copy:
        return "copy"
    return "host" if node.place == "host" else "device"


def _explain(ax: Axes, graph: _Graph, *, marked: bool) -> None:
    present = {_style(node) for node in graph.nodes}
    keys: list[Artist] = [
        Patch(facecolor=face, label=texts.NODES[style])
        for style, (face, _) in STYLES.items()
        if style in present
    ]
    if marked:
        keys.append(Patch(facecolor="white", edgecolor=VERMILION, label=texts.LONGEST_CHAIN))
    legend_above(figure_of(ax), columns=len(keys), entries=keys)
