"""The virtual machine of this process: its clock, memories, streams and random numbers."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial

import torch

from ....machines import Machine
from ....timeline import Timeline
from ....timeline.inputs import is_finite
from ....timeline.streaming import recording
from ...device_naming import MOST_DEVICES, text
from ...memory.caching_allocator import Allocation, CachingAllocator
from ...memory.deferred_free import DeferredFrees
from ...memory.pinned import PinnedMemory
from ...races import sync_debug
from ...races.call_sites import call_site_of, mark
from ...races.stream_sanitizer import StreamSanitizer
from ...races.vector_clock import StreamKey as StreamKey
from ...sim.clock import Clock, HostThread
from ..private import torch_autograd
from .autograd_streams import AutogradStreams
from .host_copy_races import HostCopies
from .host_threads import HOST, NO_TASK, HostThreads
from .op_details import OpDetailsRecorder
from .random_sequence import RandomSequence
from .stream_capture import Capture, StreamCaptures, StreamMark

HIGHEST_PRIORITY = -3
LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"  # set to 1, the host waits for each kernel
OwnState = tuple[bool, int, dict[int, RandomSequence], int]


class Runtime:
    """Everything that virtual devices share. `backing` is the device that does the arithmetic.

    `owner` is the thread whose work goes on the clock at once (default: the main one).
    """

    def __init__(
        self, machine: Machine, backing: torch.device, *, owner: int | None = None
    ) -> None:
        self.machine = _numbered(machine)
        self.backing = backing
        self.clock = Clock(machine)
        self.host_threads = HostThreads(self.clock, owner or threading.main_thread().ident)
        self.captures = StreamCaptures(self.host_threads)
        self.memories = [
            CachingAllocator(i, accelerator.memory_bytes, accelerator.context_bytes)
            for i, accelerator in enumerate(machine.accelerators)
        ]
        self.pinned = PinnedMemory(self.clock, partial(self.host_threads.submit, HOST))
        self.sanitizer = StreamSanitizer(
            lambda before, stream: self.autograd_streams.order_in_pass(before, stream)
        )
        self.order = self.sanitizer.order
        self.autograd_streams = AutogradStreams(self.order, self.let_wait, self.captures.of)
        self.host_copies = HostCopies(self.order, self.sanitizer.report)
        self.shape_only = False
        self.shape_only_blocks = 0
        self.outside: Runtime | None = None  # that of the block around, if it is one of a block
        self.is_over = False
        self.op_details = OpDetailsRecorder(self.memories)
        self._said: set[tuple[str, Hashable]] = set()  # warnings that are given once
        self.values_s = 0.0  # what values have taken to compute, in real seconds
        self.unknown_reads = 0  # how often the host has read values that nobody computed
        self._noted_bytes: dict[int, int] = {}
        self._background_streams: dict[tuple[int, object], int] = {}
        self._thread = threading.local()
        self._sequences: dict[int, RandomSequence] = {}
        self._random_lock = threading.Lock()
        self._lock = threading.RLock()  # of what threads take for the first time
        self._seed = torch.initial_seed()

    def grow(self, machine: Machine) -> None:
        """Go on with more accelerators; clock, memories and tensors stay."""
        _numbered(machine)
        for i in range(self.device_count, len(machine.accelerators)):
            added = machine.accelerators[i]
            self.memories.append(CachingAllocator(i, added.memory_bytes, added.context_bytes))
        if self.sanitizer.watching:
            self.watch()
        self.machine = machine
        self.clock.grow(machine)

    @cached_property
    def blocks_launches(self) -> bool:
        """Whether the host waits for each kernel: as CUDA does, it asks before the first one."""
        return os.environ.get(LAUNCH_BLOCKING) == "1"

    @property
    def device_count(self) -> int:
        """How many accelerators the machine has now."""
        return len(self.machine.accelerators)

    def check_index(self, index: int) -> int:
        """The number of a device; RuntimeError if there is no such device."""
        if not 0 <= index < self.device_count:
            raise RuntimeError(
                f"invalid device ordinal: there is no {text(index)}; this machine has "
                f"{self.device_count} virtual GPUs, {text(0)} to {text(self.device_count - 1)}. "
                "Ask for more with d2lpar.devices(n)."
            )
        return index

    def owns(self, memory: CachingAllocator) -> bool:
        """Whether it is the memory of one of these devices."""
        return memory.device < len(self.memories) and self.memories[memory.device] is memory

    def check_in_use(self, *allocations: Allocation) -> None:
        """RuntimeError for what tensors hold of a machine that is not in use here any more."""
        for memory in (allocation.memory for allocation in allocations):
            if has_ended(memory):
                raise RuntimeError(
                    f"a tensor on {text(memory.device)} belongs to a machine that is not in use "
                    "here: to that of a simulation or another block that has ended, or that "
                    "another thread runs. Make the tensor inside the block that uses it, or bring "
                    "it there from the host: tensor.cpu().to(device). The machine in use is "
                    f"{self.machine.name}, with {text(0)} to {text(self.device_count - 1)}"
                )
            self.check_index(memory.device)

    # --- the current device and stream of a thread ------------------------------------------

    @property
    def current_device(self) -> int:
        """The number of the device that "vgpu" means in this thread."""
        return getattr(self._thread, "device", 0)

    @current_device.setter
    def current_device(self, index: int) -> None:
        self._thread.device = self.check_index(index)

    @property
    def own_devices(self) -> list[int]:
        """The devices that this thread's program works on: all, or that of a virtual rank."""
        return getattr(self._thread, "own", None) or list(range(self.device_count))

    @own_devices.setter
    def own_devices(self, indices: list[int]) -> None:
        self._thread.own = indices

    def current_stream(self, device: int) -> int:
        """The number of the stream on which this thread queues work for `device`.

        In a backward pass that is the stream of the forward operation.
        """
        if not self.sanitizer.watching:
            return 0
        streams = getattr(self._thread, "streams", {})
        task = torch_autograd.graph_task_id()
        if task != NO_TASK:
            return self.autograd_streams.stream(task, device, streams, self.device_count)
        return streams.get(device, 0)

    def set_stream(self, device: int, stream: int) -> None:
        """Queue this thread's further work for `device` on its stream of that number."""
        streams = self._thread.__dict__.setdefault("streams", {})
        task = torch_autograd.graph_task_id()
        if task != NO_TASK and self.sanitizer.watching:
            self.autograd_streams.choose(task, device, stream, streams, self.device_count)
            return
        streams[device] = stream
        self.autograd_streams.switched(streams)

    def new_stream(self, device: int, priority: int = 0) -> int:
        """The number of a further stream; priorities beyond 0 and `HIGHEST_PRIORITY` are cut."""
        level = -min(0, max(HIGHEST_PRIORITY, priority))
        with self._lock:
            number = self.clock.new_stream(self.check_index(device), level)
            if not self.sanitizer.watching:
                self.watch()
        return number

    def watch(self) -> None:
        """From the first further stream on, look at which stream uses and frees which memory."""
        self.sanitizer.watching = True
        for index, memory in enumerate(self.memories):
            if memory.on_free is None:
                retained = DeferredFrees(index, memory, self.clock, self.host_threads.submit)
                memory.on_free = partial(self._freed, index, retained)
                memory.retry = retained.wait

    def _freed(self, index: int, retained: DeferredFrees, allocation: Allocation) -> None:
        retained.freed(allocation)
        self.sanitizer.freed(index, allocation)
        self.memories[index].on_allocate = partial(self._allocated, index, retained)

    def _allocated(self, index: int, retained: DeferredFrees, nbytes: int, stream: int) -> None:
        if not (retained.collect() | self.sanitizer.allocated(index, nbytes, stream)):
            self.memories[index].on_allocate = None

    def background_stream(self, device: int, purpose: object = "replicas") -> int:
        """The number of the one stream of `device` for a purpose: data for replicas, a collective's
        group."""
        with self._lock:
            if (device, purpose) not in self._background_streams:
                self._background_streams[device, purpose] = self.new_stream(device)
        return self._background_streams[device, purpose]

    # --- time -------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Simulated seconds since the start, as the host sees them."""
        return self.host_threads.now_s()

    @contextmanager
    def meeting_host(
        self, call: str, of: Capture | None = None, *, asks_event: bool = False
    ) -> Iterator[None]:
        """A block in which the host waits for a device, or asks it something: for what belongs to
        capture `of`, or to none. Raises AcceleratorError where a capture forbids it."""
        self.captures.check_host(call, of, asks_event)
        with self.captures.beside():
            yield

    def asks(
        self,
        call: str,
        of: Capture | None,
        question: Callable[..., bool],
        *args: object,
        asks_event: bool = False,
    ) -> bool:
        """The answer of the clock to `question(host_thread, *args)`, for which the host calls the
        driver: that takes it a moment, so that a loop that asks comes to its end."""

        def ask(host_thread: HostThread) -> bool:
            self.clock.spend(host_thread, self.machine.host.query_s)
            return question(host_thread, *args)

        with self.meeting_host(call, of, asks_event=asks_event):
            return self.host_threads.ask(ask)

    def synchronize(self, device: int, name: str = "synchronize") -> None:
        """Make the host wait for all streams of `device`."""
        with self.meeting_host(name, self.captures.of_device(device)):
            wait = sync_debug.listened(device, name, self.clock.wait_for_device)
            self.host_threads.submit(device, wait, device, name)
        for stream in self.order.streams_of(device):
            self.order.host_acquires(self.order.release(stream))
        self.host_copies.settle()

    def synchronize_stream(self, device: int, stream: int, name: str) -> None:
        """Make the host wait for one stream; `name` is what a timeline calls that."""
        with self.meeting_host(name, self.captures.of((device, stream))):
            wait = sync_debug.listened(device, name, self.clock.wait_for_streams)
            self.host_threads.submit(device, wait, [(device, stream)], name)
        self.host_acquires(self.order.release((device, stream)))

    def host_acquires(self, known: dict[StreamKey, int]) -> None:
        """The host has found out that what is `known` is done."""
        self.order.host_acquires(known)
        self.host_copies.settle()

    def let_wait(self, stream: StreamKey, other: StreamKey) -> None:
        """Let later work of `stream` begin after what `other` has queued so far."""
        made = StreamMark(self.clock)
        with self.captures.on(other) as capture:
            self.host_threads.submit(stream[0], made.record, other)
        self.let_wait_for(stream, made, capture)
        self.order.acquire(stream, self.order.release(other))

    def let_wait_for(self, stream: StreamKey, made: StreamMark, capture: Capture | None) -> None:
        """Let later work of `stream` begin after a mark that was made in a capture, or in none."""
        self.captures.wait(stream, capture)
        with self.captures.on(stream):
            self.host_threads.submit(stream[0], made.delay, stream)

    def host_work(self, seconds: float, name: str) -> None:
        """Let the host work for so long. ValueError for less than zero seconds."""
        if not (is_finite(seconds) and seconds >= 0):
            raise ValueError(
                f"host work takes zero seconds or more, not {seconds!r}: a finite time"
            )
        self.host_threads.submit(HOST, self.clock.host_work, seconds, name)

    @contextmanager
    def recording(self, *, to: str | os.PathLike | None = None) -> Iterator[Timeline]:
        """Note every span of the block on a timeline: see `simulation.record`."""
        self.host_threads.flush()
        with recording(f"simulated on {self.machine.name}", to=to) as timeline:
            self.clock.timelines = [*self.clock.timelines, timeline]
            self._noted_bytes.clear()
            try:
                yield timeline
            finally:
                for device in range(self.device_count):
                    self.note_memory(device)
                self.host_threads.settle()
                self.clock.timelines = [t for t in self.clock.timelines if t is not timeline]

    def say_once(self, text: str, about: Hashable = None) -> None:
        """Warn at the line of the user's, once `about` a thing: layers, steps and ranks repeat what
        is to be said, and torch lets Python forget which warnings it has shown."""
        if (text, about) not in self._said:
            self._said.add((text, about))
            place = call_site_of(mark())
            warnings.warn_explicit(text, UserWarning, place.file, place.line)

    def note_memory(self, device: int) -> None:
        """Put what the tensors of `device` occupy on the timelines, if that has changed."""
        timelines = self.clock.timelines
        sampled = timelines and any(timeline.samples_memory for timeline in timelines)
        if sampled and self.host_threads.held is None:  # else soon
            held = self.memories[device].allocated_bytes
            if held != self._noted_bytes.get(device, 0):
                self._noted_bytes[device] = held
                self.host_threads.submit(device, self.clock.note_memory, device, held)

    # --- random numbers ---------------------------------------------------------------------

    @property
    def current_key(self) -> StreamKey:
        """The current stream of the current device."""
        return self.current_device, self.current_stream(self.current_device)

    def manual_seed(self, seed: int) -> None:
        """Restart the random numbers of all devices."""
        for sequence in self._sequences.values():
            self.restart(sequence, seed)
        self._seed = seed

    def restart(self, sequence: RandomSequence, seed: int) -> None:
        """Restart these random numbers. RuntimeError in a capture, unless the seed is theirs."""
        if self.captures.check_seed(self.current_key, sequence.seed, seed % 2**64):
            sequence.manual_seed(seed)

    def sequence(self, device: int) -> RandomSequence:
        """The random numbers of a device; RuntimeError if there is no such device."""
        found = self._sequences.get(device)
        if found is None:
            fresh = RandomSequence(self._seed)
            found = self._sequences.setdefault(self.check_index(device), fresh)
        return found

    def set_sequence(self, device: int, sequence: RandomSequence) -> None:
        """Draw the random numbers of a device from another sequence."""
        self._sequences[self.check_index(device)] = sequence

    def own_state(self) -> OwnState:
        """What each process has of its own, and virtual ranks exchange: see `take_state`."""
        return self.shape_only, self._seed, self._sequences, self.shape_only_blocks

    def take_state(self, state: OwnState) -> None:
        """Go on with the `shape_only` and the random numbers of one of several virtual ranks."""
        self.shape_only, self._seed, self._sequences, self.shape_only_blocks = state

    @contextmanager
    def with_sequences(self, sequences: dict[int, RandomSequence]) -> Iterator[None]:
        """Draw from these in the block, by device."""
        before, self._sequences = self._sequences, sequences
        try:
            yield
        finally:
            self._sequences = before

    @contextmanager
    def random_numbers(self, sequence: RandomSequence) -> Iterator[None]:
        """Draw from a sequence, as each real GPU has its own generator."""
        generator = torch.random.default_generator
        with self._random_lock, torch.random.fork_rng(devices=[]):
            generator.set_state(sequence.host)
            yield
            sequence.host = generator.get_state()


def _numbered(machine: Machine) -> Machine:
    """The machine; ValueError if torch cannot number its accelerators."""
    count = len(machine.accelerators)
    if count > MOST_DEVICES:
        raise ValueError(
            f"torch numbers {MOST_DEVICES} devices of a kind, {text(0)} to "
            f"{text(MOST_DEVICES - 1)}, and {machine.name} was asked for with {count}: ask "
            "for fewer, and for figures of larger machines ask par.scaling or par.planner"
        )
    return machine


_process: Runtime | None = None  # as global as torch's registration of the backend
_simulated: ContextVar[Runtime | None] = ContextVar("simulated", default=None)


_has_forked = False  # from a process that has virtual GPUs


def _after_fork() -> None:
    global _has_forked
    _has_forked = _has_forked or running() is not None


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def forget_fork() -> None:
    """Let this process, which was forked, have the virtual GPUs of its parent for its own."""
    global _has_forked
    _has_forked = False


def has_forked() -> bool:
    """Whether this process was forked from one that has virtual GPUs, and can use none."""
    return _has_forked


def _check_not_forked() -> None:
    """RuntimeError in a forked process: locks, threads and clock of its parent are not there."""
    if _has_forked:
        raise RuntimeError(
            "Cannot re-initialize virtual GPUs (vgpu) in forked subprocess. To use virtual GPUs "
            "with multiprocessing, you must use the 'spawn' start method; a worker of a DataLoader "
            "had better return CPU tensors, to be moved with .to(device) in the training loop"
        )


def start(machine: Machine, backing: torch.device) -> Runtime:
    """Make `machine` the virtual machine of this process, with its clock at zero.

    What tensors of the machine before it hold stays held.
    """
    global _process
    _check_not_forked()
    before, _process = _process, Runtime(machine, backing)
    if before is not None:
        for i, memory in enumerate(before.memories[: _process.device_count]):
            accelerator = machine.accelerators[i]
            memory.hand_over(accelerator.memory_bytes, accelerator.context_bytes)
            _process.memories[i] = memory
    return _process


@contextmanager
def returning() -> Iterator[None]:
    """Let the machine that is this process's now, if there is one, be it again after the block."""
    global _process
    before = _process
    memories = [] if before is None else before.memories
    sizes = [(m.capacity_bytes, m.context_bytes, m.limit_bytes) for m in memories]
    try:
        yield
    finally:
        if before is not None and before is not _process:
            _process = before
            for memory, (capacity, context, limit) in zip(before.memories, sizes, strict=False):
                memory.hand_over(capacity, context)
                memory.limit_bytes = limit
            if before.sanitizer.watching:
                before.watch()


@contextmanager
def instead(machine: Machine) -> Iterator[Runtime]:
    """Another virtual machine, with a clock and memories of its own, for one block and thread.

    Blocks may end in another order than they began, as those of generators do: the last that goes
    on counts.
    """
    _check_not_forked()
    outer = running()
    backing = outer.backing if outer else torch.device("cpu")
    rt = Runtime(machine, backing, owner=threading.get_ident())
    rt.outside = _of_blocks()
    _simulated.set(rt)
    try:
        yield rt
    finally:
        rt.is_over = True
        _simulated.set(_of_blocks())


def _of_blocks() -> Runtime | None:
    """The machine of the last block that goes on. One that is over may be known still: where it was
    ended from another context, as by the garbage collector in a thread, or copied to a task."""
    rt = _simulated.get()
    while rt is not None and rt.is_over:
        rt = rt.outside
    return rt


def has_ended(memory: CachingAllocator) -> bool:
    """Whether no machine that goes on here has this memory: neither this process's, nor that of a
    block around the code that is running. What tensors tell of their machine is their memory, as a
    machine may take over another's: see `start`."""
    machine = _of_blocks()
    while machine is not None:
        if machine.owns(memory) and not machine.is_over:
            return False
        machine = machine.outside
    return _process is None or not _process.owns(memory)


def is_simulated() -> bool:
    """Whether the machine in use here is that of a `simulate` block."""
    return _of_blocks() is not None


def running() -> Runtime | None:
    """The virtual machine in use here, or None before the first virtual device and after a fork."""
    return None if _has_forked else _of_blocks() or _process


def current_runtime() -> Runtime:
    """The virtual machine in use here; RuntimeError before the first virtual device."""
    rt = _simulated.get() or _process  # as `running`, asked twice an operation
    if rt is None or rt.is_over or _has_forked:
        _check_not_forked()
        rt = running()
        if rt is None:
            raise RuntimeError("there are no virtual GPUs yet: ask for them with d2lpar.devices(n)")
    return rt
