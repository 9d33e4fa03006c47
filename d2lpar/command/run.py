"""`d2lpar run`, whose report says how far off such runs typically are."""

from __future__ import annotations

from ..vgpu.programs import command
from ..vgpu.programs.report import RunReport


def main(arguments: list[str]) -> int:
    """Run a program; returns the exit status. Raises ValueError and OSError for wrong options."""
    return command.main(arguments, uncertainty_of)


def uncertainty_of(report: RunReport) -> float:
    """The median error of predictions of the group that a run belongs to, which is recorded with
    the published figures: what updates parameters is a program, what does not answers requests."""
    from ..validation import groups, recording  # which a mistaken command line does without

    trains = report.ms_per_step is not None
    return recording.uncertainty(groups.PROGRAMS if trains else groups.INFERENCE)
