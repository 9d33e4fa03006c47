"""What may happen while streams are captured into a CUDA graph, and CUDA's words for what may not.

A capture holds the stream that it began on, and each that waits for an event of one that it holds.
Their work is noted and does not run, so nobody can wait for it, or ask whether it is done: not in
any mode. What else makes a host wait for a device is "potentially unsafe" in CUDA's words: one that
captures in mode "global" forbids it to all threads of its process, in "thread_local" to its own, in
"relaxed" to none. Work of other streams runs at once. What CUDA refuses spoils the capture (CUDA
C++ Programming Guide, Graphs, Stream Capture; CUDA Runtime API, cudaThreadExchangeStreamCaptureMode
and cudaError_t). Where torch refuses something before it calls CUDA, nothing is spoilt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum

from ...races import sync_debug
from ...races.call_sites import CallSite, call_site_of, mark
from ...races.stream_sanitizer import stream_name
from ...sim.clock import Clock, HostThread, StreamKey
from ...sim.event_queue import QueuedWork
from ..private.torch_devices import AcceleratorError
from .host_threads import HostThreads

MODES = ("global", "thread_local", "relaxed")


class Refusal(Enum):
    """CUDA's errors of captures: its words, and what to do."""

    Unsupported = (
        "operation not permitted when stream is capturing",
        "A capture notes work that does not run yet: leave this out of it, or do it before or after"
        " (while another stream is captured, capture_error_mode='thread_local' or 'relaxed' may "
        "allow it)",
    )
    Invalidated = (
        "operation failed due to a previous error during capture",
        "That call was refused: take it out of the capture, and begin another one",
    )
    Merge = (
        "operation would result in a merge of separate capture sequences",
        "Wait only for events that were recorded in the same capture",
    )
    Unjoined = (
        "capturing stream has unjoined work",
        "Let the stream that is captured wait for it before the capture ends: wait_stream(), or "
        "wait() for what was begun with async_op=True",
    )
    Isolation = (
        "dependency created on uncaptured work in another stream",
        "Wait before the capture begins, or record the event in it",
    )
    Implicit = (
        "operation would make the legacy stream depend on a capturing blocking stream",
        "The default stream cannot be captured: choose another one with torch.cuda.stream(), also "
        "for the steps that warm up what a captured backward pass goes through",
    )
    CapturedEvent = (
        "operation not permitted on an event last recorded in a capturing stream",
        "Such an event happens in replays only: record one after replay()",
    )

    def error(self, call: str, place: CallSite | None = None) -> RuntimeError:
        """What torch raises then, of a call at a place (default: the user's line that runs)."""
        words, remedy = self.value
        where = call_site_of(mark()) if place is None else place
        name = self.name if self is Refusal.CapturedEvent else f"StreamCapture{self.name}"
        text = f"CUDA error: {words} (cudaError{name}): {call} at {where}. {remedy}."
        return AcceleratorError(text)


class Capture:
    """A capture under way: where it began, what it holds, and what has spoilt it."""

    def __init__(self, origin: StreamKey, mode: str, process: HostThread | None) -> None:
        self.origin, self.mode, self.process = origin, mode, process
        self.streams = {origin}
        self.thread = threading.get_ident()
        self.spoilt: tuple[str, CallSite] | None = None  # by which call

    def forbids_unsafe(self) -> bool:
        """Whether this thread may do nothing that is potentially unsafe."""
        mine = self.thread == threading.get_ident()
        return self.mode == "global" or (self.mode == "thread_local" and mine)

    def refuse(self, refusal: Refusal, call: str) -> RuntimeError:
        """The error; what is captured is no graph any more."""
        self.spoilt = self.spoilt or (call, call_site_of(mark()))
        return refusal.error(call)

    def check(self) -> None:
        """Raises AcceleratorError if it is spoilt: CUDA takes no more work then."""
        if self.spoilt is not None:
            raise Refusal.Invalidated.error(*self.spoilt)


class StreamMark:
    """A place in a stream that others may wait for, of one clock. In a capture both are noted, and
    each replay marks it anew."""

    __slots__ = ("clock", "work")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.work: QueuedWork | None = None

    def record(self, host_thread: HostThread, stream: StreamKey) -> None:
        """Mark what the stream has queued so far."""
        self.work = self.clock.record_event(host_thread, stream)

    def delay(self, host_thread: HostThread, stream: StreamKey) -> None:
        """Let later work of a stream come after it."""
        if self.work is not None:
            self.clock.stream_waits(host_thread, stream, self.work)


class StreamCaptures:
    """The captures under way on one virtual machine; each process sees its own."""

    def __init__(self, host_threads: HostThreads) -> None:
        self._host_threads = host_threads
        self._all: list[Capture] = []

    def begin(self, origin: StreamKey, mode: str) -> Capture:
        """Capture a stream from now on."""
        capture = Capture(origin, mode, self._host_threads.process)
        self._all.append(capture)
        return capture

    def end(self, capture: Capture) -> None:
        """Let its streams go."""
        self._all = [other for other in self._all if other is not capture]

    def _here(self) -> list[Capture]:
        process = self._host_threads.process
        return [capture for capture in self._all if capture.process is process]

    def of(self, stream: StreamKey) -> Capture | None:
        """The capture that holds a stream."""
        return next((c for c in self._here() if stream in c.streams), None) if self._all else None

    def of_device(self, device: int) -> Capture | None:
        """A capture that holds a stream of the device."""
        on_it = (c for c in self._here() if any(stream[0] == device for stream in c.streams))
        return next(on_it, None) if self._all else None

    def is_under_way(self, capture: Capture) -> bool:
        """Whether it has not ended."""
        return capture in self._all

    def check_host(self, call: str, of: Capture | None, asks_event: bool = False) -> None:
        """May the host wait for something that belongs to capture `of`, if to any, or ask whether
        it is done? The one place that is asked, whatever the call is."""
        refusal = Refusal.CapturedEvent if asks_event and of is not None else Refusal.Unsupported
        if of is None and not self._all:
            return
        spoilt = [capture for capture in self._here() if capture.forbids_unsafe()]
        spoilt += [] if of is None else [of]
        errors = [capture.refuse(refusal, sync_debug.name_of(call)) for capture in spoilt]
        if errors:
            raise errors[0]

    def check_pinned(self, stream: StreamKey, is_pinned: bool) -> None:
        """May a copy between the host and a device be captured? RuntimeError in torch's words."""
        if not is_pinned and self.of(stream) is not None:
            raise RuntimeError(
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU "
                "tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with "
                f"pin_memory=True. (At {call_site_of(mark())}; let the copy be non_blocking, too.)"
            )

    def check_random(self, stream: StreamKey, call: str) -> None:
        """May a generator be asked, or told, what a graph has to do itself? The same."""
        if self.of(stream) is not None:
            raise RuntimeError(
                f"Cannot call CUDAGeneratorImpl::{call} during CUDA graph capture. (At "
                f"{call_site_of(mark())}; call it before the capture.)"
            )

    def check_seed(self, stream: StreamKey, before: int, seed: int) -> bool:
        """Whether a generator may start anew; in a capture it goes on, from the seed that it has
        already. The same for another."""
        if self.of(stream) is None:
            return True
        if before != seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if "
                f"new seed is the same as the original seed. ({seed}, not {before}, at "
                f"{call_site_of(mark())}; seed before the capture.)"
            )
        return False

    def wait(self, stream: StreamKey, known: Capture | None) -> None:
        """May later work of a stream wait for work of capture `known`, or of none? If it may, the
        capture holds that stream as well."""
        mine = self.of(stream)
        call = f"{stream_name(stream)} waits"
        if mine is not None and mine is not known:
            raise mine.refuse(Refusal.Isolation if known is None else Refusal.Merge, call)
        if known is None or mine is known:
            return
        if not self.is_under_way(known):
            raise Refusal.CapturedEvent.error(call)
        if not stream[1]:
            raise known.refuse(Refusal.Implicit, call)
        known.streams.add(stream)

    @contextmanager
    def on(self, stream: StreamKey) -> Iterator[Capture | None]:
        """A block that gives a stream work: noted if a capture holds it, which is returned, and
        else put on the clock. Raises AcceleratorError if the capture is spoilt."""
        capture = self.of(stream)
        if capture is not None:
            capture.check()
        with self.beside() if capture is None else nullcontext():
            yield capture

    def beside(self) -> AbstractContextManager[None]:
        """A block whose work is no part of what this thread captures, if it does."""
        return self._host_threads.beside_capture() if self._all else nullcontext()
