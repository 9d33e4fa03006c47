"""Process groups of virtual ranks, as c10d's are over NCCL: what `torch.distributed` calls.

Each device has a communication stream for each group (for sends, for each way and tag). There a
collective waits for what the caller's current stream has queued, and runs when it has come that far
on all devices; `wait()` lets the current stream wait for it, and not the host. A barrier makes the
host wait. Tensors of the host are exchanged in no time when all hosts have come, as over gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from ...machines.collective_cost import taken_share
from ..sim.clock import HostThread
from ..torch_backend.host_threads import HOST
from ..torch_backend.tensor import VirtualTensor
from . import c10d_private
from .c10d_private import HasRoot, ReducesBy, ReducesTo
from .collective_calls import CollectiveCall, op_name, values_of
from .rank import Rank
from .rendezvous import PendingCollective, Rendezvous

BARRIER_BYTES = 4  # c10d sums one float
Tensors = Sequence[torch.Tensor]


class CollectiveWork(c10d_private.WorkBase):
    """A collective under way on one rank."""

    def __init__(
        self,
        rank: Rank,
        rendezvous: Rendezvous,
        pending: PendingCollective,
        call: CollectiveCall,
        stream: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self._rank, self._rendezvous, self._pending, self._call = rank, rendezvous, pending, call
        self._stream = stream
        rt = rank.world.rt
        self._known = {} if stream is None else rt.order.release(stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let later work of the current stream come after it; the host goes on at once."""
        self._rank.wait(lambda: self._pending.is_complete, self._text())
        rt, device = self._rank.world.rt, self._rank.device
        if self._stream is None:
            self._block()
            return True
        current = (device, rt.current_stream(device))

        def let_wait(host_thread: HostThread) -> None:
            work = self._pending.work
            assert work is not None, "who is there has put it on the clock"
            rt.clock.stream_waits(host_thread, current, work)

        rt.host_threads.submit(device, let_wait)
        rt.order.acquire(current, self._known)
        if self._call.name == "barrier":
            self._block()
        return True

    def synchronize(self) -> None:
        """The same, by the name that c10d gives it."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done by now, as this rank's host sees it; to ask takes it a moment."""
        rt = self._rank.world.rt
        rt.host_work(rt.machine.host.view_s, "is_completed")
        self._rank.wait(lambda: True, "is_completed", polite=True)
        if not (
            self._pending.is_complete and rt.host_threads.ask(rt.clock.is_done, self._pending.work)
        ):
            return False
        rt.host_acquires(self._known)
        return True

    def _block(self) -> None:
        """Make the host wait."""
        rt, work, name = self._rank.world.rt, self._pending.work, f"wait for {self._call.name}"
        rt.host_threads.submit(HOST, rt.clock.wait_for, work, name)
        rt.host_acquires(self._known)

    def _text(self) -> str:
        missing = ", ".join(str(self._rendezvous.ranks[m]) for m in self._pending.missing)
        return f"{self._call} of {self._rendezvous} for rank {missing}"


class VirtualProcessGroup(c10d_private.GroupBase):
    """The group of a `rendezvous` as `rank` has it; torch checks sizes and data types."""

    def __init__(self, rank: Rank, rendezvous: Rendezvous) -> None:
        self._member = rendezvous.ranks.index(rank.number)
        super().__init__(self._member, len(rendezvous.ranks))
        self._rank, self._rendezvous, self._count = rank, rendezvous, len(rendezvous.ranks)

    def _get_backend(self, device: torch.device) -> VirtualProcessGroup:
        return self

    @property
    def group_name(self) -> str:
        """What functional collectives and device meshes find a group by, in C++."""
        raise NotImplementedError(
            "virtual ranks have neither functional collectives nor device meshes: use the "
            "functions of torch.distributed, and new_group"
        )

    # --- collectives ------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: ReducesBy) -> CollectiveWork:
        """Every rank has the sum."""
        (tensor,) = tensors
        return self._reduce("all_reduce", tensor, opts, root=None)

    def reduce(self, tensors: Tensors, opts: ReducesTo) -> CollectiveWork:
        """The root has the sum."""
        (tensor,) = tensors
        return self._reduce("reduce", tensor, opts, root=opts.rootRank)

    def _reduce(
        self, name: str, tensor: torch.Tensor, opts: ReducesBy, root: int | None
    ) -> CollectiveWork:
        def call() -> CollectiveCall:
            values = values_of(tensor)
            takes = [values] if root in (None, self._member) else []
            return CollectiveCall(
                name, [tensor], [tensor] if takes else [], [values] * self._count, takes,
                tensor.nbytes, op_name(opts.reduceOp), root, tensor.numel(),
            )  # fmt: skip

        return self._begin(name, [tensor], call)

    def broadcast(self, tensors: Tensors, opts: HasRoot) -> CollectiveWork:
        """Every rank has what the root had."""
        (tensor,) = tensors
        root = opts.rootRank

        def call() -> CollectiveCall:
            values, size = values_of(tensor), tensor.numel()
            if root == self._member:
                return CollectiveCall(
                    "broadcast", reads=[tensor], gives=[values] * self._count,
                    nbytes=tensor.nbytes, root=root, same=size,
                )  # fmt: skip
            return CollectiveCall(
                "broadcast", writes=[tensor], takes=self._only(root, values),
                nbytes=tensor.nbytes, root=root, same=size,
            )  # fmt: skip

        return self._begin("broadcast", [tensor], call)

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: object
    ) -> CollectiveWork:
        """Every rank has the inputs of all, a tensor each."""
        (targets,), (source,) = outputs, inputs
        return self._gather_all(list(targets), source)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: object
    ) -> CollectiveWork:
        """Every rank has the inputs of all, in one tensor."""
        return self._gather_all([output], source)

    _allgather_base = all_gather_single  # its older name

    def _gather_all(self, targets: Tensors, source: torch.Tensor) -> CollectiveWork:
        def call() -> CollectiveCall:
            takes = self._split("all_gather", targets, source.numel())
            gives = [values_of(source)] * self._count
            size = source.nbytes * self._count
            return CollectiveCall(
                "all_gather", [source], targets, gives, takes, size, same=source.numel()
            )

        return self._begin("all_gather", [*targets, source], call)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: ReducesBy
    ) -> CollectiveWork:
        """Rank i has the sum of the inputs number i of all."""
        (target,), (sources,) = outputs, inputs
        return self._scatter_sum(target, list(sources), opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: ReducesBy
    ) -> CollectiveWork:
        """Rank i has the sum of the parts number i of all inputs."""
        return self._scatter_sum(output, [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def _scatter_sum(
        self, target: torch.Tensor, sources: Tensors, opts: ReducesBy
    ) -> CollectiveWork:
        def call() -> CollectiveCall:
            gives = self._split("reduce_scatter", sources, target.numel())
            takes, size = [values_of(target)], target.nbytes * self._count
            op = op_name(opts.reduceOp)
            return CollectiveCall(
                "reduce_scatter", sources, [target], gives, takes, size, op, same=target.numel()
            )

        return self._begin("reduce_scatter", [target, *sources], call)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: object,
    ) -> CollectiveWork:
        """Rank i has the parts number i of all inputs; sizes are in rows."""

        def call() -> CollectiveCall:
            gives, takes = self._rows(source, input_sizes), self._rows(output, output_sizes)
            return CollectiveCall("all_to_all", [source], [output], gives, takes, source.nbytes)

        return self._begin("all_to_all", [output, source], call)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: object) -> CollectiveWork:
        """Rank i has the inputs number i of all."""

        def call() -> CollectiveCall:
            gives, takes = [values_of(t) for t in inputs], [values_of(t) for t in outputs]
            return CollectiveCall("all_to_all", inputs, outputs, gives, takes, _bytes(inputs))

        return self._begin("all_to_all", [*outputs, *inputs], call)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: HasRoot) -> CollectiveWork:
        """The root has the inputs of all."""
        (source,), root = inputs, opts.rootRank
        targets = list(outputs[0]) if outputs else []

        def call() -> CollectiveCall:
            gives = self._only(root, values_of(source))
            takes = [values_of(target) for target in targets]
            size = source.nbytes * self._count
            return CollectiveCall(
                "gather", [source], targets, gives, takes, size, root=root, same=source.numel()
            )

        return self._begin("gather", [*targets, source], call)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: HasRoot) -> CollectiveWork:
        """Rank i has input number i of the root."""
        (target,), root = outputs, opts.rootRank
        sources = list(inputs[0]) if inputs else []

        def call() -> CollectiveCall:
            gives = [values_of(source) for source in sources]
            takes, size = self._only(root, values_of(target)), target.nbytes * self._count
            return CollectiveCall(
                "scatter", sources, [target], gives, takes, size, root=root, same=target.numel()
            )

        return self._begin("scatter", [target, *sources], call)

    def barrier(self, opts: object = None) -> CollectiveWork:
        """No host goes on before all have come."""
        return self._begin("barrier", [], lambda: CollectiveCall("barrier", nbytes=BARRIER_BYTES))

    # --- sends ------------------------------------------------------------------------------

    def send(self, tensors: Tensors, target: int, tag: int) -> CollectiveWork:
        """One tensor for a rank of the group."""
        (tensor,) = tensors
        return self._pass((self._member, target), tag, tensor)

    def recv(self, tensors: Tensors, source: int, tag: int) -> CollectiveWork:
        """One tensor from a rank of the group."""
        (tensor,) = tensors
        return self._pass((source, self._member), tag, tensor)

    def _pass(self, way: tuple[int, int], tag: int, tensor: torch.Tensor) -> CollectiveWork:
        name = "send" if way[0] == self._member else "recv"
        if way[0] == way[1]:
            raise ValueError(f"rank {self._rank.number} cannot send to itself")
        on_host = self._rank.check(name, [tensor])
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
        pending = self._rendezvous.pass_on(self._member, way, tag, call, on_host=on_host)
        ranks = self._rendezvous.ranks
        more: dict[str, object] = {"kind": "copy", "group": tuple(ranks[end] for end in way)}
        if name == "send":
            more["target"] = self._rendezvous.devices[way[1]]
        return self._queue(pending, call, (*way, tag), more, on_host=on_host)

    # --- inside -----------------------------------------------------------------------------

    def _begin(
        self, name: str, tensors: Tensors, make: Callable[[], CollectiveCall]
    ) -> CollectiveWork:
        on_host = self._rank.check(name, tensors)
        call = make()
        pending = self._rendezvous.meet(self._member, call, on_host=on_host)
        more: dict[str, object] = {"group": tuple(self._rendezvous.ranks)}
        if not on_host:
            more["taken"] = self._taken_share(call)
        return self._queue(pending, call, None, more, on_host=on_host)

    def _taken_share(self, call: CollectiveCall) -> float:
        """The share of this rank's multiprocessors that the blocks of a collective take."""
        fabric = self._rendezvous.fabric
        if fabric is None:
            return 0.0
        gpu = self._rank.world.rt.machine.accelerators[self._rank.device]
        return taken_share(call.nbytes, fabric, gpu.multiprocessors, call.name)

    def _queue(
        self,
        pending: PendingCollective,
        call: CollectiveCall,
        way: tuple[int, int, int] | None,
        more: dict[str, object],
        *,
        on_host: bool,
    ) -> CollectiveWork:
        """Put a call on the clock: on its stream, behind the caller's current one."""
        rt, device = self._rank.world.rt, self._rank.device
        stream = None
        if not on_host:
            number = rt.background_stream(device, (tuple(self._rendezvous.devices), way))
            stream = (device, number)
            rt.let_wait(stream, (device, rt.current_stream(device)))
            rt.sanitizer.work(stream, _virtual(call.reads), _virtual(call.writes))

        def queue(host_thread: HostThread) -> None:
            pending.queue(host_thread, rt.clock, stream, call.name, {"nbytes": call.nbytes, **more})

        rt.host_threads.submit(device, queue)
        return CollectiveWork(self._rank, self._rendezvous, pending, call, stream)

    def _only(self, member: int, values: torch.Tensor) -> list[torch.Tensor | None]:
        return [values if i == member else None for i in range(self._count)]

    def _split(self, name: str, tensors: Tensors, size: int) -> list[torch.Tensor]:
        """A piece of `size` elements a rank: of one tensor, or a tensor each."""
        if len(tensors) == 1 and tensors[0].numel() == size * self._count:
            return list(values_of(tensors[0]).split(size)) if size else [values_of(tensors[0])]
        if len(tensors) == self._count and all(tensor.numel() == size for tensor in tensors):
            return [values_of(tensor) for tensor in tensors]
        found = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"{name} on {self._count} ranks needs {self._count} times {size} elements on its other "
            f"side, not {found}"
        )

    def _rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """A piece of so many rows a rank; by default, the same for all."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes and rows % self._count:
            raise ValueError(
                f"all_to_all_single on {self._count} ranks cannot split {rows} rows evenly: give "
                "the sizes"
            )
        sizes = list(sizes) or [rows // self._count] * self._count
        if len(sizes) != self._count or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single on {self._count} ranks cannot split {rows} rows as {sizes}"
            )
        width = tensor.numel() // rows if rows else 0
        return list(values_of(tensor).split([size * width for size in sizes]))


def _virtual(tensors: Tensors) -> list[VirtualTensor]:
    return [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _refused(name: str) -> object:
    def refuse(self: VirtualProcessGroup, *args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{name} is not available on virtual ranks")

    return refuse


for _name in c10d_private.REFUSED:
    setattr(VirtualProcessGroup, _name, _refused(_name))
