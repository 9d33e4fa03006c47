"""Carrying out operations on virtual devices: real arithmetic on the backing, modelled time.

Every operation that touches a virtual tensor arrives here. It is run on the backing tensors, its
outputs are wrapped, and its cost is put on the clock. Under `shape_only` only shapes are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ... import device_naming
from ...memory.caching_allocator import Allocation, OutOfMemoryError
from ...races.vector_clock import Access
from ...sim.pricing.attention_cost import AttentionCost, workspace_bytes
from ...sim.pricing.kernel_cost import Cost
from ...sim.pricing.recurrent_cost import RecurrentCost
from ..attention.dispatched import fused_choice, scaled_dot_product_attention
from ..attention.transformer_fast_path import encoder_layer, multi_head_attention
from ..compiling import compiled
from ..compiling.compiled import Region
from ..compiling.fusion import Read
from ..cost import host_cost
from ..cost.moved_bytes import partly_moved
from ..cost.op_cost import cost_of, rounded
from ..cost.row_cost import MEAN, NO_REDUCTION, read_again
from ..machine import host_room
from ..machine.host_threads import HOST
from ..machine.runtime import LAUNCH_BLOCKING, Runtime, current_runtime, has_ended
from ..module.generators import sequence_of
from ..module.graph_capture import CUDAGraph, capturing
from ..private import torch_attention, torch_modes, torch_operators, torch_tensors
from ..private.op_schema import OpTraits, aten, traits_of
from ..shapes.meta_inference import Argument, Inferred, infer
from ..tensors import unknown_values
from ..tensors.tensor import (
    TensorLayout,
    VirtualParameter,
    VirtualTensor,
    adopt,
    backing,
    check_allocated,
    laid_out_alone,
    layout_of,
    wrap,
)
from ..tensors.unwritten_memory import cleared
from ..values.own_kernels import KERNELS
from ..values.refusals import on_host, refuse_integers
from . import copies, functional_collectives, serialization

Way = Callable[[Runtime, tuple, dict], object]  # of carrying out an operation with its arguments

CACHED_SIGNATURES = 20_000
_INNER_CALLS = 6  # at least, from torch to where an operation is put in its order
_EACH_VIRTUAL = repeat(VirtualTensor)
_PLAIN = frozenset({int, type(None), torch.dtype, str})
_PRODUCTS = frozenset({aten.mm, aten.addmm, aten.mv, aten.bmm, torch_operators.sparse_product})
_LOSSES = (aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy)


class Dispatcher:
    """Runs operations; keeps what it has learnt of their costs and shapes."""

    def __init__(self) -> None:
        self._special: dict[torch._ops.OpOverload, Way] = {
            torch_operators.to_copy.default: lambda rt, args, kwargs: copies.to_copy(
                args[0], **kwargs
            ),
            aten.copy_.default: lambda rt, args, kwargs: copies.copy_(*args, **kwargs),
            torch_operators.copy_from: _copy_from,
            torch_operators.item: _item,
            aten.record_stream.default: _record_stream,
            torch_operators.pin_memory: lambda rt, args, kwargs: rt.pinned.pin(args[0]),
            aten.set_.source_Storage: serialization.set_storage,
            aten.set_.source_Storage_storage_offset: serialization.set_storage,
            aten.set_.source_Tensor: _set,
            torch_tensors.are_alike: _are_alike,
            aten.scaled_dot_product_attention.default: _attend,
            torch_attention.choose_attention: lambda rt, args, kwargs: fused_choice(
                *args, **kwargs
            ),
            torch_attention.multi_head_attention: lambda rt, args, kwargs: multi_head_attention(
                *args, **kwargs
            ),
            torch_operators.wait_tensors: functional_collectives.wait_tensors,
            torch_operators.wait_tensor: functional_collectives.wait_tensor,
            torch_attention.encoder_layer: lambda rt, args, kwargs: encoder_layer(*args, **kwargs),
            torch_operators.pack_padded_sequence: self._pack,
            torch_operators.foreach_copy: self._copy_each,
            **{loss.default: partial(self._reduce, loss.default) for loss in _LOSSES},
            # By "no", a transformer keeps its padding instead of making a nested tensor.
            torch_operators.is_mask_left_aligned: lambda rt, args, kwargs: False,
        }
        # By identity: overloads live as long as torch, and their hash is worked out in Python.
        self._ways: dict[int, tuple[torch._ops.OpOverload, Way]] = {}
        self._costs: dict[tuple, Cost] = {}
        self._inferred: dict[tuple, Inferred] = {}

    def __call__(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
        """Carry out `func(*args, **kwargs)`, one argument of which is on a virtual device."""
        graph = capturing()
        if graph is not None:
            return self._capture(graph, func, args, kwargs)
        rt = current_runtime()
        known = self._ways.get(id(func)) or self._learn(func)
        # Otherwise torch looks for a __torch_function__ whenever a shape is asked for, which takes
        # longer than all else.
        with torch_tensors.as_plain_tensors():
            if rt.op_details.wanted:
                return rt.op_details.noted(func, args, kwargs, partial(known[1], rt, args, kwargs))
            return known[1](rt, args, kwargs)

    def _learn(self, func: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, Way]:
        """An operation, and the function that carries it out."""
        known = self._ways[id(func)] = (func, self._special.get(func) or self._way(func))
        return known

    def _way(self, func: torch._ops.OpOverload) -> Way:
        plan = traits_of(func)
        if plan.definition is not None:
            return partial(_decompose, func, plan.definition)
        return partial(self._view if plan.of_one else self._run, func, plan)

    def _capture(
        self, graph: CUDAGraph, func: torch._ops.OpOverload, args: tuple, kwargs: dict
    ) -> object:
        """Carry it out for the graph, whole: what it is made of is no operation by itself; at once,
        if the graph does not have its stream."""
        if not graph.takes(func, args, kwargs):
            with graph.paused(), current_runtime().captures.beside():
                return self(func, args, kwargs)
        with graph.paused():
            graph.save(func, args, kwargs)
            result = self(func, args, kwargs)
            graph.note(func, args, kwargs, result)
        return result

    def _run(
        self, func: torch._ops.OpOverload, plan: OpTraits, rt: Runtime, args: tuple, kwargs: dict
    ) -> object:
        call = _OpCall(rt, plan, args, kwargs)
        if plan.mutates:
            call.note_written(args, kwargs)
        if call.index == HOST:  # all of it happens on the host
            return func(*map(on_host, call.args), **call.kwargs)
        _note_use(rt, call.tensors)
        if rt.shape_only:
            result = self._infer(rt, func, call)
        else:
            try:
                result = self._compute(rt, func, call)
            except RuntimeError as error:
                host_room.check(rt, call.index, error)
                raise
        wrapped = call.wrap(result)
        if plan.draws_random:
            call.count_draws(rt, wrapped)
        for_a_while = call.memory_beside(rt)
        if call.region is not None:
            call.fuse(rt, func, wrapped)
        rt.note_memory(call.index)
        del for_a_while
        return wrapped

    def _view(
        self, func: torch._ops.OpOverload, plan: OpTraits, rt: Runtime, args: tuple, kwargs: dict
    ) -> object:
        """Values in another shape: no kernel, and no cost to look up."""
        base = args[0]
        if rt.shape_only or not isinstance(base, VirtualTensor):
            return self._run(func, plan, rt, args, kwargs)
        index = base.vgpu_index
        if index >= len(rt.memories) and not has_ended(base.vgpu_allocation.memory):
            rt.check_index(index)  # one that is left may be read
        if func is not aten.detach.default:  # as for `.data`: autograd does not follow it
            _note_use(rt, [base])
        value = func(backing(base), *args[1:], **kwargs)
        if compiled.current() is None:
            _account_view(rt, index, plan.name)
        return _view_of(base, value)

    def _pack(self, rt: Runtime, args: tuple, kwargs: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Packed sequences keep their batch sizes on the host."""
        func = torch_operators.pack_padded_sequence
        packed = self._run(func, traits_of(func), rt, args, kwargs)
        assert isinstance(packed, list)
        data, sizes = packed
        return data, backing(sizes).cpu()

    def _copy_each(self, rt: Runtime, args: tuple, kwargs: dict) -> object:
        """Several copies: one kernel on a device, and else one by one, as on CUDA."""
        targets, sources, *options = args
        devices = set(map(copies.device_index, (*targets, *sources)))
        if len(devices) > 1 and len(targets) == len(sources):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, *options, **kwargs)
            return None
        func = torch_operators.foreach_copy
        return self._run(func, traits_of(func), rt, args, kwargs)

    def _reduce(
        self, func: torch._ops.OpOverload, rt: Runtime, args: tuple, kwargs: dict
    ) -> object:
        """A loss by elements is in memory before its mean or sum is taken (PyTorch, aten/src/ATen/
        native: Loss.cpp, cuda/Loss.cu)."""
        names = [argument.name for argument in torch_operators.schema_of(func).arguments]
        given = dict(zip(names[2:], args[2:], strict=False))
        reduction = given.get("reduction", MEAN)
        if reduction == NO_REDUCTION:
            return self._run(func, traits_of(func), rt, args, kwargs)
        losses = func(*args[:2], **{**given, "reduction": NO_REDUCTION})
        return losses.mean() if reduction == MEAN else losses.sum()

    def _compute(self, rt: Runtime, func: torch._ops.OpOverload, call: _OpCall) -> object:
        """Really compute; the cost is worked out once a signature."""
        if func is torch_operators.sparse_product_reduced:
            # Its CPU kernel keeps what backward needs only if its input wants a gradient.
            call.args[0] = call.args[0].detach().requires_grad_()
        key: tuple[object, ...] = ()
        cost = None
        if call.plan.launches:
            key = (id(func), *call.key)
            cost = self._costs.get(key)
            if cost is None:
                refuse_integers(func, call.args)
        begin_s = perf_counter()
        with call.random_numbers(rt):
            result = call.run_in_place(func) if call.plan.mutates else call.run(func)
        if call.plan.allocates:
            assert isinstance(result, torch.Tensor)
            cleared(result)
        rt.values_s += perf_counter() - begin_s
        if call.plan.launches and cost is None:
            cost = cost_of(func, call.args, call.kwargs, result)
            _remember(self._costs, key, cost)
        _account(rt, call, cost)
        return result

    def _infer(self, rt: Runtime, func: torch._ops.OpOverload, call: _OpCall) -> object:
        """Compute shapes only, once a signature."""
        all_selected = unknown_values.select_all()
        key = (id(func), torch.get_default_dtype(), all_selected, *call.key)
        known = self._inferred.get(key)
        if known is None:
            with torch_modes.masks_select_all() if all_selected else nullcontext():
                known = infer(func, call.args, call.kwargs)
            _remember(self._inferred, key, known)
        for number, layout in known.reshaped.items():
            adopt(call.tensors[number], wrap(None, call.index, layout=layout))
        _account(rt, call, known.cost if call.plan.launches else None)
        return known.outputs


def _decompose(
    func: torch._ops.OpOverload,
    key: torch._C.DispatchKey,
    rt: Runtime,
    args: tuple,
    kwargs: dict,
) -> object:
    """Carry out an operation by those that define it."""
    results = torch_operators.decompose(func, key, args, kwargs)
    functional_collectives.are_begun(func, results)
    return results


def _note_use(rt: Runtime, tensors: list[VirtualTensor]) -> None:
    """Tell autograd's streams of an operation's tensors, once there are several streams."""
    if rt.sanitizer.watching and tensors and torch.is_grad_enabled():
        rt.autograd_streams.used(tensors, rt.current_stream(tensors[0].vgpu_index))


class _OpCall:
    """One operation's arguments, taken apart.

    `args` and `kwargs` hold backing tensors (under shape_only the virtual ones), `tensors` the
    virtual ones in order, `key` what shapes and cost depend on, `index` the device, or HOST.
    """

    __slots__ = (
        "_access",
        "_meets_host",
        "_memories",
        "_shape_only",
        "args",
        "index",
        "key",
        "kwargs",
        "plan",
        "region",
        "sequence",
        "stream",
        "tensors",
        "workspace_bytes",
        "written",
    )

    def __init__(self, rt: Runtime, plan: OpTraits, args: tuple, kwargs: dict) -> None:
        self.plan = plan
        self.index = HOST
        self.tensors: list[VirtualTensor] = []
        self.written: list[VirtualTensor] = []
        self.key: list[object] = []
        self.stream = 0
        self.workspace_bytes = 0
        self.region: Region | None = None  # in which it is part of a fused kernel
        self._access: Access | None = None
        self._shape_only = rt.shape_only
        self._memories = rt.memories
        self._meets_host = False
        self.sequence = None
        if plan.draws_random:
            self.sequence = sequence_of(kwargs)
            if self.sequence is not None and "generator" in kwargs:
                kwargs = {**kwargs, "generator": None}
        self.args: list[Any] = [self._unwrap(a) for a in args]
        self.kwargs = {name: self._unwrap(value) for name, value in kwargs.items()}
        self.key += kwargs
        if self.index != HOST and self._meets_host:
            self._check_host_tensors({**dict(enumerate(args)), **kwargs})
        if kwargs.get("device") is not None:
            self._redirect(rt, kwargs["device"])

    def _unwrap(self, value: object) -> object:
        kind = value.__class__
        if kind is VirtualTensor or kind is VirtualParameter:
            return self._unwrap_virtual(value)  # type: ignore[arg-type]
        if kind in _PLAIN:  # most of what is no tensor
            self.key.append(value)
            return value
        if isinstance(value, VirtualTensor):
            return self._unwrap_virtual(value)
        if isinstance(value, torch.Tensor):
            self._meets_host = True
            self.key += (value.shape, value.dtype)
            return value
        if isinstance(value, (list, tuple)):
            self.key.append(len(value))
            if value and not self._shape_only and all(map(isinstance, value, _EACH_VIRTUAL)):
                return self._unwrap_all(value)
            return [self._unwrap(v) for v in value]
        # Equal values of two types, such as 1 and True, are two things.
        self.key.append(kind if kind is float else (bool, value) if kind is bool else value)
        return value

    def _unwrap_virtual(self, value: VirtualTensor) -> torch.Tensor:
        self._take(value)
        self.tensors.append(value)
        self.key += (value.shape, value.stride(), value.dtype)
        if self._shape_only:
            if value.vgpu_values is not None and value.vgpu_values.layout is not torch.strided:
                laid_out_alone(value.vgpu_values)
            if self.plan.is_view:
                self.key += (value.storage_offset(), torch_tensors.is_zero(value))
            return value
        return self._counted(value)

    def _counted(self, tensor: VirtualTensor) -> torch.Tensor:
        """Its values; of a sparse tensor the shape does not say how many numbers it has."""
        values = backing(tensor)
        if values.layout is not torch.strided:
            self.key += map(torch.numel, torch_tensors.sparse_parts(values))
            if self.plan.packet in _PRODUCTS and tensor.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError(
                    "the gradient of a sparse matrix in a product is not simulated: on a virtual "
                    "GPU autograd takes it for dense. Use a matrix that needs none, or to_dense()"
                )
        return values

    def _take(self, tensor: VirtualTensor) -> None:
        """Let a tensor take part: the first says on which device, the others must be there, too."""
        if self.index == HOST:
            self.index = tensor.vgpu_index
            if self.index >= len(self._memories):
                current_runtime().check_in_use(tensor.vgpu_allocation)
        elif self.index != tensor.vgpu_index:
            raise _mixed_devices(device_naming.naming().device(self.index), tensor.device)
        if self.plan.launches:
            allocation = tensor.vgpu_allocation
            if allocation.memory is not self._memories[self.index]:
                current_runtime().check_in_use(allocation)
            if not allocation.requested_bytes:
                check_allocated(tensor)

    def _unwrap_all(self, tensors: Sequence[VirtualTensor]) -> list[torch.Tensor]:
        """The same as one by one, quicker: steps of optimizers have hundreds."""
        for tensor in tensors:
            self._take(tensor)
        self.tensors += tensors
        for property_of in (torch_tensors.shape, torch.Tensor.stride, torch_tensors.dtype):
            self.key += map(property_of, tensors)
        return [*map(self._counted, tensors)]

    def _check_host_tensors(self, args: Mapping[int | str, object]) -> None:
        """Scalars of the host may join in, as on CUDA, and indices; other tensors may not."""
        free = self.plan.host_argument
        for which, arg in args.items():
            host = _host_tensor(arg)
            if host is not None and which == free:
                if isinstance(arg, (list, tuple)):  # of indices, which go to the device
                    copies.check_capture(current_runtime(), self.index, host)
                continue
            if host is not None and host.device.type == device_naming.TYPE:
                raise compressed_copy(self.plan.name)
            if host is not None:
                raise _mixed_devices(device_naming.naming().device(self.index), host.device)

    def _redirect(self, rt: Runtime, device: torch.device) -> None:
        """Make what is created on a virtual device where the arithmetic is."""
        if device.type != device_naming.TYPE:
            self.index = HOST
            return
        index = rt.current_device if device.index is None else device.index
        self.index = rt.check_index(index)
        self.kwargs["device"] = rt.backing

    def note_written(self, args: tuple, kwargs: dict) -> None:
        """Find the virtual tensors that the operation writes."""
        for number, name in self.plan.written:
            value = args[number] if number < len(args) else kwargs.get(name)
            if isinstance(value, VirtualTensor):
                self.written.append(value)
            elif isinstance(value, (list, tuple)):
                self.written += [v for v in value if isinstance(v, VirtualTensor)]

    def _draws_random(self) -> bool:
        number = self.plan.dropout
        if number is None or not self.plan.draws_random:
            return self.plan.draws_random
        given = self.args[number] if number < len(self.args) else self.kwargs.get("dropout_p")
        return bool(given)

    def random_numbers(self, rt: Runtime) -> AbstractContextManager:
        """A block in which its random numbers are those of its device, or of its generator."""
        sequence = self.sequence if self._draws_random() else None
        return nullcontext() if sequence is None else rt.random_numbers(sequence(self.index))

    def count_draws(self, rt: Runtime, results: object) -> None:
        """Advance the offset of the random numbers by what it has drawn for its results."""
        if self.sequence is None or not self._draws_random():
            return
        drawn = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        numbers = max((tensor.numel() for tensor in drawn), default=0)
        accelerator = rt.machine.accelerators[self.index]
        self.sequence(self.index).advance(numbers, accelerator.multiprocessors or 1)

    def order(self, rt: Runtime) -> tuple[int, int]:
        """Note that it runs on the current stream, which is returned."""
        self.stream = rt.current_stream(self.index)
        stream = (self.index, self.stream)
        work = rt.sanitizer.work
        self._access = work(stream, self.tensors, self.written, inner=_INNER_CALLS)
        return stream

    def queue(self, rt: Runtime, cost: Cost, region: Region | None) -> None:
        """Put the kernel on its stream."""
        if region is not None:
            cost = cost.as_compiled()
        stream, host = self.order(rt), rt.machine.host
        if isinstance(cost, AttentionCost):
            self.workspace_bytes = workspace_bytes(cost.work)
        accelerator = rt.machine.accelerators[self.index]
        cost = rounded(cost, accelerator)
        seconds = cost.seconds(accelerator)
        engaged_s = cost.engaged_s(accelerator, seconds)
        launching_s = 0.0
        if isinstance(cost, RecurrentCost) and (region is None or not region.whole):
            launching_s = cost.launches(accelerator) * host.launch_s
            seconds = max(seconds, launching_s)
        if region is None:
            dispatch_s = host_cost.kernel_s(host, self.tensors, cost)
        else:
            dispatch_s = region.dispatch_s(host, host_cost.extern_s(host, cost))
        work = (stream, self.plan.name, seconds, cost.bytes, cost.flops)
        rt.host_threads.submit(self.index, rt.clock.kernel, *work, dispatch_s, engaged_s)
        if launching_s:
            rt.host_threads.submit(self.index, rt.clock.host_work, launching_s, "cuDNN launches")
        if rt.blocks_launches and rt.captures.of(stream) is None:
            rt.synchronize_stream(*stream, LAUNCH_BLOCKING)

    def fuse(self, rt: Runtime, func: torch._ops.OpOverload, outputs: object) -> None:
        """Let it be part of a fused kernel that has written `outputs`."""
        assert self.region is not None, "only operations of a region are fused"
        found = [t for t in tree_leaves(outputs) if isinstance(t, VirtualTensor)]
        again_bytes = read_again(self.plan.packet, self.args)
        part = partly_moved(func, self.args, self.kwargs, outputs)
        reads = [*map(Read, self.tensors)]
        if part is not None and part[0] < len(reads):
            number, part_bytes = part
            reads[number] = Read(self.tensors[number], part_bytes)
        stream = (self.index, self.stream)
        writes = [*found, *self.written]
        self.region.fuse(rt, stream, self.plan.name, reads, writes, again_bytes)

    def memory_beside(self, rt: Runtime) -> list[Allocation]:
        """What the kernel needs for a while, beside its results: its workspace, and room for what
        compiled code has only deferred. Outside of such code, or if written, or read by what keeps
        it for its backward pass, that takes it now."""
        needed = [self.workspace_bytes] if self.workspace_bytes else []
        if compiled.is_used() and self.region is None and self.plan.launches:
            used = {id(t.vgpu_allocation): t.vgpu_allocation for t in self.tensors}
            deferred = [found for found in used.values() if found.deferred_bytes]
            kept = compiled.are_differentiated(self.tensors)
            if self.written or kept or compiled.current() is None:
                for allocation in deferred:
                    allocation.materialize()
            needed += [allocation.deferred_bytes for allocation in deferred]
        return [rt.memories[self.index].allocate(nbytes, self.stream) for nbytes in needed]

    def run(self, func: torch._ops.OpOverload) -> object:
        """Compute on the values."""
        return KERNELS.get(func, func)(*self.args, **self.kwargs)

    def run_in_place(self, func: torch._ops.OpOverload) -> object:
        """Run a kernel that writes; what it has changed by the time it fails is changed, too."""
        try:
            if not self.plan.counts_writes:
                return self.run(func)
            with self._counting_writes():
                return self.run(func)
        finally:
            if self.plan.reshapes:
                self._refresh()

    @contextmanager
    def _counting_writes(self) -> Iterator[None]:
        """Tell autograd which tensors the kernel has written, which it does not know; values that
        were made for inference, where nobody counts, are written if all are."""
        values = [backing(tensor) for tensor in self.written]
        before = torch_tensors.versions(values)
        uncounted: list[VirtualTensor] = []
        try:
            with torch_modes.counting():
                yield
            if any(map(torch.Tensor.is_inference, values)):
                pairs = zip(self.written, values, strict=True)
                uncounted = [t for t, v in pairs if v.is_inference() and not t.is_inference()]
        finally:
            now = torch_tensors.versions(values)
            counted = zip(self.written, before, now, strict=True)
            written = [t for t, old, new in counted if new > old]
            torch.autograd.graph.increment_version(written + uncounted)

    def _refresh(self) -> None:
        """Follow an operation that changed the shape (or the sparsity) of an argument in place."""
        for tensor in self.written:
            values = backing(tensor)
            strided = values.layout is torch.strided
            if strided and tensor.shape == values.shape and tensor.stride() == values.stride():
                continue
            with torch.inference_mode(tensor.is_inference()):
                kept = _grown(tensor, values) if strided else None
                adopt(tensor, wrap(values, tensor.vgpu_index, allocation=kept))

    def wrap(self, value: object) -> object:
        """What the caller gets: outputs as virtual tensors, arguments as the objects they are."""
        if value is None:  # of operations on lists, which write only
            return None
        mine = {id(t.vgpu_values): t for t in self.tensors} if self.plan.mutates else {}
        if self.plan.is_view and self.tensors and not isinstance(value, Argument):
            return _view_of(self.tensors[0], value)
        return self._wrap(value, mine)

    def _wrap(self, value: object, mine: dict) -> object:
        if isinstance(value, torch.Tensor):
            known = mine.get(id(value))
            return self._wrap_one(value, None) if known is None else known
        if isinstance(value, TensorLayout):
            return self._wrap_one(None, value)
        if isinstance(value, Argument):
            return self.tensors[value.number]
        if isinstance(value, (list, tuple)):
            return [self._wrap(v, mine) for v in value]
        return value

    def _wrap_one(self, values: torch.Tensor | None, layout: TensorLayout | None) -> VirtualTensor:
        access = self._access
        stream = None if access is None else self.stream
        sources = None if self.region is None else compiled.sources(self.tensors)
        tensor = wrap(values, self.index, layout=layout, stream=stream, sources=sources)
        if access is not None:
            allocation = tensor.vgpu_allocation
            allocation.written = access
            allocation.made = access[2]
        return tensor


def _view_of(base: VirtualTensor, value: object) -> object:
    """A view's values (under shape_only its layout), or a list of them, as virtual tensors that
    share the memory of `base`. A view of a normal tensor is a normal one, in inference mode too."""
    if torch.is_inference_mode_enabled() == base.is_inference():
        return _share_memory(base, value)
    with torch.inference_mode(base.is_inference()):
        return _share_memory(base, value)


def _share_memory(base: VirtualTensor, value: object) -> object:
    if isinstance(value, torch.Tensor):
        view = wrap(value, base.vgpu_index, allocation=base.vgpu_allocation)
    elif isinstance(value, TensorLayout):
        view = wrap(None, base.vgpu_index, layout=value, allocation=base.vgpu_allocation)
    elif isinstance(value, (list, tuple)):
        return [_share_memory(base, part) for part in value]
    else:
        return value
    if not base.vgpu_allocation.parts:
        base.vgpu_allocation.parts = view.numel() < base.numel()
    return view


def _grown(tensor: VirtualTensor, values: torch.Tensor) -> Allocation:
    """The memory of a tensor, and of all views of it, as large as a kernel has made the storage.

    If there is no room, the tensor keeps its layout, but not what the kernel has overwritten.
    """
    allocation, storage = tensor.vgpu_allocation, values.untyped_storage()
    if storage.nbytes() > allocation.requested_bytes:
        try:
            allocation.grow(storage.nbytes())
        except OutOfMemoryError:
            values.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
            storage.resize_(allocation.requested_bytes)
            raise
    return allocation


def _account(rt: Runtime, call: _OpCall, cost: Cost | None) -> None:
    """Put an operation on the clock; without a kernel (no cost) it takes but the host's time."""
    index, region = call.index, compiled.current()
    plan = call.plan
    if region is not None and (cost is None or plan.fuses or region.sums(plan.packet, call.args)):
        if cost is not None:
            call.order(rt)
            call.region = region
        return
    if cost is None:
        _account_view(rt, index, call.plan.name)
        return
    call.queue(rt, cost, region)
    if plan.waits or _looks_at_values(call):
        rt.synchronize_stream(index, call.stream, plan.name)


def _looks_at_values(call: _OpCall) -> bool:
    """Whether the host needs values, besides those that an operation says it does: how many a mask
    chooses."""
    return call.plan.host_argument == 1 and _has_mask(*call.args[1:3])


def _account_view(rt: Runtime, index: int, name: str) -> None:
    seconds = host_cost.view_s(rt.machine.host)
    rt.host_threads.submit(index, rt.clock.dispatch, seconds, name)


def _has_mask(indices: object, values: object = None) -> bool:
    """Whether the number of elements depends on a boolean mask; one value for all is no matter."""
    if not isinstance(indices, list) or (isinstance(values, torch.Tensor) and values.numel() == 1):
        return False
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, torch.Tensor) and index.dtype in masks for index in indices)


def _item(rt: Runtime, args: tuple, kwargs: dict) -> object:
    """`tensor.item()`: the host waits for the value, and for its way over the link."""
    (tensor,) = args
    check_allocated(tensor)
    index = tensor.vgpu_index
    if not has_ended(tensor.vgpu_allocation.memory):
        stream = (rt.check_index(index), rt.current_stream(index))
        rt.sanitizer.work(stream, [tensor])
        rt.host_threads.submit(index, rt.clock.copy, stream, None, tensor.element_size(), "item")
        rt.synchronize_stream(index, stream[1], "item")
    values = backing(tensor)
    if rt.shape_only or values.is_meta:
        return copies.unknown(rt, values.shape, values.dtype).item()
    return values.item()


def _record_stream(rt: Runtime, args: tuple, kwargs: dict) -> None:
    tensor, stream = args
    VirtualTensor.record_stream(tensor, stream)


def _copy_from(rt: Runtime, args: tuple, kwargs: dict) -> torch.Tensor:
    source, target, *rest = args
    return copies.copy_(target, source, *rest, **kwargs)


def _set(rt: Runtime, args: tuple, kwargs: dict) -> VirtualTensor:
    """`tensor.set_(source)`: from now on it shares the memory of the source."""
    tensor, source = args
    for other in args:
        if not isinstance(other, VirtualTensor) or other.vgpu_index != tensor.vgpu_index:
            raise _mixed_devices(tensor.device, other.device)
    values, layout = source.vgpu_values, layout_of(source)
    with torch.inference_mode(tensor.is_inference()):
        if values is not None:
            values = torch.empty(0, dtype=tensor.dtype, device=values.device).set_(values)
        adopt(
            tensor,
            wrap(values, source.vgpu_index, layout=layout, allocation=source.vgpu_allocation),
        )
    return tensor


def compressed_copy(operation: object) -> NotImplementedError:
    """torch builds compressed tensors itself when it copies one over, and then cannot use them."""
    return NotImplementedError(
        f"{operation} cannot use a compressed sparse tensor that was copied to a virtual GPU: copy "
        "it dense and compress it there, with to_sparse_csr()"
    )


def _attend(rt: Runtime, args: tuple, kwargs: dict) -> torch.Tensor:
    """Attention arrives whole where autograd is switched off."""
    return scaled_dot_product_attention(*args, **kwargs)


def _are_alike(rt: Runtime, args: tuple, kwargs: dict) -> bool:
    return all(isinstance(tensor, VirtualTensor) for tensor in args)


def _host_tensor(value: object) -> torch.Tensor | None:
    """A tensor of the host, no scalar, in an argument."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() and not isinstance(value, VirtualTensor) else None
    if isinstance(value, (list, tuple)):
        return next((t for t in map(_host_tensor, value) if t is not None), None)
    return None


def _mixed_devices(first: object, second: object) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def _remember(cache: dict, key: tuple, value: object) -> None:
    """Keep a cache from growing without end, where shapes keep changing."""
    if len(cache) >= CACHED_SIGNATURES:
        cache.clear()
    cache[key] = value
