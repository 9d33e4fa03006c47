"""GPUs of one kind differ: many that wait for one another go at the pace of their slowest.

Sinha et al., "Not All GPUs Are Created Equal" (SC 2022, arXiv 2208.11035), measured over 90 % of
the GPUs of five clusters: 8 % lie on average between the fastest and the slowest of a kind, which
differ in what their chips draw and so in their clocks. Taken as the span of a box plot's whiskers
(outliers, up to 1.5 times slower, are beyond them) and as a normal distribution, that are 5.4
standard deviations: four times the middle half, of 1.35 each.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

WHISKERS = 0.08
SPREAD = WHISKERS / (4 * 2 * NormalDist().inv_cdf(0.75))  # standard deviation of seconds


@lru_cache(maxsize=1024)
def slowest_of(count: int, spread: float = SPREAD) -> float:
    """How many times as long as the middle one the slowest of `count` devices computes.

    The largest of n normal values is expected where a share (n - 3/8) / (n + 1/4) lies below
    (Blom 1958). Raises ValueError for less than one device.
    """
    if count < 1:
        raise ValueError(f"the slowest of {count!r} devices: there must be one at least")
    return 1 + spread * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
