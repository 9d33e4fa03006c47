"""Averaging gradients over ranks while backward goes on: the heart of DistributedDataParallel.

Gradients are gathered in *buckets*. A bucket is summed over all ranks as soon as its last gradient
is there, on a stream of its own, while backward computes the next ones (Li et al. 2020, "PyTorch
Distributed", and torch's reducer.cpp); or a communication hook of the program's does what it likes
with it. Nothing here but `torch.distributed`: it runs on real ranks as it does on virtual ones.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.private.torch_autograd import at_end_of_backward
from ..world.rank import talking_by_host
from .backward_begin import call_when_it_begins
from .buckets import Bucket, ParameterList, gathered
from .errors import CHANGED
from .gradient_bucket import GradientBucket

ONCE = "Expected to mark a variable ready only once"  # as torch's reducer says it
UNDEFINED = (
    "Encountered gradient which is undefined, but still allreduced by DDP reducer: a parameter "
    "that this pass does not use got a gradient after the last average, in a pass of its own "
    "(the second of a forward pass, or one under no_sync()), and zero_grad() took it away. Call "
    "backward once, on the sum of the losses, and zero_grad() after an averaged pass only"
)
DRIFT = (
    "gradients came after DistributedDataParallel had averaged those of its last forward pass, and "
    "are added on each rank without being averaged: from here on ranks drift apart, as on real "
    "GPUs, and nothing is raised. It averages one backward pass after each forward pass; this is a "
    "second one, or that of an earlier forward pass, or a reentrant checkpoint used twice. Call "
    "backward once, on the sum of the losses, or run a forward pass for each"
)
SPARSE = (
    "NCCL does not support all_reduce with sparse tensors, and gloo's sums of them are not "
    "emulated: please use dense gradients, as of nn.Embedding without sparse=True"
)
Hook = Callable[[GradientBucket], torch.futures.Future]
Parameters = frozenset[nn.Parameter]


def _call(method: weakref.WeakMethod, p: torch.Tensor) -> None:
    found = method()
    if found is not None:
        found(p)


class Reducer:
    """Averages the gradients of `parameters` over the ranks of `group`.

    `limits_bytes` are the sizes of the first bucket and of the others. With `as_views` gradients
    stay in their buckets, and need not be copied back. In a `static` graph a gradient may come
    several times in a pass: the first pass is averaged at its end, and shows how often. With
    `skips_unused` a bucket that gets no gradient is not exchanged; all ranks must agree on it.
    Errors call parameters by their `names`.
    """

    def __init__(
        self,
        parameters: ParameterList,
        group: dist.ProcessGroup | None,
        limits_bytes: Sequence[float],
        *,
        as_views: bool,
        rebuilds: bool,
        static: bool = False,
        skips_unused: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        self.parameters, self.group, self.limits_bytes = parameters, group, limits_bytes
        self.as_views, self.rebuilds, self.static = as_views, rebuilds, static
        self.skips_unused, self.names = skips_unused, names
        self.hook: Hook | None = None
        self.hands_out = True  # not if the program's optimizer uses gradients as they come
        self.divisor = dist.get_world_size(group)
        self.expecting = False
        self.nowhere_used: set[nn.Parameter] = set()
        self._arrived: ParameterList = []
        self._came = Counter[nn.Parameter]()
        self._in_pass = False
        self._unseen: Parameters = frozenset()
        self.used_unaveraged: set[nn.Parameter] = set()  # since the last averages
        self._needed: Counter[nn.Parameter] | None = None  # how often each comes, if it is static
        # At first the order in which they are defined, the last first. Backward may take another,
        # so torch makes one bucket of all, and sorts them anew when it has seen one pass.
        limits_at_first = (float("inf"),) if rebuilds else limits_bytes
        self._dtype: torch.dtype | None = None
        self._casts = False
        self._make_buckets(gathered(parameters, limits_at_first)[::-1])
        # Parameters may outlive it, and become those of another.
        ready = weakref.WeakMethod(self._gradient_is_ready)
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(_call, ready)) for p in parameters
        ]

    def _make_buckets(self, parts: list[ParameterList]) -> None:
        self.buckets = [Bucket(part, self._dtype) for part in parts]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}

    @property
    def will_rebuild(self) -> bool:
        """Whether buckets are sorted anew when the next forward pass begins."""
        come = len(self._arrived) + len(self._never)
        return self.rebuilds and bool(self._arrived) and come == len(self.parameters)

    @property
    def _never(self) -> ParameterList:
        """The parameters of a static graph that get no gradient in any pass."""
        return [] if self._needed is None else [p for p in self.parameters if not self._needed[p]]

    def rebuild_buckets(self) -> None:
        """After the first step, of a static graph after the second: in the order in which gradients
        came, on rank 0."""
        if not self.will_rebuild:
            return
        number = {p: i for i, p in enumerate(self.parameters)}
        order = [[number[p] for p in (*self._arrived, *self._never)]]
        with talking_by_host():
            dist.broadcast_object_list(order, group=self.group, group_src=0)
        self._make_buckets(gathered([self.parameters[i] for i in order[0]], self.limits_bytes))
        self.rebuilds = False

    # --- backward ---------------------------------------------------------------------------

    def expect(self) -> None:
        """The next backward pass shall be averaged."""
        self.expecting, self._next = self.learns or self._needed != Counter(), 0
        self._arrived, self._came = [], Counter[nn.Parameter]()
        self._in_pass = False  # also after one that an error has ended
        self._ended = False  # the backward pass; then what comes last is called at once
        self._unused = self._never
        self._never_used = set(self._unused)
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)

    def begin_pass(self, look: Callable[[], tuple[Parameters, Parameters]] | None = None) -> None:
        """Called in the backward pass before any gradient comes. In a pass that is to be averaged,
        `look()` returns the parameters on which outputs depend, and those that get no gradient in
        it; RuntimeError if one gets a gradient on which no output depends."""
        if self._in_pass:
            return
        self._in_pass = True
        at_end_of_backward(self._end_pass)
        if look is None or not self.expecting:
            return
        seen, unused = look()
        self.agree_on_unused(unused)
        self._unseen = frozenset(self.parameters) - seen
        self._check_unseen(p for p in self._unseen if self._came[p])
        self._unused += [p for p in unused if p not in self._unused]
        self._never_used |= unused

    def _end_pass(self) -> None:
        self._in_pass = False
        if self.learns:
            self._reduce_all()
        elif self.expecting and self._unused and not self._came:
            self._reduce_unused()

    def agree_on_unused(self, unused: Set[nn.Parameter]) -> None:
        """Find out together which parameters no rank uses: their gradients stay as they are."""
        mine = [p in unused and p not in self.used_unaveraged for p in self.parameters]
        ranks: list[list[bool]] = [mine] * dist.get_world_size(self.group)
        with talking_by_host():
            dist.all_gather_object(ranks, mine, group=self.group)
        everywhere = list(zip(self.parameters, *ranks, strict=True))
        self.nowhere_used = {p for p, *is_unused in everywhere if all(is_unused)}

    @property
    def learns(self) -> bool:
        """Whether the first pass of a static graph is still to come."""
        return self.static and self._needed is None

    def missing(self) -> ParameterList:
        """Parameters whose gradients did not come in a pass that has begun."""
        begun = self.expecting and bool(self._came)
        return [p for p in self.parameters if begun and p in self._bucket_of[p].missing]

    @torch.no_grad()
    def _gradient_is_ready(self, p: nn.Parameter) -> None:
        """Called by autograd when the gradient of `p` is complete."""
        if not self.expecting:
            self._stays_here(p)
            return
        self._came[p] += 1
        if self._in_pass and p in self._unseen:
            self._check_unseen([p])
        if self.learns:
            if not self._in_pass:
                self.begin_pass()
            return
        needed = 1 if self._needed is None else self._needed[p]
        if self._came[p] > needed:
            raise RuntimeError(self._came_too_often(p))
        if self._came[p] == needed:
            self._take(p)

    def _stays_here(self, p: nn.Parameter) -> None:
        """A gradient that is not averaged: under `no_sync()`, or too late."""
        self.used_unaveraged.add(p)
        if self._in_pass:
            shapes = (p.shape for p in self.parameters)
            current_runtime().say_once(DRIFT, about=(*self.names, *shapes))

    def _came_too_often(self, p: nn.Parameter) -> str:
        if self._needed is not None:
            return CHANGED
        return (
            f"{ONCE}. The gradient of one of shape {list(p.shape)} came twice after one forward "
            "pass, and DDP averages it when it comes first. Reentrant checkpoints do so "
            "(use_reentrant=False does not), or DDP(..., static_graph=True) counts how often; so "
            "do two backward passes, of which the first does not reach all parameters: call "
            "backward once, on the sum of the losses"
        )

    def _check_unseen(self, used: Iterable[nn.Parameter]) -> None:
        """They were averaged as unused, without what comes of them."""
        for p in used:
            number = next(i for i, known in enumerate(self.parameters) if known is p)
            name = f" with name {self.names[number]}" if self.names else ""
            raise RuntimeError(
                f"{ONCE}. Parameter at index {number}{name} is not used by the outputs of the "
                "module's forward pass, so it was averaged as unused; its gradient has come all "
                "the same. The program uses it outside of forward, or in a reentrant checkpoint: "
                "use_reentrant=False shows what is in it, and DDP(..., static_graph=True) counts "
                "what comes"
            )

    def _take(self, p: nn.Parameter) -> None:
        self._fill_unused()
        self._fill(p)
        self._arrived.append(p)
        self._begin_full_buckets()

    @torch.no_grad()
    def _fill_unused(self) -> None:
        while self._unused:
            self._fill(self._unused.pop())

    @torch.no_grad()
    def _reduce_unused(self) -> None:
        """At the end of a pass in which no gradient came, although it was to be averaged."""
        self._ended = True
        self._fill_unused()
        self._begin_full_buckets()
        if self._next == len(self.buckets):
            self._finish()

    @torch.no_grad()
    def _reduce_all(self) -> None:
        """At the end of the first pass of a static graph. If no gradient came in it, as in one of
        `torch.autograd.grad`, none is ever averaged, as with torch's."""
        came = {p for p in self._came if p.grad is not None}  # others come without a gradient
        self.agree_on_unused(set(self.parameters) - came)
        self._needed, self._ended = self._came, True
        for p in self.parameters:
            self._fill(p)
        self._begin_full_buckets()
        self._finish()

    def _begin_full_buckets(self) -> None:
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._begin(self._next)  # one after the other, on all ranks alike
            self._next += 1
            if self._next == len(self.buckets) and not self._ended:
                at_end_of_backward(self._finish)

    def _begin(self, number: int) -> None:
        bucket = self.buckets[number]
        if self.skips_unused and self._never_used.issuperset(bucket.views):
            bucket.result = None
            return
        if self.hook is None:
            bucket.result = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
            assert bucket.result is not None, "this rank is one of the group"
            return
        last = number == len(self.buckets) - 1
        bucket.result = self.hook(
            GradientBucket(number, bucket.flat, list(bucket.views), is_last=last)
        )

    def _fill(self, p: nn.Parameter) -> None:
        """Copy the gradient, divided by the number of ranks, into its bucket: one kernel. Hooks
        divide by themselves, and may read `p.grad`: a view is there from now on."""
        if p.grad is not None and p.grad.layout is not torch.strided:
            raise RuntimeError(SPARSE)
        bucket = self._bucket_of[p]
        view, share = bucket.views[p], 1 / self.divisor
        bucket.missing.discard(p)
        if p.grad is None:
            if p in self.used_unaveraged and not self.static:
                raise RuntimeError(UNDEFINED)
            view.zero_()
        elif self.hook is not None:
            if p.grad is not view:
                view.copy_(p.grad)
        elif p.grad is view:
            view.mul_(share)
        else:
            torch.mul(p.grad, share, out=view)
        if self.as_views and p.grad is not None and p not in self.nowhere_used:
            p.grad = view.detach() if self._casts else view  # who casts it shall not cast the view

    @torch.no_grad()
    def _finish(self) -> None:
        """At the end of backward: let the device (not the host) wait, and hand the averages out."""
        self.expecting = False
        self.used_unaveraged.clear()
        for bucket in self.buckets:
            averages = bucket.wait()
            for p, view in bucket.views.items():
                if self.hands_out and p not in self.nowhere_used:
                    self._hand_out(p, view, averages[p])

    def _hand_out(self, p: nn.Parameter, view: torch.Tensor, average: torch.Tensor) -> None:
        if self.as_views and not self._casts:
            if average is not view:
                view.copy_(average)
            p.grad = view
        elif p.grad is None:
            p.grad = average.to(p.dtype, copy=True)
        else:
            p.grad.copy_(average)

    # --- for a rank without a batch ---------------------------------------------------------

    @torch.no_grad()
    def shadow(self, *, looks: bool) -> None:
        """Take part in the averages of a pass with gradients of zero, and keep nothing; if it
        `looks`, also in finding out which parameters no rank uses."""
        if looks or self.learns:
            self.agree_on_unused(set(self.parameters))
        for number, bucket in enumerate(self.buckets):
            bucket.flat.zero_()
            self._begin(number)
        for bucket in self.buckets:
            bucket.wait()
        if self.learns:
            self._needed = Counter(self.parameters)
        else:
            self._arrived = [p for p in self._bucket_of if p not in set(self._never)]

    # --- what torch's own hooks and pipelines call --------------------------------------------

    def _run_allreduce_hook(self, bucket: GradientBucket) -> torch.futures.Future:
        work = dist.all_reduce(bucket.buffer(), group=self.group, async_op=True)
        return work.get_future()

    def _set_mixed_precision_param_dtype(self, dtype: torch.dtype | None) -> None:
        """Gradients come in this type (None: in that of the parameters), and DDP's own hook gives
        parameters and gradients theirs back."""
        self._dtype, self._casts = dtype, True
        self._make_buckets([list(bucket.views) for bucket in self.buckets])

    def _autograd_hook(self, number: int) -> None:
        """Torch's DDP calls it when the gradient of a low-precision copy is complete; those come
        here as others do."""

    def _remove_autograd_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _set_optimizer_in_backward(self) -> None:
        self.hands_out = False

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Average the next backward pass, although its forward pass was under `no_sync()`."""
        self.expect()
        call_when_it_begins(outputs, self.begin_pass)
