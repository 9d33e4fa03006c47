"""The slowest of many devices, against normal values that are really drawn.

Blom's formula is 4 % above what two draws come to, and closer for more.
"""

from __future__ import annotations

from statistics import NormalDist, mean

import pytest

from d2lpar.machines.variability import SPREAD, WHISKERS, slowest_of


def test_one_device_is_the_middle_one():
    assert slowest_of(1) == 1.0


@pytest.mark.parametrize("count", [2, 8, 100])
def test_the_slowest_is_the_largest_of_so_many_draws(count):
    values = NormalDist(1.0, SPREAD).samples(count * 2000, seed=count)
    largest = mean(max(values[i : i + count]) for i in range(0, len(values), count))
    assert slowest_of(count) - 1 == pytest.approx(largest - 1, rel=0.08)


def test_the_spread_is_that_of_a_box_plots_whiskers():
    quartile = NormalDist(0.0, SPREAD).inv_cdf(0.75)
    assert 2 * (quartile + 1.5 * 2 * quartile) == pytest.approx(WHISKERS)


def test_no_device_has_no_slowest():
    with pytest.raises(ValueError, match="the slowest of 0 devices"):
        slowest_of(0)
