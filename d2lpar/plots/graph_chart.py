"""Dependency graphs: operations as boxes from top to bottom, a band for each place they ran on."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import networkx
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from . import texts
from .gantt_chart import LINE_PX
from .picture import Picture
from .style import (
    BLUE,
    FONT_PT,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    VERMILION,
    dress,
    legend_above,
)

Columns = dict[str, int]
Bands = dict[str, tuple[int, int]]
Levels = Sequence[Sequence["_Node"]]
Positions = dict[int, tuple[int, int]]

BOX = (0.86, 0.74)  # width in a column, height in a row
COLUMN_PX, NARROW_PX, ROW_PX, MARGIN_PX = 116, 72, 42, 74
WIDTH_PX = 760  # of all but very wide graphs, so that slides show letters of one size
LABEL_PT, LEAST_PT = 9, 7  # 7 pt are 9.7 pixels
LINE_LENGTH = 11  # characters of a label that fit into a line
PX_PER_PT = 0.85  # of a character's width, with room
KEY_PX = 170  # for an entry of the legend
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
    def longest_chain(self) -> Sequence[_Node]: ...


def graph(graph: _Graph, *, note: str = "") -> Picture:
    """Draw a traced `Graph`: an arrow leads from an operation to those that must come after it.

    Arrows that follow from others are left out. Each operation is as far down as those that need it
    allow, and operations side by side could run at the same time. Bands are the places they ran on,
    and the longest chain of dependent ones is marked. Raises ValueError for a graph without nodes.
    """
    if not len(graph):
        raise ValueError(texts.ERROR_NO_NODES)
    levels = _levels(graph)
    columns, bands = _columns(graph, levels)
    at = {
        node.number: (column, y)
        for y, level in enumerate(levels)
        for node, column in _side_by_side(level, columns)
    }
    width = max(last for _, last in bands.values()) + 1
    column_px = max(NARROW_PX, min(COLUMN_PX, WIDTH_PX / width))
    chain = {node.number for node in graph.longest_chain()}
    keys = _keys(graph, marked=bool(chain))
    width_px = max(WIDTH_PX, round(column_px * width))
    lines = math.ceil(len(keys) * KEY_PX / width_px)
    picture = Picture(
        summary=texts.GRAPH.format(operations=len(graph.operations), places=", ".join(bands)),
        note=note,
        size_px=(width_px, MARGIN_PX + LINE_PX * lines + ROW_PX * len(levels)),
    )
    ax = dress(picture.add_subplot())
    room = max(width, width_px / column_px)  # in columns; those that are missing stay white
    ax.set(xlim=(-0.55, room - 0.45), ylim=(len(levels) - 0.5, -0.6), yticks=[])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labeltop=True, labelbottom=False, labelsize=FONT_PT)
    ax.set_xticks([(a + b) / 2 for a, b in bands.values()], labels=list(bands))
    for first, last in list(bands.values())[::2]:
        ax.axvspan(first - 0.5, last + 0.5, color="#F4F4F4", zorder=0)
    _draw_edges(ax, graph, at, chain)
    for node in graph.nodes:
        _draw_node(ax, node, at[node.number], marked=node.number in chain, column_px=column_px)
    legend_above(picture, columns=math.ceil(len(keys) / lines), entries=keys)
    return picture


def _levels(graph: _Graph) -> Levels:
    """The nodes from top to bottom: each one above those that need it, and no higher."""
    backward = networkx.topological_generations(graph.digraph().reverse())
    return [[graph.nodes[number] for number in sorted(level)] for level in backward][::-1]


def _columns(graph: _Graph, levels: Levels) -> tuple[Columns, Bands]:
    """The first column of each place, and the (first, last) columns of its band."""
    first: Columns = {}
    bands: Bands = {}
    column = 0
    for place in graph.places:
        widest = max(Counter(n.place for n in level)[place] for level in levels)
        first[place], bands[place] = column, (column, column + widest - 1)
        column += widest
    return first, bands


def _side_by_side(level: Sequence[_Node], columns: Columns) -> Iterator[tuple[_Node, int]]:
    """The nodes of a level with their columns, from the left of each place's band."""
    seen: Counter[str] = Counter()
    for node in level:
        yield node, columns[node.place] + seen[node.place]
        seen[node.place] += 1


def _draw_edges(ax: Axes, graph: _Graph, at: Positions, chain: set[int]) -> None:
    for earlier, later in sorted(networkx.transitive_reduction(graph.digraph()).edges):
        (x0, y0), (x1, y1) = at[earlier], at[later]
        marked = {earlier, later} <= chain and y1 - y0 == 1
        ax.add_patch(
            FancyArrowPatch(
                (x0, y0 + BOX[1] / 2), (x1, y1 - BOX[1] / 2), arrowstyle="-|>", mutation_scale=9,
                color=VERMILION if marked else GREY, linewidth=2 if marked else 1,
                connectionstyle="arc3,rad=0" if x0 != x1 or y1 - y0 == 1 else "arc3,rad=-0.3",
                shrinkA=0, shrinkB=0, zorder=2 if marked else 1,
            )
        )  # fmt: skip


def _draw_node(
    ax: Axes, node: _Node, at: tuple[int, int], *, marked: bool, column_px: float
) -> None:
    face, ink = STYLES[_style(node)]
    x, y = at
    ax.add_patch(
        FancyBboxPatch(
            (x - BOX[0] / 2, y - BOX[1] / 2), *BOX, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=face, edgecolor=VERMILION if marked else "white",
            linewidth=2 if marked else 1, zorder=3,
        )
    )  # fmt: skip
    words = node.name if node.is_input else node.name.removesuffix("_data").replace("_", " ")
    lines = textwrap.wrap(words, LINE_LENGTH)
    room_pt = BOX[0] * column_px / (PX_PER_PT * max(map(len, lines)))
    size = max(LEAST_PT, min(LABEL_PT, room_pt))
    ax.text(
        x, y, "\n".join(lines), ha="center", va="center", size=size, color=ink, zorder=4,
        linespacing=0.95,
    )  # fmt: skip


def _style(node: _Node) -> str:
    if node.is_input:
        return "input"
    if node.is_copy:
        return "copy"
    return "host" if node.place == "host" else "device"


def _keys(graph: _Graph, *, marked: bool) -> list[Artist]:
    """The entries of the legend."""
    present = {_style(node) for node in graph.nodes}
    keys: list[Artist] = [
        Patch(facecolor=face, label=texts.NODES[style])
        for style, (face, _) in STYLES.items()
        if style in present
    ]
    if marked:
        keys.append(Patch(facecolor="white", edgecolor=VERMILION, label=texts.LONGEST_CHAIN))
    return keys
