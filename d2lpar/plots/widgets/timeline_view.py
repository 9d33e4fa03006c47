"""The view of a timeline in a notebook: what `timeline.traces.page` shows, as a widget."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from ...timeline import Timeline
from ...timeline.traces.page import page, page_data

if TYPE_CHECKING:
    from ipywidgets import Widget

MOST_SPANS = 300_000  # in one message to the page; of more there is the picture alone


def can_be_viewed(timeline: Timeline) -> bool:
    """Whether a notebook shows the widget. Colab takes those of others only when it is told to."""
    known = importlib.util.find_spec("anywidget") is not None and "google.colab" not in sys.modules
    return known and isinstance(timeline, Timeline) and 0 < len(timeline) <= MOST_SPANS


def timeline_view(
    timeline: Timeline,
    *,
    title: str = "",
    note: str = "",
    window_s: tuple[float, float] | None = None,
    show_chain: bool = False,
) -> Widget:
    """A widget of the whole timeline, which shows the window (start, end) at first.

    Raises ValueError if there is no span, ImportError without anywidget.
    """
    packed = page_data.packed(
        timeline.clock,
        timeline.spans,
        timeline.memory,
        title=title,
        note=note,
        window_s=window_s,
        show_chain=show_chain,
    )
    view: Widget = _view_type()(packed=packed)
    return view


@functools.cache
def _view_type() -> Any:
    """The widget's class; made late, as few programs show one."""
    import anywidget
    import traitlets

    class TimelineView(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
        _esm = page.SCRIPT.read_text(encoding="utf-8")
        _css = page.STYLE.read_text(encoding="utf-8")
        packed = traitlets.Unicode().tag(sync=True)

    return TimelineView
