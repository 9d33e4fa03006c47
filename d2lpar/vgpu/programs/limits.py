"""Limits that a run must keep, for a CI without GPUs; the exit status says which were broken.

The status is 16 and, added to it, 1 for time, 2 for memory, 4 for hazards, 8 for calls that made a
host wait: 17 to 31. Statuses below are the program's own, 2 that of a wrong command line.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import dataclass

from ...timeline.formatting import bytes_text
from ...timeline.inputs import MOST_COUNT
from .report import RunReport

BROKEN, TIME, MEMORY, HAZARDS, SYNCS = 16, 1, 2, 4, 8

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Limits:
    """What a run may take: milliseconds a step, bytes on each device, hazards, waits of hosts."""

    ms_per_step: float | None = None
    memory_bytes: int | None = None
    no_hazards: bool = False
    no_syncs: bool = False

    def broken_by(self, run: RunReport) -> tuple[int, list[str]]:
        """The exit status, 0 if all was kept, and what was broken, in words.

        A time that cannot be known, for there were no two steps, breaks its limit.
        """
        found = list(self._broken(run))
        return (BROKEN | sum(bit for bit, _ in found) if found else 0), [text for _, text in found]

    def _broken(self, run: RunReport) -> Iterator[tuple[int, str]]:
        if self.ms_per_step is not None:
            if run.ms_per_step is None:
                yield TIME, "--max-ms-per-step: fewer than two steps of an optimizer were seen"
            elif run.ms_per_step > self.ms_per_step:
                took = f"a step takes {run.ms_per_step:.3f} ms"
                yield TIME, f"--max-ms-per-step {self.ms_per_step:g}: {took}"
        if self.memory_bytes is not None:
            for device in run.devices:
                if device.peak_memory_bytes > self.memory_bytes:
                    yield MEMORY, self._too_much(device.device, device.peak_memory_bytes)
                    break
        if self.no_hazards and run.hazards:
            yield HAZARDS, f"--no-hazards: {len(run.hazards)}, the first is {run.hazards[0]}"
        if self.no_syncs and run.syncs:
            first = run.syncs[0]
            yield SYNCS, f"--no-syncs: {first.call} at {first.place} made the host wait"

    def _too_much(self, device: str, peak_bytes: int) -> str:
        assert self.memory_bytes is not None, "there is such a limit"
        limit = bytes_text(self.memory_bytes)
        return f"--max-memory {limit}: tensors on {device} took {bytes_text(peak_bytes)}"


def size(text: str) -> int:
    """Bytes of "512MiB", "16 GB" or "1000". Raises ArgumentTypeError for anything else, and for
    less than one byte or more than any memory has."""
    found = _SIZE.fullmatch(text.strip())
    if found is not None:
        base = 1024 if found[3] else 1000
        nbytes = float(found[1]) * base ** _POWERS[found[2].lower()]
        if 1 <= nbytes <= MOST_COUNT:
            return int(nbytes)
    raise ArgumentTypeError(f"{text!r} is no size: write 16GB (10^9 bytes each) or 16GiB (2^30)")
