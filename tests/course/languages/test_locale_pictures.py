"""The words of pictures in another language: written by a font that has them, or left English."""

from __future__ import annotations

import io
import warnings

import matplotlib
import pytest
from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.figure import Figure

from d2lpar import locale, plots
from d2lpar.locale import pictures

NAME = "Noto Sans CJK SC"


@pytest.fixture
def chinese(monkeypatch):
    """Chinese for the block, with the fonts and settings as they were afterwards."""
    monkeypatch.setenv(locale.VARIABLE, "zh")
    monkeypatch.setattr(pictures, "FONTS", {"zh": (NAME,)})
    monkeypatch.setattr(pictures, "_of_package", lambda: None)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", font_manager.fontManager.ttflist[:])
    there = [f for f in font_manager.fontManager.ttflist if f.name != NAME]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", there)
    pictures._font.cache_clear()
    with matplotlib.rc_context():
        yield
    pictures._font.cache_clear()


@pytest.fixture
def font(chinese, tmp_path):
    """A font that writes an A for each character of some Chinese words."""
    file = tmp_path / "font.ttf"
    own = TTFont(font_manager.findfont("DejaVu Sans"))
    words = "".join(map(locale.label, ("memory", "host")))
    for table in own["cmap"].tables:
        if table.isUnicode():
            table.cmap |= dict.fromkeys(map(ord, words), "A")
    for record in own["name"].names:
        if record.nameID in (1, 4, 16):
            record.string = NAME
    own.save(file)
    font_manager.fontManager.addfont(file)


def drawn(figure):
    """Draws it, and fails where a character has no glyph."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO(), format="png")


def test_a_picture_has_the_words_of_the_language(font):
    ax = plots.axes(summary="memory")
    ax.bar(["host", "x"], [1, 2])
    ax.set(xlabel="memory", title="not a word of ours")
    drawn(ax.figure)
    assert ax.get_xlabel() == "内存"
    assert ax.get_title() == "not a word of ours"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["主机", "x"]
    assert NAME in ax.xaxis.label.get_fontfamily()


def test_a_figure_of_pyplots_has_them_too(font):
    figure = Figure()
    ax = figure.subplots()
    ax.plot([1, 2], label="host")
    ax.legend()
    pictures.write(figure)
    drawn(figure)
    assert ax.get_legend().get_texts()[0].get_text() == "主机"


def test_without_a_font_a_picture_stays_english_and_says_which_package_has_one(chinese):
    ax = plots.axes(summary="memory")
    ax.set_xlabel("memory")
    with pytest.warns(UserWarning, match="mplfonts"):
        ax.figure.png()
    assert ax.get_xlabel() == "memory"
    drawn(ax.figure)  # and says it once


def test_english_pictures_are_left_alone(monkeypatch):
    monkeypatch.setenv(locale.VARIABLE, "en")
    ax = plots.axes(summary="memory")
    ax.set_xlabel("memory")
    family = ax.xaxis.label.get_fontfamily()
    drawn(ax.figure)
    assert (ax.get_xlabel(), ax.xaxis.label.get_fontfamily()) == ("memory", family)
