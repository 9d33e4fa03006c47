"""DistributedDataParallel on virtual ranks: every rank has the whole network, a share of the batch,
and the same parameters before and after each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import record_function
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from ...torch_backend.private.torch_tensors import flattened, pieces, unflattened
from ..private import c10d as c10d_private
from ..private.ddp import MixedPrecision, begin_mixed_precision, cast_inputs
from ..world.rank import talking_by_host
from . import comm_hooks
from .arguments import device_of, group_of, limits_bytes, number_of, warn_of_old_name
from .backward_begin import Begins, call_when_it_begins, reached, tensors_of, told_at_once
from .errors import unfinished
from .join import DDPJoinHook, agree_to_average, agreed_rank
from .reducer import Parameters, Reducer

Value = TypeVar("Value")

MB = 2**20
BROADCAST_MB = 250  # torch's
_MOVED = (torch.Tensor, PackedSequence)


class DistributedDataParallel(c10d_private.TorchDDP):
    """torch's, with its arguments, communication hooks and `join()`.

    A module may lie on several devices of its rank, with `device_ids=None`. Raises
    NotImplementedError for arguments that it does not know.
    """

    process_group: dist.ProcessGroup | None  # type: ignore[assignment]
    output_device: object  # type: ignore[assignment]
    logger: None

    def __init__(
        self,
        module: nn.Module,
        device_ids: list | None = None,
        output_device: object = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        forward_sync_buffers: bool | None = None,
        mixed_precision: MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        **others: object,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        if used := [n for n, v in others.items() if isinstance(v, torch.Tensor) or v]:
            raise NotImplementedError(
                f"DDP on virtual ranks has no {', '.join(used)}: leave it out"
            )
        self.module = module
        self.process_group, self.device_mesh = group_of(process_group, device_mesh), device_mesh
        self.dim = dim
        self.parameters_to_ignore = set(getattr(module, c10d_private.IGNORED_BY_DDP, ()))
        named = c10d_private.trained_by_ddp(module, self.parameters_to_ignore)
        self.names = {p: name for name, p in named}
        self._module_parameters = list(self.names)
        self.device = device_of(module, self._module_parameters, device_ids, output_device)
        self.device_type = self.device.type
        self.device_ids = [self.device.index] if device_ids else None
        self.output_device = number_of(output_device, self.device) if device_ids else None
        warn_of_old_name(broadcast_buffers, forward_sync_buffers)
        by_its_old_name = broadcast_buffers is not False
        only_in_forward = forward_sync_buffers is not None  # torch 2.15's name
        self.broadcast_buffers = self.forward_sync_buffers = (
            by_its_old_name if forward_sync_buffers is None else forward_sync_buffers
        )
        self.static_graph = static_graph
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.divides_by_all = True
        self.broadcast_bucket_size = BROADCAST_MB * MB
        self._ddp_sink_clone = True  # `_set_ddp_sink_clone` of torch's
        if init_sync:
            self._check_shapes()
            buffers = self._buffers_of_all() if only_in_forward or by_its_old_name else []
            self._broadcast([*self._parameters_of_all(), *buffers])
        limits = limits_bytes(bucket_cap_mb, bucket_cap_mb_list)
        self.bucket_bytes_cap = int(max(limits))
        self.bucket_bytes_cap_list = [int(n) for n in limits] if bucket_cap_mb_list else []
        self.rebuilds = static_graph or not find_unused_parameters
        self._make_reducer = partial(
            Reducer,
            limits_bytes=limits,
            as_views=gradient_as_bucket_view,
            rebuilds=self.rebuilds,
            static=static_graph,
            skips_unused=skip_all_reduce_unused_params,
            names=[*self.names.values()],
        )
        self._start()
        self.mixed_precision = mixed_precision
        if mixed_precision is not None:
            begin_mixed_precision(self)

    def _start(self) -> None:
        self.reducer = self._make_reducer(self._module_parameters, self.process_group)
        self.logger = None
        self._optimizers_looked_for = self._has_rebuilt_buckets = False

    def __getstate__(self) -> dict[str, object]:
        return {
            k: v
            for k, v in self.__dict__.items()
            if k not in ("process_group", "device_mesh", "reducer")
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """A copy averages by itself, over all ranks, as torch's does."""
        nn.Module.__setstate__(self, state)
        self.process_group = group_of(None, None)
        self._start()

    def forward(self, *inputs: object, **kwargs: object) -> object:
        """The module's output; the next backward pass averages gradients."""
        with record_function("DistributedDataParallel.forward"):  # its name in torch's traces
            inputs, kwargs = self._pre_forward(*inputs, **kwargs)
            return self._post_forward(self.module(*inputs, **kwargs))

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        """What comes before the module; `replicate` calls it by torch's name."""
        if not self._optimizers_looked_for:
            self._setup_in_backward_optimizers()
            self._optimizers_looked_for = True
        if self._averages_now():
            self._check_finished()
        self._tell_those_without_batches()
        if self.device_ids:
            inputs, kwargs = _moved((inputs, kwargs), self.device)
        if self.mixed_precision is not None:
            return cast_inputs(self.mixed_precision.param_dtype, *inputs, **kwargs)
        return inputs, kwargs

    def _post_forward(self, output: object) -> object:
        """What comes after it."""
        self.require_forward_param_sync = self._averages_now()
        if self._averages_now():
            self.reducer.expect()
            output = self._with_begin_of_backward(output)
        return output

    def _averages_now(self) -> bool:
        return torch.is_grad_enabled() and self.require_backward_grad_sync

    # --- parameters without a gradient ------------------------------------------------------

    def _check_finished(self) -> None:
        missing = set(self.reducer.missing())
        if missing:
            found = {i: name for i, (p, name) in enumerate(self.names.items()) if p in missing}
            raise RuntimeError(unfinished(self, found))

    def _with_begin_of_backward(self, output: object) -> object:
        """The output, of which the reducer learns when its backward pass begins."""
        if self.reducer.learns:
            begins: Begins = lambda tensors: self.reducer.begin_pass()  # noqa: E731
            return told_at_once(output, begins, copy=self._ddp_sink_clone)
        if self.static_graph or not self.find_unused_parameters:
            call_when_it_begins(output, self.reducer.begin_pass)
            return output
        with record_function("torch.distributed.ddp.reducer::search_unused_parameters"):
            outputs = [t for t in tensors_of(output) if t.grad_fn is not None]
            seen = reached(outputs, self.names)

        def look(tensors: Sequence[torch.Tensor]) -> tuple[Parameters, Parameters]:
            used = seen if len(tensors) == len(outputs) else reached(tensors, self.names)
            return seen, frozenset(self.names) - used

        begins = lambda tensors: self.reducer.begin_pass(partial(look, tensors))  # noqa: E731
        return told_at_once(output, begins, copy=self._ddp_sink_clone)

    # --- the same on all ranks --------------------------------------------------------------

    def _check_shapes(self) -> None:
        found = self._of_all_ranks({name: list(p.shape) for p, name in self.names.items()})
        for rank, theirs in enumerate(found):
            for name in {**found[0], **theirs}:
                if theirs.get(name) != found[0].get(name):
                    raise RuntimeError(
                        f"DDP needs the same parameters on all ranks, but {name} has the shape "
                        f"{found[0].get(name)} on rank 0 and {theirs.get(name)} on rank {rank}: "
                        "make the same network on each"
                    )

    def _of_all_ranks(self, mine: Value) -> list[Value]:
        found: list[Any] = [None] * dist.get_world_size(self.process_group)
        with talking_by_host():
            dist.all_gather_object(found, mine, group=self.process_group)
        return found

    def _parameters_of_all(self) -> list[torch.Tensor]:
        return self._without_ignored(self.module.named_parameters())

    def _buffers_of_all(self) -> list[torch.Tensor]:
        return self._without_ignored(self.module.named_buffers())

    def _without_ignored(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        return [tensor for name, tensor in named if name not in self.parameters_to_ignore]

    def broadcasts_buffers_now(self) -> bool:
        """Whether this forward pass begins with the buffers of one rank."""
        wanted = self.require_forward_param_sync and self.broadcast_buffers
        return wanted and bool(self._buffers_of_all())

    def broadcast_buffers_from(self, rank: int) -> None:
        """Give buffers the values of a rank of the group."""
        self._broadcast(self._buffers_of_all(), rank)

    def broadcast_state_from(self, rank: int) -> None:
        """Give parameters and buffers the values of a rank of the group."""
        self._authoritative_rank = rank
        buffers = self._buffers_of_all() if self.broadcast_buffers else []
        self._broadcast([*self._parameters_of_all(), *buffers], rank)

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor], rank: int = 0) -> None:
        """Give tensors the values of a rank, in flat pieces of one device and data type."""
        for part in _on_one_device(tensors):
            flat = flattened(part)
            dist.broadcast(flat, group_src=rank, group=self.process_group)
            for tensor, values in zip(part, unflattened(flat, part), strict=True):
                tensor.copy_(values)

    # --- uneven inputs ----------------------------------------------------------------------

    def _tell_those_without_batches(self) -> None:
        """What begins a forward pass on all ranks; those that have joined shadow it."""
        work: Any = Join.notify_join_context(self)
        if torch.is_grad_enabled():
            self.rebuild_buckets()
        together = self._join_config.enable
        if self.broadcasts_buffers_now():
            rank = agreed_rank(self, candidate=True) if together else 0
            with c10d_private.buffers_exchanged(self._buffers_of_all()):
                self.broadcast_buffers_from(rank)
        if together:
            agree_to_average(self, joined=False)
        self.reducer.divisor = dist.get_world_size(self.process_group)
        if work is not None and not self.divides_by_all:
            work.wait()
            self.reducer.divisor = int(work.result()[0].item())

    def rebuild_buckets(self) -> None:
        """Sort buckets anew when one pass has shown in which order gradients come."""
        self.reducer.rebuild_buckets()
        self._has_rebuilt_buckets = self.rebuilds and not self.reducer.rebuilds

    def join_hook(self, **kwargs: Any) -> DDPJoinHook:
        """What `torch.distributed.algorithms.Join` calls on a rank without batches."""
        by_all = kwargs.get("divide_by_initial_world_size", True)
        return DDPJoinHook(self, divide_by_initial_world_size=by_all)

    # --- communication hooks ------------------------------------------------------------------

    def register_comm_hook(self, state: object, hook: comm_hooks.ProgramHook) -> None:
        """Let `hook(state, bucket)` exchange gradients; raises as torch's does."""
        comm_hooks.register(self.reducer, state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type: object) -> None:
        self.register_comm_hook(self.process_group, comm_hooks.builtin(comm_hook_type))

    def _set_static_graph(self) -> None:
        self.static_graph = self.reducer.static = True

    def _register_buffer_comm_hook(self, *_: object) -> None:
        raise NotImplementedError(
            "DDP on virtual ranks has no hooks for buffers: exchange them after the forward pass"
        )

    def _get_ddp_logging_data(self) -> dict[str, object]:
        raise NotImplementedError(
            "DDP on virtual ranks keeps no logging data: par.record() shows when each bucket is "
            "averaged"
        )


def _moved(inputs: Any, device: torch.device) -> Any:
    """Inputs on the device; packed sequences know which of their tensors go there."""

    def move(leaf: Any) -> Any:
        kind = type(leaf)
        return leaf.to(device) if issubclass(kind, _MOVED) else leaf

    return tree_map(move, inputs, is_leaf=lambda value: isinstance(value, PackedSequence))


def _on_one_device(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Pieces of tensors of one device and one data type."""
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        here = [tensor for tensor in tensors if tensor.device == device]
        yield from pieces(here, BROADCAST_MB * MB)
