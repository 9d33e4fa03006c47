"""How many steps training takes, by its batch: a larger one takes fewer, up to a point.

A batch of B samples needs S_min (1 + B_crit / B) steps to a target, and so E_min (1 + B / B_crit)
samples, E_min = S_min B_crit (McCandlish et al. 2018, An Empirical Model of Large-Batch Training,
arXiv:1812.06162). Below the critical batch B_crit twice the batch is nearly half the steps; far
above it the steps stay the same and the work doubles. Shallue et al. (2018, arXiv:1811.03600)
measured such curves for many networks, each point at its best learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

from ...timeline.inputs import Positive, check_fields, checked

_ROUNDS = 50  # of reweighting; it settles in about ten
_HUBER = 1.345  # in units of the errors' deviation: Huber (1981), 95 % efficient on normal errors
_DEVIATION = 1.4826  # of normal errors, in units of their median
_EXACT = 1e-9  # relative errors below this are rounding


@dataclass(frozen=True)
class Convergence:
    """Steps to a target: never less than `min_steps`; twice that at the critical batch."""

    min_steps: float
    critical_batch: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not (0 < self.min_steps < inf and 0 < self.critical_batch < inf):
            raise ValueError(
                "min_steps and critical_batch must be numbers above zero, not "
                f"{self.min_steps!r} and {self.critical_batch!r}"
            )

    @checked
    def steps(self, samples: Positive) -> float:
        """Steps to the target with so many samples in each."""
        return self.min_steps * (1 + self.critical_batch / samples)

    @checked
    def examples(self, samples: Positive) -> float:
        """Samples to the target, repeated ones counted again."""
        return self.steps(samples) * samples


@checked
def fit_convergence(steps: Mapping[float, float]) -> Convergence:
    """The convergence that fits measured steps to the target by batch: {64: 9000, 512: 1600}.

    Relative errors are least in squares; those far out count linearly only (Huber 1981), so that
    one run that went wrong moves little. Raises ValueError for less than three batches, values that
    are not above zero, and points that show no floor, or no gain from a larger batch.
    """
    _check(steps)
    points = [(1 / batch, float(count)) for batch, count in steps.items()]
    weights = [1.0] * len(points)
    for _ in range(_ROUNDS):
        floor, slope = _line(points, weights)
        errors = [abs((floor + slope * x) / y - 1) for x, y in points]
        limit = _HUBER * _DEVIATION * median(errors)
        weights = [1.0 if e <= max(limit, _EXACT) else limit / e for e in errors]
    if floor <= 0 or slope <= 0:
        raise ValueError(
            "the steps fall as fast as the batch grows: no floor is seen; measure larger batches"
            if floor <= 0
            else "the steps do not fall as the batch grows; measure smaller batches, each at its "
            "best learning rate"
        )
    return Convergence(floor, slope / floor)


def _check(steps: Mapping[float, float]) -> None:
    wrong = {b: s for b, s in steps.items() if not (_above_zero(b) and _above_zero(s))}
    if wrong:
        raise ValueError(f"batches and steps must be finite numbers above zero, not {wrong}")
    if len(steps) < 3:
        raise ValueError(
            f"two numbers are fitted, and three batches show how well; there are {len(steps)}"
        )


def _above_zero(value: float) -> bool:
    return isfinite(value) and value > 0


def _line(points: list[tuple[float, float]], weights: list[float]) -> tuple[float, float]:
    """a and c that make the weighted squares of (a + c x) / y - 1 least."""
    aa = ac = cc = a1 = c1 = 0.0
    for (x, y), weight in zip(points, weights, strict=True):
        u, v = 1 / y, x / y
        aa += weight * u * u
        ac += weight * u * v
        cc += weight * v * v
        a1 += weight * u
        c1 += weight * v
    determinant = aa * cc - ac * ac
    return (a1 * cc - c1 * ac) / determinant, (c1 * aa - a1 * ac) / determinant
