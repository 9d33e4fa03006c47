"""DistributedDataParallel on virtual ranks: every rank has the whole network, a share of the batch,
and the same parameters before and after each step."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.utils._pytree import tree_leaves, tree_map_only

from ...machines.gradient_buckets import DEFAULT_LIMITS
from . import c10d_private
from .reducer import Reducer

Value = TypeVar("Value")

MB = 2**20
BROADCAST_MB = 250  # torch's


class DistributedDataParallel(c10d_private.TorchDDP):
    """torch's, with its arguments. Communication hooks, `join()` and mixed precision of its own are
    refused; a static graph is one in which unused parameters are looked for."""

    process_group: dist.ProcessGroup | None  # type: ignore[assignment]
    output_device: object  # type: ignore[assignment]

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
        **others: object,
    ) -> None:
        nn.Module.__init__(self)
        if used := [name for name, value in others.items() if value]:
            raise NotImplementedError(f"DDP on virtual ranks has no {', '.join(used)}")
        self.module, self.device_ids, self.process_group = module, device_ids, process_group
        self.dim, self.output_device = dim, output_device
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self.device = _device_of(module, list(self.names), device_ids)
        by_its_old_name = broadcast_buffers is not False
        named = forward_sync_buffers is not None  # torch 2.15's name, for forward passes only
        self.broadcast_buffers = (
            by_its_old_name if forward_sync_buffers is None else forward_sync_buffers
        )
        self.find_unused_parameters = find_unused_parameters or static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        if init_sync:
            self._check_shapes()
            buffers = module.buffers() if named or by_its_old_name else ()
            self._broadcast([*module.parameters(), *buffers])
        limits = DEFAULT_LIMITS if bucket_cap_mb is None else (bucket_cap_mb * MB,)
        self._make_reducer = partial(
            Reducer,
            limits_bytes=limits,
            as_views=gradient_as_bucket_view,
            rebuilds=static_graph or not find_unused_parameters,
        )
        self.reducer = self._make_reducer(list(self.names), process_group)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("process_group", "reducer")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """A copy averages by itself, over all ranks, as torch's does."""
        nn.Module.__setstate__(self, state)
        self.process_group = None
        self.reducer = self._make_reducer(list(self.names), None)

    def forward(self, *inputs: object, **kwargs: object) -> object:
        """The module's output; the next backward pass averages gradients."""
        averaged = torch.is_grad_enabled() and self.require_backward_grad_sync
        if averaged:
            self._check_finished()
        if torch.is_grad_enabled():
            self.reducer.rebuild_buckets()
        if self.require_forward_param_sync and self.broadcast_buffers:
            self._broadcast(list(self.module.buffers()))
        if self.device_ids:
            inputs, kwargs = tree_map_only(
                torch.Tensor, lambda t: t.to(self.device), (inputs, kwargs)
            )
        output = self.module(*inputs, **kwargs)
        self.require_forward_param_sync = averaged
        if averaged:
            self.reducer.expect(self._unused(output) if self.find_unused_parameters else ())
        return output

    # --- parameters without a gradient ------------------------------------------------------

    def _check_finished(self) -> None:
        missing = [self.names[p] for p in self.reducer.missing()]
        if missing:
            raise RuntimeError(
                "the last backward pass left parameters without a gradient, so their buckets were "
                f"never averaged: {', '.join(missing)} on rank {dist.get_rank()}. Pass "
                "find_unused_parameters=True, or let all of them take part in the loss"
            )

    def _unused(self, output: object) -> set[nn.Parameter]:
        """Parameters that the output does not depend on; notes those that no rank uses."""
        unused = set(self.names)
        nodes = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            unused.discard(getattr(node, "variable", None))
            following = {n for n, _ in getattr(node, "next_functions", ()) if n is not None} - seen
            seen |= following
            nodes += following
        ranks = self._of_all_ranks([p in unused for p in self.names])
        everywhere = zip(self.names, *ranks, strict=True)
        self.reducer.nowhere_used = {p for p, *is_unused in everywhere if all(is_unused)}
        return unused

    # --- the same on all ranks --------------------------------------------------------------

    def _check_shapes(self) -> None:
        found = self._of_all_ranks({name: list(p.shape) for p, name in self.names.items()})
        for rank, theirs in enumerate(found):
            for name in {**found[0], **theirs}:
                if theirs.get(name) != found[0].get(name):
                    raise RuntimeError(
                        f"DDP needs the same parameters on all ranks, but {name} has the shape "
                        f"{found[0].get(name)} on rank 0 and {theirs.get(name)} on rank {rank}"
                    )

    def _of_all_ranks(self, mine: Value) -> list[Value]:
        found: list[Any] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(found, mine, group=self.process_group)
        return found

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Give tensors the values of rank 0, in flat pieces of one data type."""
        for part in _take_tensors(tensors, BROADCAST_MB * MB):
            flat = _flatten_dense_tensors(part)
            dist.broadcast(flat, group_src=0, group=self.process_group)
            for tensor, values in zip(part, _unflatten_dense_tensors(flat, part), strict=True):
                tensor.copy_(values)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("DDP on virtual ranks has no communication hooks")

    def join(self, *args: object, **kwargs: object) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("DDP on virtual ranks has no join(): give all as many batches")


def _device_of(module: nn.Module, trained: list[nn.Parameter], ids: list | None) -> torch.device:
    """The device of the parameters. Raises for a module that DDP cannot have."""
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise RuntimeError(
            "DDP cannot have parameters without a shape: run a first batch through the lazy module"
        )
    if not trained:
        raise RuntimeError("DDP is not needed for a module none of whose parameters is trained")
    devices = {p.device for p in trained}
    if len(devices) > 1 or (ids and len(ids) > 1):
        raise ValueError(
            f"DDP has one device a rank: parameters are on {', '.join(map(str, devices))}, and "
            f"device_ids is {ids}"
        )
    (device,) = devices
    if ids and (ids[0] if isinstance(ids[0], int) else torch.device(ids[0]).index) != device.index:
        raise ValueError(f"device_ids is {ids}, but the parameters are on {device}")
    return device
