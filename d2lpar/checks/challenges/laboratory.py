"""Where answers run that work on virtual GPUs: a machine, a clock and detectors of the grader's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ... import machines
from ...timeline import Timeline
from ...vgpu.api.detectors import hazards, syncs
from ...vgpu.api.simulation import record, simulate
from ...vgpu.api.timing import now_s
from ...vgpu.races.stream_sanitizer import Hazard
from ...vgpu.races.sync_debug import Wait
from ...vgpu.torch_backend import runtime
from ..grader.source import Refused
from ..grader.tampering import fingerprint
from ..verdict import Wrong, few

TOLERANCE = 1e-3  # of the largest value
TEXT_NOTHING = "your function returned nothing: end it with `return {what}`"
TEXT_OTHER = "expected {what}, got {got}"
TEXT_VALUES = "{what}: expected {expected}, got {got}; off by up to {gap:.2g}"
TEXT_HAZARD = "the values happen to be right here, but: {hazard}"
TEXT_WAITS = "the host waited {count} times for a GPU, first in {call} (line {line}); {allowed}"
TEXT_INPUTS = "the answer has changed its inputs, which are the grader's data"
TEXT_MACHINE = "the answer has changed the machine, and so does not count"
TEXT_WORK = (
    "the GPUs did {did:.3g} GFLOP, and the work takes {takes:.3g}: the result must be computed on "
    "them, in this call"
)


@dataclass(frozen=True)
class Trial:
    """What one call of an answer gave, and what the grader saw meanwhile."""

    result: object
    seconds: float
    timeline: Timeline
    hazards: list[Hazard]
    waits: list[Wait]

    @property
    def flops(self) -> int:
        """Those computed on GPUs."""
        return sum(span.flops for span in self.timeline if span.kind == "compute")

    def require_work(self, flops: float) -> None:
        """Raise `Refused` if the GPUs did not do the work."""
        if self.flops < 0.98 * flops:
            raise Refused(TEXT_WORK.format(did=self.flops / 1e9, takes=flops / 1e9))

    def require_order(self) -> None:
        """Raise `Wrong` for the first hazard."""
        if self.hazards:
            raise Wrong(TEXT_HAZARD.format(hazard=self.hazards[0]))

    def require_few_waits(self, most: int) -> None:
        """Raise `Wrong` if the host waited more often than that."""
        if len(self.waits) > most:
            first = self.waits[0]
            allowed = "it need not wait at all" if most == 0 else f"at most {most} may be"
            raise Wrong(
                TEXT_WAITS.format(
                    count=len(self.waits), call=first.call, line=first.place.line, allowed=allowed
                )
            )


@dataclass
class Laboratory:
    """A simulated machine of the grader's, and its devices."""

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
        if self._fingerprint() != self._was:
            raise Refused(TEXT_MACHINE)
        for tensor, copy in zip(keeps, copies, strict=True):
            if tensor.shape != copy.shape or not torch.equal(values(tensor), copy):
                raise Refused(TEXT_INPUTS)
        return Trial(result, seconds, timeline, found, waited)

    def _fingerprint(self) -> str:
        rt = runtime.current_runtime()
        return f"{fingerprint(rt.machine)} {id(rt)} {id(rt.clock)} {type(rt.clock).__qualname__}"


@contextmanager
def laboratory(
    machine: str, n: int | None = None, *, with_values: bool = True
) -> Iterator[Laboratory]:
    """A machine for the block, with its clock at zero and memories that are empty."""
    with simulate(machine, n, with_values=with_values) as devices:
        yield Laboratory(runtime.current_runtime().machine, devices)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's values on the host."""
    return tensor.detach().cpu().clone()


def listed(got: object, count: int, what: str) -> list:
    """A list, or tuple, of so many; `Wrong` if it is none."""
    if got is None:
        raise Wrong(TEXT_NOTHING.format(what="…"))
    if not isinstance(got, list | tuple) or len(got) != count:
        size = f"{len(got)} of them" if isinstance(got, list | tuple) else kind(got)
        raise Wrong(TEXT_OTHER.format(what=f"a list of {count} {what}", got=size))
    return list(got)


def same(got: object, expected: torch.Tensor, device: torch.device | None, what: str) -> None:
    """Raise `Wrong` if this is no tensor of these values on that device (None: anywhere)."""
    if got is None:
        raise Wrong(TEXT_NOTHING.format(what="…"))
    if not isinstance(got, torch.Tensor):
        raise Wrong(TEXT_OTHER.format(what=f"{what} to be a tensor", got=kind(got)))
    if got.shape != expected.shape:
        shapes = [*expected.shape], [*got.shape]
        raise Wrong(TEXT_OTHER.format(what=f"{what} of shape {shapes[0]}", got=shapes[1]))
    if device is not None and got.device != device:
        raise Wrong(TEXT_OTHER.format(what=f"{what} on {device}", got=f"it on {got.device}"))
    own = values(got)
    if torch.equal(own, expected):
        return
    gap = (own - expected).abs().max().item()
    if not gap <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise Wrong(TEXT_VALUES.format(what=what, expected=few(expected), got=few(own), gap=gap))


def kind(value: object) -> str:
    """What a value is, in words."""
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"[:80]
