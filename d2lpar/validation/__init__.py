"""Predictions of the simulator beside figures that others have published.

What was predicted when all was last validated is read without what predicts, which takes a second
to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .command import main as main
    from .recording import recorded as recorded
    from .recording import trust as trust
    from .report import Comparison as Comparison
    from .report import Report as Report
    from .rows import PublishedFigure as PublishedFigure
    from .rows import RowError as RowError
    from .rows import read_rows as read_rows
    from .runner import measure as measure
    from .runner import predict as predict
    from .runner import validate as validate

_HOME = {
    **dict.fromkeys(("Comparison", "Report"), "report"),
    **dict.fromkeys(("PublishedFigure", "RowError", "read_rows"), "rows"),
    **dict.fromkeys(("measure", "predict", "validate"), "runner"),
    **dict.fromkeys(("recorded", "trust"), "recording"),
    "main": "command",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
