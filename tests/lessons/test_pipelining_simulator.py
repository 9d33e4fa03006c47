"""The simulator of schedules that lesson 07 writes in its cells, against the package's."""

import cells
import pytest
from test_checks import solution

import d2lpar
from d2lpar import pipeline

SECONDS = {"F": 1.0, "B": 2.0}


@pytest.fixture(scope="module")
def lesson():
    return cells.functions("07", TwoParts=None, par=d2lpar)


def ends_by_the_package(orders):
    timeline = pipeline.simulate(orders, [pipeline.StageCost(1.0, 2.0)] * len(orders))
    return {span.name: span.end_s for span in timeline}


def ends_by_the_lesson(lesson, orders):
    times = lesson.simulate(orders, SECONDS)
    return {f"{s}{kind}{m}": end for (kind, m, s), (_, end) in times.items()}


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 6), (4, 8), (5, 3)])
def test_gpipe_ends_when_the_package_says(lesson, stages, micro_batches):
    orders = lesson.gpipe(stages, micro_batches)
    expected = ends_by_the_package(pipeline.orders(pipeline.gpipe(stages, micro_batches)))
    assert ends_by_the_lesson(lesson, orders) == expected
    bubble = 1 - micro_batches * sum(SECONDS.values()) / max(expected.values())
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 6), (4, 8), (5, 3)])
def test_1f1b_ends_when_the_package_says(lesson, stages, micro_batches):
    answer = solution("pipelining", "one_f_one_b")
    orders = [answer(stage, stages, micro_batches) for stage in range(stages)]
    expected = ends_by_the_package(pipeline.orders(pipeline.one_f_one_b(stages, micro_batches)))
    assert ends_by_the_lesson(lesson, orders) == expected


def test_two_stages_that_wait_for_each_other_are_named(lesson):
    first, second = [("F", 0), ("B", 0), ("F", 1), ("B", 1)], [("F", 1), ("F", 0), ("B", 0)]
    with pytest.raises(RuntimeError, match="deadlock"):
        lesson.simulate([first, second], SECONDS)


def length_s(name, stages, micro_batches, costs, sending):
    orders = pipeline.orders(pipeline.SCHEDULES[name](stages, micro_batches))
    return pipeline.simulate(orders, costs, handover_s=sending).duration_s


@pytest.mark.parametrize(
    ("sending", "gpipe", "one_f_one_b"),
    [(0, 12, 12), (1, 14, 16)],  # worked by hand, for 2 stages and 3 micro-batches
)
def test_1f1b_waits_longer_than_gpipe_only_where_sending_takes_time(sending, gpipe, one_f_one_b):
    costs = [pipeline.StageCost(1.0, 2.0)] * 2
    lengths = [length_s(name, 2, 3, costs, sending) for name in ("gpipe", "1f1b")]
    assert lengths == [gpipe, one_f_one_b]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 6), (4, 8), (4, 32)])
def test_gpipe_waits_for_what_is_sent_on_the_way_there_and_back_only(stages, micro_batches):
    costs = [pipeline.StageCost(1.0, 2.0)] * stages
    free, sent = (length_s("gpipe", stages, micro_batches, costs, s) for s in (0, 0.5))
    assert sent - free == pytest.approx(2 * (stages - 1) * 0.5)
