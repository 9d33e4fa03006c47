"""Charts of pipelines: a row a rank, a box a pass of a micro-batch, a colour a kind of pass."""

import re
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import texts
from .gantt_chart import gantt

PASSES = {
    "F": "forward", "B": "backward", "I": "inputs", "W": "weights", "R": "again",
}  # fmt: skip
_OPERATION = re.compile(r"(\d+)([FBIWR])(\d+)")


def schedule(
    timeline,
    *,
    ax: Axes | None = None,
    title: str = "",
    copies: bool = False,
    width_px: int = 720,
    **options,
) -> Figure:
    """Draw the passes of a pipeline: those spans of a timeline that are named as "2F0" is.

    A box holds the number of its micro-batch; in the second part of a network that a rank holds it
    has a prime ("3′"), two in the third. `copies=True` shows what is sent, too. Everything else is
    as in `gantt`, which takes the other options. Raises ValueError if there is no pass.
    """
    spans = [span for span in timeline.spans if _OPERATION.fullmatch(span.name)]
    first_stage = _first_stages(spans)
    shown = [
        _as_pass(span, first_stage[span.device])
        for span in spans
        if span.kind not in ("copy", "collective")
    ]
    if not shown:
        raise ValueError(texts.ERROR_NO_PASSES)
    if copies:
        shown += [replace(s, name="") for s in timeline.spans if s.kind == "copy"]
    return gantt(_Chart(shown, timeline.clock), ax=ax, title=title, width_px=width_px, **options)


@dataclass(frozen=True)
class _Chart:
    spans: list
    clock: str


def _first_stages(spans) -> dict[str, list[int]]:
    """The stages of each device, in order."""
    stages: dict[str, set[int]] = {}
    for span in spans:
        stages.setdefault(span.device, set()).add(int(_OPERATION.fullmatch(span.name)[1]))
    return {device: sorted(found) for device, found in stages.items()}


def _as_pass(span, stages: list[int]):
    stage, kind, micro_batch = _OPERATION.fullmatch(span.name).groups()
    name = micro_batch + "′" * stages.index(int(stage))
    return replace(span, kind=PASSES[kind], name=name, stream="")
