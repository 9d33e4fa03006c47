"""Whether `--shapes-only` would make a run much quicker: if computing values takes most of it."""

from __future__ import annotations

WORTH_S = 10.0  # a shorter run is quick enough
MOST = 0.5  # of the real time


def advice(values_s: float, real_s: float) -> str:
    """What to say of a run whose values have taken `values_s` of `real_s` seconds; "" for nothing.

    Without values nothing is left of `values_s`, so none is advised where other work takes longer.
    """
    if real_s < WORTH_S or values_s < MOST * real_s:
        return ""
    return f"{values_s / real_s:.0%} of it to compute values, which --shapes-only leaves out"
