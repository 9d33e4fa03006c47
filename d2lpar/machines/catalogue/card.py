"""An accelerator from the figures of its data sheet, in the units that data sheets use."""

from __future__ import annotations

from ..hardware import GIGA, TERA, Accelerator
from .capacities import GIBI, REPORTED
from .sources import KERNEL_LATENCY

MEBI = 2**20


def card(
    name: str,
    architecture: str,
    *,
    tflops: dict[str, float],
    gb_per_s: float,
    source: str,
    multiprocessors: int | None = None,
    l2_mib: float | None = None,
    watts: float | None = None,
    memory_reached: float | None = None,
) -> Accelerator:
    """An accelerator of so many TFLOP/s by data type, GB/s of memory, MiB of cache, watts.

    How much memory it has is in `capacities`. `memory_reached` is the share of `gb_per_s` that
    copies within it, or elementwise kernels, reach as measured. Raises ValueError for a figure that
    cannot be, with its name, and KeyError for an accelerator whose capacity is missing.
    """
    gib, reported = REPORTED[name]
    return Accelerator(
        name,
        {dtype: rate * TERA for dtype, rate in tflops.items()},
        memory_bytes_per_s=gb_per_s * GIGA,
        memory_bytes=int(gib * GIBI),
        source=f"{source}; {gib:g} GiB: {reported}; {KERNEL_LATENCY}",
        multiprocessors=multiprocessors,
        architecture=architecture,
        l2_bytes=None if l2_mib is None else int(l2_mib * MEBI),
        power_w=watts,
        reached={} if memory_reached is None else {"memory": memory_reached},
    )


def tensor_card_tflops(
    float32: float,
    tensor: float,
    *,
    tfloat32: float | None = None,
    float8: float | None = None,
    float64: float | None = None,
) -> dict[str, float]:
    """TFLOP/s by data type of a card whose tensor cores multiply fp16 and bf16 alike."""
    rates = {
        "float32": float32,
        "tfloat32": tfloat32,
        "float16": tensor,
        "bfloat16": tensor,
        "float8_e4m3": float8,
        "float64": float64,
    }
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}
