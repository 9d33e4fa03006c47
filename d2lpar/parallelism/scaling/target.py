"""Time to a target accuracy: steps to it times seconds a step, and the batch and devices for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...timeline.inputs import Count, Positive, checked
from .convergence import Convergence
from .exchange import Exchange
from .overhead import NO_OVERHEAD, Overhead
from .profile import Profile
from .steps import chain_s


@dataclass(frozen=True)
class RunToTarget:
    """Training to the target on `devices` devices with `batch` samples each."""

    devices: int
    batch: float
    steps: float
    step_s: float

    @property
    def seconds(self) -> float:
        """Time to the target."""
        return self.steps * self.step_s


@checked
def runs(
    convergence: Convergence,
    profile: Profile,
    exchange: Exchange,
    *,
    batches: Iterable[Positive],
    devices: Iterable[Count],
    bucket_bytes: float | None = None,
    overhead: Overhead = NO_OVERHEAD,
) -> list[list[RunToTarget]]:
    """Runs to the target: a list for each number of devices, with one run for each batch.

    `batches` are those of one device. Raises ValueError for a batch smaller than any of the
    profile.
    """
    bucketed = profile.bucketed(bucket_bytes)
    steps = [(batch, bucketed.at(batch)) for batch in batches]
    table = []
    for n in devices:
        # What buckets hold, and so what exchanging them takes, does not depend on the batch.
        takes_s = [exchange(bucket.bytes, n) for bucket in bucketed.steps[0].gradients]
        row = []
        for batch, step in steps:
            seconds = chain_s(step.of_slowest(n, overhead), takes_s, overhead)
            row.append(RunToTarget(n, batch, convergence.steps(n * batch), seconds))
        table.append(row)
    return table
