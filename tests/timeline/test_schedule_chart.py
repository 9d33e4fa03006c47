"""Charts of pipelines: numbers in boxes that can be told apart."""

from collections import defaultdict
from itertools import pairwise

import pytest

from d2lpar import pipeline
from d2lpar.plots import schedule


def extents_by_row(figure):
    figure.draw_without_rendering()
    rows = defaultdict(list)
    for text in figure.axes[0].texts:
        rows[text.get_position()[1]].append(text.get_window_extent())
    return [sorted(row, key=lambda extent: extent.x0) for row in rows.values()]


def interleaved(ranks, micro_batches):
    half = pipeline.StageCost(0.005, 0.01)
    orders = pipeline.orders(pipeline.interleaved_1f1b(ranks, micro_batches, chunks=2))
    return pipeline.simulate(orders, [half] * 2 * ranks)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 6), (4, 8), (6, 12)])
def test_numbers_in_neighbouring_boxes_do_not_touch(ranks, micro_batches):
    rows = extents_by_row(schedule(interleaved(ranks, micro_batches)))
    assert len(rows) == ranks
    for row in rows:
        assert all(a.x1 + 2 < b.x0 for a, b in pairwise(row))


def test_every_box_of_a_small_schedule_has_its_number():
    rows = extents_by_row(schedule(interleaved(3, 6)))
    assert [len(row) for row in rows] == [24, 24, 24]


def test_numbers_of_wide_boxes_are_not_made_smaller():
    orders = pipeline.orders(pipeline.gpipe(2, 3))
    figure = schedule(pipeline.simulate(orders, [pipeline.StageCost(1, 1)] * 2))
    small = schedule(interleaved(3, 6))
    assert {t.get_size() for t in figure.axes[0].texts} == {10.5}
    assert {t.get_size() for t in small.axes[0].texts} == {8.0, 10.5}
