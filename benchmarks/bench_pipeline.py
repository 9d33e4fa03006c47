"""What simulating a pipeline costs: 64 ranks and 1024 micro-batches, the schedule included.

Every stage costs the same; the links are those of 8x-a100-nvswitch, all ranks in one node.
"""

import time
from collections.abc import Callable

from machine import this_machine

from d2lpar import machines, pipeline

RANKS, MICRO_BATCHES = 64, 1024
REPEATS = 3
STEP_GOAL_S = 1.0
GROWTH_GOAL = 2.0  # of the time an operation takes, from 4 ranks to 64
COST = pipeline.StageCost(3e-3, 6e-3, sent_bytes=10**7, activation_bytes=10**8)


def seconds(work: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """Of processor time, so that others on the machine do not count; the least of some repeats."""
    times_s = []
    for _ in range(repeats):
        start_s = time.process_time()
        work()
        times_s.append(time.process_time() - start_s)
    return min(times_s)


def orders(name: str, ranks: int = RANKS) -> pipeline.Orders:
    return pipeline.orders(pipeline.SCHEDULES[name](ranks, MICRO_BATCHES))


def costs(name: str, ranks: int = RANKS) -> list[pipeline.StageCost]:
    return [COST] * (2 * ranks if name == "interleaved" else ranks)


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    print(f"{RANKS} ranks, {MICRO_BATCHES} micro-batches on {this_machine()}")
    machine = machines.machine("8x-a100-nvswitch").with_accelerators(RANKS)
    met = [_tell_of(name, machine) for name in pipeline.SCHEDULES]

    def simulate(ranks: int) -> None:
        pipeline.simulate(orders("1f1b", ranks), costs("1f1b", ranks), machine)

    few_s, many_s = (seconds(lambda n=ranks: simulate(n)) / ranks for ranks in (4, RANKS))
    what = f"1f1b: an operation of {RANKS} ranks against one of 4"
    met.append(_tell(what, many_s / few_s, GROWTH_GOAL, "times"))
    raise SystemExit(not all(met))


def _tell_of(name: str, machine: machines.Machine) -> bool:
    """Print what one schedule takes; whether the goal is met, where there is one."""
    goal_s = STEP_GOAL_S if name in ("gpipe", "1f1b") else None
    of_ranks, of_stages = orders(name), costs(name)
    print(f"{name}: {sum(map(len, of_ranks)):,} operations")
    _tell("  the schedule", seconds(lambda: orders(name)))
    free_s = seconds(lambda: pipeline.simulate(orders(name), of_stages))
    sent_s = seconds(lambda: pipeline.simulate(orders(name), of_stages, machine))
    met = _tell("  the schedule and its simulation, sending free", free_s, goal_s)
    met &= _tell("  the schedule and its simulation, over links", sent_s, goal_s)
    timeline = pipeline.simulate(of_ranks, of_stages, machine)
    spans_s = seconds(lambda: timeline.spans, repeats=1)
    _tell(f"  then the {len(timeline):,} spans, when they are looked at", spans_s)
    options = {"stages": len(of_stages), "micro_batches": MICRO_BATCHES}
    _tell("  the checker", seconds(lambda: pipeline.check(of_ranks, **options), repeats=1))
    return met


def _tell(what: str, value: float, goal: float | None = None, unit: str = "s") -> bool:
    met = goal is None or value <= goal
    target = (
        "" if goal is None else f"  target: at most {goal} {unit}: {'met' if met else 'MISSED'}"
    )
    print(f"{what:<60}{value:>6.2f} {unit}{target}")
    return met


if __name__ == "__main__":
    main()
