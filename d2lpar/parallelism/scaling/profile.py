"""What one device needs for a step, by the size of its batch: steps of a few sizes, interpolated.

A small batch does not fill a GPU: kernels have a fixed cost, and so has queueing them. That is in
the steps, measured or simulated, and is why strong scaling ends even without any communication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from ...timeline.inputs import Positive, check_fields, checked
from .steps import DeviceStep, gathered_in


@dataclass(frozen=True)
class Profile:
    """Steps of one device by their batch, sizes rising; made by `Profile.of`."""

    batches: tuple[int, ...]
    steps: tuple[DeviceStep, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    @checked
    def of(cls, steps: Mapping[int, DeviceStep]) -> Profile:
        """A profile of steps by batch: `Profile.of({1: step, 32: another})`.

        Raises ValueError for none, for a batch below one, and for steps of different networks:
        gradients must have the same bytes, in the same order.
        """
        batches = tuple(sorted(steps))
        if not batches or batches[0] < 1:
            raise ValueError(f"a profile needs steps of batches from 1 on, not {list(batches)}")
        ordered = tuple(steps[batch] for batch in batches)
        if len({tuple(g.bytes for g in step.gradients) for step in ordered}) > 1:
            raise ValueError(
                f"the steps of batches {list(batches)} have gradients of different bytes or order; "
                "a profile is of one network"
            )
        return cls(batches, ordered)

    @checked
    def bucketed(self, bucket_bytes: float | None = None) -> Profile:
        """The same profile with one gradient for each bucket.

        Buckets are those of the largest batch, whatever comes first in a small one: as in
        DistributedDataParallel they are fixed, and ready when all of their gradients are.
        """
        gathered = gathered_in(self.steps[-1].gradients, bucket_bytes)
        return Profile(self.batches, tuple(step.with_buckets(gathered) for step in self.steps))

    @checked
    def at(self, batch: Positive) -> DeviceStep:
        """The step of a batch, interpolated linearly between the two nearest sizes.

        A batch above the largest is done as equal micro-steps that are not, adding gradients up.
        Raises ValueError for one below the smallest: what it takes is not known.
        """
        if not batch >= self.batches[0]:
            raise ValueError(
                f"the smallest batch of this profile is {self.batches[0]}: what {batch:g} samples "
                "take is not known; measure or simulate a step of so few, too"
            )
        micro_steps = self.micro_steps(batch)
        step = self._between(batch / micro_steps)
        return step if micro_steps == 1 else step.accumulated(micro_steps)

    @checked
    def micro_steps(self, batch: Positive) -> int:
        """How many micro-steps a batch needs, none above the largest size."""
        return ceil(batch / self.batches[-1])

    def _between(self, batch: float) -> DeviceStep:
        above = bisect_left(self.batches, batch)
        if above == len(self.batches) or self.batches[above] == batch or above == 0:
            return self.steps[min(above, len(self.steps) - 1)]
        small, large = self.batches[above - 1], self.batches[above]
        return _mixed(self.steps[above - 1], self.steps[above], (batch - small) / (large - small))

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients together, the same for each batch."""
        return self.steps[0].gradient_bytes


def _mixed(a: DeviceStep, b: DeviceStep, share: float) -> DeviceStep:
    """What lies between two steps of one network, `share` of the way from a to b."""
    kept = 1 - share
    return DeviceStep(
        kept * a.backward_end_s + share * b.backward_end_s,
        kept * a.end_s + share * b.end_s,
        tuple(
            replace(x, ready_s=kept * x.ready_s + share * y.ready_s)
            for x, y in zip(a.gradients, b.gradients, strict=True)
        ),
        kept * a.backward_queued_s + share * b.backward_queued_s,
        kept * a.queued_s + share * b.queued_s,
    )
