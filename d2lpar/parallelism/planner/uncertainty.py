"""How far a predicted step may be off, by what published figures of its kind say.

The level of a step is known less well than the order of two mixes that differ in one thing: kernels
that are taken for too fast are so in both. Nevertheless a difference below the error of the whole
is not one to build on, and plans that are so close are called ties.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...machines.hardware import Accelerator
from ...timeline.inputs import checked
from . import messages
from .plan import Plan

# The median error, without its sign, of the transformers whose sources were held apart: 40 figures
# up to A100, and 34 from H100 (`make validate` has the rows).
UP_TO_A100, FROM_H100 = 0.13, 0.12
FROM_HOPPER_ON = ("hopper", "blackwell")  # architectures


@checked
def relative_uncertainty(accelerator: Accelerator) -> float:
    """The share by which a transformer's step on such GPUs is typically off: 0.2 is 20 %."""
    return FROM_H100 if accelerator.architecture in FROM_HOPPER_ON else UP_TO_A100


@checked
def ties(found: Sequence[Plan]) -> list[Plan]:
    """Of `plans(…)` those that fit and are not slower than the first by more than its uncertainty,
    the first included; none if it does not fit. Raises ValueError without any plan."""
    if not found:
        raise ValueError(messages.ERROR_NO_PLANS)
    first = found[0]
    if not first.fits:
        return []
    most_s = first.step_s * (1 + first.uncertainty)
    return [plan for plan in found if plan.fits and plan.step_s <= most_s]
