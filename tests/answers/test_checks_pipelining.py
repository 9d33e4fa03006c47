"""Wrong answers to the exercises of lesson 07, and what they are told."""

import math
import random
from itertools import accumulate, combinations, pairwise

import pytest
from test_checks import solution

from d2lpar import checks
from d2lpar.checks import pipelining
from d2lpar.parallelism.pipeline.operations import orders
from d2lpar.parallelism.pipeline.schedules import one_f_one_b


def as_many_each(seconds, stages):
    """Plausible: what a list of layers is usually cut into."""
    return [len(seconds) // stages + (i < len(seconds) % stages) for i in range(stages)]


def filled(seconds, stages, full):
    """Stages filled one after the other, each until `full(held, next, mean)`."""
    mean, counts, held = sum(seconds) / stages, [0], 0
    for place, s in enumerate(seconds):
        room = len(counts) < stages
        must = len(seconds) - place == stages - len(counts)
        if counts[-1] and room and (must or full(held, s, mean)):
            counts, held = [*counts, 0], 0
        counts[-1] += 1
        held += s
    return counts


def as_far_as_the_mean(seconds, stages):
    """Plausible: no stage but the last has more than its share."""
    return filled(seconds, stages, lambda held, s, mean: held + s > mean)


def until_the_mean(seconds, stages):
    return filled(seconds, stages, lambda held, s, mean: held >= mean)


def nearest_to_the_mean(seconds, stages):
    """Plausible: the best that one can do without looking back."""
    return filled(seconds, stages, lambda held, s, mean: mean - held < held + s - mean)


def loses_the_last(seconds, stages):
    """Right but for the layer behind the last cut."""
    *counts, last = solution("pipelining", "balance")(seconds, stages)
    return [*counts, max(1, last - 1)]


def all_in_the_first(seconds, stages):
    return [len(seconds)] + [0] * (stages - 1)


def places_of_the_cuts(seconds, stages):
    return list(accumulate(solution("pipelining", "balance")(seconds, stages)))


def slowest_instead(seconds, stages):
    return max(seconds)


def scheduled(warm_up, *, first="F"):
    """1F1B with another number of forwards before the first backward."""

    def answer(rank, ranks, micro_batches):
        ahead = max(0, min(warm_up(rank, ranks, micro_batches), micro_batches))
        order = [("F", m) for m in range(ahead)]
        for m in range(micro_batches - ahead):
            pair = [("F", ahead + m), ("B", m)]
            order += pair if first == "F" else pair[::-1]
        return order + [("B", m) for m in range(micro_batches - ahead, micro_batches)]

    return answer


def all_forwards_first(rank, ranks, micro_batches):
    """Plausible: GPipe. Right, and just as short."""
    return scheduled(lambda r, k, m: m)(rank, ranks, micro_batches)


def last_forwards_from_one(rank, ranks, micro_batches):
    """Plausible: torch 2.13's visualiser numbers the last rank's forwards like this."""
    order = solution("pipelining", "one_f_one_b")(rank, ranks, micro_batches)
    if rank < ranks - 1:
        return order
    return [(kind, m + 1 if kind == "F" else m) for kind, m in order]


def warm_up_without_min(rank, ranks, micro_batches):
    """Plausible: right with as many micro-batches as ranks, or more."""
    ahead = ranks - 1 - rank
    order = [("F", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("F", ahead + m), ("B", m)]
    return order + [("B", m) for m in range(micro_batches - ahead, micro_batches)]


def forgets_the_last_backwards(rank, ranks, micro_batches):
    ahead = ranks - 1 - rank
    order = solution("pipelining", "one_f_one_b")(rank, ranks, micro_batches)
    return order[: len(order) - ahead]


def one_after_the_other(rank, ranks, micro_batches):
    """Right, and holds one micro-batch only: model parallelism."""
    return [(kind, m) for m in range(micro_batches) for kind in "FB"]


def last_backwards_reversed(rank, ranks, micro_batches):
    """Like GPipe's, but each rank has other ones to turn round."""
    order = solution("pipelining", "one_f_one_b")(rank, ranks, micro_batches)
    ahead = min(ranks - 1 - rank, micro_batches)
    return order[: len(order) - ahead] + order[len(order) - ahead :][::-1]


def names_instead(rank, ranks, micro_batches):
    return [f"{rank}F{m}" for m in range(micro_batches)]


def beside_the_work(stages, share):
    """Plausible: Megatron-LM's bubble, (K - 1) / M."""
    return max(1, math.ceil((stages - 1) / share))


def rounded_down(stages, share):
    return max(1, int((stages - 1) * (1 - share) / share))


def one_more(stages, share):
    return 1 + solution("pipelining", "fewest_micro_batches")(stages, share)


def less_than_the_share(stages, share):
    """Plausible: < instead of <=."""
    m = 1
    while (stages - 1) / (m + stages - 1) >= share:
        m += 1
    return m


def rounded_up_when_it_fits(stages, share):
    """Plausible: one more than what is left after rounding down, always."""
    return 1 + max(0, int((stages - 1) * (1 - share) / share))


def with_floats(stages, share):
    """Plausible: the right formula, with rounding errors."""
    return max(1, math.ceil((stages - 1) * (1 - share) / share))


def with_fewer_rounding_errors(stages, share):
    return max(1, math.ceil((stages - 1) / share) - (stages - 1))


def with_a_product(stages, share):
    m = 1
    while stages - 1 > share * (m + stages - 1):
        m += 1
    return m


def none_at_all(stages, share):
    return math.ceil(round((stages - 1) / share - (stages - 1), 9))


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("balance", as_many_each, "As many layers are not as much work"),
        ("balance", as_far_as_the_mean, "([4, 4, 4, 1, 1], 2): expected 8 s for the slowest"),
        ("balance", until_the_mean, "([3, 3, 8, 2], 2): expected 10 s for the slowest"),
        ("balance", nearest_to_the_mean, "compare whole cuts"),
        ("balance", loses_the_last, "are 5 layers, expected 6"),
        ("balance", all_in_the_first, "a layer at least in each stage"),
        ("balance", places_of_the_cuts, "every layer is in one stage"),
        ("balance", slowest_instead, "list of 2 numbers of layers"),
        ("balance", lambda seconds, stages: [len(seconds) / stages] * stages, "list of 2"),
        ("one_f_one_b", all_forwards_first, "rank 0 holds the activations of 8 micro-batches"),
        ("one_f_one_b", scheduled(lambda r, k, m: k - r), "rank 0 holds the activations of 5"),
        ("one_f_one_b", scheduled(lambda r, k, m: k), "rank 0 holds the activations of 5"),
        ("one_f_one_b", scheduled(lambda r, k, m: k - 2 - r), "slots; expected 22, GPipe's"),
        ("one_f_one_b", scheduled(lambda r, k, m: k - 1 - r, first="B"), "3B0 needs 3F0"),
        ("one_f_one_b", scheduled(lambda r, k, m: r), "which itself waits"),
        ("one_f_one_b", last_forwards_from_one, "3F8 is of no micro-batch: they are 0 to 7"),
        ("one_f_one_b", warm_up_without_min, "4 ranks, 2 micro-batches: rank 0, position 2"),
        ("one_f_one_b", forgets_the_last_backwards, '("B", 5) is missing: expected every'),
        ("one_f_one_b", one_after_the_other, "holds little, but takes"),
        ("one_f_one_b", last_backwards_reversed, "wait"),
        ("one_f_one_b", names_instead, "got '0F0'"),
        ("one_f_one_b", lambda *_: None, "expected a list"),
        ("fewest_micro_batches", beside_the_work, "(3, 0.3): expected 5, got 7: (K - 1) / M"),
        ("fewest_micro_batches", rounded_down, "4 leave 1/3 of the time, 33.33%, more than 30.00%"),
        ("fewest_micro_batches", one_more, "expected 5, got 6: 5 do: they leave 2/7"),
        ("fewest_micro_batches", less_than_the_share, "which is 0.1 exactly"),
        ("fewest_micro_batches", rounded_up_when_it_fits, "(4, 0.1): expected 27, got 28"),
        ("fewest_micro_batches", with_floats, "(4, 0.03): expected 97, got 98"),
        ("fewest_micro_batches", with_fewer_rounding_errors, "(22, 0.35): expected 39, got 40"),
        ("fewest_micro_batches", with_a_product, "(64, 0.35): expected 117, got 118"),
        ("fewest_micro_batches", none_at_all, "one micro-batch at least"),
        ("fewest_micro_batches", lambda stages, share: 5.0, "a whole number, 5, got 5.0"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_what_is_called_the_best_balance_is_that_of_all_cuts():
    source = random.Random(1)
    for _ in range(60):
        layers = source.randrange(1, 10)
        stages = source.randrange(1, layers + 1)
        seconds = tuple(source.uniform(0, 1) for _ in range(layers))
        all_cuts = [(0, *c, layers) for c in combinations(range(1, layers), stages - 1)]
        best_s = min(max(sum(seconds[a:b]) for a, b in pairwise(cut)) for cut in all_cuts)
        assert math.isclose(pipelining._best_s(seconds, stages), best_s)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_the_solution_is_the_packages_1f1b(ranks):
    answer = solution("pipelining", "one_f_one_b")
    for micro_batches in range(1, 18):
        expected = orders(one_f_one_b(ranks, micro_batches))
        got = [answer(rank, ranks, micro_batches) for rank in range(ranks)]
        assert got == [[(op.kind, op.micro_batch) for op in order] for order in expected]


@pytest.mark.parametrize("percent", [1, 3, 7, 10, 12, 20, 25, 35, 50, 60, 99])
def test_one_micro_batch_fewer_leaves_a_larger_bubble(percent):
    """Compared with whole numbers: no rounding."""
    for stages in range(1, 65):
        m = solution("pipelining", "fewest_micro_batches")(stages, percent / 100)
        assert 100 * (stages - 1) <= percent * (m + stages - 1)
        assert m == 1 or 100 * (stages - 1) > percent * (m - 1 + stages - 1)


def test_praise_tells_what_was_computed():
    solved = {
        name: getattr(checks, name)(solution("pipelining", name)).text
        for name in ("balance", "one_f_one_b", "fewest_micro_batches")
    }
    assert "slower on one of these networks" in solved["balance"]
    assert "in 22 slots" in solved["one_f_one_b"]
    assert "(8 stages, 63)" in solved["fewest_micro_batches"]
