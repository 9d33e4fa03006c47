"""What is certain to be done before what, whatever the simulated clock says: vector clocks.

Streams and the host each know which work of every stream lies behind them. Events carry what a
stream knows to whoever waits for them (Lamport 1978; Mattern 1989; the epochs, which advance only
when a stream tells something, are those of FastTrack, Flanagan and Freund 2009). All threads of the
host count as one: it may miss a hazard between threads, and reports none that is not there.
"""

from __future__ import annotations

from collections import defaultdict

from ..sim.clock import StreamKey
from .call_sites import Mark

Known = dict[StreamKey, int]  # the last epoch of each stream that is certainly done
Access = tuple[
    StreamKey, int, Mark | None, "VectorClocks"
]  # who, when, where in the code, by which order


class VectorClocks:
    """The order of the streams of one virtual machine and of its host."""

    def __init__(self) -> None:
        self.epochs: defaultdict[StreamKey, int] = defaultdict(lambda: 1)
        self._known: defaultdict[StreamKey, Known] = defaultdict(dict)
        self._host: Known = {}

    def release(self, stream: StreamKey) -> Known:
        """What is done once everything that `stream` has queued so far is done."""
        known = dict(self._known[stream])
        join(known, self._host)
        known[stream] = self.epochs[stream]  # nobody knows of a later one
        self.epochs[stream] += 1
        return known

    def advance(self) -> dict[StreamKey, int]:
        """Let the next epoch of every stream begin: what was queued so far is told from what comes.
        Returns the new epochs."""
        for stream in list(self.epochs):
            self.epochs[stream] += 1
        return dict(self.epochs)

    def acquire(self, stream: StreamKey, known: Known) -> None:
        """Let later work of `stream` come after what is `known`."""
        join(self._known[stream], known)

    def host_acquires(self, known: Known) -> None:
        """The host has waited: all that it queues from now on comes after what is `known`."""
        join(self._host, known)

    def streams_of(self, device: int) -> list[StreamKey]:
        """The streams of a device that have been used."""
        return [stream for stream in list(self.epochs) if stream[0] == device]

    def is_before(self, access: Access, stream: StreamKey) -> bool:
        """Whether an access is done before what `stream` is given now."""
        by, epoch, _, order = access
        if by == stream or order is not self:  # another machine's work is over
            return True
        return self._known[stream].get(by, 0) >= epoch or self._host.get(by, 0) >= epoch

    def is_done(self, access: Access) -> bool:
        """Whether the host knows that an access is done."""
        by, epoch, _, order = access
        return order is not self or self._host.get(by, 0) >= epoch


def join(known: Known, other: Known) -> None:
    """Let `known` hold what either holds."""
    if not known:
        known.update(other)
        return
    get = known.get
    for stream, epoch in other.items():
        if get(stream, 0) < epoch:
            known[stream] = epoch
