"""How fast n devices train: weak scaling, strong scaling, and what a device waits for.

t1 is what a device computes for, t2 what the exchange of all its gradients takes. If both went on
at the same time throughout, a step would take max(t1, t2): the rule of thumb. Buckets come close,
but the last can only be sent when backward has ended; one after the other it is t1 + t2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...timeline.inputs import Count, Positive, checked
from .exchange import Exchange
from .overhead import NO_OVERHEAD, Overhead
from .profile import Profile
from .steps import DeviceStep, chain_s


@dataclass(frozen=True)
class Speed:
    """A step of `devices` devices with `batch` samples each.

    `compute_s` is t1, the overhead included, `exchange_s` t2, `step_s` what a step takes, buckets
    and all. `efficiency` is what a device does of what it would do alone, without overhead.
    """

    devices: int
    batch: float
    step_s: float
    compute_s: float
    exchange_s: float
    efficiency: float

    @property
    def samples(self) -> float:
        """Samples in a step, over all devices."""
        return self.batch * self.devices

    @property
    def samples_per_s(self) -> float:
        """Samples a second, over all devices."""
        return self.samples / self.step_s

    @property
    def speedup(self) -> float:
        """How many single devices it is worth."""
        return self.efficiency * self.devices

    @property
    def serial_s(self) -> float:
        """Computing, then exchanging: t1 + t2."""
        return self.compute_s + self.exchange_s


@checked
def weak(
    profile: Profile,
    exchange: Exchange,
    *,
    batch: Positive,
    devices: Iterable[Count],
    accumulate: Count = 1,
    bucket_bytes: float | None = None,
    overhead: Overhead = NO_OVERHEAD,
) -> list[Speed]:
    """Every device has `batch` samples, however many there are; one value for each of `devices`.

    Gradients of `accumulate` steps are added up before an exchange: `Speed.batch` counts them all.
    The efficiency is that against one device doing the same, which has no overhead. Raises
    ValueError for a batch smaller than any of the profile, and for less than one device.
    """
    step = profile.bucketed(bucket_bytes).at(batch).accumulated(accumulate)
    alone_s, samples = step.end_s, batch * accumulate
    return [_speed(step, exchange, overhead, n, samples, alone_s) for n in devices]


@checked
def strong(
    profile: Profile,
    exchange: Exchange,
    *,
    samples: Positive,
    devices: Iterable[Count],
    bucket_bytes: float | None = None,
    overhead: Overhead = NO_OVERHEAD,
) -> list[Speed]:
    """All devices together have `samples` a step; one value for each of `devices`.

    The efficiency is that against one device doing them all without overhead, in micro-steps if
    they are more than the largest batch of the profile. Raises ValueError where a device would have
    less samples than any batch of the profile.
    """
    bucketed = profile.bucketed(bucket_bytes)
    alone_s = bucketed.at(samples).end_s
    return [
        _speed(bucketed.at(samples / n), exchange, overhead, n, samples / n, alone_s / n)
        for n in devices
    ]


def _speed(
    step: DeviceStep, exchange: Exchange, overhead: Overhead, n: int, batch: float, ideal_s: float
) -> Speed:
    """A step whose gradients are in buckets already; `ideal_s` is what efficiency 1 would take."""
    step = step.of_slowest(n, overhead)
    exchanges_s = [exchange(bucket.bytes, n) for bucket in step.gradients]
    takes_s = chain_s(step, exchanges_s, overhead)
    compute_s = chain_s(step, [0.0] * len(exchanges_s), overhead)
    whole_s = exchange(step.gradient_bytes, n)
    return Speed(n, batch, takes_s, compute_s, whole_s, ideal_s / takes_s)


@checked
def counts(most: Count, *, node: Count = 1) -> list[int]:
    """Numbers of devices from 1 to `most` for a curve, each about a quarter more than the last.

    Above `node` only whole nodes. Raises ValueError for less than one.
    """
    found, at = {1}, 1.0
    while at < most:
        at *= 1.25
        n = round(at) if at <= node else round(at / node) * node
        found.add(min(max(n, 1), most))
    return sorted(found | {most})
