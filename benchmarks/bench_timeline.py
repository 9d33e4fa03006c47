"""What recording a long run costs: bytes and time a span, kept, or in a file.

All record the same dispatches and kernels on this machine, one after the other in one process.
"""

import argparse
import gc
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager

from machine import this_machine

from d2lpar.timeline import Span, Timeline
from d2lpar.timeline.streaming import recording

BOUNDED_BYTES = 10 * 2**20  # at the end of a run of any length
OPERATION_GOAL_US = 40  # of simulating an operation, of which a recording is a part


def record(timeline: Timeline, spans: int) -> None:
    """Half dispatches, half the kernels that they queue, with the names of a network's layers."""
    for i in range(spans // 2):
        name = f"op{i % 50}"
        timeline.add(
            Span("host", "main", "dispatch", name, i * 7e-6, (i + 1) * 7e-6, correlation=i + 1)
        )
        end_s = (i + 2) * 7e-6
        timeline.add(Span("vgpu:0", 0, "compute", name, (i + 1) * 7e-6, end_s, 10**6, 10**9, i + 1))


def memory_of(record_into: Callable[[], AbstractContextManager], spans: int) -> int:
    """Bytes that a recording holds when it is over."""
    tracemalloc.start()
    with record_into() as timeline:
        record(timeline, spans)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print the table; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=1_000_000)
    spans = parser.parse_args().spans
    print(f"recording {spans:,} spans on {this_machine()}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        ways = {
            "all kept": lambda: recording("toy"),
            "streamed to a file": lambda: recording("toy", to=path),
        }
        met = True
        for name, way in ways.items():
            met &= tell(name, way, spans)
        print(f"{'the file':<26}{os.path.getsize(path) / spans:>8.0f} bytes a span")
        whole = Timeline("toy")
        record(whole, spans)
        for name, work in {
            "save_trace": lambda: whole.save_trace(path),
            "from_chrome_trace": lambda: Timeline.from_chrome_trace(path),
            "critical_path": whole.critical_path,
            "summary": lambda: whole.summary("name"),
        }.items():
            print(f"{name:<26}{seconds(work) / spans * 1e6:>8.1f} µs a span")
    raise SystemExit(not met)


def tell(name: str, way: Callable[[], AbstractContextManager], spans: int) -> bool:
    """Print the cost of one way of recording; whether it keeps to the goals."""

    def run() -> None:
        with way() as timeline:
            record(timeline, spans)

    held, each_us = memory_of(way, spans), seconds(run) / spans * 1e6
    bounded = name == "all kept" or held <= BOUNDED_BYTES
    fast = 2 * each_us <= OPERATION_GOAL_US  # an operation has two spans
    print(
        f"{name:<26}{held / 2**20:>8.1f} MiB, {held / spans:>5.1f} bytes a span,"
        f"{each_us:>6.2f} µs a span  {'met' if bounded and fast else 'MISSED'}"
    )
    return bounded and fast


if __name__ == "__main__":
    main()
