"""What the kernels that a process has queued would take otherwise: with their images laid out as
compiled code does, in TF32, and on the accelerators of machines that are for rent.

A kernel is known again by its FLOP, bytes and seconds, which stand in its span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ....machines import CATALOGUE, Accelerator
from ....machines.prices import price_of
from ....timeline import Span
from ...sim.pricing.kernel_cost import PRICED, Cost, traffic
from ...torch_backend.cost.op_cost import rounded, with_rounded_products


class KernelPrice(NamedTuple):
    """FLOP, bytes and seconds of a kernel here, its seconds in compiled code, with products in
    TF32, and by the names of accelerators; None where one has no such arithmetic."""

    flops: int
    bytes: int
    seconds: float
    compiled_s: float
    tf32_s: float
    elsewhere_s: dict[str, float | None]


def rented() -> dict[str, Accelerator]:
    """The accelerators that have a price, by name."""
    found = {}
    for machine in CATALOGUE.values():
        if machine.nodes == 1 and price_of(machine) is not None:
            accelerator = machine.accelerators[0]
            found[accelerator.name] = accelerator
    return found


def kernel_prices(here: Accelerator) -> list[KernelPrice]:
    """Those of all kernels of this process so far, which ran on such an accelerator."""
    accelerators = rented()
    return [
        KernelPrice(
            flops,
            nbytes,
            seconds,
            cost.as_compiled().priced(here),
            with_rounded_products(cost, here).priced(here),
            {name: _price(cost, there) for name, there in accelerators.items()},
        )
        for (flops, nbytes, seconds), cost in list(PRICED.items())
    ]


def _price(cost: Cost, accelerator: Accelerator) -> float | None:
    try:
        return rounded(cost, accelerator).priced(accelerator)
    except ValueError:
        return None


class KernelPrices:
    """The prices of kernels, found by their spans."""

    def __init__(self, prices: Iterable[KernelPrice], here: Accelerator) -> None:
        self._here = here
        self._found: defaultdict[tuple[int, int], list[KernelPrice]] = defaultdict(list)
        for price in prices:
            self._found[price.flops, price.bytes].append(price)

    def compiled_s(self, span: Span) -> float:
        """How long a kernel that computes products takes in compiled code."""
        price = self._of(span)
        return span.duration_s * price.compiled_s / price.seconds if price else 0.0

    def tf32_s(self, span: Span) -> float:
        """How long a kernel takes with products in TF32."""
        price = self._of(span)
        return span.duration_s * price.tf32_s / price.seconds if price else span.duration_s

    def on(self, accelerator: Accelerator, span: Span) -> float:
        """How long a kernel takes there, slowed down by others as much as here. Raises ValueError
        if that is not known."""
        price = self._of(span)
        if price is None and not span.flops:
            cost = traffic(span.bytes)
            return span.duration_s * cost.priced(accelerator) / cost.priced(self._here)
        there_s = price and price.elsewhere_s.get(accelerator.name)
        if price is None or there_s is None:
            raise ValueError(f"{span.name} has no price on {accelerator.name}")
        return span.duration_s * there_s / price.seconds

    def _of(self, span: Span) -> KernelPrice | None:
        """That of the kernel whose time here is nearest."""
        known = self._found.get((span.flops, span.bytes), ())
        return min(known, key=lambda price: abs(price.seconds - span.duration_s), default=None)
