"""Streams and events of virtual devices, with the names and the meaning of `torch.cuda`'s."""

from __future__ import annotations

from types import TracebackType

import torch
from torch.types import Device

from ...device_naming import TYPE, naming, text
from ...races import sync_debug
from ...sim.clock import POOLED_STREAMS, Clock, HostThread
from ...sim.event_queue import QueuedWork
from ..machine.host_threads import HOST
from ..machine.runtime import HIGHEST_PRIORITY, current_runtime
from ..machine.stream_capture import Capture, StreamMark
from ..private import torch_devices

_STREAM_BITS = 48
_PRIVATE_USE_1 = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A queue of work on one virtual device: `Stream(device=None, priority=0)`.

    Usable as a context manager: the block queues its work here. Of the kernels that are ready when
    a device becomes free, that of the stream with the lowest number in `priority` begins.
    """

    _outer: list[tuple[int, int]]  # device and stream that were current before a block of this one

    def __new__(cls, device: Device = None, priority: int = 0) -> Stream:
        """A further stream, by default of the current device."""
        index = device_number(device)
        return cls.existing(index, current_runtime().new_stream(index, priority))

    @classmethod
    def existing(cls, index: int, number: int) -> Stream:
        """The stream with this number; 0 is the device's default stream."""
        stream = super().__new__(
            cls, stream_id=number, device_index=index, device_type=_PRIVATE_USE_1
        )
        stream._outer = []
        return stream

    def __init__(self, device: Device = None, priority: int = 0) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stub
        """The device, as programs call it."""
        return naming().device(self.key[0])

    @property
    def device_index(self) -> int:  # type: ignore[override]
        """The number of the device, as programs count."""
        return int(self.device.index)

    @property
    def cuda_stream(self) -> int:
        """The number of the stream: what programs for CUDA hand to libraries."""
        return self.stream_id

    def is_capturing(self) -> bool:
        """Whether a capture of this process holds the stream."""
        return current_runtime().captures.of(self.key) is not None

    @property
    def _cdata(self) -> int:
        """Device and stream in one number, for those who compare streams by it."""
        return self.key[0] << _STREAM_BITS | self.stream_id

    def __repr__(self) -> str:
        names = naming()
        number = f"{names.type}_stream={self.stream_id:#x}"
        return f"<{names.module}.Stream device={self.device} {number}>"

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority; lower numbers are preferred."""
        return (0, HIGHEST_PRIORITY)

    @property
    def priority(self) -> int:
        """0, or less for a stream that is preferred."""
        return -((self.stream_id - 1) // POOLED_STREAMS) if self.stream_id else 0

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of the virtual device and of the stream."""
        return (torch_devices.device_of_stream(self), self.stream_id)

    def synchronize(self) -> None:
        """Make the host wait for all work queued here."""
        current_runtime().synchronize_stream(*self.key, "synchronize stream")

    def query(self) -> bool:
        """Whether all work queued here is done, at the host's present time."""
        rt = current_runtime()
        idle = rt.asks("query stream", rt.captures.of(self.key), rt.clock.is_idle, self.key)
        if idle:
            rt.host_acquires(rt.order.release(self.key))
        return idle

    # Events of ours are none of torch's, which are made in C++.
    def wait_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Let later work here start after the work that `stream` has queued so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """An event (a new one by default) that happens when all work queued here is done."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """Let later work here start after `event`."""
        rt = current_runtime()
        made = event.mark_on(rt.clock)
        if made is not None:
            rt.let_wait_for(self.key, made, event.capture)
        rt.order.acquire(self.key, event.known)

    def __enter__(self) -> Stream:
        rt = current_runtime()
        index = self.key[0]
        self._outer.append((rt.current_device, rt.current_stream(index)))
        rt.current_device = index
        rt.set_stream(index, self.stream_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        rt = current_runtime()
        device, number = self._outer.pop()
        rt.set_stream(self.key[0], number)
        rt.current_device = device


class Event:
    """A mark in a stream: `Event(enable_timing=False)`.

    Raises NotImplementedError for `interprocess=True` and `external=True`.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if external:
            raise NotImplementedError(
                "events of virtual GPUs are no nodes of graphs: leave out external=True, and "
                "record the event before or after the replay"
            )
        if interprocess:
            raise NotImplementedError(
                "events of virtual GPUs cannot be shared between processes: leave out "
                "interprocess=True, and let processes wait for one another with torch.distributed"
            )
        self.enable_timing = enable_timing
        self._mark: StreamMark | None = None
        self.capture: Capture | None = None  # in which it was recorded last
        self.known: dict[tuple[int, int], int] = {}  # what is done when it happens, by stream
        self.device: torch.device | None = None

    @property
    def cuda_event(self) -> int:
        """A number that stands for the event, once it was recorded; 0 before."""
        return 0 if self._mark is None else id(self._mark)

    def __repr__(self) -> str:
        state = f"{self.cuda_event:#x}" if self.cuda_event else "uninitialized"
        return f"<{naming().module}.Event {state}>"

    def record(self, stream: Stream | None = None) -> None:
        """Happen when everything that `stream` (default: the current one) has queued is done."""
        stream = current_stream() if stream is None else stream
        rt = current_runtime()
        rt.autograd_streams.let_arrive(stream.key)
        self._mark = StreamMark(rt.clock)
        with rt.captures.on(stream.key) as self.capture:
            rt.host_threads.submit(stream.key[0], self._mark.record, stream.key)
        self.known = rt.order.release(stream.key)
        self.device = stream.device

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work of `stream` (default: the current one) start after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """Make the host wait for this event; one that was never recorded is over."""
        rt = current_runtime()

        def wait(host_thread: HostThread) -> None:
            rt.clock.wait_for(host_thread, self._on(rt.clock), "event")

        if self.device is None:
            return
        with rt.meeting_host("synchronize event", self.capture, asks_event=True):
            wait = sync_debug.listened(self.device.index, "synchronize event", wait)
            rt.host_threads.submit(HOST, wait)
        rt.host_acquires(self.known)

    def query(self) -> bool:
        """Whether this event has happened by now; one that was never recorded has."""
        rt = current_runtime()
        if self.device is None:
            return True
        question = self._has_happened, rt.clock
        happened = rt.asks("query event", self.capture, *question, asks_event=True)
        if happened:
            rt.host_acquires(self.known)
        return happened

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`; both need `enable_timing=True`.

        Raises ValueError without it, and RuntimeError if one of them has not been recorded, or not
        happened yet, or if they were recorded on different devices.
        """
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("both events need enable_timing=True to measure the time between them")
        if None not in (self.device, end.device) and self.device != end.device:
            raise RuntimeError(
                f"invalid resource handle: one event was recorded on {self.device}, the other on "
                f"{end.device}, and devices have clocks of their own. Record both on one device"
            )
        rt = current_runtime()
        with rt.meeting_host("elapsed_time", self.capture or end.capture, asks_event=True):
            happened = [rt.host_threads.ask(event.happened_s, rt.clock) for event in (self, end)]
        return (happened[1] - happened[0]) * 1e3

    def _has_happened(self, host_thread: HostThread, clock: Clock) -> bool:
        work = self._on(clock)
        return work is None or clock.is_done(host_thread, work)

    def happened_s(self, host_thread: HostThread, clock: Clock) -> float:
        """When this event happened; RuntimeError unless it has."""
        work = self._on(clock)
        if work is None:
            raise RuntimeError("both events must be recorded before the time between them is read")
        if not clock.is_done(host_thread, work):
            raise RuntimeError(
                "device not ready: an event has not happened yet when the time to it is read; call "
                "its synchronize() first"
            )
        assert work.end_s is not None, "what is done has an end"
        return work.end_s

    def _on(self, clock: Clock) -> QueuedWork | None:
        made = self.mark_on(clock)
        return None if made is None else made.work

    def mark_on(self, clock: Clock) -> StreamMark | None:
        """What was recorded last. RuntimeError if that was on another machine's clock."""
        if self._mark is not None and self._mark.clock is not clock:
            raise RuntimeError(
                "this event was recorded on another virtual machine, which has its own clock: "
                "record it again"
            )
        return self._mark


def device_number(device: Device) -> int:
    """The number of a device given as None (the current one), int, "vgpu:1" or torch.device.

    Raises ValueError for devices of other kinds.
    """
    named = naming().parse(device)
    rt = current_runtime()
    if named is None:
        return rt.current_device
    if isinstance(named, int):
        return rt.check_index(named)
    meant = torch.device(named)  # type: ignore[call-overload]  # which says what else is wrong
    if meant.type != TYPE:
        raise ValueError(
            f"{meant} doesn't match the current accelerator {naming().type}: expected a device "
            f"such as {text(0)}"
        )
    return rt.current_device if meant.index is None else rt.check_index(meant.index)


def current_stream(device: Device = None) -> Stream:
    """The stream on which this thread queues work for `device`."""
    index = device_number(device)
    return Stream.existing(index, current_runtime().current_stream(index))


def default_stream(device: Device = None) -> Stream:
    """The stream of `device` that work is queued on if no other is chosen."""
    return Stream.existing(device_number(device), 0)


def set_stream(stream: torch.Stream) -> None:
    """Queue this thread's further work on `stream`, and make its device the current one."""
    rt = current_runtime()
    rt.current_device = torch_devices.device_of_stream(stream)
    rt.set_stream(rt.current_device, stream.stream_id)
