"""A recorded run, replayed on machines that are for rent: kernels, copies and collectives as they
are priced there, its host as much faster as its processors are.

The run has to be of one node of a machine whose processor is one of the catalogue's, which differ
by their speed alone; what has no price leaves a machine out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from .... import machines
from ....machines import CATALOGUE, Host, Machine
from ....machines.collective_cost import collective_s, fabric_among
from ....machines.prices import price_of
from ....timeline import Span
from ...sim.copy_routes import hops
from ...sim.staging import copied_bytes_per_s, through_buffer_s, transfers
from ...torch_backend.cost.optimizer_on_host import OPTIMIZER
from ..report import Gain, RunReport
from ..watched.kernel_prices import KernelPrices
from .replay import Change
from .what_ifs import STAGING

CLEARLY = 1.25  # times as cheap, or as fast: prices of clouds differ by more than times are known
SLOWEST = 0.5  # times as fast: who saves dollars has as many hours
LOOKED_AT = 2000  # spans at most, to see on which machines a step must cost least
TRIED = 2  # of these
WORDS = "{machine}, {dollars} for 1,000 steps{here}"


def cheaper(
    report: RunReport,
    here: Machine,
    spans: Sequence[Span],
    since_s: float,
    prices: KernelPrices,
    replayed: Callable[[Change], float],
) -> Iterator[Gain]:
    """The machine, as large as the run needs, on which a step costs least, if it costs clearly less
    than here; where no price is known here, if it is clearly faster. None is half as fast.

    `replayed(change)` says how many times as fast the run is with a change, since `since_s`.
    """
    staged, found = _staged_bytes(spans), []
    ranked = sorted(_ranked(report, here, _some(spans, since_s), prices, staged))
    for _, usd, name in ranked[:TRIED]:
        change = Change(_Elsewhere(here, machines.machine(name), prices, staged).seconds)
        with suppress(ValueError):  # of a span that was not looked at
            times = replayed(change)
            if times >= SLOWEST:
                found.append((usd / times, times, name))
    if not found:
        return
    (per_gpu, times, name), rent = min(found), price_of(here)
    if (times if rent is None else rent.usd_per_gpu_h / per_gpu) < CLEARLY:
        return
    per_usd = report.gpus * report.of_one_s / 3.6
    there_usd = f"${per_usd * per_gpu:.4g}"
    here_usd = "" if rent is None else f" in place of ${per_usd * rent.usd_per_gpu_h:.4g}"
    words = WORDS.format(machine=name, dollars=there_usd, here=here_usd)
    yield Gain(words, times, again=f"machine={name}")


def _some(spans: Sequence[Span], since_s: float) -> Sequence[Span]:
    """One of every so many since then, alike ones beside each other: what comes again and again
    could always be the one, or never, in the order of time."""
    wanted = [span for span in spans if span.end_s > since_s]
    wanted.sort(key=lambda s: (s.device, str(s.stream), s.name, s.duration_s))
    return wanted[:: math.ceil(len(wanted) / LOOKED_AT) or 1]


def _ranked(
    report: RunReport,
    here: Machine,
    spans: Sequence[Span],
    prices: KernelPrices,
    staged: Mapping[Span, int],
) -> Iterator[tuple[float, float, str]]:
    """Machines that can do it, each behind the dollars that it costs if the busiest of hosts and
    GPUs waits for nothing, up to a factor, and those of a GPU's hour. Of those with the same parts
    there is the cheapest."""
    known: dict[tuple, tuple[float, str]] = {}
    needed = max((d.peak_memory_bytes for d in report.devices), default=0)
    for machine in CATALOGUE.values():
        price, accelerator = price_of(machine), machine.accelerators[0]
        if price is None or machine.nodes > 1 or len(machine.accelerators) < report.gpus:
            continue
        if accelerator.memory_bytes < needed or _host_factor(here.host, machine.host) is None:
            continue
        name = re.sub(r"^\d+x", f"{report.gpus}x", machine.name)
        parts = (accelerator.name, machine.host.dispatch_s)
        known[parts] = min(known.get(parts, (math.inf, "")), (price.usd_per_gpu_h, name))
    for usd, name in known.values():
        elsewhere = _Elsewhere(here, machines.machine(name), prices, staged)
        try:
            yield usd * elsewhere.least_s(spans), usd, name
        except ValueError:
            continue


def _host_factor(here: Host, there: Host) -> float | None:
    """How many times as long the other one takes for all that it does; None if that differs."""
    if not here.dispatch_s:
        return None
    factor = there.dispatch_s / here.dispatch_s
    pairs = zip(here.costs_s.values(), there.costs_s.values(), strict=True)
    alike = all(math.isclose(b, a * factor, rel_tol=1e-6) for a, b in pairs)
    return factor if alike else None


class _Elsewhere:
    """How long spans of a run here last there."""

    def __init__(
        self, here: Machine, there: Machine, prices: KernelPrices, staged: Mapping[Span, int]
    ) -> None:
        self._here, self._there, self._prices, self._staged = here, there, prices, staged
        factor = _host_factor(here.host, there.host)
        assert factor is not None, "hosts that differ by their speed"
        self._host = factor

    def least_s(self, spans: Sequence[Span]) -> float:
        """The time of the row that takes longest. Raises ValueError for a span without a price."""
        taken: dict[tuple[str, object], float] = {}
        for span in spans:
            if span.kind != "wait":
                row = span.device, span.stream
                taken[row] = taken.get(row, 0.0) + self.seconds(span)
        return max(taken.values(), default=0.0)

    def seconds(self, span: Span) -> float:
        """That of one. Raises ValueError if it has no price."""
        if span.name == STAGING:
            return self._staging_s(span)
        if span.name == OPTIMIZER:
            copied = [copied_bytes_per_s(machine.host) for machine in (self._here, self._there)]
            return span.duration_s * copied[0] / copied[1]
        if span.device == "host":
            return span.duration_s * self._host
        if span.kind == "compute":
            return self._prices.on(self._there.accelerators[0], span)
        here_s, there_s = (self._sent_s(machine, span) for machine in (self._here, self._there))
        return span.duration_s * there_s / here_s

    def _staging_s(self, span: Span) -> float:
        """Of a copy from or to pageable memory, which is fresh if that explains its time here."""
        nbytes = self._staged[span]
        here_s = {
            fresh: through_buffer_s(self._here, nbytes, fresh=fresh) for fresh in (False, True)
        }
        fresh = min(here_s, key=lambda each: abs(here_s[each] - span.duration_s))
        return through_buffer_s(self._there, nbytes, fresh=fresh)

    def _sent_s(self, machine: Machine, span: Span) -> float:
        if span.kind == "collective":
            if len(span.group) < 2:
                raise ValueError(f"{span.name} has no ranks")
            return collective_s(span.name, span.bytes, fabric_among(machine, span.group))
        source = "host" if span.device == span.target else span.device
        way = hops(machine, _number(source), _number(span.target))
        parts = transfers([(hop.ports, hop.link, hop.target) for hop in way], span.bytes)
        return sum(part.seconds for part in parts)


def _number(device: str) -> int | None:
    return None if device == "host" else int(device.partition(":")[2])


def _staged_bytes(spans: Sequence[Span]) -> dict[Span, int]:
    """How much the host copies in what it does for copies from pageable memory, which it queues
    next, and to it, which it has queued before."""
    copied = Counter({0: 0})
    for span in spans:
        if span.kind == "copy":
            copied[span.correlation] += span.bytes
    found: dict[Span, int] = {}
    last: dict[int | str, Span] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.device != "host" or span.kind == "wait":
            continue
        before = last.get(span.stream)
        if span.name == STAGING:
            found[span] = 0 if before is None else copied[before.correlation]
        elif before is not None and before.name == STAGING and copied[span.correlation]:
            found[before] = copied[span.correlation]
        last[span.stream] = span
    return found
