"""What follows from a peak rate about the multiprocessors of an accelerator: lanes and clock."""

from __future__ import annotations

from ....machines.hardware import GIGA, Accelerator

# A multiprocessor has 64 lanes of fp32 (P100, V100, T4, A100) or 128; none with 64 has a clock that
# makes as many operations a second as this.
_MOST_BY_64_LANES = 1.28e11

# The clock where the number of multiprocessors is not known: about that of most cards.
_TYPICAL_CLOCK_HZ = 1.5 * GIGA


def lanes(accelerator: Accelerator) -> int:
    """Lanes of fp32 that a multiprocessor has."""
    a_processor = accelerator.rate("float32") / 2 / (accelerator.multiprocessors or 1)
    return 64 if a_processor < _MOST_BY_64_LANES else 128


def clock_hz(accelerator: Accelerator) -> float:
    """Cycles a second: those that the peak rate was reckoned with, two FLOP a cycle and lane."""
    if accelerator.multiprocessors is None:
        return _TYPICAL_CLOCK_HZ
    flops_a_cycle = 2 * accelerator.multiprocessors * lanes(accelerator)
    return accelerator.rate("float32") / flops_a_cycle
