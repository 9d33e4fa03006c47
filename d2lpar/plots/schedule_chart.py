"""Charts of pipelines: a row a rank, a box a pass of a micro-batch, a colour a kind of pass."""

import re
from dataclasses import replace
from typing import Unpack

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..timeline import Span, Timeline
from . import texts
from .gantt_chart import GanttOptions, gantt

PASSES = {
    "F": "forward", "B": "backward", "I": "inputs", "W": "weights", "R": "again",
}  # fmt: skip
WIDTH_PX = 720
_OPERATION = re.compile(r"(\d+)([FBIWR])(\d+)")


def schedule(
    timeline: Timeline,
    *,
    ax: Axes | None = None,
    title: str = "",
    **options: Unpack[GanttOptions],
) -> Figure:
    """Draw the passes of a pipeline: those spans of a timeline that are named as "2F0" is.

    A box holds the number of its micro-batch; in the second part of a network that a rank holds it
    has a prime ("3′"), two in the third. Everything else is as in `gantt`, which takes the other
    options. Raises ValueError if there is no pass.
    """
    named = [(s, match) for s in timeline.spans if (match := _OPERATION.fullmatch(s.name))]
    stages = _stages(named)
    shown = [
        _as_pass(span, match, stages[span.device])
        for span, match in named
        if span.kind not in ("copy", "collective")
    ]
    if not shown:
        raise ValueError(texts.ERROR_NO_PASSES)
    passes = Timeline(timeline.clock, shown, timeline.memory)
    return gantt(passes, ax=ax, title=title, width_px=WIDTH_PX, **options)


def _stages(named: list[tuple[Span, re.Match[str]]]) -> dict[str, list[int]]:
    """The stages of each device, in order."""
    stages: dict[str, set[int]] = {}
    for span, match in named:
        stages.setdefault(span.device, set()).add(int(match[1]))
    return {device: sorted(found) for device, found in stages.items()}


def _as_pass(span: Span, match: re.Match[str], stages: list[int]) -> Span:
    stage, kind, micro_batch = match.groups()
    name = micro_batch + "′" * stages.index(int(stage))
    return replace(span, kind=PASSES[kind], name=name, stream="")
