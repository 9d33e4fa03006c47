"""The hazard detector: work that nothing orders, found from the program and not from its timing.

Streams run side by side; what one writes, another may use only after waiting for it. A program that
forgets to is right or wrong by luck on a real GPU. Here every use of memory is compared with those
before it (`vector_clock`), so a hazard is found also where the times happened to be good:

* *read*: a tensor is used on a stream that has not waited for the stream that wrote it;
* *write*: a tensor is overwritten while another stream may still read or write it;
* *free*: memory is given to a new tensor while another stream may still use the old one, because
  the old one was freed without `record_stream`;
* *host read*, *host write*: the host uses a tensor that a non-blocking copy may still be writing
  (or overwrites one that it may still be reading) (`host_copy_races`).

Each is reported once for two places in the code: as a `HazardWarning`, or in the list of the
`hazards()` block around it. Within a backward pass autograd orders streams itself
(`autograd_streams`).
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ...timeline.formatting import bytes_text
from .. import device_naming
from .call_sites import UNKNOWN, CallSite, call_site_of, mark
from .tracked import History, TrackedMemory, TrackedTensor, Use
from .vector_clock import Access, StreamKey, VectorClocks

SMALL_BYTES = 2**20  # the caching allocator keeps blocks up to here in a pool of their own
KEPT_FREED = 1000


class HazardWarning(UserWarning):
    """Two pieces of work touch the same memory, and nothing says which comes first."""


@dataclass(frozen=True)
class Hazard:
    """`kind` is "read", "write", "free", "host read" or "host write"; `text` says what to do."""

    kind: str
    first: CallSite
    second: CallSite
    text: str

    def __str__(self) -> str:
        return self.text


_collectors: list[list[Hazard]] = []
_lock = threading.Lock()


@contextmanager
def collecting() -> Iterator[list[Hazard]]:
    """Note the hazards of the block, each once, instead of warning of them."""
    found: list[Hazard] = []
    with _lock:
        _collectors.append(found)
    try:
        yield found
    finally:
        with _lock:
            _collectors[:] = [other for other in _collectors if other is not found]


class Freed(NamedTuple):
    """Memory that Python has freed while other streams than its own may still use it."""

    nbytes: int
    asked_bytes: int  # by its tensor, of these
    uses: list[Access]


class StreamSanitizer:
    """The detector of one virtual machine.

    Until a machine has a second stream on some device, all that can go wrong is on the host: so
    long accesses are noted and not compared. `settle` is called when the host has waited.
    """

    def __init__(self, order_in_pass: Callable[[Access, StreamKey], bool]) -> None:
        self.order = VectorClocks()
        self.watching = False
        # Streams of collectives, which programs cannot name: they wait for the work of a call.
        self.of_collectives: set[StreamKey] = set()
        # Whether autograd orders an access of the backward pass under way before a stream.
        self._order_in_pass = order_in_pass
        self._reported: set[tuple[str, CallSite, CallSite]] = set()
        self._freed: defaultdict[StreamKey, deque[Freed]] = defaultdict(
            lambda: deque(maxlen=KEPT_FREED)
        )

    # --- work on streams ----------------------------------------------------------------------

    def work(
        self,
        stream: StreamKey,
        reads: Sequence[TrackedTensor],
        writes: Sequence[TrackedTensor] = (),
        *,
        inner: int = 1,
    ) -> Access:
        """Note (and check) work on `stream`, queued by the code that is running, `inner` calls of
        which are d2lpar's."""
        access = (stream, self.order.epochs[stream], mark(inner + 1), self.order)
        if self.watching:
            self._compare(access, reads, writes)
            return access
        for tensor in reads:
            tensor.vgpu_allocation.reads = access
        for tensor in writes:
            allocation = tensor.vgpu_allocation
            allocation.written = access
            if allocation.made is None:
                allocation.made = access[2]
        return access

    def _compare(
        self, access: Access, reads: Sequence[TrackedTensor], writes: Sequence[TrackedTensor]
    ) -> None:
        written = set(map(id, writes))
        for tensor in reads:
            if id(tensor) in written:
                continue
            allocation = tensor.vgpu_allocation
            if _is_simple(allocation, access):
                allocation.reads = access
                continue
            history = self._history(allocation)
            use = (*extent(tensor), access)
            self._check(history.writes, use, "read", "wrote it", tensor)
            history.note_read(use)
        for tensor in writes:
            allocation = tensor.vgpu_allocation
            if allocation.made is None:
                allocation.made = access[2]
            if _is_simple(allocation, access):
                allocation.written = access
                continue
            history = self._history(allocation)
            use = (*extent(tensor), access)
            self._check(history.writes, use, "write", "may still write it", tensor)
            self._check(history.reads, use, "write", "may still read it", tensor)
            history.note_write(use)

    def _history(self, allocation: TrackedMemory) -> History:
        """What is known of the uses of some memory; those from before the second stream, too."""
        history = allocation.history
        if history is None:
            history = allocation.history = History()
            if allocation.written is not None:
                history.writes.append((0, math.inf, allocation.written))
            if allocation.reads is not None:
                history.reads.append((0, math.inf, allocation.reads))
        return history

    def _check(self, uses: list[Use], use: Use, kind: str, was: str, tensor: TrackedTensor) -> None:
        start, end, access = use
        stream = access[0]
        for low, high, before in uses:
            if before[0] == stream or low >= end or start >= high:
                continue
            if self.order.is_before(before, stream):
                continue
            if not self._order_in_pass(before, stream):
                self._report_unordered(before, access, kind, was, tensor)
                return
            _record(tensor.vgpu_allocation, stream)

    def _report_unordered(
        self, before: Access, access: Access, kind: str, was: str, tensor: TrackedTensor
    ) -> None:
        first, second = call_site_of(before[2]), call_site_of(access[2])
        ours, theirs = self._name(access[0]), self._name(before[0])
        done = "used" if kind == "read" else "overwritten"
        text = (
            f"{_described(tensor)} is {done} on {ours} at {second}, without waiting for {theirs}, "
            f"which {was} at {first}. {self._remedy(before, access[0])}"
        )
        self.report(Hazard(kind, first, second, text))

    def _remedy(self, before: Access, later: StreamKey) -> str:
        """What lets a stream wait for earlier work, in terms that the program has names for."""
        earlier = self._own_stream(before)
        if earlier is None:
            site = call_site_of(before[2])
            return f"Call work.wait() in between: work is what the call at {site} returns."
        ours = _waiting(later)
        if later in self.of_collectives:  # it waits for the stream that is current at the call
            ours = f"{device_naming.naming().module}.current_stream()"
        return (
            f"Call {ours}.wait_stream({_waiting(earlier)}) in between, or record an event on the "
            "one and wait_event() for it on the other."
        )

    def _own_stream(self, access: Access) -> StreamKey | None:
        """The program's own stream to wait for; of a collective the one that its work waited on."""
        stream = access[0]
        if stream not in self.of_collectives:
            return stream
        own = (s for s in self.order.streams_of(stream[0]) if s not in self.of_collectives)
        return next((each for each in own if self.order.is_before(access, each)), None)

    def _name(self, stream: StreamKey) -> str:
        name = stream_name(stream)
        return f"{name} (collectives)" if stream in self.of_collectives else name

    # --- freed memory -------------------------------------------------------------------------

    def freed(self, device: int, allocation: TrackedMemory) -> None:
        """Keep in mind what other streams may still do with freed memory. Runs at any time, also
        within a collection of garbage, and so does as little as can be."""
        history = allocation.history
        if history is None:  # used on one stream only
            return
        home = (device, allocation.stream)
        # The memory waits for what these have queued by now, and so for what they have waited for.
        awaited = [(device, number) for number in allocation.recorded or ()]
        uses = [
            access
            for *_, access in (*history.writes, *history.reads)
            if access[0] != home
            and access[3] is self.order
            and not any(self.order.is_before(access, stream) for stream in awaited)
        ]
        if uses:
            self._freed[home].append(Freed(allocation.nbytes, allocation.requested_bytes, uses))

    def allocated(self, device: int, nbytes: int, stream: int) -> bool:
        """Whether a new tensor may get memory that another stream still uses: reported if so.

        Returns whether there is such memory, for any stream of the device.
        """
        home = (device, stream)
        waiting = self._freed[home]
        for _ in range(len(waiting)):
            freed = waiting.popleft()
            uses = [use for use in freed.uses if not self.order.is_before(use, home)]
            if uses and _fits(nbytes, freed.nbytes):
                self._report_reuse(home, freed, uses[-1])
            elif uses:
                waiting.append(freed._replace(uses=uses))
        return any(freed for home, freed in self._freed.items() if home[0] == device)

    def _report_reuse(self, home: StreamKey, freed: Freed, use: Access) -> None:
        if self._order_in_pass(use, home):
            return
        first, second = call_site_of(use[2]), call_site_of(mark())
        other, named = self._name(use[0]), _waiting(self._own_stream(use) or use[0])
        text = (
            f"memory of a tensor of {bytes_text(freed.asked_bytes)} on "
            f"{device_naming.text(home[0])} was freed while {other} may still use it (at {first}), "
            f"and may now be given to the tensor that is made on {stream_name(home)} at {second}. "
            f"Call tensor.record_stream({named}) before the last name of the tensor goes, or let "
            f"{_waiting(home)}.wait_stream({named}) first."
        )
        self.report(Hazard("free", first, second, text))

    # --- reports ------------------------------------------------------------------------------

    def report(self, hazard: Hazard) -> None:
        """Tell the user, once for each pair of places."""
        key = (hazard.kind, hazard.first, hazard.second)
        if _collectors:
            with _lock:
                for found in _collectors:
                    if all(key != (h.kind, h.first, h.second) for h in found):
                        found.append(hazard)
        elif key not in self._reported:
            self._reported.add(key)
            place = hazard.second
            line = (place.file, place.line) if place != UNKNOWN else ("d2lpar", 1)
            warnings.warn_explicit(hazard.text, HazardWarning, *line)


def stream_name(stream: StreamKey) -> str:
    """How a report calls a stream: "stream 1 of vgpu:0", "the default stream of vgpu:0"."""
    device, number = stream
    name = device_naming.text(device)
    return f"stream {number} of {name}" if number else f"the default stream of {name}"


def _waiting(stream: StreamKey) -> str:
    """How a remedy calls a stream."""
    device, number = stream
    if number:
        return f"stream{number}"
    return f'{device_naming.naming().module}.default_stream("{device_naming.text(device)}")'


def _described(tensor: TrackedTensor) -> str:
    size = " × ".join(map(str, tensor.shape)) or "one value"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"a tensor of {size} {dtype} on {device_naming.text(tensor.vgpu_index)}"


def _is_simple(allocation: TrackedMemory, access: Access) -> bool:
    """Whether one stream uses this memory, and only as a whole: then the last use says all."""
    if allocation.history is not None or allocation.parts:
        return False
    written, reads, stream = allocation.written, allocation.reads, access[0]
    if written is not None and written[0] != stream:
        return False
    return reads is None or reads[0] == stream


def _record(memory: TrackedMemory, stream: StreamKey) -> None:
    """Where a gradient goes over to another stream, autograd calls `record_stream`."""
    if stream[1] != memory.stream:
        memory.recorded = (memory.recorded or set()) | {stream[1]}


def _fits(nbytes: int, freed_bytes: int) -> bool:
    """Whether the caching allocator may put so much into a freed block."""
    return nbytes <= freed_bytes and (nbytes <= SMALL_BYTES) == (freed_bytes <= SMALL_BYTES)


def extent(tensor: TrackedTensor) -> tuple[int, int]:
    """The first byte of its memory that a tensor uses, and the one after the last.

    Tensors that lie interleaved in memory, such as columns, so count as overlapping.
    """
    size, start = tensor.element_size(), int(tensor.storage_offset())
    if tensor.is_contiguous():
        count = tensor.numel()
    else:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((n - 1) * step for n, step in steps)
    return start * size, (start + count) * size
