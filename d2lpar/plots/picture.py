"""Figures that a notebook shows as one PNG of fixed size, and the outputs that hold them.

Figures are made without pyplot, so that none stays open and the inline backend never shows one
twice. Each has a `text/plain` that is the same in every run: the form that a strict nbval
compares well.
"""

from __future__ import annotations

import base64
import io
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from ..locale import label
from ..locale import pictures as in_language
from . import texts
from .style import INK, SMALL_PT, dress, write_plain_decades

if TYPE_CHECKING:
    from ipywidgets import Widget

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
DPI = 100
SIZE_PX = (700, 400)
STORED_COLORS = 32
FINAL_SCALE = 2  # a picture that stays has this many pixels per pixel shown, for dense screens

# Callbacks of widgets run in a thread of their own, beside the cell that draws.
drawing = threading.RLock()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, which shows pictures."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


def cell_number() -> int:
    """The number of the cell that runs; 0 where there is no notebook."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "execution_count", 0)


def few_colors(rgba: npt.ArrayLike) -> Image.Image:
    """Pixels [H, W, 4] in 256 colours: plenty for a plot, and a third of the bytes.

    Shades are off by up to a tenth, but that takes a fifth of the time of a median cut.
    """
    return _opaque(rgba).quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def encoded(rgba: npt.ArrayLike, colors: Image.Image | None = None) -> bytes:
    """PNG of pixels [H, W, 4], in the `colors` of a picture like it, which takes less time."""
    if colors is None:
        image = few_colors(rgba)
    else:
        image = _opaque(rgba).quantize(palette=colors, dither=Image.Dither.NONE)
    return _png(image, compress_level=3)


def _opaque(rgba: npt.ArrayLike) -> Image.Image:
    return Image.fromarray(np.asarray(rgba)).convert("RGB")


def encoded_to_stay(rgba: npt.ArrayLike) -> bytes:
    """PNG of pixels [H, W, 4] in half the bytes, for a picture that is stored.

    The colours that cover most of it stay exact, each other becomes the nearest of those.
    """
    pixels = np.asarray(rgba)[..., :3].astype(np.int32)
    packed, place, counts = np.unique(
        pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True
    )
    colors = np.stack((packed >> 16, packed >> 8 & 255, packed & 255), axis=1)
    kept = colors[np.argsort(-counts, kind="stable")[:STORED_COLORS]]
    nearest = np.square(colors[:, None] - kept).sum(axis=2).argmin(axis=1).astype(np.uint8)
    image = Image.fromarray(nearest[place].reshape(pixels.shape[:2]), "P")
    image.putpalette(kept.astype(np.uint8).tobytes())
    return _png(image, compress_level=9)


def _png(image: Image.Image, *, compress_level: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=compress_level)
    return buffer.getvalue()


def view_data(widget: Widget) -> dict[str, object]:
    """The data of an output that shows a widget."""
    # What widgets of release 7 and 8 both are to a page; only 8 can say so itself.
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {WIDGET_VIEW: view}


class Picture(Figure):
    """A matplotlib figure that a notebook shows as one PNG of `size_px` (width, height).

    `summary` is its `text/plain`: keep out of it what changes from run to run, because nbval
    compares it. `alt` (default: the summary) describes what is to be seen; it travels in the
    output's metadata, which nbval does not compare. `note` is printed small under the axes.
    `view()` makes a widget that a page shows in the picture's place while a kernel runs.
    """

    canvas: FigureCanvasAgg
    view: Callable[[], Widget] | None = None

    def __init__(
        self, *, summary: str, alt: str = "", note: str = "", size_px: tuple[int, int] = SIZE_PX
    ) -> None:
        width, height = size_px
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
        super().__init__((width / DPI, height / DPI), DPI, facecolor="white", layout=layout)
        FigureCanvasAgg(self)
        self.summary = texts.joined(summary, note)
        self.alt = alt
        if note:
            self.supxlabel(note, x=0.99, ha="right", size=SMALL_PT, color=INK)

    def draw(self, renderer: RendererBase) -> None:
        """As any figure; only now is it known which words it has, and which axes a log scale."""
        in_language.write(self)
        for ax in self.axes:
            write_plain_decades(ax)
        super().draw(renderer)

    def png(self, *, scale: int = FINAL_SCALE) -> bytes:
        """The picture as PNG, `scale` times `size_px` large."""
        with drawing:
            self.dpi = DPI * scale
            try:
                self.canvas.draw()
                return encoded_to_stay(self.canvas.buffer_rgba())
            finally:
                self.dpi = DPI

    def bundle(self, png: bytes) -> tuple[dict, dict]:
        """(data, metadata) of the display message that shows `png` in this picture's place."""
        width, height = (round(inches * DPI) for inches in self.get_size_inches())
        data: dict[str, object] = {} if self.view is None else view_data(self.view())
        data |= {"image/png": base64.b64encode(png).decode(), "text/plain": self.summary}
        shown = {"width": width, "height": height, "alt": label(self.alt or self.summary)}
        return data, {"image/png": shown}

    # Not `_repr_mimebundle_`: once pyplot is imported its formatter for figures wins over that.
    def _ipython_display_(self) -> None:
        PictureSlot().open(self, self.png())


def axes(
    *, summary: str, alt: str = "", note: str = "", size_px: tuple[int, int] = SIZE_PX
) -> Axes:
    """Axes in the course's dress, to draw on; their `figure` is a `Picture`, the thing to show."""
    return dress(Picture(summary=summary, alt=alt, note=note, size_px=size_px).add_subplot())


class PictureSlot:
    """An output of a cell whose picture can be replaced in place."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()

    def open(self, picture: Picture, png: bytes) -> None:
        """Add an output to the running cell; all that were opened here follow the updates."""
        data, metadata = picture.bundle(png)
        self._handle.display(data, metadata=metadata, raw=True)

    def update(self, picture: Picture, png: bytes) -> None:
        """Show another picture in all of them."""
        data, metadata = picture.bundle(png)
        self._handle.update(data, metadata=metadata, raw=True)
