"""Solutions of the exercises of lesson 01; `tests/answers/test_checks.py` runs them."""

import math


def linear_intensity(n, inputs, outputs, bytes_each) -> float:
    """X and Y once for each row, weight and bias once."""
    flops = 2 * n * inputs * outputs
    numbers = n * inputs + n * outputs + inputs * outputs + outputs
    return flops / (bytes_each * numbers)


def batch_at_ridge(accelerator, inputs, outputs):
    """Where 2 n i o = 4 ridge (n (i + o) + i o + o), solved for n and rounded up."""
    ridge = accelerator.ridge_point("float32")
    gain_a_row = 2 * inputs * outputs - 4 * ridge * (inputs + outputs)
    if gain_a_row <= 0:
        return None
    return math.ceil(
        4 * ridge * (inputs * outputs + outputs) / gain_a_row
    )
