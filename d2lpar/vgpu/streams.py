"""Streams and events of virtual devices, with the names and the meaning of `torch.cuda`'s."""

from __future__ import annotations

from types import TracebackType

import torch

from .runtime import runtime

_PRIVATE_USE_1 = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A queue of work on one virtual device: `Stream(device=None, priority=0)`.

    Usable as a context manager: the block queues its work here. Priorities are accepted and, as
    kernels of one device run one after the other in the order queued, have no effect.
    """

    def __new__(cls, device: object = None, priority: int = 0) -> Stream:
        index = device_number(device)
        return cls.existing(index, runtime().new_stream(index))

    @classmethod
    def existing(cls, index: int, number: int) -> Stream:
        """The stream with this number; 0 is the device's default stream."""
        stream = super().__new__(
            cls, stream_id=number, device_index=index, device_type=_PRIVATE_USE_1
        )
        stream._outer = []
        return stream

    def __init__(self, device: object = None, priority: int = 0) -> None:
        super().__init__()

    @property
    def key(self) -> tuple[int, int]:
        return (self.device_index, self.stream_id)

    def synchronize(self) -> None:
        """Make the host wait for all work queued here."""
        runtime().synchronize_stream(*self.key, "synchronize stream")

    def query(self) -> bool:
        """Whether all work queued here is done, at the host's present time."""
        rt = runtime()
        return rt.now_s() >= rt.clock.stream_end_s(self.key)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Let later work here start after the work that `stream` has queued so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        rt = runtime()
        rt.lanes.submit(self.device_index, lambda lane: event.delay(self.key))

    def __enter__(self) -> Stream:
        rt = runtime()
        index = self.device_index
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
        rt = runtime()
        device, number = self._outer.pop()
        rt.set_stream(self.device_index, number)
        rt.current_device = device


class Event:
    """A mark in a stream: `Event(enable_timing=False)`."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self.enable_timing = enable_timing
        self._when_s: float | None = None

    def record(self, stream: torch.Stream | None = None) -> None:
        """Happen when everything that `stream` (default: the current one) has queued is done."""
        stream = current_stream() if stream is None else stream
        rt = runtime()

        def note(lane: object) -> None:
            self._when_s = rt.clock.record_event(lane, stream.key)

        rt.lanes.submit(stream.device_index, note)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let later work of `stream` (default: the current one) start after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """Make the host wait for this event; one that was never recorded is over."""
        rt = runtime()
        rt.lanes.submit(-1, lambda lane: rt.clock.wait_until(lane, self._when_s or 0.0, "event"))

    def query(self) -> bool:
        return runtime().now_s() >= (self._when_s or 0.0)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`; both need `enable_timing=True`."""
        runtime().lanes.flush()
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("both events need enable_timing=True to measure the time between them")
        if self._when_s is None or end._when_s is None:
            raise RuntimeError("both events must be recorded before the time between them is read")
        return (end._when_s - self._when_s) * 1e3

    def delay(self, stream: tuple[int, int]) -> None:
        if self._when_s is not None:
            runtime().clock.stream_waits(stream, self._when_s)


def device_number(device: object) -> int:
    """The number of a device given as None (the current one), int, "vgpu:1" or torch.device."""
    rt = runtime()
    if device is None:
        return rt.current_device
    if isinstance(device, int):
        return rt.check_index(device)
    device = torch.device(device)
    if device.type != "vgpu":
        raise ValueError(f"expected a virtual GPU, such as vgpu:0, but got {device}")
    return rt.current_device if device.index is None else rt.check_index(device.index)


def current_stream(device: object = None) -> Stream:
    """The stream on which this thread queues work for `device`."""
    index = device_number(device)
    return Stream.existing(index, runtime().current_stream(index))


def default_stream(device: object = None) -> Stream:
    return Stream.existing(device_number(device), 0)


def set_stream(stream: torch.Stream) -> None:
    """Queue this thread's further work on `stream`, and make its device the current one."""
    rt = runtime()
    rt.current_device = stream.device_index
    rt.set_stream(stream.device_index, stream.stream_id)
