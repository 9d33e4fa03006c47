"""Process groups of virtual ranks, as c10d's are over NCCL: what `torch.distributed` calls.

Each device has a communication stream for each group, and for sends and receives outside of a batch
one for each pair of ranks. There a collective waits for what the caller's current stream has
queued, and runs when it has come that far on all devices; `wait()` lets the current stream wait for
it, and not the host. A barrier makes the host wait. Tensors of the host are exchanged in no time
when all hosts have come, as over gloo; those of GPUs by gloo through the host: see `exchange`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain

import torch
import torch.distributed as dist

from ...races.call_sites import call_site_of, mark
from ...torch_backend.module.graph_capture import capturing_on
from ...torch_backend.private.torch_modes import unwatched
from ...torch_backend.tensors.tensor import VirtualTensor
from ..by_rank import refused
from ..calls import call_forms, call_of_rank
from ..calls.call_of_rank import CallOfRank, Tensors
from ..calls.collective_calls import CollectiveCall, together, values_of
from ..calls.data_types import check_exchanged
from ..calls.flight_recorder import Flight
from ..private import c10d as c10d_private
from ..private.backends import GroupBackends
from ..private.c10d import HasRoot, ReducesBy, ReducesTo
from ..world import nccl_debug, watchdog
from ..world.exchange import Exchange
from ..world.participants import Send
from ..world.rank import ENDED, Rank, is_contiguous
from ..world.rendezvous import GROUP, Rendezvous
from . import comm_counts, wrapping_tensors
from .collective_work import AnyWork, CapturedWork, CollectiveWork, WorkTogether
from .sends_to_self import SendsToSelf

BARRIER_BYTES = 4  # c10d sums one float


class VirtualProcessGroup(c10d_private.GroupBase):
    """The group of a `rendezvous` as `rank` has it; torch checks sizes and data types."""

    def __init__(
        self,
        rank: Rank,
        rendezvous: Rendezvous,
        backends: GroupBackends,
        name: str,
        description: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self._member = rendezvous.ranks.index(rank.number)
        super().__init__(self._member, len(rendezvous.ranks))
        self._rank, self._rendezvous, self._count = rank, rendezvous, len(rendezvous.ranks)
        self._own = CallOfRank(self._member, self._count)
        self._name, self._description = name, description or "undefined"
        self.backends, self._timeout = backends, timeout
        self._bound_device: torch.device | None = None
        self.operator: str | None = None  # of torch, which the program's call is
        self._together: list[AnyWork] | None = None  # while they are to be one
        self._to_self = SendsToSelf()

    def __repr__(self) -> str:
        rank = self._rank
        state = f" {ENDED}" if rank.is_over else f", which has {self._count} ranks"
        return f"<process group {self._name} on rank {rank.number}{state}>"

    def name(self) -> str:
        """The backend, if all tensors have the same."""
        names = {*self.backends.by_device.values()}
        return names.pop() if len(names) == 1 else dist.Backend.UNDEFINED

    @property
    def group_name(self) -> str:
        """What functional collectives and device meshes find it by, in C++."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What it is for, if who made it has said so."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        """The kinds of device whose tensors it exchanges."""
        return self.backends.device_types

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the program has given `init_process_group`."""
        return self._bound_device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound_device = device

    def set_timeout(self, timeout: timedelta | None) -> None:
        """Let calls from now on wait so long for others, in simulated time; None: as torch does."""
        self._timeout = timeout

    def _get_backend(self, device: torch.device | str) -> VirtualProcessGroup:
        self.backends.check("a batch of calls", torch.device(device).type)
        return self

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has begun in it."""
        return self._rendezvous.begun(self._member)

    def _set_sequence_number_for_group(self) -> None:
        """It begins with 0 on all ranks."""

    # --- collectives ------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: ReducesBy) -> AnyWork:
        """Every rank has the sum."""
        (tensor,) = tensors
        return self._begin(
            "all_reduce", tensors, partial(self._own.reduce, "all_reduce", tensor, opts)
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: ReducesBy) -> AnyWork:
        """Every rank has the sums, of all tensors by one collective."""
        parts = [partial(self._own.reduce, "all_reduce", tensor, opts) for tensor in tensors]
        return self._begin("all_reduce", tensors, *parts)

    def reduce(self, tensors: Tensors, opts: ReducesTo) -> AnyWork:
        """The root has the sum."""
        (tensor,) = tensors
        part = partial(self._own.reduce, "reduce", tensor, opts, opts.rootRank)
        return self._begin("reduce", tensors, part)

    def broadcast(self, tensors: Tensors, opts: HasRoot) -> AnyWork:
        """Every rank has what the root had."""
        (tensor,) = tensors
        return self._begin(
            "broadcast", tensors, partial(self._own.broadcast, tensor, opts.rootRank)
        )

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None
    ) -> AnyWork:
        """Every rank has the inputs of all, a tensor each."""
        return self.allgather_coalesced([[target] for target in outputs[0]], inputs)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None
    ) -> AnyWork:
        """The same of several inputs, by one collective: a list of them from each rank."""
        targets = [[of_rank[i] for of_rank in outputs] for i in range(len(inputs))]
        return self._gather_all(targets, inputs)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: object = None
    ) -> AnyWork:
        """Every rank has the inputs of all, in one tensor."""
        call_of_rank.check_one_for_all("all_gather", source, output, self._count)
        return self._gather_all([[output]], [source])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: object = None
    ) -> AnyWork:
        """The same of several inputs, by one collective."""
        return self._gather_all([[output] for output in outputs], inputs)

    # their older names
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(self, targets: Sequence[Tensors], sources: Tensors) -> AnyWork:
        pairs = zip(targets, sources, strict=True)
        parts = [partial(self._own.all_gather, *pair) for pair in pairs]
        return self._begin("all_gather", [*chain(*targets), *sources], *parts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: ReducesBy
    ) -> AnyWork:
        """Rank i has the sum of the inputs number i of all."""
        return self._scatter_sums(outputs, inputs, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: ReducesBy
    ) -> AnyWork:
        """Rank i has the sum of the parts number i of all inputs."""
        call_of_rank.check_one_for_all("reduce_scatter", output, source, self._count)
        return self._scatter_sums([output], [[source]], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: ReducesBy
    ) -> AnyWork:
        """The same of several inputs, by one collective."""
        return self._scatter_sums(outputs, [[source] for source in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_sums(
        self, targets: Tensors, sources: Sequence[Tensors], opts: ReducesBy
    ) -> AnyWork:
        pairs = zip(targets, sources, strict=True)
        parts = [partial(self._own.reduce_scatter, *pair, opts) for pair in pairs]
        return self._begin("reduce_scatter", [*targets, *chain(*sources)], *parts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: object = None,
    ) -> AnyWork:
        """Rank i has the parts number i of all inputs; sizes are in rows."""
        part = partial(self._own.all_to_all_single, output, source, output_sizes, input_sizes)
        return self._begin("all_to_all", [output, source], part)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> AnyWork:
        """Rank i has the inputs number i of all."""
        part = partial(self._own.all_to_all, outputs, inputs)
        return self._begin("all_to_all", [*outputs, *inputs], part)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: HasRoot) -> AnyWork:
        """The root has the inputs of all."""
        (source,), targets = inputs, list(outputs[0]) if outputs else []
        part = partial(self._own.gather, targets, source, opts.rootRank)
        return self._begin("gather", [*targets, source], part)

    def gather_single(
        self, output: torch.Tensor | None, source: torch.Tensor, opts: HasRoot
    ) -> AnyWork:
        """The root has the inputs of all, in one tensor."""
        if output is None or opts.rootRank != self._member:
            return self.gather([], [source], opts)
        pieces = output.view(self._count, -1).unbind()
        return self.gather([pieces], [source], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: HasRoot) -> AnyWork:
        """Rank i has input number i of the root."""
        (target,), sources = outputs, list(inputs[0]) if inputs else []
        part = partial(self._own.scatter, target, sources, opts.rootRank)
        return self._begin("scatter", [target, *sources], part)

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> AnyWork:
        """No host goes on before all have come."""
        given = timeout or getattr(opts, "timeout", None)
        return self._begin(
            "barrier",
            [],
            lambda: CollectiveCall("barrier", nbytes=BARRIER_BYTES),
            timeout=given if given and given > timedelta(0) else None,
        )

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """The same, over the hosts alone. That a rank is missing is noticed at once, when no other
        can go on; the RuntimeError of the group's first rank names it, or with `wait_all_ranks`
        all."""
        call = CollectiveCall("monitored_barrier")
        self._check("monitored_barrier", [])
        limit = timeout if self._member == 0 else None
        flight = self._noted(call, None, None, limit)
        flight.is_nccl = False
        exchange = self._rank.begin(self._rendezvous, call, None, flight)
        try:
            self._queue(exchange, call, flight, None, None).wait(limit)
        except RuntimeError as error:
            missing = [*map(str, exchange.late())]
            if self._member or not missing:
                raise
            many = wait_all_ranks and len(missing) > 1
            who = f"Ranks {', '.join(missing)}" if many else f"Rank {missing[0]}"
            raise RuntimeError(f"{who} failed to pass monitoredBarrier: {error}") from None

    # --- sends ------------------------------------------------------------------------------

    def send(self, tensors: Tensors, target: int, tag: int) -> c10d_private.WorkBase:
        """One tensor for a rank of the group; in a batch, also for this one."""
        (tensor,) = tensors
        if target == self._member:
            self._check("send", tensors)
            return self._to_self.sent(tensor, self._tag("send", tensor, tag), self._rank.number)
        return self._pass((self._member, target), tag, tensor)

    def recv(self, tensors: Tensors, source: int, tag: int) -> c10d_private.WorkBase:
        """One tensor from a rank of the group; in a batch, also from this one."""
        (tensor,) = tensors
        if source == self._member:
            self._check("recv", tensors)
            return self._to_self.received(tensor, self._tag("recv", tensor, tag), self._rank.number)
        return self._pass((source, self._member), tag, tensor)

    def _tag(self, name: str, tensor: torch.Tensor, tag: int) -> int:
        """By which tag it is matched. NCCL has none, and says nothing of them."""
        if tensor.device.type == "cpu" or not tag:
            return tag
        self._warn_once(
            "tags",
            f"NCCL ignores tag={tag} of {name}: sends of a rank are matched with receives in "
            "the order of the calls. Call them in one order on both ranks; or exchange CPU "
            "tensors over gloo, which obeys tags",
        )
        return 0

    def _warn_once(self, of: str, text: str) -> None:
        if of not in self._rank.warned_of:
            self._rank.warned_of.add(of)
            place = call_site_of(mark())
            warnings.warn_explicit(text, UserWarning, place.file, place.line)

    def _pass(self, way: tuple[int, int], tag: int, tensor: torch.Tensor) -> AnyWork:
        name = "send" if way[0] == self._member else "recv"
        for member in way:
            if not 0 <= member < self._count:
                raise ValueError(
                    f"invalid peer rank: {member}: {name} on rank {self._rank.number}, in a group "
                    f"of {self._count} ranks, must name another rank of the group"
                )
        if any(
            size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise ValueError(
                f"{name} of an expanded tensor, shape {list(tensor.shape)} with strides "
                f"{tensor.stride()}, whose memory is smaller: call .contiguous()"
            )
        on_device = self._check(name, [tensor], in_memory=True)
        if not is_contiguous(tensor):  # as ProcessGroupNCCL.cpp warns, once a process
            self._warn_once(
                "order",
                f"{name} of a tensor with strides {tensor.stride()}: NCCL exchanges what lies in "
                "memory as it lies, so that the other side must have the same strides: call "
                ".contiguous()",
            )
        if on_device is not None and self.backends.has_gpus_by_host:
            raise refused.send_by_gloo(name, tensor)
        tag = self._tag(name, tensor, tag)
        batch = None if self._together is None else self._to_self
        communicator, stream = self._communicator(way, tag, on_device)
        if capturing_on(on_device) is not None:
            begin = partial(self._pass, way, tag, tensor)
            return self._captured(name, begin, [tensor], on_device)
        with unwatched():
            both, values = [tensor], [values_of(tensor)]
            call = CollectiveCall(
                name,
                both if name == "send" else [],
                both if name == "recv" else [],
                values if name == "send" else [],
                values if name == "recv" else [],
                tensor.nbytes,
                same=tensor.numel(),
            )
            flight = self._noted(call, way, on_device)
            send = Send(way, communicator, batch)
            exchange = self._rank.begin(self._rendezvous, call, on_device, flight, send)
        return self._queue(exchange, call, flight, stream, on_device)

    def _communicator(
        self, way: tuple[int, int], tag: int, on_device: int | None
    ) -> tuple[Hashable, Hashable]:
        """What matches a send with its receive, and the stream that it has on the clock (None: that
        of the group's collectives).

        As in c10d's ProcessGroupNCCL::pointToPoint: outside of a batch it is a communicator of two,
        made when they first need it, or that of the group, if this was made with a device. Parts of
        a batch, one kernel of NCCL's, are several on the clock, side by side.
        """
        if on_device is None:
            return tag, way
        if self._together is not None:
            return GROUP, way
        everyone = self._rank.groups.default_pg
        if (self if everyone is None else everyone).bound_device_id is not None:
            return GROUP, None
        return tuple(sorted(way)), tuple(sorted(way))

    # --- several as one ---------------------------------------------------------------------

    supports_coalescing = True  # what torch asks before it lets a batch of sends be one

    def _start_coalescing(self, device: torch.device) -> None:
        """What is begun from now on is one, for who waits for it. On the clock they stay several,
        side by side, as NCCL's one kernel for them does them."""
        self._together, self._to_self = [], SendsToSelf(is_batch=True)

    def _end_coalescing(self, device: torch.device) -> WorkTogether:
        """What has been begun since `_start_coalescing`."""
        works, self._together = self._together, None
        sends, self._to_self = self._to_self, SendsToSelf()
        sends.carry_out(self._rank.number)
        return WorkTogether(works or [])

    # --- inside -----------------------------------------------------------------------------

    def _check(self, name: str, tensors: Tensors, *, in_memory: bool = False) -> int | None:
        """The device of the tensors of a call, which the rank and the group must exchange."""
        if any(tensor.is_sparse for tensor in tensors):
            raise RuntimeError(
                f"NCCL does not support {name} with sparse tensors. Please use dense tensors "
                f"instead: tensor.to_dense()"
            )
        found = self._rank.check(name, tensors, in_memory=in_memory)
        if tensors and not self._rank.talks_by_host:
            self.backends.check(name, tensors[0].device.type)
            for tensor in tensors:
                check_exchanged(name, tensor)
        return found if tensors or not self.backends.has_gpus_by_host else None

    def _begin(
        self,
        name: str,
        tensors: Tensors,
        *parts: Callable[[], CollectiveCall],
        timeout: timedelta | None = None,
    ) -> AnyWork:
        on_device = self._check(name, tensors)
        if capturing_on(on_device) is not None:
            begin = partial(self._begin, name, tensors, *parts, timeout=timeout)
            return self._captured(name, begin, tensors, on_device)
        with unwatched():
            calls = [make() for make in parts]
            call = calls[0] if len(calls) == 1 else together(name, calls)
            flight = self._noted(call, None, on_device, timeout)
            by_host = None
            if on_device is not None and self.backends.has_gpus_by_host:
                by_host = call.given_nbytes, call.taken_nbytes
            exchange = self._rank.begin(self._rendezvous, call, on_device, flight, by_host=by_host)
        return self._queue(exchange, call, flight, None, on_device)

    def _captured(
        self,
        name: str,
        begin: Callable[[], CollectiveWork],
        tensors: Tensors,
        on_device: int | None,
    ) -> CapturedWork:
        """Let a CUDA graph have the call, to begin at each replay."""
        graph = capturing_on(on_device)
        assert graph is not None, "who calls this has asked"
        assert on_device is not None, "only its work is captured"
        work = CapturedWork(graph, name, begin, tensors, on_device)
        if self._together is not None:
            self._together.append(work)
        return work

    def _noted(
        self,
        call: CollectiveCall,
        way: tuple[int, int] | None,
        on_device: int | None,
        timeout: timedelta | None = None,
    ) -> Flight:
        """Note a call, before it meets those of others."""
        rank = self._rank
        call.called_at = mark()
        nccl_debug.check_numbers(rank.number, call)
        is_nccl = self.backends.has_nccl(of_host=on_device is None)
        timeout = timeout or self._timeout
        if timeout is None:
            named = self.backends.name == dist.Backend.NCCL
            timeout = watchdog.OF_NCCL if is_nccl and named else watchdog.OF_OTHERS
        seconds = timeout.total_seconds()
        flight = rank.flights.note(self._rendezvous, call, way, self.operator, seconds)
        flight.is_nccl, flight.is_watched = is_nccl, is_nccl and nccl_debug.has_watchdog()
        nccl_debug.say(rank.number, rank.device, self._rendezvous, flight)
        return flight

    def _queue(
        self,
        exchange: Exchange,
        call: CollectiveCall,
        flight: Flight,
        communicator: Hashable,
        on_device: int | None,
    ) -> CollectiveWork:
        """Put a call on the clock: on its stream, behind the caller's current one."""
        rt, device = self._rank.world.rt, self._rank.device if on_device is None else on_device
        self._rank.unwaited.let_go()
        self._rank.watchdog.look()
        stream, by_host = None, self.backends.has_gpus_by_host
        if on_device is not None:
            purpose: tuple = (self._rendezvous.number, tuple(self._rendezvous.ranks)), communicator
            if by_host:
                purpose = (*purpose, self._member)  # others may have the same device
            stream = (device, rt.background_stream(device, purpose))
            rt.sanitizer.of_collectives.add(stream)
            rt.let_wait(stream, (device, rt.current_stream(device)))
            reads, writes = _virtual(call.reads), _virtual(call.writes)
            rt.check_in_use(*(t.vgpu_allocation for t in (*reads, *writes)))
            rt.sanitizer.work(stream, reads, writes)
        title = f"{'gloo' if by_host and stream is not None else 'nccl'}:{flight.title}"
        current = device, 0 if stream is None else rt.current_stream(device)
        with (
            rt.op_details.of_collective(flight.operator, title, call.reads or call.writes),
            rt.captures.on(current),
        ):
            rt.host_threads.submit(device, exchange.queue, stream)
        exchange.watch()
        must_block = call.name == "barrier" or (by_host and stream is not None)
        work = CollectiveWork(self._rank, exchange, call, stream, must_block=must_block)
        if self._together is not None:
            self._together.append(work)
        return work


def _virtual(tensors: Tensors) -> list[VirtualTensor]:
    return [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]


for _name, _method in list(vars(VirtualProcessGroup).items()):
    _depths = call_forms.DEPTHS.get(getattr(_method, "__name__", ""))
    if _depths is not None:  # under each of its names
        setattr(VirtualProcessGroup, _name, call_forms.in_any_form(_method, _depths))
for _name, _method in list(vars(VirtualProcessGroup).items()):
    _plain = getattr(_method, "__name__", "")
    _asks = wrapping_tensors.asks_class
    if _plain in comm_counts.OPERATORS:  # under each of its names
        _method = _asks(_method, comm_counts.OPERATORS[_plain])
    if _plain in comm_counts.OPERATORS or _plain in ("send", "recv"):
        setattr(VirtualProcessGroup, _name, call_forms.waits_first(_method))
for _name in c10d_private.REFUSED:
    setattr(VirtualProcessGroup, _name, refused.on_group(_name))
for _name, _method in list(vars(VirtualProcessGroup).items()):
    _operator = comm_counts.OPERATORS.get(getattr(_method, "__name__", ""))
    if _operator is not None:  # under each of its names
        setattr(VirtualProcessGroup, _name, comm_counts.counted(_method, _operator))
