"""Averaging gradients over ranks while backward goes on: the heart of DistributedDataParallel.

Gradients are gathered in *buckets*. A bucket is summed over all ranks as soon as its last gradient
is there, on a stream of its own, while backward computes the next ones (Li et al. 2020, "PyTorch
Distributed", and torch's reducer.cpp). Nothing here but `torch.distributed`: it runs on real ranks
as it does on virtual ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ...machines.gradient_buckets import assign_buckets
from ..torch_backend.torch_private import at_end_of_backward

ParameterList = list[nn.Parameter]


class Bucket:
    """Parameters whose gradients are averaged as one flat tensor, of which each has a view."""

    def __init__(self, parameters: ParameterList) -> None:
        first, sizes = parameters[0], [p.numel() for p in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        parts = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {p: part.view_as(p) for p, part in parts}
        self.missing: set[nn.Parameter] = set()
        self.work: dist.Work | None = None


def gathered(parameters: ParameterList, limits_bytes: Sequence[float]) -> list[ParameterList]:
    """The parameters of each bucket, filled in the given order."""
    sizes, kinds = [p.nbytes for p in parameters], [p.dtype for p in parameters]
    found = assign_buckets(sizes, limits_bytes, kinds)
    return [[parameters[i] for i in members] for members in found]


class Reducer:
    """Averages the gradients of `parameters` over the ranks of `group`.

    `limits_bytes` are the sizes of the first bucket and of the others. With `as_views` gradients
    stay in their buckets, and need not be copied back.
    """

    def __init__(
        self,
        parameters: ParameterList,
        group: dist.ProcessGroup | None,
        limits_bytes: Sequence[float],
        *,
        as_views: bool,
        rebuilds: bool,
    ) -> None:
        self.parameters, self.group, self.limits_bytes = parameters, group, limits_bytes
        self.as_views, self.rebuilds = as_views, rebuilds
        self.expecting = False
        self.nowhere_used: set[nn.Parameter] = set()
        self._arrived: ParameterList = []
        # At first the order in which they are defined, the last first. Backward may take another,
        # so torch makes one bucket of all, and sorts them anew when it has seen one pass.
        limits_at_first = (float("inf"),) if rebuilds else limits_bytes
        self._make_buckets(gathered(parameters, limits_at_first)[::-1])
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._gradient_is_ready)

    def _make_buckets(self, parts: list[ParameterList]) -> None:
        self.buckets = [Bucket(part) for part in parts]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}

    def rebuild_buckets(self) -> None:
        """After the first step: in the order in which gradients came, on rank 0."""
        if not (self.rebuilds and len(self._arrived) == len(self.parameters)):
            return
        number = {p: i for i, p in enumerate(self.parameters)}
        order = [[number[p] for p in self._arrived]]
        dist.broadcast_object_list(order, group=self.group, group_src=0)
        self._make_buckets(gathered([self.parameters[i] for i in order[0]], self.limits_bytes))
        self.rebuilds = False

    # --- backward ---------------------------------------------------------------------------

    def expect(self, unused: Iterable[nn.Parameter] = ()) -> None:
        """The next backward pass shall be averaged; `unused` will get no gradient in it."""
        self.expecting, self._unused, self._next = True, list(unused), 0
        self._arrived = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)

    def missing(self) -> ParameterList:
        """Parameters whose gradients did not come in a pass that has begun."""
        begun = self.expecting and any(len(b.missing) < len(b.views) for b in self.buckets)
        return [p for p in self.parameters if begun and p in self._bucket_of[p].missing]

    @torch.no_grad()
    def _gradient_is_ready(self, p: nn.Parameter) -> None:
        """Called by autograd when the gradient of `p` is complete."""
        if not self.expecting:  # under no_sync()
            return
        while self._unused:
            self._fill(self._unused.pop())
        self._fill(p)
        self._arrived.append(p)
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            bucket = self.buckets[self._next]  # one after the other, on all ranks alike
            bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
            self._next += 1
            if self._next == len(self.buckets):
                at_end_of_backward(self._finish)

    def _fill(self, p: nn.Parameter) -> None:
        """Copy the gradient, divided by the number of ranks, into its bucket: one kernel."""
        bucket = self._bucket_of[p]
        view, share = bucket.views[p], 1 / dist.get_world_size(self.group)
        if p.grad is None:
            view.zero_()
        elif p.grad is view:
            view.mul_(share)
        else:
            torch.mul(p.grad, share, out=view)
        bucket.missing.discard(p)

    @torch.no_grad()
    def _finish(self) -> None:
        """At the end of backward: let the device (not the host) wait, and hand the averages out."""
        self.expecting = False
        for bucket in self.buckets:
            assert bucket.work is not None, "the last bucket began last"
            bucket.work.wait()
            for p, view in bucket.views.items():
                if p in self.nowhere_used:
                    continue
                if self.as_views:
                    p.grad = view
                elif p.grad is None:
                    p.grad = view.clone()
                else:
                    p.grad.copy_(view)
