"""Solutions of the exercises of lesson 02; `tests/answers/test_checks.py` runs them."""

import math


def mean_loss(step, batches) -> float:
    """The sum stays on the device until the end."""
    total = 0
    for X, y in batches:
        total = total + step(X, y).detach()
    return total.item() / len(batches)


def fewest_workers(read_s, step_s) -> int:
    """n workers deliver a batch every read_s / n seconds."""
    return max(1, math.ceil(read_s / step_s))
