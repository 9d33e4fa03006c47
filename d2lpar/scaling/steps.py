"""Step time of data parallelism: gradients are exchanged in buckets while backward goes on.

What one device does alone is measured or simulated once: how long its step takes, and when each
gradient is ready. An exchange of so many bytes takes what a cost model says. As in
DistributedDataParallel (Li et al. 2020) gradients are gathered into buckets in the order in which
they come, and one bucket is exchanged after the other: a step takes as long as the longest chain
of computing and exchanging. That exchanging slows the computing down is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

BUCKET_BYTES = 25 * 2**20  # the default of DistributedDataParallel
ONE_BUCKET = inf  # everything is exchanged at once when backward has ended: no overlap


@dataclass(frozen=True)
class Gradient:
    """A gradient, or a bucket of them: its bytes, and when in the step it is ready."""

    bytes: int
    ready_s: float


@dataclass(frozen=True)
class Step:
    """A step of one device: when backward ends, when the step does, and its gradients."""

    backward_end_s: float
    end_s: float
    gradients: tuple[Gradient, ...]

    def scaled_to(self, seconds: float) -> Step:
        """The same step on a device that needs `seconds` for it."""
        factor = seconds / self.end_s
        return Step(
            self.backward_end_s * factor,
            seconds,
            tuple(Gradient(g.bytes, g.ready_s * factor) for g in self.gradients),
        )

    def accumulated(self, times: int) -> Step:
        """A step of `times` micro-steps like this one, whose gradients are added up.

        Only those of the last are exchanged, and there is one update: each micro-step before it
        takes what this step does until backward ends. Raises ValueError for less than one.
        """
        if times < 1:
            raise ValueError(f"a step has at least one micro-step, not {times!r}")
        before_s = (times - 1) * self.backward_end_s
        return Step(
            before_s + self.backward_end_s,
            before_s + self.end_s,
            tuple(Gradient(g.bytes, before_s + g.ready_s) for g in self.gradients),
        )

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.bytes for gradient in self.gradients)


def buckets(gradients: Iterable[Gradient], bucket_bytes: float = BUCKET_BYTES) -> list[Gradient]:
    """Gradients gathered in the order in which they are ready, until a bucket has `bucket_bytes`.

    Raises ValueError unless `bucket_bytes` is above zero.
    """
    found = list(gradients)
    return [bucket_of([found[i] for i in members]) for members in gathered_in(found, bucket_bytes)]


def gathered_in(gradients: Sequence[Gradient], bucket_bytes: float) -> list[list[int]]:
    """Which gradients, by their place in the list, are in which bucket."""
    if not bucket_bytes > 0:
        raise ValueError(f"a bucket holds more than zero bytes, not {bucket_bytes!r}")
    found, members, held = [], [], 0
    for i in sorted(range(len(gradients)), key=lambda i: gradients[i].ready_s):
        members.append(i)
        held += gradients[i].bytes
        if held >= bucket_bytes:
            found.append(members)
            members, held = [], 0
    return found + [members] * bool(members)


def bucket_of(members: Sequence[Gradient]) -> Gradient:
    """Gradients as one, ready when the last of them is."""
    return Gradient(sum(g.bytes for g in members), max(g.ready_s for g in members))


def step_s(
    step: Step, exchange_s: Callable[[int], float], *, bucket_bytes: float = BUCKET_BYTES
) -> float:
    """Seconds of a step whose gradients are exchanged, `exchange_s(bytes)` for each bucket.

    The update follows when backward has ended and the last bucket is there.
    """
    gathered = buckets(step.gradients, bucket_bytes)
    return chain_s(step, [(b.ready_s, exchange_s(b.bytes)) for b in gathered])


def chain_s(step: Step, exchanges: Iterable[tuple[float, float]]) -> float:
    """Seconds of a step with exchanges one after the other: when each may begin, how long it takes.

    The exchanges come in the order in which they may begin.
    """
    exchanged_s = 0.0
    for ready_s, takes_s in exchanges:
        exchanged_s = max(exchanged_s, ready_s) + takes_s
    update_s = step.end_s - step.backward_end_s
    return max(step.backward_end_s, exchanged_s) + update_s
