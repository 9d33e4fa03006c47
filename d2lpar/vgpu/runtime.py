"""The virtual machine of this process: its clock, memories, streams and random numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from ..machines import Machine
from ..timeline import Timeline
from .clock import Clock
from .lanes import HOST, HostLanes
from .memory import DeviceMemory
from .pinned import PinnedMemory


class Runtime:
    """Everything that virtual devices share. `backing` is the device that does the arithmetic.

    `owner` is the thread whose work goes on the clock at once (default: the main one).
    """

    def __init__(
        self, machine: Machine, backing: torch.device, *, owner: int | None = None
    ) -> None:
        self.machine = machine
        self.backing = backing
        self.clock = Clock(machine)
        self.lanes = HostLanes(self.clock, owner or threading.main_thread().ident)
        self.memories = [
            DeviceMemory(f"vgpu:{i}", accelerator.memory_bytes)
            for i, accelerator in enumerate(machine.accelerators)
        ]
        self.pinned = PinnedMemory()
        self.shape_only = False
        self._streams_made = [0] * len(machine.accelerators)
        self._background_streams: dict[int, int] = {}
        self._thread = threading.local()
        self._random_state: dict[int, torch.Tensor] = {}
        self._random_lock = threading.Lock()
        self._seed = torch.initial_seed()

    def grow(self, machine: Machine) -> None:
        """Go on with more accelerators; clock, memories and tensors stay."""
        for i in range(self.device_count, len(machine.accelerators)):
            self.memories.append(DeviceMemory(f"vgpu:{i}", machine.accelerators[i].memory_bytes))
            self._streams_made.append(0)
        self.machine = machine
        self.clock.grow(machine)

    @property
    def device_count(self) -> int:
        return len(self.machine.accelerators)

    def check_index(self, index: int) -> int:
        if not 0 <= index < self.device_count:
            raise RuntimeError(
                f"invalid device ordinal: there is no vgpu:{index}; this machine has "
                f"{self.device_count} virtual GPUs, vgpu:0 to vgpu:{self.device_count - 1}. "
                "Ask for more with d2lpar.devices(n)."
            )
        return index

    # --- the current device and stream of a thread ------------------------------------------

    @property
    def current_device(self) -> int:
        return getattr(self._thread, "device", 0)

    @current_device.setter
    def current_device(self, index: int) -> None:
        self._thread.device = self.check_index(index)

    def current_stream(self, device: int) -> int:
        """The number of the stream on which this thread queues work for `device`."""
        return self._thread.__dict__.get("streams", {}).get(device, 0)

    def set_stream(self, device: int, stream: int) -> None:
        self._thread.__dict__.setdefault("streams", {})[device] = stream

    def new_stream(self, device: int) -> int:
        self._streams_made[self.check_index(device)] += 1
        return self._streams_made[device]

    def background_stream(self, device: int) -> int:
        """The number of the one stream of `device` on which data for replicas is copied."""
        if device not in self._background_streams:
            self._background_streams[device] = self.new_stream(device)
        return self._background_streams[device]

    # --- time -------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Simulated seconds since the start, as the host sees them."""
        return self.lanes.now_s()

    def synchronize(self, device: int, name: str = "synchronize") -> None:
        """Make the host wait for all streams of `device`."""
        self.lanes.submit(device, self.clock.wait_for_device, device, name)

    def synchronize_stream(self, device: int, stream: int, name: str) -> None:
        self.lanes.submit(device, self.clock.wait_for_streams, [(device, stream)], name)

    def host_work(self, seconds: float, name: str) -> None:
        if not seconds >= 0:
            raise ValueError(f"host work takes zero seconds or more, not {seconds!r}")
        self.lanes.submit(HOST, self.clock.host_work, seconds, name)

    @contextmanager
    def recording(self) -> Iterator[Timeline]:
        """Note every span of the block on a timeline."""
        timeline = Timeline(f"simulated on {self.machine.name}")
        self.lanes.flush()
        self.clock.timelines.append(timeline)
        try:
            yield timeline
        finally:
            self.lanes.flush()
            self.clock.timelines = [t for t in self.clock.timelines if t is not timeline]

    # --- random numbers ---------------------------------------------------------------------

    def manual_seed(self, seed: int, device: int | None = None) -> None:
        """Restart the random numbers of one device, or of all."""
        state = torch.Generator().manual_seed(seed).get_state()
        if device is None:
            self._seed = seed
            self._random_state.clear()
        else:
            self._random_state[device] = state

    def random_state(self, device: int) -> torch.Tensor:
        if device not in self._random_state:
            self._random_state[device] = torch.Generator().manual_seed(self._seed).get_state()
        return self._random_state[device]

    def set_random_state(self, device: int, state: torch.Tensor) -> None:
        self._random_state[self.check_index(device)] = state.clone()

    @contextmanager
    def random_numbers(self, device: int) -> Iterator[None]:
        """Draw from the stream of `device`, as each real GPU has its own generator."""
        generator = torch.random.default_generator
        with self._random_lock, torch.random.fork_rng(devices=[]):
            generator.set_state(self.random_state(device))
            yield
            self._random_state[device] = generator.get_state()


_process: Runtime | None = None  # as global as torch's registration of the backend
_simulated: ContextVar[Runtime | None] = ContextVar("simulated", default=None)


def start(machine: Machine, backing: torch.device) -> Runtime:
    """Make `machine` the virtual machine of this process, with its clock at zero.

    What tensors of the machine before it hold stays held.
    """
    global _process
    before, _process = _process, Runtime(machine, backing)
    if before is not None:
        _process.pinned = before.pinned
        for i, memory in enumerate(before.memories[: _process.device_count]):
            memory.capacity_bytes = machine.accelerators[i].memory_bytes
            memory.reset_peak()
            _process.memories[i] = memory
    return _process


@contextmanager
def instead(machine: Machine) -> Iterator[Runtime]:
    """Another virtual machine, with a clock and memories of its own, for one block and thread."""
    outer = running()
    backing = outer.backing if outer else torch.device("cpu")
    rt = Runtime(machine, backing, owner=threading.get_ident())
    token = _simulated.set(rt)
    try:
        yield rt
    finally:
        _simulated.reset(token)


def is_simulated() -> bool:
    """Whether the machine in use here is that of a `simulate` block."""
    return _simulated.get() is not None


def running() -> Runtime | None:
    """The virtual machine in use here, or None before the first virtual device."""
    return _simulated.get() or _process


def runtime() -> Runtime:
    """The virtual machine in use here; RuntimeError before the first virtual device."""
    rt = _simulated.get() or _process
    if rt is None:
        raise RuntimeError("there are no virtual GPUs yet: ask for them with d2lpar.devices(n)")
    return rt
