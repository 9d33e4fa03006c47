"""What a kernel costs a device: FLOP, bytes, and by the roofline model, seconds.

Williams, Waterman and Patterson, "Roofline" (2009): a kernel lasts as long as the slower of its
arithmetic and its memory traffic (`memory_rates`). Matrix products are computed in tiles (`tiles`)
at what their architecture reaches (`product_rates`), convolutions as the products that they amount
to, or by Winograd's algorithm if that is faster (`winograd_convolution`). Products do not hide
their traffic perfectly: see `_Rates.product_s`. Tensor cores want images with their channels last:
cuDNN transposes others before and after a convolution (NVIDIA, "Tensor Core AI performance
milestones", 2018).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, inf
from typing import NamedTuple

from ....machines.hardware import Accelerator
from ..constants import (
    CACHED_READ_CYCLES,
    FILL_S,
    SERIAL_READ_CYCLES,
    WAITING_HIDES,
    WINOGRAD_FUSED,
    WINOGRAD_TRANSFORMING,
)
from .memory_rates import MemoryRates, ReadAgain
from .multiprocessors import clock_hz
from .product_rates import (
    convolving_share,
    issued_flops_per_s,
    narrow_flops_per_s,
    reach,
    sustained_flops_per_s,
    uses_tensor_cores,
)
from .tiles import MatmulDevice, Product, read_again, tiling
from .winograd_convolution import BLOCKS_TOGETHER, Winograd

# What a multiprocessor's 2,048 threads move if each reads and writes 16 bytes: kernels that are no
# products fill it with so much.
FILLING_BYTES = 2048 * 2 * 16
MOST_PRICED = 10_000


class Kernel(NamedTuple):
    """One kernel of an operation: FLOP of products (tensor cores may compute them), bytes, the
    matrix product that it is.

    `transposed_bytes` are moved before and after it: images that have their channels first, and
    rows that are padded where that is quicker than a product of `narrow` ones. Convolutions have
    perhaps another algorithm. Of a product's bytes `written` are those of its result. `blocks` is
    given where a kernel has but so many, such as one for each row that it sums up; `again` is what
    they read twice. `serial_reads` are those that each of its threads must wait for, one after the
    other; with `reads_own` of what the kernel moves, which is in the cache as far as it fits.
    """

    flops: int
    bytes: int
    product: Product | None = None
    transposed_bytes: int = 0
    winograd: Winograd | None = None
    written: int = 0
    blocks: int | None = None
    again: ReadAgain | None = None
    serial_reads: int = 0
    reads_own: bool = False


class Cost:
    """Work of one operation: `kernels` one after the other, in arithmetic of `dtype` ("float32").

    `convolves` says that its products are those of convolutions.
    """

    __slots__ = (
        "_engaged",
        "_in_tf32",
        "_known",
        "bytes",
        "convolves",
        "dtype",
        "flops",
        "kernels",
    )

    def __init__(self, *kernels: Kernel, dtype: str = "float32", convolves: bool = False) -> None:
        self.kernels = kernels
        self.dtype = dtype
        self.convolves = convolves
        self.flops = sum(kernel.flops for kernel in kernels)
        self.bytes = sum(kernel.bytes for kernel in kernels)
        self._known: tuple[Accelerator, float] | None = None
        self._engaged: tuple[float, float] | None = None
        self._in_tf32: Cost | None = None

    def seconds(self, accelerator: Accelerator) -> float:
        """How long it takes; worked out once for an accelerator."""
        known = self._known
        if known is None or known[0] is not accelerator:
            self._known = known = (accelerator, self.priced(accelerator))
            if len(PRICED) < MOST_PRICED:
                PRICED.setdefault((self.flops, self.bytes, known[1]), self)
        return known[1]

    def priced(self, accelerator: Accelerator) -> float:
        """The same, worked out now. Raises ValueError if it has no rate for such products."""
        if self.flops:
            _check_rate(accelerator, self.dtype)
        rates = _rates(accelerator, self.dtype, convolves=self.convolves)
        return sum(rates.seconds(kernel) for kernel in self.kernels)

    def in_tf32(self) -> Cost:
        """The same work, its fp32 rounded to TF32."""
        if self._in_tf32 is None:
            self._in_tf32 = Cost(*self.kernels, dtype="tfloat32", convolves=self.convolves)
        return self._in_tf32

    def as_compiled(self) -> Cost:
        """The same work as Inductor lays out what it reads: images with their channels last, rows
        of products padded to 16 bytes where that is quicker (its `pad_mm`). Biases of convolutions,
        and their gradients, are part of kernels of its own."""
        if self.convolves:
            kernels = [kernel for kernel in self.kernels if kernel.flops] or self.kernels
            return Cost(*map(_with_channels_last, kernels), dtype=self.dtype, convolves=True)
        if not any(map(_is_narrow, self.kernels)):
            return self
        return Cost(*map(_padded, self.kernels), dtype=self.dtype)

    def engaged_s(self, accelerator: Accelerator, seconds: float) -> float:
        """For how long of its `seconds` the device has nothing left for other streams' kernels."""
        if self._engaged is None or self._engaged[0] != seconds:
            rates = _rates(accelerator, self.dtype, convolves=self.convolves)
            engaged_s = sum(rates.engaged_s(kernel) for kernel in self.kernels)
            self._engaged = (seconds, min(engaged_s, seconds))
        return self._engaged[1]


# What this process has priced, by FLOP, bytes and seconds, by which its spans can be known again.
PRICED: dict[tuple[int, int, float], Cost] = {}


def _with_channels_last(kernel: Kernel) -> Kernel:
    return _transposed(kernel)._replace(transposed_bytes=0)


def _transposed(kernel: Kernel) -> Kernel:
    """Once channels are last, the pixels of all images are the rows of one product."""
    if kernel.product is None:
        return kernel
    m, n, k, batch, _ = kernel.product
    return kernel._replace(product=Product(m, n * batch, k, 1))


def _is_narrow(kernel: Kernel) -> bool:
    return kernel.product is not None and kernel.product.narrow is not None


def _aligned(kernel: Kernel) -> Kernel:
    return kernel._replace(product=kernel.product and kernel.product._replace(narrow=None))


def _padded(kernel: Kernel) -> Kernel:
    """What it reads is copied first; of its result only a part is looked at."""
    if not _is_narrow(kernel):
        return kernel
    return kernel._replace(transposed_bytes=2 * (kernel.bytes - kernel.written))


@lru_cache(maxsize=4096)
def traffic(nbytes: int) -> Cost:
    """The cost of a kernel that reads and writes `nbytes` in all."""
    return Cost(Kernel(0, nbytes))


class _Rates:
    """What an accelerator reaches: of peaks a share; measured rates are reached already."""

    def __init__(self, accelerator: Accelerator, dtype: str, *, convolves: bool) -> None:
        self.convolves = convolves
        self.latency_s = accelerator.kernel_latency_s
        self.clock_hz = clock_hz(accelerator)
        self.memory = MemoryRates(accelerator)
        self.hides = reach(accelerator).hides
        self.hides_writing = reach(accelerator).hides_writing
        self.has_tensor_cores = uses_tensor_cores(accelerator, dtype)
        # The rate of convolutions that was measured is by whichever algorithm the library takes.
        can_choose = reach(accelerator).transforms and not accelerator.measured
        by_lanes = dtype == "float16" and not self.has_tensor_cores
        may_choose = (dtype == "float32" or by_lanes) and can_choose
        self.flops_per_s = _reached(accelerator, dtype, convolves=convolves)
        self.device = self._device(accelerator, dtype, self.flops_per_s)
        # What multiplies by Winograd's algorithm are ordinary cores; where it may round to TF32
        # cuDNN takes tensor cores: else VGG-16 would be a quarter faster in inference on RTX 3090,
        # 4090 and 5090 than NikolasEnt published (2025).
        self.plain = (
            _rates(accelerator, "float32", convolves=False) if convolves and may_choose else None
        )

    def _device(self, accelerator: Accelerator, dtype: str, issued: float) -> MatmulDevice | None:
        """None where products take what their FLOP take: rates measured, or nothing known."""
        if accelerator.multiprocessors is None or accelerator.measured:
            return None
        known = reach(accelerator)
        return MatmulDevice(
            accelerator.multiprocessors,
            issued,
            min(sustained_flops_per_s(accelerator, dtype), issued),
            known.full_tile,
            uses_tensor_cores(accelerator, dtype),
            self.memory.cache_bytes_per_s,
            known.adding_s,
            accelerator.l2_bytes or 0,
            narrow_flops_per_s(accelerator, dtype, convolves=self.convolves),
        )

    def seconds(self, kernel: Kernel) -> float:
        if self.convolves and not self.has_tensor_cores:
            kernel = _transposed(kernel)  # ordinary cores fetch number by number, from any image
        if kernel.transposed_bytes and _is_narrow(kernel):
            as_it_lies = kernel._replace(transposed_bytes=0)
            arranged = _transposed(kernel) if self.convolves else _aligned(kernel)
            return min(self.seconds(as_it_lies), self.seconds(arranged))
        direct_s = self._direct_s(kernel)
        if kernel.winograd is None or self.plain is None:
            return direct_s
        return min(direct_s, *self.plain.by_winograd_s(kernel, kernel.winograd))

    def _direct_s(self, kernel: Kernel) -> float:
        compute_s = _arithmetic_s(kernel.flops, kernel.product, self.device, self.flops_per_s)
        transposed_bytes = kernel.transposed_bytes if self.has_tensor_cores else 0
        transposing_s = self.memory.seconds(transposed_bytes)
        moving_s = self._with_traffic_s(kernel, compute_s)
        return self.latency_s + self._with_waiting_s(kernel, moving_s) + transposing_s

    def by_winograd_s(self, kernel: Kernel, work: Winograd) -> tuple[float, float]:
        """A convolution by the two forms of the algorithm, fused and apart."""
        m, n, k, batch, _ = work.product
        moved = batch * work.element_bytes * (m * k + k * n + m * n)
        multiplying = Kernel(2 * batch * m * n * k, moved, work.product)
        apart_s = self.seconds(multiplying) + sum(map(self._transforming_s, work.moved_bytes))
        if work.sums:
            return inf, apart_s
        plain, transformed = work.filter_bytes
        whole = kernel._replace(bytes=kernel.bytes + transformed - plain)
        fused_s = self.latency_s + self._with_traffic_s(whole, self._fused_s(work))
        return fused_s + self._transforming_s(plain + transformed), apart_s

    def _transforming_s(self, nbytes: int) -> float:
        return self.latency_s + self.memory.seconds(nbytes) / WINOGRAD_TRANSFORMING

    def _fused_s(self, work: Winograd) -> float:
        flops = work.blocks * work.block_flops
        if self.device is None:
            return flops / self.flops_per_s
        together = BLOCKS_TOGETHER * self.device.multiprocessors
        filled_flops = ceil(work.blocks / together) * together * work.block_flops
        return max(filled_flops / self.flops_per_s, flops / self.device.sustained) / WINOGRAD_FUSED

    def _with_waiting_s(self, kernel: Kernel, moving_s: float) -> float:
        """Threads that wait for what their kernel moves do so while it is moved, for the most part:
        see `WAITING_HIDES`."""
        if not kernel.reads_own:
            return moving_s + kernel.serial_reads * SERIAL_READ_CYCLES / self.clock_hz
        share = self.memory.cached_share(kernel.bytes)
        cycles = share * CACHED_READ_CYCLES + (1 - share) * SERIAL_READ_CYCLES
        waiting_s = kernel.serial_reads * cycles / self.clock_hz
        return (waiting_s**WAITING_HIDES + moving_s**WAITING_HIDES) ** (1 / WAITING_HIDES)

    def engaged_s(self, kernel: Kernel) -> float:
        """A kernel that fills the device leaves nothing to others. Where some multiprocessors have
        no block of it they compute for others meanwhile, and so do all while it starts: what is
        left to it alone is its share of the arithmetic, or of the memory's time if that is more.
        """
        total_s = self.seconds(kernel)
        if self._occupancy(kernel) >= 1:
            return total_s
        memory_s = self.memory.seconds(kernel.bytes, kernel.blocks, kernel.again)
        if kernel.product is None:
            return min(memory_s, total_s)
        working_s = total_s - self.latency_s - FILL_S
        return max(self._occupancy(kernel) * working_s, min(memory_s, working_s))

    def _occupancy(self, kernel: Kernel) -> float:
        """Share of the multiprocessors that have a block of a kernel; 1 if that is not known."""
        if self.device is None:
            return 1.0
        if kernel.product is not None:
            return tiling(kernel.product, self.device).occupancy
        if kernel.flops:
            return 1.0
        filled = kernel.bytes / (self.device.multiprocessors * FILLING_BYTES)
        if kernel.blocks is None:
            return filled
        return min(filled, kernel.blocks / self.device.multiprocessors)

    def _with_traffic_s(self, kernel: Kernel, compute_s: float) -> float:
        """A product fetches while it multiplies, the better the larger `hides`, and writes a tile
        when it is done, to the cache if the result fits, or while others multiply where these take
        long (`hides_writing`); other kernels do all of it at once.

        Of convolutions it is images that are fetched: what lies side by side in the matrices that
        are multiplied stays in the cache.
        """
        if kernel.product is None or self.device is None:
            memory_s = self.memory.seconds(kernel.bytes, kernel.blocks, kernel.again)
            return max(compute_s, memory_s)
        read_bytes = kernel.bytes - kernel.written
        times = 1.0 if self.convolves else read_again(kernel.product, self.device, read_bytes)
        reading_s = read_bytes * times / self.memory.read_bytes_per_s
        writing_s = self.memory.seconds(kernel.written)
        hidden_s, after_s = (writing_s, 0.0) if self.hides_writing else (0.0, writing_s)
        together_s = (compute_s**self.hides + (reading_s + hidden_s) ** self.hides) ** (
            1 / self.hides
        )
        return FILL_S + together_s + after_s


@lru_cache(maxsize=1024)
def _rates(accelerator: Accelerator, dtype: str, *, convolves: bool) -> _Rates:
    return _Rates(accelerator, dtype, convolves=convolves)


def _check_rate(accelerator: Accelerator, dtype: str) -> None:
    if accelerator.lacks(dtype):
        raise ValueError(
            f"{accelerator.name} has no rate for products of {dtype}: take a machine that has one, "
            "or add it to flops_per_s"
        )


def _reached(accelerator: Accelerator, dtype: str, *, convolves: bool) -> float:
    """FLOP/s of products, or of convolutions, that fill the device."""
    if accelerator.measured:
        kind = "convolution" if convolves else "product"
        is_single = accelerator.rated_as(dtype) == "float32"
        return accelerator.rate(dtype) * (accelerator.reached.get(kind, 1.0) if is_single else 1.0)
    share = convolving_share(accelerator, dtype) if convolves else 1.0
    return issued_flops_per_s(accelerator, dtype) * share


def _arithmetic_s(
    flops: int, product: Product | None, device: MatmulDevice | None, flops_per_s: float
) -> float:
    if product is None or device is None:
        return flops / flops_per_s
    return tiling(product, device).seconds
