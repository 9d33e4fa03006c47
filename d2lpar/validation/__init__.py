"""Predictions of the simulator beside figures that others have published."""

from .command import main
from .report import Prediction, Report
from .rows import Row, RowError, read_rows
from .runner import predict, validate

__all__ = ["Prediction", "Report", "Row", "RowError", "main", "predict", "read_rows", "validate"]
