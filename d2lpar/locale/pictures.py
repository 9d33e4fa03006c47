"""The words of pictures in the reader's language, where there is a font that can write them."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import ENGLISH, chosen, label

# What systems have, Noto's first; `mplfonts` is a package that brings the second file.
FONTS = {
    "zh": (
        *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
        *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti", "Microsoft YaHei", "SimHei"),
        *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS"),
    )
}
PACKAGE, FILE = "mplfonts", "fonts/NotoSansCJKsc-Regular.otf"
NO_FONT = "no font here has the characters of {language!r}, so pictures have English words: "
NO_FONT += f"pip install {PACKAGE}, or install one of {{fonts}}, and start the kernel anew"


def write(figure: Any) -> None:
    """Put the words of a figure of matplotlib's, those of its ticks too, into the language."""
    if chosen() == ENGLISH:
        return
    font = _font(chosen())
    if font is None:
        return
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            places = axis.get_majorticklocs()
            names = [str(name) for name in axis.get_major_formatter().format_ticks(places)]
            if (own := [label(name) for name in names]) != names:
                axis.set_ticks(places, own)
    for text in figure.findobj(_of("text").Text):
        if font and font not in text.get_fontfamily():
            text.set_fontfamily([*text.get_fontfamily(), font])
        if text.get_text():
            text.set_text(label(text.get_text()))


def _of(name: str) -> Any:
    """A module of matplotlib's: where there is a figure it has been imported."""
    return sys.modules[f"matplotlib.{name}"]


@cache
def _font(language: str) -> str | None:
    """The font that pictures fall back on from now on; "" if none is needed, None if there is none
    and pictures stay English."""
    if language not in FONTS:
        return ""
    name = _installed(FONTS[language]) or _of_package()
    if name is None:
        told = NO_FONT.format(language=language, fonts=", ".join(FONTS[language]))
        warnings.warn(told, stacklevel=2)
        return None
    settings = sys.modules["matplotlib"].rcParams
    settings["font.family"] = [*settings["font.family"], name]
    return name


def _installed(names: tuple[str, ...]) -> str | None:
    there = {font.name for font in _of("font_manager").fontManager.ttflist}
    return next((name for name in names if name in there), None)


def _of_package() -> str | None:
    spec = find_spec(PACKAGE)
    file = Path(spec.origin or "").parent / FILE if spec else None
    if file is None or not file.is_file():
        return None
    _of("font_manager").fontManager.addfont(str(file))
    return str(_of("font_manager").FontProperties(fname=str(file)).get_name())
