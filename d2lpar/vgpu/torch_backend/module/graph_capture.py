"""CUDA graphs: operations noted once, and launched together again and again.

What may happen meanwhile is told in `stream_capture`. A capture leaves tensors as they were before
it, as on CUDA, and takes no time; results have their values from the first replay on. A replay
computes the noted operations once more, into the same tensors, and puts their kernels on the clock
with one launch. Under `shape_only` there are only the kernels. A copy from or to the host is
launched by itself, and so is an exchange between ranks: a replay begins it anew, between the
kernels before and after it.

A replay launches on the current stream, which stands for the one that the capture began on; others
that it holds have streams of their own then, which wait for one another as in the capture.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...device_naming import TYPE
from ...memory.caching_allocator import Allocation
from ...memory.graph_pools import GraphPool, uncounted
from ...races.stream_sanitizer import stream_name
from ...sim.clock import StreamKey
from ..cost.host_cost import nothing_pending
from ..machine.host_threads import NO_TASK, Notes
from ..machine.random_sequence import RandomSequence
from ..machine.runtime import Runtime, current_runtime
from ..machine.stream_capture import MODES, Capture, Refusal, StreamMark
from ..private import torch_operators, torch_tensors
from ..private.op_schema import aten, traits_of
from ..tensors import virtual_storage
from ..tensors.tensor import VirtualTensor, backing, wrap
from . import device_module, generators
from .generators import DefaultGenerator, Generator
from .streams import Stream

_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
    "wrong device or stream."
)

_COPIES = (aten.copy_.default, torch_operators.copy_from, torch_operators.to_copy.default)

Operation = Callable[[], object]  # does once more what was noted


@dataclass
class _Part:
    """Operations and their kernels, and what a replay calls after them."""

    operations: list[Operation] = field(default_factory=list)
    notes: Notes = field(default_factory=deque)
    then: Callable[[], object] | None = None
    stream: StreamKey | None = None  # where it calls that


_pools = count(1)


def graph_pool_handle() -> tuple[int, int]:
    """`torch.cuda.graph_pool_handle`: another pool that graphs may share."""
    return (0, next(_pools))


_pools_of: WeakValueDictionary[object, GraphPool] = WeakValueDictionary()  # by their handles


class _Thread(threading.local):
    graph: CUDAGraph | None = None


_here = _Thread()


def capturing() -> CUDAGraph | None:
    """The graph that this thread captures."""
    return _here.graph


def capturing_on(device: int | None) -> CUDAGraph | None:
    """The graph that work of this thread becomes part of on the current stream of a device (None:
    the host)."""
    graph, rt = _here.graph, current_runtime()
    if graph is None or device is None:
        return None
    return graph if graph.holds((device, rt.current_stream(device))) else None


class _Blocks(list[Allocation]):
    """A generator's place for its seed, and for its offset: those of graphs, by sequence."""


_blocks_of: WeakValueDictionary[RandomSequence, _Blocks] = WeakValueDictionary()


class CUDAGraph:
    """`torch.cuda.CUDAGraph`, to capture, replay and reset; what it lacks is refused by name."""

    def __init__(self) -> None:
        self._notes: Notes = deque()  # of the part that is being captured
        self._parts = [_Part()]
        self._made: set[int] = set()
        self._uncounted: dict[int, Allocation] = {}  # of what was made, by place
        self._handle: object = graph_pool_handle()
        self._pool: GraphPool | None = None
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._sizes: dict[int, tuple[torch.UntypedStorage, int]] = {}  # before the capture
        self._stack = ExitStack()
        self._random: dict[RandomSequence, RandomSequence] = {}  # with a copy from before
        self._blocks: list[_Blocks] = []
        self._captured = False
        self._capture: Capture | None = None  # under way
        self._forked: list[StreamKey] = []  # streams that it holds, beside the one it began on
        self._origin: StreamKey = (0, 0)
        self.begun: list[str] = []  # collectives that nobody has waited for yet

    def capture_begin(
        self,
        pool: object = None,
        capture_error_mode: str = "global",
    ) -> None:
        """Note what this thread queues on the current stream. RuntimeError, as on CUDA, if that is
        a default stream, if this thread captures already, and for modes that there are not."""
        rt = current_runtime()
        if capture_error_mode not in MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if not rt.current_key[1]:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.) Use torch.cuda.graph(), or begin "
                "in a block `with torch.cuda.stream(torch.cuda.Stream()):`"
            )
        if _here.graph is not None:
            raise RuntimeError("this thread captures a graph already: end that first")
        threads = rt.host_threads
        threads.let_go()
        self._forget()
        self._origin = rt.current_key
        self._random = {}
        self.register_generator_state(DefaultGenerator(rt.current_device))
        self._handle = self._handle if pool is None else pool
        self._pool = _pools_of.get(self._handle)
        if self._pool is None:
            self._pool = GraphPool([rt.memories[i] for i in rt.own_devices])
            _pools_of[self._handle] = self._pool
        self._stack.enter_context(self._pool.capturing(self._captures))
        self._stack.enter_context(threads.capture(self._notes))
        self._capture = rt.captures.begin(self._origin, capture_error_mode)
        for device in rt.own_devices:  # nothing runs, so nothing is in the way of anything
            for stream in rt.order.streams_of(device):
                rt.order.acquire(self._origin, rt.order.release(stream))
        self._note_here(self)

    def _captures(self, stream: StreamKey) -> bool:
        return self._capture is not None and stream in self._capture.streams

    def capture_end(self) -> None:
        """End it, and give tensors from before the values that they had, and generators of random
        numbers their states; warn, as torch does, if nothing was captured.

        Raises RuntimeError if this graph is not being captured, or on another stream; and, with the
        capture ended, AcceleratorError if something spoilt it, or a stream that was forked from it
        has work that the capture does not wait for.
        """
        if _here.graph is not self or self._capture is None:
            raise RuntimeError("this graph is not being captured: call capture_begin() first")
        if current_runtime().current_key != self._origin:
            raise RuntimeError(
                "Capture must end on the same stream it began on. That was "
                f"{stream_name(self._origin)}, and another one is current now"
            )
        capture = self._leave()
        try:
            capture.check()
            if (unjoined := self._unjoined()) is not None:
                raise capture.refuse(Refusal.Unjoined, f"its end, not after {unjoined},")
        except RuntimeError:
            self._forget()
            raise
        self._captured = True
        if not any(part.operations or part.notes or part.then for part in self._parts):
            warnings.warn(_EMPTY, stacklevel=2)

    def abandon(self) -> None:
        """Leave a capture that cannot end where the program is."""
        if self._capture is not None:
            self._leave()
            self._forget()

    def _leave(self) -> Capture:
        """Stop noting, and let all be as it was before the capture."""
        rt, capture = current_runtime(), self._capture
        assert capture is not None, "a capture is under way"
        rt.host_threads.let_go()
        self._note_here(None)
        self._stack.close()
        rt.captures.end(capture)
        self._capture = None
        self._forked = sorted(capture.streams - {self._origin})
        for stream in capture.streams:
            rt.host_acquires(rt.order.release(stream))
        self._end_part()
        for values, before in self._before.values():
            if values.shape == before.shape and virtual_storage.has_room(values):
                values.copy_(before)  # the others have other memory by now, or none
        self._before.clear()
        self._made.clear()
        self._uncounted.clear()
        for sequence, place in self._random.items():
            sequence.follow(place)
        return capture

    def _unjoined(self) -> str | None:
        """What the captured stream does not wait for: a stream that has work, or a collective."""
        known: defaultdict[StreamKey, Counter[StreamKey]] = defaultdict(Counter)
        marks: dict[StreamMark, Counter[StreamKey]] = {}
        for part in self._parts:
            for _, _, action, args in part.notes:
                mark, stream = _mark_of(action), args[0] or args[1]
                if mark is None:
                    known[stream][stream] += 1
                elif action == mark.record:
                    marks[mark] = known[stream].copy()
                else:
                    known[stream] |= marks[mark]
        origin = known[self._origin]
        late = [stream_name(s) for s in self._forked if known[s][s] > origin[s]]
        return next(iter(late + self.begun), None)

    def reset(self) -> None:
        """Forget what was captured."""
        self._forget()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"graphs of virtual GPUs have no {name}: to see what a replay does, call it within "
            "`with d2lpar.record() as timeline:`"
        )

    def _forget(self) -> None:
        self._notes.clear()
        self._parts = [_Part()]
        self.begun.clear()
        self._sizes.clear()
        self._pool = None
        self._captured = False

    def pool(self) -> object:
        """What other graphs may share its memory by."""
        return self._handle

    def replay(self) -> None:
        """Compute once more what was captured, and launch it as one.

        Raises RuntimeError if nothing was captured.
        """
        if not self._captured:
            raise RuntimeError("nothing was captured: call capture_begin() and capture_end() first")
        rt = current_runtime()
        launch_s, streams = rt.machine.host.graph_s, self._streams_now(rt)
        for storage, size in self._sizes.values():
            virtual_storage.resize(storage, size)
        for part in self._parts:
            if not rt.shape_only:
                with rt.host_threads.replica(deque()):
                    for operation in part.operations:
                        operation()
            launch_s = _launch(rt, part.notes, launch_s, streams)
            if part.then is not None and part.stream is not None:
                with _running_on(rt, streams[self._origin], streams[part.stream]):
                    part.then()

    def _streams_now(self, rt: Runtime) -> dict[StreamKey, StreamKey]:
        """What stands for the streams of the capture in a replay on the current one."""
        device = self._origin[0]
        streams = {self._origin: (device, rt.current_stream(device))}
        for i, stream in enumerate(self._forked):
            branch = rt.background_stream(stream[0], ("branch", i))
            streams[stream] = stream[0], branch
        return streams

    def refused(self, call: str) -> RuntimeError:
        """What to raise when a call asks something of what is captured."""
        if self._capture is None:
            return Refusal.CapturedEvent.error(call)
        return self._capture.refuse(Refusal.CapturedEvent, call)

    def holds(self, stream: StreamKey) -> bool:
        """Whether work of a stream becomes part of it. AcceleratorError if the capture is
        spoilt."""
        if self._capture is None or stream not in self._capture.streams:
            return False
        self._capture.check()
        return True

    def takes(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> bool:
        """Whether an operation becomes part of it. As in PyTorch's Copy.cu, the streams of a copy
        between two devices wait for one another."""
        rt = current_runtime()
        devices = [t.vgpu_index for t in tree_leaves(args) if isinstance(t, VirtualTensor)]
        place = kwargs.get("device")
        if place is not None and place.type == TYPE:
            devices.append(rt.current_device if place.index is None else place.index)
        keys = [(device, rt.current_stream(device)) for device in dict.fromkeys(devices)]
        if len(keys) > 1 and func in _COPIES:
            source, target = reversed(keys) if func is aten.copy_.default else keys
            rt.captures.wait(source, rt.captures.of(target))
            rt.captures.wait(target, rt.captures.of(source))
        return bool(keys) and self.holds(keys[0])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, operations are no part of the graph by themselves; their kernels are."""
        self._note_here(None)
        try:
            yield
        finally:
            self._note_here(self)

    def _note_here(self, graph: CUDAGraph | None) -> None:
        """Let what this thread does become part of a graph from now on, or of none."""
        _here.graph = graph
        virtual_storage.here.resized = None if graph is None else graph.note_resize

    def note_resize(self, storage: torch.UntypedStorage, before: int, size: int) -> None:
        """Take in that memory was freed, or taken, as sharded data parallelism does; a replay
        begins with what there was at first."""
        self._sizes.setdefault(id(storage), (storage, before))
        self._parts[-1].operations.append(partial(virtual_storage.resize, storage, size))

    def note(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, result: object) -> None:
        """Take in an operation that was computed; called by the dispatcher."""
        rt = current_runtime()
        self.note_made(result, (args, kwargs))
        if func.namespace == torch_operators.COLLECTIVES:
            self.call(partial(_exchange, func, args, kwargs, result))
        elif not rt.shape_only:
            sequences = dict(rt.own_state()[2])
            noted = tree_map(self._without_memory, (args, kwargs, result))
            self._parts[-1].operations.append(partial(_compute, func, noted, sequences))

    def note_made(self, result: object, arguments: object = ()) -> None:
        """Take in tensors that the capture has made of these arguments; a view is not new."""
        if not current_runtime().shape_only:
            self._made |= _places(result) - _places(arguments)

    def _without_memory(self, value: object) -> object:
        """What stands for a tensor that the capture has made: the program frees its memory."""
        if not isinstance(value, VirtualTensor) or _place(value) not in self._made:
            return value
        place, index = _place(value), value.vgpu_index
        if place not in self._uncounted:
            mine = value.vgpu_allocation
            self._uncounted[place] = Allocation(mine.memory, mine.stream, mine.requested_bytes)
        return wrap(backing(value), index, allocation=self._uncounted[place])

    def save(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
        """Keep what an operation is going to change: what it writes, and where random numbers are;
        called by the dispatcher."""
        self._keep_random(generators.handle_of(kwargs.get("generator")))
        for number, name in traits_of(func).written:
            self.keep(tree_leaves(args[number] if number < len(args) else kwargs.get(name)))

    def _keep_random(self, generator: Generator | None) -> None:
        rt = current_runtime()
        drawn = [rt.sequence(i) for i in range(rt.device_count)]
        for sequence in (*drawn, *([] if generator is None else [generator.sequence])):
            if sequence not in self._random:
                self._random[sequence] = sequence.copy()

    def register_generator_state(self, generator: Generator) -> None:
        """Let replays draw from a generator. All do so that are used in the capture; as on CUDA,
        each has a place on its device for its seed, and one for its offset, as long as a graph has
        it. TypeError for a generator of the host."""
        if not isinstance(generator, Generator):
            raise TypeError(f"a graph draws from generators of its device, not from {generator!r}")
        sequence = generator.sequence
        if sequence not in _blocks_of:
            memory = current_runtime().memories[generator.index]
            new = _blocks_of[sequence] = _Blocks([memory.allocate(8), memory.allocate(8)])
            self._blocks.append(new)
        else:
            self._blocks.append(_blocks_of[sequence])

    def keep(self, tensors: Iterable[object]) -> None:
        """Keep the values of tensors that are going to be written."""
        if current_runtime().shape_only:
            return
        for tensor in tensors:
            if _has_memory(tensor) and _place(tensor) not in self._made:
                values = _values(tensor)
                self._before.setdefault(id(values), (values, values.clone()))

    def call(self, action: Callable[[], object]) -> None:
        """Let a replay call `action` when it comes here."""
        rt = current_runtime()
        rt.host_threads.let_go()
        self._parts[-1].then, self._parts[-1].stream = action, rt.current_key
        self._end_part()
        self._parts.append(_Part())

    def _end_part(self) -> None:
        kept = (note for note in self._notes if _is_launched(note[2]))
        self._parts[-1].notes = deque(kept)
        self._notes.clear()


def _mark_of(action: Callable[..., object]) -> StreamMark | None:
    owner = getattr(action, "__self__", None)
    return owner if isinstance(owner, StreamMark) else None


def _is_launched(action: Callable[..., object]) -> bool:
    """Whether a replay launches what was noted: kernels, copies, and marks that streams make."""
    clock = current_runtime().clock
    return action in (clock.kernel, clock.copy) or _mark_of(action) is not None


def _launch(
    rt: Runtime, notes: Notes, launch_s: float, streams: Mapping[StreamKey, StreamKey]
) -> float:
    """Put noted kernels and copies on the clock, on these `streams` in place of those of the
    capture; the first kernel takes the host `launch_s`.

    Returns what is left of it for kernels to come.
    """
    for _, device, action, noted in notes:
        args = [streams.get(arg, arg) if isinstance(arg, tuple) else arg for arg in noted]
        if action == rt.clock.kernel:
            rt.host_threads.put(NO_TASK, device, action, *args[:5], launch_s, *args[6:])
            launch_s = 0.0
        else:
            rt.host_threads.put(NO_TASK, device, action, *args)
    return launch_s


@contextmanager
def _running_on(rt: Runtime, caller: StreamKey, stream: StreamKey) -> Iterator[None]:
    """A block of a replay whose work runs on a stream that is ordered with the caller's."""
    if stream == caller:
        yield
        return
    device, number = stream
    before = rt.current_stream(device)
    rt.order.acquire(stream, rt.order.release(caller))
    rt.set_stream(device, number)
    try:
        yield
    finally:
        rt.set_stream(device, before)
        rt.order.acquire(caller, rt.order.release(stream))


def _places(values: object) -> set[int]:
    return {_place(t) for t in tree_leaves(values) if isinstance(t, VirtualTensor)}


def _has_memory(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of a device or of the host, and none that only wraps one."""
    return isinstance(value, VirtualTensor) or type(value) is torch.Tensor


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return backing(tensor) if isinstance(tensor, VirtualTensor) else tensor


def _place(tensor: torch.Tensor) -> int:
    return _values(tensor).untyped_storage().data_ptr()


def _exchange(
    func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any], before: object
) -> None:
    """Begin a functional collective again, and wait for it: its values are there only then. Of the
    Python that asked for it nothing runs."""
    with torch.no_grad(), nothing_pending():
        again = func(*args, **kwargs)
        for tensor in tree_leaves(again):
            if isinstance(tensor, VirtualTensor):
                torch_operators.wait_tensor(tensor)
    _put_into(before, again)


def _compute(
    func: torch._ops.OpOverload,
    noted: tuple[tuple, dict[str, Any], object],
    sequences: dict[int, RandomSequence],
) -> None:
    """Do an operation again, of which arguments and result are noted, and draw from the sequences
    that it has drawn from at first; what it returns anew goes where that result is."""
    args, kwargs, before = noted
    rt = current_runtime()
    with torch.no_grad(), rt.with_sequences(sequences), uncounted(rt.memories):
        again = VirtualTensor.dispatcher(func, args, kwargs)
    _put_into(before, again)


def _put_into(before: object, again: object) -> None:
    for old, new in zip(tree_leaves(before), tree_leaves(again), strict=True):
        if _has_memory(old) and _place(old) != _place(new):
            with torch_tensors.as_plain_tensors():
                _values(old).copy_(_values(new))


@contextmanager
def capture(
    cuda_graph: CUDAGraph,
    pool: object = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
) -> Iterator[None]:
    """`torch.cuda.graph`: the block's work becomes `cuda_graph`. The host waits for the device
    first, and `stream` (default: one that is there for captures) is current in the block.
    Annotations are for CUPTI, so nothing is annotated."""
    rt = current_runtime()
    device = rt.current_device
    rt.synchronize(device)
    device_module.empty_cache()
    rt.pinned.empty_cache()
    if stream is None:
        purpose = ("capture", rt.host_threads.process)
        stream = Stream.existing(device, rt.background_stream(device, purpose))
    with stream:
        cuda_graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        finally:
            try:
                cuda_graph.capture_end()
            finally:
                cuda_graph.abandon()
