"""Programs on a machine of their own, timed when they are warm: simulated, or on a real GPU.

The programs are the same. Whoever wants to know what a real GPU takes runs a workload in a block of
`on_real_gpu`, and `gpus` gives that GPU in place of simulated ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from time import perf_counter  # bound here, so that it stays the wall's clock

import torch

from ...machines.hardware import Machine
from ...machines.measuring.microbenchmarks import LEAST_REPEATS, MOST_REPEATS, Stopwatch
from ...vgpu.api import simulation
from ...vgpu.torch_backend.machine import runtime
from ...vgpu.torch_backend.module import graph_capture

MEMORY_BYTES = 10**13
REPEATS = 20
INITIAL_SPREAD = 0.02  # of weights, as GPT-2 has it: small enough for numbers to stay finite
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
}
_WARM_UPS = 2  # more, on a real GPU: libraries choose kernels, and clocks rise


class Watch:
    """Times programs on a real GPU by its events.

    Repeats go on for `budget_s` of the wall's time, and there are `LEAST_REPEATS` at least.
    `spreads` are of the programs timed so far: half the distance between the quartiles of the
    repeats, as a fraction of their median; nan for a program that can run cold only once.
    """

    def __init__(self, device: torch.device, budget_s: float) -> None:
        self.device, self._budget_s = device, budget_s
        self._stopwatch = Stopwatch(device)
        self.spreads: list[float] = []

    def seconds(self, program: Callable[[], object], count: int, *, cold: bool) -> float:
        """The median time of `count` runs in a row."""
        if cold:
            self.spreads.append(float("nan"))
            return count * self._stopwatch.seconds(program, count)
        deadline_s, times_s = perf_counter() + self._budget_s, list[float]()
        for _ in range(_WARM_UPS):
            if perf_counter() < deadline_s:  # one that takes long has been warm since its first run
                program()
        while len(times_s) < LEAST_REPEATS or (
            len(times_s) < MOST_REPEATS and perf_counter() < deadline_s
        ):
            times_s.append(count * self._stopwatch.seconds(program, count))
        lower, median, upper = statistics.quantiles(times_s, n=4, method="inclusive")
        self.spreads.append((upper - lower) / (2 * median))
        return median

    def synchronized_s(self) -> float:
        """The wall's time when all that was queued is done."""
        torch.get_device_module(self.device).synchronize(self.device)
        return perf_counter()


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def on_real_gpu(device: torch.device, budget_s: float) -> Iterator[Watch]:
    """Workloads in the block run on a real GPU, and their times are measured there."""
    token = _watch.set(Watch(device, budget_s))
    try:
        yield _watch.get()  # type: ignore[misc]  # it was set a line above
    finally:
        _watch.reset(token)


def device_type() -> str:
    """The kind of device that `gpus` gives."""
    watch = _watch.get()
    return "vgpu" if watch is None else watch.device.type


def filled(tensor: torch.Tensor, spread: float = 1.0) -> torch.Tensor:
    """The tensor, which a real GPU gets numbers for: normal ones, or zeros where they are whole.

    A GPU that multiplies zeros takes less power, and so less time, and labels must be numbers of
    classes. A simulated one looks at shapes alone.
    """
    if _watch.get() is not None:
        with torch.no_grad():
            tensor.normal_(std=spread) if tensor.is_floating_point() else tensor.zero_()
    return tensor


def seconds(
    program: Callable[[], object],
    *,
    count: int = 1,
    warm_up: Callable[[], object] | None = None,
    cold: bool = False,
) -> float:
    """Time of `count` runs in a row, all devices done, after one to warm up.

    `cold` says that only `warm_up` may go before them: a real GPU does not repeat them either.
    """
    (warm_up or program)()
    if (watch := _watch.get()) is not None:
        return watch.seconds(program, count, cold=cold)
    start_s = synchronized_s()
    for _ in range(count):
        program()
    return synchronized_s() - start_s


def mean_s(program: Callable[[], object]) -> float:
    """Time of one run, the mean of many in a row, as such kernels are measured."""
    return seconds(program, count=REPEATS) / REPEATS


def graphed(program: Callable[[], object]) -> Callable[[], object]:
    """What replays a program that is captured as a CUDA graph, after a run to warm up."""
    program()
    if _watch.get() is None:
        virtual = graph_capture.CUDAGraph()
        with graph_capture.capture(virtual):
            program()
        return virtual.replay
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    return graph.replay


def peak_bytes(program: Callable[[], object], device: torch.device) -> int:
    """The most memory that tensors take while a program runs, after a run to warm up."""
    module = torch.get_device_module(device)
    program()
    synchronized_s()
    module.reset_peak_memory_stats(device)
    program()
    synchronized_s()
    return module.max_memory_allocated(device)


def flops_of(program: Callable[[], object]) -> int:
    """Run a program once, and count the FLOP of its kernels; 0 on a real GPU, which counts none."""
    if _watch.get() is not None:
        program()
        return 0
    with simulation.record() as timeline:
        program()
        synchronized_s()
    return sum(span.flops for span in timeline)


def synchronized_s() -> float:
    """The time when all that was queued is done."""
    if (watch := _watch.get()) is not None:
        return watch.synchronized_s()
    rt = runtime.current_runtime()
    for device in range(rt.device_count):
        rt.synchronize(device)
    return rt.now_s()


@contextmanager
def gpus(machine: Machine, count: int = 1) -> Iterator[list[torch.device]]:
    """`count` GPUs of the first node of a machine; only shapes are computed. Or the real one.

    They have memory enough: that a published program fitted is known, not how, and fused kernels
    keep less for the backward pass than eager ones. Raises ValueError for more than one real GPU.
    """
    if (watch := _watch.get()) is not None:
        if count > 1:
            raise ValueError(f"one GPU is measured, and this row is of {count}: give it gpus=1")
        yield [watch.device]
        return
    roomy = [replace(a, memory_bytes=MEMORY_BYTES) for a in machine.accelerators[:count]]
    machine = replace(machine, accelerators=tuple(roomy), node_size=None, network=None)
    with simulation.simulate(machine) as devices:
        yield devices
