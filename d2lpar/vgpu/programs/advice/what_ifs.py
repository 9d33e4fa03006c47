"""What is tried on a recorded run: the changes that help most programs, each as a `Change`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ....machines import Host
from ....timeline import Span
from ...torch_backend.cost.optimizer_on_host import OPTIMIZER
from ..report import Gain
from ..watched.kernel_prices import KernelPrices
from .replay import Change

STAGING = "copy through pinned buffer"  # what the host does for a copy from pageable memory
HANDING_OVER = "hand over to autograd's thread"
OF_UPDATES = ("_foreach_", "_fused_")  # how operations of optimizers begin
LEAST = 1.05  # times as fast: less is not worth a change of the program


@dataclass(frozen=True)
class WhatIf:
    """A change of a program, in words; `bound` says that it would give so much "at least", or "at
    most". `per_step` is how much more a step does then: 2 with twice the batch. What `--try` has to
    be told that runs the program so is `again`.
    """

    words: str
    change: Change
    bound: str = ""
    per_step: float = 1.0
    again: str = ""


def _without_queueing(span: Span) -> float:
    queues = span.kind == "dispatch" or span.name == HANDING_OVER
    return 0.0 if queues else span.duration_s


def _twice_on_devices(span: Span) -> float:
    on_device = span.device != "host" and span.kind != "collective"
    twice = on_device or span.name == STAGING
    return 2 * span.duration_s if twice else span.duration_s


def _without_links(span: Span) -> float:
    return 0.0 if span.kind == "collective" else span.duration_s


def _from_pinned_memory(span: Span) -> float:
    return 0.0 if span.name == STAGING else span.duration_s


def is_of_copies(call: str) -> bool:
    """Whether a host waits in a call for a copy, as it does from or to pageable memory."""
    return without_numbers(call).startswith("copy ") or "pageable" in call


def without_numbers(call: str) -> str:
    """A call as it is called on each device, in spans and in what is reported of waits."""
    return re.sub(r":\d+", "", call).removeprefix("wait for ")


GRAPHS = WhatIf("CUDA graphs", Change(_without_queueing))
TWICE = WhatIf("twice the batch", Change(_twice_on_devices), bound="at least", per_step=2.0)
PINNED = WhatIf(
    "pinned memory and non_blocking copies",
    Change(_from_pinned_memory, waits=lambda span: not is_of_copies(span.name)),
)
OFFLOADED = WhatIf(
    "a quicker optimizer on the host (fused=True, or a larger OMP_NUM_THREADS)",
    Change(lambda span: 0.0 if span.name == OPTIMIZER else span.duration_s),
    bound="at most",
)
LINKS = WhatIf("faster links", Change(_without_links), bound="at most")


def without_call(call: str, place: str, names: Collection[str]) -> WhatIf:
    """That the program does not make a call, whose spans have these names, with its copies; the
    host waits most at that place."""

    def without(span: Span) -> float:
        return 0.0 if span.name in names else span.duration_s

    words = f"no {call} at {place}"
    return WhatIf(words, Change(without, waits=lambda span: span.name not in names))


def compiled(spans: Iterable[Span], prices: KernelPrices, host: Host) -> WhatIf:
    """That `torch.compile` makes the modules: at most as much as if nothing were left but products,
    each launched as generated code does it, and updates of optimizers."""
    products = {span.correlation for span in spans if span.flops}

    def left_s(span: Span) -> float:
        if span.name.startswith(OF_UPDATES) or span.kind not in ("compute", "dispatch"):
            return span.duration_s
        if span.correlation not in products:
            return 0.0
        if span.kind == "dispatch":
            return min(span.duration_s, host.dispatch_s)
        return prices.compiled_s(span)

    return WhatIf("torch.compile", Change(left_s), bound="at most", again="compile")


def in_tf32(prices: KernelPrices) -> WhatIf:
    """That products of float32 are rounded to TF32: to ten bits after the point, as in float16."""

    def rounded_s(span: Span) -> float:
        return prices.tf32_s(span) if span.kind == "compute" and span.flops else span.duration_s

    return WhatIf('TF32 (torch.set_float32_matmul_precision("high"))', Change(rounded_s))


def gains(replayed: Callable[[Change], float], what_ifs: Iterable[WhatIf]) -> list[Gain]:
    """Those that are worth it, the largest first, but last what has to be run to be known.

    `replayed(change)` says how many times as fast a recording is.
    """
    found = []
    for what_if in what_ifs:
        times = what_if.per_step * replayed(what_if.change)
        if times >= LEAST:
            found.append(Gain(what_if.words, times, what_if.bound, what_if.again))
    return sorted(found, key=lambda gain: (bool(gain.again), -gain.times))
