"""What a trial on virtual GPUs has brought, as the judge reads it: plain data, and believed little.

The simulated clock runs where the answer runs, so an answer that forges it is not found out by what
it says of itself. Values are compared here; work that was not done, and a time that this machine's
arithmetic and links do not allow, are refused.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import machines
from ...trials.evidence import MOST_SPANS
from ...trials.plain import Seen, shown, type_name
from ..verdict import Over, Refused, Wrong, few

TOLERANCE = 1e-3  # of the largest value
TEXT_NOTHING = "your function returned nothing: end it with `return {what}`"
TEXT_OTHER = "expected {what}, got {got}"
TEXT_VALUES = (
    "{what} is off by up to {gap:.2g}, and {share:.0%} of its values are right; it begins {got}"
)
TEXT_HAZARD = "the values happen to be right here, but: {hazard}"
TEXT_WAITS = "the host waited {count} times for a GPU, first in {call} (line {line}); {allowed}"
TEXT_CHANGED = "the answer has changed {what}, and so does not count"
TEXT_WORK = (
    "the GPUs did {did:.3g} GFLOP, and the work takes {takes:.3g}: the result must be computed on "
    "them, in this call"
)
TEXT_FAST = (
    "{told:.3g} ms is less than the {least:.3g} ms that the GPUs and links of {machine} need for "
    "this work at their peaks, and so does not count"
)
TEXT_TORN = "the answer has changed what was seen of it, and so does not count"


class Evidence:
    """What came of one call of an answer. Raises `Refused` for what a trial does not bring."""

    def __init__(self, found: Any, machine: str) -> None:
        if not isinstance(found, dict):
            raise Refused(TEXT_TORN)
        self.found, self._machine = found, machines.machine(machine)
        self.result = found.get("result")
        self.seconds = self.number("seconds")
        self.flops, self.sent_bytes = self.number("flops"), self.number("sent_bytes")
        self.picture = picture(found.get("picture"), f"simulated on {machine}")
        if found.get("changed"):
            raise Refused(TEXT_CHANGED.format(what=str(found["changed"])[:80]))

    def number(self, name: str) -> float:
        """A number that is finite and not negative."""
        value: Any = self.found.get(name)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise Refused(TEXT_TORN)
        return float(value)

    def seen(self, name: str) -> list[Any]:
        """A list that the trial brings besides."""
        value = self.found.get(name)
        if not isinstance(value, list):
            raise Refused(TEXT_TORN)
        return value

    def require_order(self) -> None:
        """Raise `Wrong` for the first hazard."""
        if self.found.get("hazards") != []:
            raise Wrong(TEXT_HAZARD.format(hazard=str(self.seen("hazards")[0])[:400]))

    def require_few_waits(self, most: int) -> None:
        """Raise `Over` if the host waited more often than that."""
        waits = self.seen("waits")
        if len(waits) > most:
            call, line = waits[0]
            allowed = "it need not wait at all" if most == 0 else f"at most {most} may be"
            raise Over(TEXT_WAITS.format(count=len(waits), call=call, line=line, allowed=allowed))

    def require_work(self, flops: float, gpus: int) -> None:
        """Raise `Refused` if the GPUs did not do the work, or faster than so many of them can."""
        if self.flops < 0.98 * flops:
            raise Refused(TEXT_WORK.format(did=self.flops / 1e9, takes=flops / 1e9))
        rates = self._machine.accelerators[0].flops_per_s
        self._require_time(flops / (gpus * max(rates["float32"], rates.get("tfloat32", 0))))

    def require_bytes(self, nbytes: float, *, host: bool = False) -> None:
        """Raise `Refused` if one link, to another GPU or the host, cannot have sent so much."""
        peer = self._machine.peer
        link = self._machine.host_link if host or peer is None else peer
        self._require_time(nbytes / link.bytes_per_s)

    def _require_time(self, least_s: float) -> None:
        if self.seconds < least_s:
            raise Refused(
                TEXT_FAST.format(
                    told=1e3 * self.seconds, least=1e3 * least_s, machine=self._machine.name
                )
            )


def picture(found: Any, clock: str) -> dict[str, Any]:
    """Bars of a chart, if it is that; nothing of anything else."""
    if not isinstance(found, dict) or found.get("kind") != "gantt":
        return {}
    rows = found.get("spans")
    if not isinstance(rows, list) or len(rows) > MOST_SPANS or not all(map(_is_bar, rows)):
        return {}
    return {"kind": "gantt", "clock": clock, "spans": rows}


def _is_bar(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 5:
        return False
    device, stream, kind, start, end = row
    named = isinstance(device, str) and isinstance(kind, str) and isinstance(stream, int | str)
    timed = all(type(t) in (int, float) and 0 <= t < math.inf for t in (start, end))
    return named and timed


def listed(got: object, count: int, what: str) -> list:
    """A list, or tuple, of so many; `Wrong` if it is none."""
    if got is None:
        raise Wrong(TEXT_NOTHING.format(what="…"))
    if not isinstance(got, list | tuple) or len(got) != count:
        size = f"{len(got)} of them" if isinstance(got, list | tuple) else kind(got)
        raise Wrong(TEXT_OTHER.format(what=f"a list of {count} {what}", got=size))
    return list(got)


def same(got: object, expected: torch.Tensor, device: str, what: str) -> None:
    """Raise `Wrong` if this is no tensor of these values on that device ("": anywhere)."""
    if got is None:
        raise Wrong(TEXT_NOTHING.format(what="…"))
    if not isinstance(got, torch.Tensor | Seen):
        raise Wrong(TEXT_OTHER.format(what=f"{what} to be a tensor", got=kind(got)))
    own = got.values if isinstance(got, Seen) else got
    if own.shape != expected.shape:
        shapes = [*expected.shape], [*own.shape]
        raise Wrong(TEXT_OTHER.format(what=f"{what} of shape {shapes[0]}", got=shapes[1]))
    if device and str(got.device) != device:
        raise Wrong(TEXT_OTHER.format(what=f"{what} on {device}", got=f"it on {got.device}"))
    if torch.equal(own, expected):
        return
    gaps = (own.detach() - expected).abs()
    allowed = TOLERANCE * max(1.0, expected.abs().max().item())
    gap, share = gaps.max().item(), (gaps <= allowed).float().mean().item()
    if not gap <= allowed:
        raise Wrong(TEXT_VALUES.format(what=what, got=few(own), gap=gap, share=share))


def kind(value: object) -> str:
    """What a value is, in words."""
    return "nothing" if value is None else f"{type_name(value)} {shown(value)}"[:80]
