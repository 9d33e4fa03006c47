"""Wrong answers to the exercises of lesson 01, and what they are told."""

import math

import pytest

from d2lpar import checks


def forgets_the_weights(n, inputs, outputs, bytes_each):
    return 2 * n * inputs * outputs / (bytes_each * (n * inputs + n * outputs))


def counts_a_product_as_one(n, inputs, outputs, bytes_each):
    numbers = n * inputs + n * outputs + inputs * outputs + outputs
    return n * inputs * outputs / (bytes_each * numbers)


def always_four_bytes(n, inputs, outputs, bytes_each):
    numbers = n * inputs + n * outputs + inputs * outputs + outputs
    return 2 * n * inputs * outputs / (4 * numbers)


def the_other_way_round(n, inputs, outputs, bytes_each):
    numbers = n * inputs + n * outputs + inputs * outputs + outputs
    return bytes_each * numbers / (2 * n * inputs * outputs)


def weights_alone(accelerator, inputs, outputs):
    """Plausible: n rows use each of the weights n times."""
    return math.ceil(accelerator.ridge_point("float32") * 4 / 2)


def never_none(accelerator, inputs, outputs):
    n = 1
    while n < 10**5 and 2 * n * inputs * outputs / (
        4 * (n * inputs + n * outputs + inputs * outputs + outputs)
    ) < accelerator.ridge_point("float32"):
        n += 1
    return n


def one_too_many(accelerator, inputs, outputs):
    found = never_none(accelerator, inputs, outputs)
    return None if found == 10**5 else found + 1


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("linear_intensity", forgets_the_weights, "expected"),
        ("linear_intensity", counts_a_product_as_one, "2 FLOP"),
        ("linear_intensity", always_four_bytes, "512, 10, 2"),
        ("linear_intensity", the_other_way_round, "each once"),
        ("batch_at_ridge", weights_alone, "ridge"),
        ("batch_at_ridge", never_none, "expected None"),
        ("batch_at_ridge", one_too_many, "expected"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text
