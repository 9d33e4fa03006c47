"""Step time of data parallelism: gradients are exchanged in buckets while backward goes on.

What one device does alone is measured or simulated once: how long its step takes, and when each
gradient is ready. An exchange of so many bytes takes what a cost model says. As in
DistributedDataParallel (Li et al. 2020) gradients are gathered into buckets in the order in which
they come, and one bucket is exchanged after the other: a step takes as long as the longest chain
of computing and exchanging. What it costs besides is an `Overhead`, by default none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from ...machines.gradient_buckets import DEFAULT_LIMITS, assign_buckets
from ...machines.variability import slowest_of
from ...timeline.inputs import Count, Index, NotNegative, Positive, check_fields, checked
from ...vgpu.sim.taken_shares import Engine
from .overhead import NO_OVERHEAD, Overhead

ONE_BUCKET = inf  # everything is exchanged at once when backward has ended: no overlap


@dataclass(frozen=True)
class Gradient:
    """A gradient, or a bucket of `tensors` of them: its bytes, and when in the step it is ready."""

    bytes: Index
    ready_s: NotNegative
    tensors: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class DeviceStep:
    """A step of one device: when backward ends, when the step does, and its gradients.

    It begins on an idle device. The host has queued backward at `backward_queued_s`, and everything
    at `queued_s`: as late as it happens if the device waits for the host, 0 if that takes no time.
    """

    backward_end_s: NotNegative
    end_s: Positive
    gradients: tuple[Gradient, ...]
    backward_queued_s: NotNegative = 0.0
    queued_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def scaled_to(self, seconds: Positive) -> DeviceStep:
        """The same step on a device that needs `seconds` for it."""
        factor = seconds / self.end_s
        return replace(
            self,
            backward_end_s=self.backward_end_s * factor,
            end_s=seconds,
            gradients=tuple(replace(g, ready_s=g.ready_s * factor) for g in self.gradients),
            backward_queued_s=self.backward_queued_s * factor,
            queued_s=self.queued_s * factor,
        )

    def of_slowest(self, devices: int, overhead: Overhead) -> DeviceStep:
        """The same step on the slowest of so many devices, for which all others wait."""
        if not overhead.spread:
            return self
        return self.scaled_to(self.end_s * slowest_of(devices, overhead.spread))

    @checked
    def accumulated(self, times: Count) -> DeviceStep:
        """A step of `times` micro-steps like this one, whose gradients are added up.

        Only those of the last are exchanged, and there is one update: each micro-step before it
        takes what this step does until backward ends. Raises ValueError for less than one.
        """
        before_s = (times - 1) * self.backward_end_s
        queued_before_s = (times - 1) * self.backward_queued_s
        return replace(
            self,
            backward_end_s=before_s + self.backward_end_s,
            end_s=before_s + self.end_s,
            gradients=tuple(replace(g, ready_s=before_s + g.ready_s) for g in self.gradients),
            backward_queued_s=queued_before_s + self.backward_queued_s,
            queued_s=queued_before_s + self.queued_s,
        )

    @checked
    def with_buckets(self, gathered: Iterable[Sequence[int]]) -> DeviceStep:
        """The same step with one gradient for each bucket, whose members are given by place."""
        found = (bucket_of([self.gradients[i] for i in members]) for members in gathered)
        return replace(self, gradients=tuple(found))

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients together."""
        return sum(gradient.bytes for gradient in self.gradients)


@checked
def buckets(gradients: Iterable[Gradient], bucket_bytes: float | None = None) -> list[Gradient]:
    """Gradients gathered in the order in which they are ready; see `gathered_in`."""
    found = list(gradients)
    return [bucket_of([found[i] for i in members]) for members in gathered_in(found, bucket_bytes)]


def gathered_in(gradients: Sequence[Gradient], bucket_bytes: float | None) -> list[list[int]]:
    """Which gradients, by their place in the list, are in which bucket.

    None stands for the limits of DistributedDataParallel, whose first bucket is small; a number of
    bytes is the limit of all, as `bucket_cap_mb` is. Raises ValueError unless it is above zero.
    """
    limits = DEFAULT_LIMITS if bucket_bytes is None else (bucket_bytes,)
    order = sorted(range(len(gradients)), key=lambda i: gradients[i].ready_s)
    found = assign_buckets([gradients[i].bytes for i in order], limits)
    return [[order[place] for place in members] for members in found]


def bucket_of(members: Sequence[Gradient]) -> Gradient:
    """Gradients as one, ready when the last of them is."""
    return Gradient(
        sum(g.bytes for g in members),
        max(g.ready_s for g in members),
        sum(g.tensors for g in members),
    )


@checked
def step_s(
    step: DeviceStep,
    exchange_s: Callable[[int], float],
    *,
    bucket_bytes: float | None = None,
    overhead: Overhead = NO_OVERHEAD,
) -> float:
    """Seconds of a step whose gradients are exchanged, `exchange_s(bytes)` for each bucket.

    The update follows when backward has ended and the last bucket is there.
    """
    bucketed = step.with_buckets(gathered_in(step.gradients, bucket_bytes))
    return chain_s(bucketed, [exchange_s(b.bytes) for b in bucketed.gradients], overhead)


def chain_s(
    step: DeviceStep, exchanges_s: Sequence[float], overhead: Overhead = NO_OVERHEAD
) -> float:
    """Seconds of a step whose buckets are exchanged one after the other, each in so many seconds.

    The buckets come in the order in which they are ready. Kernels of the overhead delay the device;
    queueing them delays the host, for which the device waits once it has lost its lead. Averages
    are copied back when backward has ended, while later buckets are exchanged. What the host gains
    on the update while the device waits for an exchange is left out. Computing beside an exchange
    has what the exchange leaves of the device.
    """
    lead_s = step.backward_end_s - step.backward_queued_s
    filling_s = queueing_s = delay_s = exchanged_s = 0.0
    averaged_s = []
    beside = Engine().shares
    for bucket, seconds in zip(step.gradients, exchanges_s, strict=True):
        filling_s += overhead.kernels_s(bucket.tensors, bucket.bytes)
        queueing_s += overhead.dispatch_s * bucket.tensors
        delay_s = max(filling_s, queueing_s - lead_s)
        begins_s = max(exchanged_s, beside.needed_s(0.0, bucket.ready_s + delay_s))
        exchanged_s = begins_s + seconds
        if overhead.taken:
            beside.take(begins_s, exchanged_s, overhead.taken)
        averaged_s.append(exchanged_s)
    end_s = beside.needed_s(0.0, step.backward_end_s + delay_s)
    copied_back = zip(step.gradients, averaged_s, strict=True) if overhead.copies_back else ()
    for bucket, at_s in copied_back:
        queueing_s += overhead.dispatch_s * bucket.tensors
        end_s = max(end_s, at_s) + overhead.kernels_s(bucket.tensors, bucket.bytes)
        end_s = max(end_s, step.backward_queued_s + queueing_s)
    late_s = max(end_s, exchanged_s) - step.backward_end_s  # that much later is the update
    return overhead.before_s + max(step.end_s + late_s, step.queued_s + queueing_s)
