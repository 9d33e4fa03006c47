"""Solutions of the exercises of lesson 07; `tests/answers/test_checks.py` runs them."""

from itertools import combinations, count, pairwise


def balance(seconds: list[float], stages: int) -> list[int]:
    """Try all cuts. (A network of hundreds of layers takes dynamic programming.)"""
    layers = len(seconds)
    cuts = [
        (0, *cut, layers)
        for cut in combinations(range(1, layers), stages - 1)
    ]
    best = min(
        cuts,
        key=lambda cut: max(
            sum(seconds[a:b]) for a, b in pairwise(cut)
        ),
    )
    return [b - a for a, b in pairwise(best)]


def one_f_one_b(
    rank: int, ranks: int, micro_batches: int
) -> list[tuple[str, int]]:
    """A gradient is on its way for as long as the ranks behind need for a forward each."""
    forwards = [("F", m) for m in range(micro_batches)]
    backwards = [("B", m) for m in range(micro_batches)]
    ahead, rest = (
        forwards[: ranks - 1 - rank],
        forwards[ranks - 1 - rank :],
    )
    in_turn = [
        operation
        for pair in zip(rest, backwards, strict=False)
        for operation in pair
    ]
    return ahead + in_turn + backwards[len(rest) :]


def fewest_micro_batches(stages: int, share: float) -> int:
    """The first for which it is true: no formula, no rounding before the comparison."""
    return next(
        m
        for m in count(1)
        if (stages - 1) / (m + stages - 1) <= share
    )
