"""Short measurements of a device: products, convolutions, memory, dispatch, copies, threads.

Every probe takes the seconds that it may use and returns readings; it leaves out sizes for which
they are too short. The device may be a CPU, a CUDA device (untested: there was none to try) or a
virtual GPU, whose readings are then those of its simulated clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter  # bound here, so that it stays the wall's clock

import torch

from .readings import Reading

LEAST_REPEATS, MOST_REPEATS = 3, 50
LEAST_S = 200e-6  # calls that are shorter are timed many at once

DTYPES = ("float32", "float64", "bfloat16", "float16")
SCALED_SIDE = 1024  # of the product that more and more threads compute
SIDES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)  # of square matrices
# Convolutions of 3 x 3 by channels, as many out as in, with the side of their images.
CONVOLUTIONS = {32: 64, 64: 32, 256: 8}
CONVOLVED_IMAGES = 8
WORKING_SETS = tuple(4096 * 2**k for k in range(17))  # 4 KiB (any L1) to 256 MiB (no cache)
CPU_READ_BYTES, READ_BYTES = 2**23, 2**30  # a smaller working set is read again within a call
CACHE_LINE_BYTES = 64
COPY_BYTES = 2**26
KERNELS = 200  # queued behind a product that keeps the device busy meanwhile

FLOPS, BYTES, SECONDS = "FLOP/s", "B/s", "s"


class Stopwatch:
    """Times calls on a device by its own clock: the wall's, or events on its stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)

    def seconds(self, work: Callable[[], object], calls: int = 1) -> float:
        """Seconds a call takes, the mean of `calls` that follow each other."""
        if self._module is None:
            start_s = perf_counter()
            for _ in range(calls):
                work()
            return (perf_counter() - start_s) / calls
        start, end = (self._module.Event(enable_timing=True) for _ in range(2))
        self._module.synchronize(self.device)
        start.record(self._module.current_stream(self.device))
        for _ in range(calls):
            work()
        end.record(self._module.current_stream(self.device))
        self._module.synchronize(self.device)
        return start.elapsed_time(end) / 1e3 / calls

    def times_s(self, work: Callable[[], object], budget_s: float) -> list[float]:
        """Seconds a call in each of several repeats, as many as fit and never less than three."""
        deadline_s = perf_counter() + budget_s
        work()
        once_s = min(_wall_s(self.seconds, work) for _ in range(2))
        calls = max(1, round(LEAST_S / max(once_s, 1e-7)))
        times: list[float] = []
        while len(times) < LEAST_REPEATS or (
            len(times) < MOST_REPEATS and perf_counter() < deadline_s
        ):
            times.append(self.seconds(work, calls))
        return times

    def reading(
        self,
        probe: str,
        case: str,
        size: int,
        work: Callable[[], object],
        budget_s: float,
        *,
        amount: float = 0,
        unit: str = SECONDS,
    ) -> Reading:
        """How long `work()` takes, or with an `amount` (FLOP, bytes), how much of it a second."""
        return summary(
            self.device, probe, case, size, self.times_s(work, budget_s), amount=amount, unit=unit
        )


def _wall_s(call: Callable[[Callable[[], object]], object], work: Callable[[], object]) -> float:
    start_s = perf_counter()
    call(work)
    return perf_counter() - start_s


def summary(
    device: torch.device,
    probe: str,
    case: str,
    size: int,
    times_s: Iterable[float],
    *,
    amount: float = 0,
    unit: str = SECONDS,
) -> Reading:
    """The reading of repeated times, as rates if there is an `amount`."""
    found = [amount / t if amount else t for t in times_s]
    lower, median, upper = statistics.quantiles(found, n=4, method="inclusive")
    best = max(found) if amount else min(found)
    return Reading(str(device), probe, case, size, unit, median, lower, upper, best, len(found))


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let fp32 products be rounded as torch.set_float32_matmul_precision says, in the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with `count` threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- Probes ---------------------------------------------------------------------------------------


def matmul(device: torch.device, budget_s: float) -> list[Reading]:
    """FLOP/s of square products by side and data type; 2 n³ FLOP each.

    "tfloat32" are float32 matrices that CUDA may round to TF32; "float32" may be rounded nowhere.
    """
    cases = [(name, getattr(torch, name), "highest") for name in DTYPES]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        cases.append(("tfloat32", torch.float32, "high"))
    found = []
    for case, dtype, precision in cases:
        with matmul_precision(precision):
            found += _matmul_sides(device, case, dtype, budget_s / len(cases))
    return found


def _matmul_sides(
    device: torch.device, case: str, dtype: torch.dtype, budget_s: float
) -> list[Reading]:
    """The sides in ascending order, until the next would take too long."""
    watch, found = Stopwatch(device), []
    small = torch.ones(SIDES[0], SIDES[0], dtype=dtype, device=device)
    watch.seconds(partial(torch.mm, small, small))  # the first product of a type loads libraries
    deadline_s = perf_counter() + budget_s
    for n in SIDES:
        A = torch.ones(n, n, dtype=dtype, device=device)
        out = torch.empty_like(A)
        work = partial(torch.mm, A, A, out=out)
        begun_s = perf_counter()
        each_s = (deadline_s - begun_s) / 4
        amount = 2 * n**3
        found.append(watch.reading("matmul", case, n, work, each_s, amount=amount, unit=FLOPS))
        # A side twice as long takes about eight times as long.
        least_s = 8 * (LEAST_REPEATS + 2) * amount / found[-1].best
        if perf_counter() + least_s > deadline_s:
            break
    return found


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Round fp32 to TF32 in no convolution, in the block; a GPU may by default."""
    settings = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def convolution(device: torch.device, budget_s: float) -> list[Reading]:
    """FLOP/s of convolutions in fp32 by channels; FLOP of the direct algorithm are counted.

    Libraries may compute them by others, with fewer, or by better kernels than their products'.
    """
    watch, found = Stopwatch(device), []
    with exact_convolutions():
        for channels, side in CONVOLUTIONS.items():
            shape = (CONVOLVED_IMAGES, channels, side, side)
            images = torch.ones(shape, dtype=torch.float32, device=device)
            weight = torch.ones(channels, channels, 3, 3, dtype=torch.float32, device=device)
            work = partial(torch.conv2d, images, weight, padding=1)
            amount = 2 * 9 * channels * images.numel()
            each_s = budget_s / len(CONVOLUTIONS)
            found.append(
                watch.reading(
                    "convolution", "float32", channels, work, each_s, amount=amount, unit=FLOPS
                )
            )
    return found


def working_sets(limit_bytes: int, cache_bytes: int = 0) -> list[int]:
    """Bytes that are read and copied: up to a limit, and in any case more than twice the cache, as
    the largest stands for memory."""
    sizes = [size for size in WORKING_SETS if size <= limit_bytes]
    while sizes[-1] <= 2 * cache_bytes:
        sizes.append(2 * sizes[-1])
    return sizes


def memory(
    device: torch.device, budget_s: float, *, limit_bytes: int, cache_bytes: int = 0
) -> list[Reading]:
    """Bytes a second by working set: read, contiguous and one float a cache line; copied; updated.

    A read is a sum, the cheapest reduction; rates count the floats that are used, so that strided
    reading shows what a cache line of 64 bytes wastes. A copy counts reads and writes, and so does
    an update in place: it may be the fastest, as nothing is fetched only to be overwritten.
    """
    watch = Stopwatch(device)
    sizes = working_sets(limit_bytes, cache_bytes)
    each_s = budget_s / (4 * len(sizes))
    on_cpu = device.type == "cpu"
    read_bytes = CPU_READ_BYTES if on_cpu else READ_BYTES
    # On a CPU, each pass begins two lines after the one before: torch adds up strided rows that
    # begin at one address four at a time, and so would load each line once for four passes.
    shift = 2 * CACHE_LINE_BYTES // 4 if on_cpu else 0
    found = []
    for size in sizes:
        floats, count = size // 4, max(1, read_bytes // size)
        room = torch.ones(floats + (count - 1) * shift, dtype=torch.float32, device=device)
        # A view costs nothing and lets one call pass over the working set many times.
        passes = room.as_strided((count, floats), (shift, 1))
        x, lines = room[:floats], passes[:, :: CACHE_LINE_BYTES // 4]
        works = (
            ("read", 4 * passes.numel(), partial(torch.sum, passes, 1)),
            ("strided read", 4 * lines.numel(), partial(torch.sum, lines, 1)),
            ("copy", 2 * size, partial(torch.empty_like(x).copy_, x)),
            ("update", 2 * size, partial(x.mul_, 1.0)),
        )
        for case, amount, work in works:
            found.append(
                watch.reading("memory", case, size, work, each_s, amount=amount, unit=BYTES)
            )
    return found


def dispatch(device: torch.device, budget_s: float) -> list[Reading]:
    """Seconds that the host needs for the smallest operation and for a view.

    On an accelerator also the seconds that the device itself needs for the smallest kernel.
    """
    x = torch.ones(1, dtype=torch.float32, device=device)
    host = Stopwatch(torch.device("cpu"))
    cases = {"operation": lambda: x.add_(x), "view": lambda: x.view(1, 1)}
    found = []
    for case, work in cases.items():
        times_s = host.times_s(work, budget_s / 3)
        found.append(summary(device, "dispatch", case, 0, times_s))
    if device.type != "cpu":
        found.append(summary(device, "dispatch", "kernel", 0, _kernel_times_s(device, x)))
    return found


def _kernel_times_s(device: torch.device, x: torch.Tensor) -> list[float]:
    """Seconds a kernel, when the host has queued many of them behind a long one."""
    module = torch.get_device_module(device)
    A = torch.ones(8192, 8192, dtype=torch.float32, device=device)
    times_s = []
    for _ in range(LEAST_REPEATS + 1):
        start, end = (module.Event(enable_timing=True) for _ in range(2))
        torch.mm(A, A)
        start.record(module.current_stream(device))
        for _ in range(KERNELS):
            x.add_(x)
        end.record(module.current_stream(device))
        module.synchronize(device)
        times_s.append(start.elapsed_time(end) / 1e3 / KERNELS)
    return times_s[1:]


def copies(device: torch.device, budget_s: float, *, limit_bytes: int) -> list[Reading]:
    """Latency (the time of 4 bytes) and bytes a second of copies to, from and within a device.

    On a CPU: copies from one place in memory to another, into memory that is in use already or
    fresh. On an accelerator: to and from pageable and pinned memory of the host.
    """
    size = min(COPY_BYTES, limit_bytes)
    cases = _cpu_copies if device.type == "cpu" else _accelerator_copies
    small, large = list(cases(device, 4)), list(cases(device, size))
    each_s = budget_s / (len(small) + len(large))
    watch, found = Stopwatch(device), []
    for case, work in small:
        found.append(watch.reading("copy", f"{case}, latency", 4, work, each_s))
    for case, work in large:
        found.append(watch.reading("copy", case, size, work, each_s, amount=size, unit=BYTES))
    return found


def _cpu_copies(device: torch.device, size: int) -> Iterator[tuple[str, Callable[[], object]]]:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    yield "pageable", lambda: target.copy_(source)
    yield "fresh", source.clone


def _accelerator_copies(
    device: torch.device, size: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    there = torch.ones(size, dtype=torch.uint8, device=device)
    pageable = torch.ones(size, dtype=torch.uint8, device="cpu")
    for name, here in (("pageable", pageable), ("pinned", pageable.pin_memory())):
        yield f"{name} to device", partial(there.copy_, here, non_blocking=True)
        yield f"{name} from device", partial(here.copy_, there, non_blocking=True)
    other = torch.zeros_like(there)
    yield "within device", lambda: other.copy_(there)
    module = torch.get_device_module(device)
    if module.device_count() > 1:
        index = ((device.index or 0) + 1) % module.device_count()
        peer = torch.empty_like(there, device=torch.device(device.type, index))
        yield "to peer", lambda: peer.copy_(there, non_blocking=True)


def thread_scaling(cores: int, budget_s: float) -> list[Reading]:
    """FLOP/s of one fp32 product on the CPU with 1, 2, 4, … threads, and one a core."""
    counts = sorted({*(2**k for k in range(cores.bit_length())), cores})
    A = torch.ones(SCALED_SIDE, SCALED_SIDE, dtype=torch.float32, device="cpu")
    work = partial(torch.mm, A, A, out=torch.empty_like(A))
    watch, found = Stopwatch(A.device), []
    for count in counts:
        with threads(count), matmul_precision("highest"):
            found.append(
                watch.reading(
                    "threads",
                    "float32",
                    count,
                    work,
                    budget_s / len(counts),
                    amount=2 * SCALED_SIDE**3,
                    unit=FLOPS,
                )
            )
    return found
