"""The sync detector: which calls made the host wait for a device, and for how long."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ...timeline.formatting import table
from ..device_naming import text
from ..sim.clock import HostThread
from .call_sites import CallSite, call_site_of, mark


@dataclass(frozen=True)
class Wait:
    """A call (".item()", "nonzero") that waited `seconds` (simulated) for `device` ("vgpu:0").

    Zero seconds: the device was done already. The host was stopped from queuing ahead all the same.
    """

    call: str
    place: CallSite
    seconds: float
    device: str


@dataclass(frozen=True)
class SyncTotal:
    """All waits of one call at one place."""

    place: CallSite
    call: str
    count: int
    seconds: float


class Waits(list[Wait]):
    """Waits in their order; printed as a table of places, those that took longest first."""

    def begins(self, host_thread: HostThread) -> float:
        """A wait begins at the time of its host."""
        return host_thread.now_s

    def ends(
        self,
        begun: float,
        host_thread: HostThread,
        call: SyncingCall,
        place: CallSite,
        device: str,
    ) -> None:
        """Note it; with those of the same call, as one."""
        self.note(call.noted, call.name, place, host_thread.now_s - begun, device)

    def note(
        self, noted: dict[int, int], call: str, place: CallSite, seconds: float, device: str
    ) -> None:
        """Note a wait of a call, which has `noted` where its others are."""
        at = noted.setdefault(id(self), len(self))
        before_s = self[at].seconds if at < len(self) else 0.0
        self[at : at + 1] = [Wait(call, place, before_s + seconds, device)]

    @property
    def seconds(self) -> float:
        """Simulated seconds of all waits together."""
        return sum(wait.seconds for wait in self)

    def by_place(self) -> list[SyncTotal]:
        """Count and seconds of each call at each place, those that took longest first."""
        groups: dict[tuple[CallSite, str], list[float]] = defaultdict(list)
        for wait in self:
            groups[wait.place, wait.call].append(wait.seconds)
        totals = [SyncTotal(*key, len(each), sum(each)) for key, each in groups.items()]
        return sorted(totals, key=lambda total: (-total.seconds, total.place, total.call))

    def __str__(self) -> str:
        if not self:
            return "the host waited for no device"
        rows = [("waited", "times", "call", "place", "code")]
        rows += [
            (f"{t.seconds * 1e3:.3f} ms", str(t.count), t.call, str(t.place), t.place.source[:60])
            for t in self.by_place()
        ]
        return "\n".join(table(rows, others=str.ljust))

    __repr__ = __str__


class Listens(Protocol):
    """Who is told of waits."""

    def begins(self, host_thread: HostThread) -> object:
        """One begins; what is returned, its end is told."""

    def ends(
        self, begun: Any, host_thread: HostThread, call: SyncingCall, place: CallSite, device: str
    ) -> None:
        """It has ended."""


_listeners: list[Listens] = []
IGNORED, WARNED_OF, REFUSED = 0, 1, 2  # what becomes of waits, as torch numbers it
_WAITED = "called a synchronizing CUDA operation"  # torch's words
# What CUDA does not count: waits that are asked for by name, and those of its own driver.
_UNCOUNTED = {
    *("synchronize", "synchronize event"),
    *("wait for freed memory", "wait to copy from pageable memory"),
}
_mode = IGNORED
_thread = threading.local()


@contextmanager
def listening(listener: Listens | None = None) -> Iterator[Waits]:
    """Tell a listener of the waits of the block; by default, note them."""
    waits = Waits()
    told = waits if listener is None else listener
    _listeners.append(told)
    try:
        yield waits
    finally:
        _listeners[:] = [other for other in _listeners if other is not told]


class SyncingCall:
    """A call of the user's that may wait several times, and where each listener has noted it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.noted: dict[int, int] = {}


@contextmanager
def called(name: str) -> Iterator[None]:
    """Waits within the block are those of one call of the user's, `name`."""
    outer = getattr(_thread, "call", None)
    _thread.call = outer or SyncingCall(name)
    try:
        yield
    finally:
        _thread.call = outer


def name_of(call: str) -> str:
    """What the user has called, if that is what makes `call`."""
    outer: SyncingCall | None = getattr(_thread, "call", None)
    return outer.name if outer else call


def mode() -> int:
    """What becomes of calls that make the host wait."""
    return _mode


def set_mode(mode: int) -> None:
    """`WARNED_OF` or `REFUSED`: let calls warn, or raise, that make the host wait by the way.

    RuntimeError for other numbers.
    """
    global _mode
    if mode not in (IGNORED, WARNED_OF, REFUSED):
        raise RuntimeError(f"debug_mode is 0, 1 or 2, not {mode!r}")
    _mode = mode


def _warn_or_refuse() -> None:
    if _mode == REFUSED:
        raise RuntimeError(_WAITED)
    place = call_site_of(mark())
    warnings.warn_explicit(_WAITED, UserWarning, place.file, place.line)


def listened(device: int, name: str, wait: Callable[..., None]) -> Callable[..., None]:
    """`wait(host_thread, *args)`, telling all listeners how long it took."""
    if _mode != IGNORED and name not in _UNCOUNTED:
        _warn_or_refuse()
    if not _listeners:
        return wait
    call, where = getattr(_thread, "call", None) or SyncingCall(name), mark()

    def timed(host_thread: HostThread, *args: object) -> None:
        begun = [(listener, listener.begins(host_thread)) for listener in _listeners]
        wait(host_thread, *args)
        for listener, begin in begun:
            listener.ends(begin, host_thread, call, call_site_of(where), text(device))

    return timed
