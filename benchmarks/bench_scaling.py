"""What a curve of data-parallel scaling costs, from 1 to 100,000 devices.

The network is ResNet-50, its step simulated at four batch sizes; nodes of eight V100 on 100 Gbit/s.
"""

import time
from collections.abc import Callable

import torch
import torchvision
from machine import this_machine

import d2lpar as par
from d2lpar import machines, scaling
from d2lpar.parallelism.scaling import exchange

MOST = 100_000
BATCHES = (1, 8, 32, 128)
REPEATS = 20
CURVE_GOAL_MS = 5.0
SLOWER_GOAL = 1.5  # a step of 100,000 devices against one of 16
GRID_GOAL_MS = 50.0
RACKS = {"nodes_per_rack": 16, "oversubscription": 4.0}


def resnet50() -> scaling.Profile:
    """The profile of ResNet-50 on a simulated V100."""
    steps = {}
    for batch in BATCHES:
        with par.simulate("1x-v100-textbook") as (gpu,), par.shape_only():
            net = torchvision.models.resnet50().to(gpu)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            X = torch.empty(batch, 3, 224, 224, device=gpu)
            y = torch.zeros(batch, dtype=torch.long, device=gpu)

            def step(net=net, optimizer=optimizer, X=X, y=y) -> None:
                torch.nn.functional.cross_entropy(net(X), y).backward()
                optimizer.step()
                optimizer.zero_grad()

            steps[batch] = scaling.timed_step(step, net, optimizer)
    return scaling.Profile.of(steps)


def milliseconds(work: Callable[[], object], *, fresh: bool = True) -> float:
    """The least of some repeats; `fresh`: nothing is remembered from the one before."""
    times_s = []
    for _ in range(REPEATS):
        if fresh:
            exchange._library_s.__wrapped__.cache_clear()
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return 1e3 * min(times_s)


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    torch.set_num_threads(1)
    print(f"scaling to {MOST:,} devices on {this_machine()}")
    profile = resnet50()
    node = machines.machine("8x-v100-dgx1")
    network = scaling.Network.of(node, machines.NETWORKS["100gbe"], **RACKS)
    devices = scaling.counts(MOST, node=8)
    met = []
    for name, method in scaling.METHODS.items():
        found = method(network)
        curve_ms = milliseconds(lambda e=found: scaling.weak(profile, e, batch=32, devices=devices))
        met.append(_tell(f"weak scaling, {len(devices)} points, {name}", curve_ms, CURVE_GOAL_MS))
    library = scaling.library(network)
    curve_ms = milliseconds(lambda: scaling.strong(profile, library, samples=MOST, devices=devices))
    met.append(_tell(f"strong scaling, {len(devices)} points, library", curve_ms, CURVE_GOAL_MS))
    again_ms = milliseconds(
        lambda: scaling.weak(profile, library, batch=16, devices=devices), fresh=False
    )
    met.append(_tell("  the same with another batch, as a slider moves", again_ms, CURVE_GOAL_MS))
    few_ms, many_ms = (
        milliseconds(lambda n=n: scaling.weak(profile, library, batch=32, devices=n))
        for n in (range(16, 176, 8), range(MOST - 160, MOST, 8))
    )
    met.append(
        _tell(f"a step of {MOST:,} devices against 16", many_ms / few_ms, SLOWER_GOAL, "times")
    )
    convergence = scaling.Convergence(1e4, 4096)
    batches = [2**i for i in range(8)]
    grid_ms = milliseconds(
        lambda: scaling.runs(convergence, profile, library, batches=batches, devices=devices)
    )
    met.append(_tell(f"time to target, {len(devices)} x {len(batches)}", grid_ms, GRID_GOAL_MS))
    raise SystemExit(not all(met))


def _tell(what: str, value: float, goal: float, unit: str = "ms") -> bool:
    verdict = "met" if value <= goal else "MISSED"
    print(f"{what:<52}{value:>8.2f} {unit}  target: at most {goal} {unit}: {verdict}")
    return value <= goal


if __name__ == "__main__":
    main()
