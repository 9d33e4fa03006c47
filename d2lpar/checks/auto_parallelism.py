"""The exercises of lesson 03."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from ..trials import auto_parallelism as trials
from ..trials.calling import Called, Fault
from ..trials.plain import shown, type_name
from .verdict import (
    Wrong,
    exercise,
    few,
    is_number,
    is_tensor,
    largest_difference,
    shortened,
    values_of,
)

ROOM = 1.05  # a target time may be missed by this factor


@exercise(on_clock=True)
def timed(answer: Called) -> str:
    """`timed(work, gpu)`: seconds that `work()` takes, and nothing else."""
    with trials.one_gpu() as device:
        x = torch.empty(trials.SIZE, trials.SIZE, device=device)
        expected_s = trials.seconds_of(lambda: [x.mm(x) for _ in range(trials.PRODUCTS)], device)
    found = answer.tried(trials.timed)
    got_s, calls = found["got"], found["calls"]
    if not is_number(got_s):
        raise Wrong(f"expected a number of seconds, got {got_s!r}")
    if calls != 1:
        raise Wrong(f"expected one call of work(), got {calls}")
    _check_seconds(got_s, expected_s)
    return "the time of the work, without what was queued before it"


def _check_seconds(got_s: float, expected_s: float) -> None:
    if expected_s / ROOM <= got_s <= expected_s * ROOM:
        return
    if got_s < 0:
        why = "less than nothing. Subtract the start from the end"
    elif expected_s / ROOM <= got_s / 1000 <= expected_s * ROOM:
        why = "that is the number of milliseconds, as events tell it. Return seconds"
    elif got_s < expected_s:
        why = "the clock was stopped before the work was done. Synchronise after it"
    else:
        why = "that includes work that was queued earlier. Synchronise before you start the clock"
    raise Wrong(f"expected {expected_s:.4f} s, got {got_s:.4f} s: {why}")


@exercise(on_clock=True, gives_a_value=False)
def run_and_copy(answer: Called) -> str:
    """`run_and_copy(x, buffers)`: x @ x into each pinned buffer, copies under products."""
    times = answer.tried(trials.run_and_copy_times)  # first, for its picture
    found = answer.tried(trials.run_and_copied)
    if found["hazards"]:
        raise Wrong(f"the values may be wrong: {found['hazards'][0]}")
    x = trials.host_batches()[0]
    for i, buffer in enumerate(found["buffers"]):
        if not torch.allclose(values_of(buffer), x @ x):
            raise Wrong(
                f"buffer {i}: expected x @ x, {few(x @ x)}, got {few(buffer)}. Is a product copied "
                "into every buffer, and does the host wait for the last copy before it returns?"
            )
    took, products, copies = (1e3 * times[key] for key in ("seconds", "products_s", "copies_s"))
    if took < products / ROOM:
        raise Wrong(
            f"{trials.RESULTS} products of {trials.LARGE} × {trials.LARGE} take {products:.1f} ms, "
            f"yours {took:.1f} ms: compute the product anew for each buffer"
        )
    target = ROOM * max(products, copies) + min(products, copies) / trials.RESULTS
    if took > target:
        raise Wrong(
            f"the products alone take {products:.1f} ms, the copies alone {copies:.1f} ms, yours "
            f"{took:.1f} ms; expected at most {target:.1f} ms, because only the last copy has no "
            "product to travel under. In the picture, are the copies in a stream of their own, "
            "and does the host queue the next product without waiting?"
        )
    return (
        f"right values and no hazard, in {took:.1f} ms (simulated); the products alone take "
        f"{products:.1f} ms"
    )


@exercise(on_clock=True)
def prefetch(answer: Called) -> str:
    """`prefetch(batches, work, gpu)`: [work(batch on the GPU)], copies under computing."""
    _check_values(answer.tried(trials.prefetched))
    for size, products in ((4000, 1), (2000, 6), (3000, 2)):
        _check_overlap(answer.tried(trials.prefetch_times, size, products), size, products)
    return "right values, no hazard, and within 5 % of the longer of computing and copying"


def _check_overlap(found: dict, size: int, products: int) -> None:
    """Whether computing and copying take little longer than the longer of the two."""
    worked, took_s = found["worked"], found["seconds"]
    with trials.one_gpu() as device:
        there = torch.empty(size, size, device=device)
        batches = [torch.empty(size, size, pin_memory=True) for _ in range(trials.BATCHES)]
        compute_s = trials.seconds_of(
            lambda: [trials.work_of(there, products) for _ in batches], device
        )
        copy_s = trials.seconds_of(
            lambda: [X.to(device, non_blocking=True) for X in batches], device
        )
    least_s = max(compute_s, copy_s) / ROOM
    if worked != len(batches) or took_s < least_s:
        raise Wrong(
            f"{len(batches)} batches of {size} × {size}: expected one call of work for each batch, "
            f"got {worked}, in {took_s * 1e3:.1f} ms; computing takes {compute_s * 1e3:.1f} ms, "
            f"copying {copy_s * 1e3:.1f} ms. Is every batch copied, and worked on?"
        )
    # The first batch has nothing to travel under.
    target_s = ROOM * max(compute_s, copy_s) + copy_s / len(batches)
    if took_s > target_s:
        raise Wrong(
            f"{len(batches)} batches of {size} × {size}: computing takes {compute_s * 1e3:.1f} ms, "
            f"copying {copy_s * 1e3:.1f} ms, yours {took_s * 1e3:.1f} ms; expected at most "
            f"{target_s * 1e3:.1f} ms. Are the copies on a stream of their own, queued before the "
            "work that they shall travel under? Does each batch wait for its own copy only, and "
            "nothing make the host wait?"
        )


def _check_values(found: dict) -> None:
    host, got = trials.host_batches(), found["got"]
    if not isinstance(got, list) or len(got) != len(host):
        raise Wrong(f"expected a list of {len(host)} results, one per batch, got {_kind(got)}")
    for i, (g, X) in enumerate(zip(got, host, strict=True)):
        expected = trials.product_and_one(X)
        if not is_tensor(g) or values_of(g).shape != expected.shape:
            what = list(values_of(g).shape) if is_tensor(g) else g
            raise Wrong(
                f"result {i}: expected what work(batches[{i}]) returned, a tensor of shape "
                f"{list(expected.shape)}, got {shortened(shown(what))}"
            )
        if str(g.device) != found["device"]:
            raise Wrong(f"result {i}: expected it on {found['device']}, got it on {g.device}")
        if not largest_difference(g, expected) <= 1e-5:
            raise Wrong(f"result {i} is not work(batches[{i}]): expected them in order")
    if found["hazards"]:
        raise Wrong(f"the values happen to be right here, but: {found['hazards'][0]}")


def _kind(value: object) -> str:
    return f"{len(value)} of them" if isinstance(value, list) else type_name(value)


@exercise
def shortest(answer: Called) -> str:
    """`shortest(seconds, needs)`: the least time of a graph, with places enough for everything."""
    for seconds, needs in _graphs():
        expected_s = _longest_path_s(seconds, needs)
        call = f"shortest({seconds}, {needs})"
        try:
            got_s = answer(dict(seconds), {name: list(before) for name, before in needs.items()})
        except Fault as fault:
            if fault.name != "KeyError":
                raise
            raise Wrong(
                f"{call} raised {fault}. Operations come in any order: one may be listed "
                "before those that it needs"
            ) from None
        if not is_number(got_s) or abs(got_s - expected_s) > 1e-6:
            raise Wrong(
                f"{call}: expected {expected_s:g}, got {got_s!r}: an "
                "operation starts when the last one that it needs has ended"
            )
    return "the longest chain decides, whatever the number of devices"


def _graphs() -> Iterable[tuple[dict[str, float], dict[str, list[str]]]]:
    yield {"a": 2.0, "b": 3.0, "c": 1.0}, {"a": [], "b": [], "c": ["a", "b"]}
    yield {"c": 1.0, "b": 1.5, "a": 1.0}, {"c": ["a"], "b": [], "a": []}  # not in order of need
    source = random.Random(2)
    for size in (6, 9):
        names = [f"op{i}" for i in range(size)]
        needs = {
            name: sorted(source.sample(names[:i], min(i, source.randrange(3))))
            for i, name in enumerate(names)
        }
        yield {name: float(source.randrange(1, 9)) for name in names}, needs


def _longest_path_s(seconds: dict[str, float], needs: dict[str, list[str]]) -> float:
    ends_s: dict[str, float] = {}

    def end_s(name: str) -> float:
        if name not in ends_s:
            ends_s[name] = seconds[name] + max(map(end_s, needs[name]), default=0.0)
        return ends_s[name]

    return max(map(end_s, seconds))
