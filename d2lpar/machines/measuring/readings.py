"""What a measurement of a machine found."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """One thing measured on one device: the median of `repeats`, both quartiles, and the best.

    `probe` and `case` say what ("matmul", "float32"), `size` at which size (side of a matrix,
    bytes, threads), `unit` is "FLOP/s", "B/s" or "s": of rates the highest is best, of times the
    lowest.
    """

    device: str
    probe: str
    case: str
    size: int
    unit: str
    median: float
    lower_quartile: float
    upper_quartile: float
    best: float
    repeats: int

    def __post_init__(self) -> None:
        ordered = (self.lower_quartile, self.median, self.upper_quartile)
        if not 0 < min(ordered) <= max(ordered) < math.inf or sorted(ordered) != list(ordered):
            raise ValueError(f"quartiles and median must be above zero and ordered, not {ordered}")
        if not 0 < self.best < math.inf or self.repeats < 1:
            raise ValueError(
                f"best must be a number above zero and repeats from 1 on, not {self.best!r} and "
                f"{self.repeats!r}"
            )

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the median."""
        return (self.upper_quartile - self.lower_quartile) / (2 * self.median)
