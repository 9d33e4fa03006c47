"""Where answers run that work on virtual GPUs: a machine, a clock and detectors of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import machines
from ..timeline import Timeline
from ..vgpu import hazards, now_s, record, simulate, syncs
from ..vgpu.races.stream_sanitizer import Hazard
from ..vgpu.races.sync_debug import Wait
from ..vgpu.torch_backend.machine import runtime
from .evidence import gantt_of
from .plain import seen
from .tampering import fingerprint


@dataclass(frozen=True)
class Trial:
    """What one call of an answer gave, and what was seen meanwhile."""

    result: object
    seconds: float
    timeline: Timeline
    hazards: list[Hazard]
    waits: list[Wait]
    changed: str  # what the answer should have left alone, and has not

    @property
    def flops(self) -> int:
        """Those computed on GPUs."""
        return sum(span.flops for span in self.timeline if span.kind == "compute")

    @property
    def sent_bytes(self) -> int:
        """What all ranks together gave to collectives."""
        return sum(span.bytes for span in self.timeline if span.kind == "collective")

    def evidence(self, **drawn: Any) -> dict[str, Any]:
        """The same as plain data; `drawn` says what of it is drawn, as `gantt_of` takes it."""
        return {
            "result": seen(self.result),
            "seconds": self.seconds,
            "flops": self.flops,
            "sent_bytes": self.sent_bytes,
            "hazards": [str(hazard) for hazard in self.hazards[:1]],
            "waits": [[wait.call, wait.place.line] for wait in self.waits],
            "changed": self.changed,
            "picture": gantt_of(self.timeline, **drawn),
        }


@dataclass
class Laboratory:
    """A simulated machine, and its devices."""

    machine: machines.Machine
    devices: list[torch.device]
    _was: str = field(init=False)

    def __post_init__(self) -> None:
        self._was = self._fingerprint()

    def run(self, answer: Callable, *args: object, keeps: Sequence[torch.Tensor] = ()) -> Trial:
        """Call an answer; the clock is read before it and after all that it queued.

        `keeps` are inputs that must be afterwards what they were.
        """
        copies = [values(tensor) for tensor in keeps]
        with hazards() as found, syncs() as waits, record() as timeline:
            start_s = now_s(self.devices)
            waits.clear()
            result = answer(*args)
            waited = [*waits]
            seconds = now_s(self.devices) - start_s
        changed = "" if self._fingerprint() == self._was else "the machine"
        for tensor, copy in zip(keeps, copies, strict=True):
            if tensor.shape != copy.shape or not torch.equal(values(tensor), copy):
                changed = "its inputs"
        return Trial(result, seconds, timeline, found, waited, changed)

    def _fingerprint(self) -> str:
        rt = runtime.current_runtime()
        return f"{fingerprint(rt.machine)} {id(rt)} {id(rt.clock)} {type(rt.clock).__qualname__}"


@contextmanager
def laboratory(
    machine: str | machines.Machine, n: int | None = None, *, with_values: bool = True
) -> Iterator[Laboratory]:
    """A machine for the block, with its clock at zero and memories that are empty."""
    with simulate(machine, n, with_values=with_values) as devices:
        yield Laboratory(runtime.current_runtime().machine, devices)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's values on the host."""
    return tensor.detach().cpu().clone()


def random(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
