"""Bubbles by formula: how much of a step ranks idle if stages are equal and sending is free."""

from __future__ import annotations

from ...timeline.inputs import Count, NotNegative, Positive, checked
from .schedules import SCHEDULES


@checked
def ideal_bubble(
    schedule: str,
    ranks: Count,
    micro_batches: Count,
    *,
    chunks: Count = 2,
    forward_s: Positive = 1.0,
    inputs_s: NotNegative = 1.0,
    weights_s: NotNegative = 1.0,
) -> float:
    """The bubble of one of `SCHEDULES`, 0 to 1, for p ranks and M micro-batches.

    * "gpipe" and "1f1b": (p - 1) / (M + p - 1), of Huang et al., "GPipe" (2019), section 2.3;
    * "interleaved" with v `chunks` a rank: (p - 1) / (v M + p - 1), of Narayanan et al. (2021),
      section 2.2, who divide by the work and not by the step;
    * "zero_bubble_h1": (p - 1) (F + I - W) seconds, of Qi et al. (2024), table 2, where W is not
      longer than I, and M is p at least. F, I and W are what a rank takes for a micro-batch:
      `forward_s`, `inputs_s` and `weights_s`, on which the others do not depend.

    Raises ValueError for another schedule, and where the formula does not hold.
    """
    if schedule in ("gpipe", "1f1b"):
        return (ranks - 1) / (micro_batches + ranks - 1)
    if schedule == "interleaved":
        return (ranks - 1) / (chunks * micro_batches + ranks - 1)
    if schedule != "zero_bubble_h1":
        raise ValueError(f"a schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if micro_batches < ranks or weights_s > inputs_s:
        raise ValueError(
            f"the formula of ZB-H1 is for as many micro-batches as ranks, not {micro_batches} on "
            f"{ranks}, and for W not longer than I, not {weights_s} and {inputs_s}: simulate it"
        )
    idle_s = (ranks - 1) * (forward_s + inputs_s - weights_s)
    return idle_s / (idle_s + micro_batches * (forward_s + inputs_s + weights_s))
