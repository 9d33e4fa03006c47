"""Predictions of the simulator beside figures that others have published."""

from .command import main
from .recording import recorded, trust
from .report import Comparison, Report
from .rows import PublishedFigure, RowError, read_rows
from .runner import measure, predict, validate

__all__ = [
    "Comparison",
    "PublishedFigure",
    "Report",
    "RowError",
    "main",
    "measure",
    "predict",
    "read_rows",
    "recorded",
    "trust",
    "validate",
]
