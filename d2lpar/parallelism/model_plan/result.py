"""A plan of a model: its figures, and what is printed of them."""

from __future__ import annotations

from dataclasses import dataclass

from . import answer, report
from .figures import Figures


@dataclass(frozen=True)
class ModelPlan(Figures):
    """What a model takes on a machine; printed, it is what `d2lpar plan` says."""

    def __str__(self) -> str:
        return report.text(answer.answer(self))
