"""Step time of data parallelism: gradients are exchanged in buckets while backward goes on.

What one device does alone is measured or simulated once: how long its step takes, and when each
gradient is ready. An exchange of so many bytes takes what a cost model says. As in
DistributedDataParallel (Li et al. 2020) gradients are gathered into buckets in the order in which
they come, and one bucket is exchanged after the other: a step takes as long as the longest chain
of computing and exchanging. That exchanging slows the computing down is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

BUCKET_BYTES = 25 * 2**20  # the default of DistributedDataParallel


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

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.bytes for gradient in self.gradients)


def buckets(gradients: Iterable[Gradient], bucket_bytes: float = BUCKET_BYTES) -> list[Gradient]:
    """Gradients gathered in the order in which they are ready, until a bucket has `bucket_bytes`.

    Raises ValueError unless `bucket_bytes` is above zero.
    """
    if not bucket_bytes > 0:
        raise ValueError(f"a bucket holds more than zero bytes, not {bucket_bytes!r}")
    found, held, ready_s = [], 0, 0.0
    for gradient in sorted(gradients, key=lambda g: g.ready_s):
        held, ready_s = held + gradient.bytes, gradient.ready_s
        if held >= bucket_bytes:
            found.append(Gradient(held, ready_s))
            held = 0
    if held:
        found.append(Gradient(held, ready_s))
    return found


def step_s(
    step: Step, exchange_s: Callable[[int], float], *, bucket_bytes: float = BUCKET_BYTES
) -> float:
    """Seconds of a step whose gradients are exchanged, `exchange_s(bytes)` for each bucket.

    The update follows when backward has ended and the last bucket is there.
    """
    exchanged_s = 0.0
    for bucket in buckets(step.gradients, bucket_bytes):
        exchanged_s = max(exchanged_s, bucket.ready_s) + exchange_s(bucket.bytes)
    update_s = step.end_s - step.backward_end_s
    return max(step.backward_end_s, exchanged_s) + update_s
