"""Pictures that a program draws with matplotlib itself get a text for those who cannot see them,
and words in the reader's language.

Those of `plots` have one. What pyplot shows in a notebook, such as curves of the textbook's
functions, has none; here it is made from the labels that are drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from ..locale import pictures as in_language

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

PNG = "image/png"
OF, AGAINST, UNLABELLED = "Plot of {what}", "{y} against {x}", "what has no labels"


def describe(shell: InteractiveShell) -> None:
    """From now on this shell sends a text with each such picture, unless it has one."""
    formatter: Any = shell.display_formatter
    if formatter is None or "format" in vars(formatter):
        return
    formats = formatter.format

    def described(shown: object, *args: Any, **kwargs: Any) -> tuple[dict, dict]:
        if _is_figure(shown):
            in_language.write(shown)
        data, metadata = formats(shown, *args, **kwargs)
        if PNG in data and _is_figure(shown):
            metadata.setdefault(PNG, {}).setdefault("alt", text_of(shown))
        return data, metadata

    formatter.format = described


def _is_figure(shown: object) -> TypeGuard[Any]:
    drawing = sys.modules.get("matplotlib.figure")
    return drawing is not None and isinstance(shown, drawing.Figure)


def text_of(figure: Any) -> str:
    """What a figure's axes say that they show."""
    said = "; ".join(filter(None, map(_said_by, figure.axes)))
    return OF.format(what=said or UNLABELLED)


def _said_by(ax: Any) -> str:
    title, x = ax.get_title(), ax.get_xlabel()
    y = ", ".join(_curves(ax)) or ax.get_ylabel()
    plotted = AGAINST.format(y=y, x=x) if x and y else y or x
    return ": ".join(filter(None, (title, plotted)))


def _curves(ax: Any) -> Iterator[str]:
    """What the legend calls them."""
    legend = ax.get_legend()
    return (text.get_text() for text in legend.get_texts()) if legend else iter(())
