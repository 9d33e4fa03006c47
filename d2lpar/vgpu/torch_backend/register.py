"""Registering virtual GPUs with torch: every private hook, and every function that is replaced.

torch knows one out-of-tree kind of device, "PrivateUse1"; here it is renamed "vgpu". That cannot be
undone, so it is done when the first virtual device is asked for, and never on real GPUs. Where
torch's own functions ask CUDA or a C++ device guard, which a Python backend cannot supply, they are
replaced by ones that ask `torch.vgpu` for virtual devices and otherwise do what they did.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import sys
import threading
import types
from collections import deque
from collections.abc import Callable

import torch
import torch.autograd.graph
import torch.nn.parallel.comm
import torch.serialization
import torch.utils.data.dataloader
from torch.nn.parameter import (
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
    is_lazy,
)

from ...machines import Machine
from ..device_naming import TYPE, device, naming
from ..memory import pinned
from ..memory.caching_allocator import Allocation
from ..races import call_sites
from . import (
    attention,
    autocast,
    data_parallel_comm,
    device_module,
    recurrent,
    runtime,
    serialization,
    streams,
    torch_private,
)
from .dispatch import Dispatcher, compressed_copy
from .host_threads import Notes
from .op_schema import strided_nested
from .tensor import TensorLayout, VirtualTensor, become, wrap

OLDEST_TORCH = (2, 10)

_library: list[torch.library.Library] = []  # kernels live as long as their library


def start(machine: Machine, count: int, backing: torch.device) -> None:
    """Make `machine`, with `count` accelerators or more, this process's virtual machine.

    Registers it with torch the first time. Raises RuntimeError if this torch cannot have a device
    written in Python.
    """
    register_backend()
    running = runtime.running()
    if running is None or not running.machine.is_like(machine):
        runtime.start(machine.with_accelerators(max(count, len(machine.accelerators))), backing)
    elif running.device_count < count:
        running.grow(running.machine.with_accelerators(count))


def register_backend() -> None:
    """Make "vgpu" a device of torch, once a process."""
    if _library:
        return
    setup = _setup_function()
    module = sys.modules[device_module.__name__]
    setup(rename=TYPE, backend_module=module, device_guard=torch_private.make_device_guard())
    dispatcher = VirtualTensor.dispatcher = Dispatcher()
    _library.extend([*_kernels(dispatcher), *autocast.kernels()])
    _replace_autograd()
    _replace_parallel()
    _replace_accelerator()
    _replace_modules()
    _replace_pinning()
    _replace_generator()
    _replace_compile()
    _replace_tracing()
    serialization.install()


def _setup_function() -> Callable[..., None]:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    try:
        from torch.utils.backend_registration import (
            _setup_privateuseone_for_python_backend as setup,
        )
    except ImportError as error:
        raise RuntimeError(
            f"virtual GPUs need torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer, and this is "
            f"torch {torch.__version__}"
            + ("" if version < OLDEST_TORCH else ", which no longer lets Python define a device")
        ) from error
    return setup


# --- kernels --------------------------------------------------------------------------------------


def _kernels(dispatcher: Dispatcher) -> list[torch.library.Library]:
    """The dispatcher for every operation without a tensor argument; by their names three that C++
    calls by itself, and attention and recurrent cells, whose kernel torch chooses by the device."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(lambda op, *args, **kwargs: dispatcher(op, args, kwargs), "PrivateUse1")
    everything.fallback(_refuse_compressed, "SparseCsrPrivateUse1")
    everything.fallback(_refuse_nested, "NestedTensorPrivateUse1")
    named = torch.library.Library("aten", "IMPL")
    named.impl("empty.memory_format", _empty, "PrivateUse1")
    named.impl("empty_strided", _empty_strided, "PrivateUse1")
    copy_from = functools.partial(_call, dispatcher, torch.ops.aten._copy_from.default)
    named.impl("_copy_from", copy_from, "PrivateUse1")
    for name, kernel in (
        ("scaled_dot_product_attention", attention.scaled_dot_product_attention),
        ("_thnn_fused_lstm_cell", recurrent.lstm_cell),
        ("_thnn_fused_gru_cell", recurrent.gru_cell),
    ):
        named.impl(name, kernel, "AutogradPrivateUse1")
    return [everything, named]


def _refuse_compressed(op: object, *args: object, **kwargs: object) -> object:
    raise compressed_copy(op)


def _refuse_nested(op: object, *args: object, **kwargs: object) -> object:
    raise strided_nested(op)


def _call(dispatcher: Dispatcher, op: object, *args: object, **kwargs: object) -> object:
    return dispatcher(op, args, kwargs)


def _empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> VirtualTensor:
    rt = runtime.current_runtime()
    index = streams.device_number(device)
    allocation = _allocate(rt, index, size, dtype) if layout in (None, torch.strided) else None
    place = torch.device("meta") if rt.shape_only else rt.backing
    options = {} if memory_format is None else {"memory_format": memory_format}
    values = torch.empty(size, dtype=dtype, layout=layout, device=place, **options)
    return wrap(values, index, allocation=allocation)


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> VirtualTensor:
    rt = runtime.current_runtime()
    dtype = dtype or torch.get_default_dtype()
    index = streams.device_number(device)
    allocation = _allocate(rt, index, size, dtype)
    if rt.shape_only:
        return wrap(None, index, layout=TensorLayout(size, stride, 0, dtype), allocation=allocation)
    values = torch.empty_strided(size, stride, dtype=dtype, device=rt.backing)
    return wrap(values, index, allocation=allocation)


def _allocate(
    rt: runtime.Runtime, index: int, size: list[int], dtype: torch.dtype | None
) -> Allocation:
    """Room on the virtual device, asked for before the memory that does the arithmetic is."""
    nbytes = math.prod(size) * (dtype or torch.get_default_dtype()).itemsize
    allocation = rt.memories[index].allocate(nbytes, rt.current_stream(index))
    allocation.made = call_sites.mark()
    return allocation


# --- autograd -------------------------------------------------------------------------------------


def _replace_autograd() -> None:
    """Run backward passes on the thread that asks for them: the engine's own threads are counted
    by a C++ device guard, which says that there is one virtual device."""
    engine = torch_private.raising_late(torch.autograd.graph._engine_run_backward)

    @functools.wraps(engine)
    def on_this_thread(*args: object, **kwargs: object) -> object:
        with torch.autograd.set_multithreading_enabled(False):
            return engine(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = on_this_thread
    torch.autograd._engine_run_backward = on_this_thread


# --- nn.DataParallel ------------------------------------------------------------------------------


def _replace_parallel() -> None:
    """The primitives that exist in C++ for CUDA, and the question which devices are meant: asked
    for CUDA and MPS first, torch would overlook the virtual ones on a machine that has either."""
    parallel = torch.nn.parallel.comm
    for name in ("broadcast", "broadcast_coalesced", "scatter", "gather", "reduce_add"):
        setattr(
            parallel, name, _for_virtual(getattr(data_parallel_comm, name), getattr(parallel, name))
        )
    torch_type = torch._utils._get_available_device_type

    def available_type() -> str | None:
        return TYPE if runtime.running() else torch_type()

    for module, name in torch_private.DEVICE_TYPE_QUERIES:
        setattr(module, name, available_type)
    torch_apply = torch_private.data_parallel.parallel_apply

    @functools.wraps(torch_apply)
    def parallel_apply(modules, *args, **kwargs):
        if runtime.running() is None:
            return torch_apply(modules, *args, **kwargs)
        notes = [deque() for _ in modules]
        try:
            return torch_apply([*map(_replica, modules, notes)], *args, **kwargs)
        finally:
            for noted in notes:
                runtime.current_runtime().host_threads.replay(noted)

    torch_private.data_parallel.parallel_apply = parallel_apply
    torch.nn.parallel.parallel_apply = parallel_apply
    setattr(
        *torch_private.STREAM_OF_COPIES, _make_get_stream(getattr(*torch_private.STREAM_OF_COPIES))
    )
    threads = types.SimpleNamespace(Thread=_SameMachineThread, Lock=threading.Lock)
    sys.modules["torch.nn.parallel.parallel_apply"].threading = threads


def _make_get_stream(torch_get_stream: Callable) -> Callable:
    """The stream that copies to replicas use: torch keeps those of the first call's machine."""

    @functools.wraps(torch_get_stream)
    def get_stream(device: torch.device) -> torch.Stream | None:
        if device.type != TYPE:
            return torch_get_stream(device)
        index = streams.device_number(device)
        return streams.Stream.existing(index, runtime.current_runtime().background_stream(index))

    return get_stream


class _SameMachineThread(threading.Thread):
    """A replica's thread: it works on the virtual machine of the code that started it."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._context = contextvars.copy_context()

    def run(self) -> None:
        self._context.run(super().run)


def _replica(module: Callable, notes: Notes) -> Callable[..., object]:
    """`module`, noting its work instead of putting it on the clock, and under the autocast that is
    on here (torch hands on CUDA's only)."""
    enabled, dtype = torch.is_autocast_enabled(TYPE), torch.get_autocast_dtype(TYPE)

    def call(*args: object, **kwargs: object) -> object:
        with (
            runtime.current_runtime().host_threads.replica(notes),
            torch.autocast(TYPE, dtype=dtype, enabled=enabled),
        ):
            return module(*args, **kwargs)

    return call


def _for_virtual(ours: Callable, theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def choose(tensors: object, *args: object, **kwargs: object) -> object:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        real = first is not None and not _is_virtual(first) and first.device.type != "cpu"
        return (theirs if real or kwargs.get("out") is not None else ours)(tensors, *args, **kwargs)

    return choose


# --- torch.accelerator, torch.Stream, torch.Event -------------------------------------------------


def _replace_accelerator() -> None:
    accelerator, module = torch.accelerator, device_module
    replacements = {
        "current_accelerator": lambda check_available=False: torch.device(TYPE),
        "current_device_index": module.current_device,
        "current_device_idx": module.current_device,
        "current_stream": module.current_stream,
        "device_count": module.device_count,
        "device_index": module.device,
        "empty_cache": module.empty_cache,
        "empty_host_cache": lambda: runtime.current_runtime().pinned.empty_cache(),
        "get_device_capability": module.supported_dtypes,
        "get_memory_info": module.mem_get_info,
        "is_available": module.is_available,
        "max_memory_allocated": module.max_memory_allocated,
        "max_memory_reserved": module.max_memory_reserved,
        "memory_allocated": module.memory_allocated,
        "memory_reserved": module.memory_reserved,
        "memory_stats": module.memory_stats,
        "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
        "reset_peak_memory_stats": module.reset_peak_memory_stats,
        "set_device_idx": module.set_device,
        "set_device_index": module.set_device,
        "set_stream": module.set_stream,
        "synchronize": module.synchronize,
    }
    for place in (accelerator, getattr(accelerator, "memory", accelerator)):
        for name in [n for n in place.__all__ if hasattr(place, n)]:
            ours = replacements.get(name) or _refused(f"torch.accelerator.{name}")
            setattr(place, name, ours)
    torch.Stream = _make_chooser("Stream", torch.Stream, streams.Stream)
    torch.Event = _make_chooser("Event", torch.Event, streams.Event)


def _refused(name: str) -> Callable[..., object]:
    def refuse(*args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{name} is not available on virtual GPUs")

    return refuse


def _make_chooser(name: str, theirs: type, ours: type) -> type:
    """A class that makes virtual streams (events), yet counts torch's own as its instances."""

    class Chooser(type):
        def __call__(cls, device: object = None, **kwargs: object) -> object:
            known = device is None or isinstance(device, int)
            if known or torch.device(device).type == TYPE:
                return ours(device, **kwargs) if ours is streams.Stream else ours(**kwargs)
            return theirs(device, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (theirs, ours))

    return Chooser(name, (), {"__doc__": theirs.__doc__, "__module__": "torch"})


# --- nn.Module ------------------------------------------------------------------------------------


def _replace_modules() -> None:
    """Let `Module.to` keep the identity of parameters, and lazy ones remember where they go."""
    torch_apply = torch.nn.Module._apply

    @functools.wraps(torch_apply)
    def apply(self, fn, recurse=True):
        if recurse:
            for module in self.children():
                module._apply(fn)
        return _apply_here(self, fn, torch_apply)

    torch.nn.Module._apply = apply
    _replace_materialize()
    for kind in (UninitializedParameter, UninitializedBuffer):
        _replace_lazy(kind)


def _replace_materialize() -> None:
    torch_materialize = UninitializedTensorMixin.materialize

    @functools.wraps(torch_materialize)
    def materialize(self, shape, device=None, dtype=None):
        device = torch.device(device or _home(self))
        if device.type != TYPE:
            return torch_materialize(self, shape, device, dtype)
        values = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
        return become(self, values, parameter=self.cls_to_become is torch.nn.Parameter)

    UninitializedTensorMixin.materialize = materialize


def _replace_lazy(kind: type) -> None:
    """A tensor without a shape cannot be on a virtual device: it stays on the CPU and knows its."""
    torch_new, torch_deepcopy = kind.__new__, kind.__deepcopy__

    def new(*args, **kwargs):
        call = inspect.signature(torch_new).bind(*args, **kwargs)
        device = torch.device(call.arguments.get("device") or torch.get_default_device())
        if device.type != TYPE:
            return torch_new(*args, **kwargs)
        call.arguments["device"] = "cpu"
        lazy = torch_new(*call.args, **call.kwargs)
        lazy._virtual_device = device
        return lazy

    def deepcopy(self, memo):
        twin = torch_deepcopy(self, memo)
        twin.__dict__.update(self.__dict__)
        return twin

    kind.__new__, kind.__deepcopy__ = new, deepcopy


def _home(lazy: torch.Tensor) -> torch.device:
    """Where a parameter or buffer without a shape shall be made."""
    return lazy.__dict__.get("_virtual_device") or lazy.data.device


def _apply_here(module: torch.nn.Module, fn: Callable, torch_apply: Callable) -> torch.nn.Module:
    """`Module._apply` for a module's own tensors, the virtual ones our way, the rest torch's."""
    moved: dict[int, torch.Tensor] = {}
    for tensor in [*module._parameters.values(), *module._buffers.values()]:
        if tensor is None:
            continue
        with torch.no_grad():
            moved[id(tensor)] = _remember_device(tensor, fn) if is_lazy(tensor) else fn(tensor)
    for name, param in module._parameters.items():
        if param is None or not _is_virtual(param, moved[id(param)]):
            continue
        module._parameters[name] = _move_parameter(param, moved[id(param)], fn)
        moved[id(module._parameters[name])] = module._parameters[name]
    return torch_apply(module, lambda t: moved[id(t)] if id(t) in moved else fn(t), recurse=False)


def _is_virtual(*tensors: torch.Tensor) -> bool:
    return any(isinstance(tensor, VirtualTensor) for tensor in tensors)


def _remember_device(lazy: torch.Tensor, fn: Callable) -> torch.Tensor:
    """`fn` of a parameter without a shape: it changes its type and where it shall be made."""
    probe = fn(torch.empty(0, dtype=lazy.dtype, device=_home(lazy)))
    if not _is_virtual(probe):
        lazy.__dict__.pop("_virtual_device", None)
        return fn(lazy)
    lazy._virtual_device = device(probe._index)
    return lazy.to(probe.dtype)


def _move_parameter(
    param: torch.nn.Parameter, moved: torch.Tensor, fn: Callable
) -> torch.nn.Parameter:
    grad, param.grad = param.grad, None
    result = become(param, moved, parameter=True)
    if grad is not None:
        with torch.no_grad():
            result.grad = fn(grad)
    return result


# --- page-locked memory, torch.compile ------------------------------------------------------------


def _replace_pinning() -> None:
    _replace_factories()
    loader = sys.modules["torch.utils.data.dataloader"]
    loader.threading = types.SimpleNamespace(Thread=_PinningThread, Event=threading.Event)
    torch_pin, torch_is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned

    @functools.wraps(torch_pin)
    def pin_memory(self, device=None):
        return runtime.current_runtime().pinned.pin(self)

    @functools.wraps(torch_is_pinned)
    def is_pinned(self, device=None):
        rt = runtime.running()
        return rt is not None and self.device.type == "cpu" and self in rt.pinned

    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin_memory, is_pinned


class _PinningThread(_SameMachineThread):
    """A data loader's thread that pins batches."""

    def run(self) -> None:
        with pinned.unpaid():
            super().run()


# Functions that make tensors and can make them in page-locked memory: torch asks a C++ allocator of
# the device for that, which a Python backend cannot supply.
_FACTORIES = (
    *("arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full"),
    *("full_like", "linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def _replace_factories() -> None:
    # What torch knows by the functions themselves: those that obey `with torch.device(…)`, and
    # those that scripts may call.
    torch.utils._device._device_constructors()
    torch.tensor, torch.as_tensor = _of_lists(torch.tensor), _of_lists(torch.as_tensor)
    torch.jit._builtins._register_builtin(torch.as_tensor, "aten::as_tensor")
    for name in _FACTORIES:
        function = _pinning(getattr(torch, name))
        function.__module__, function.__qualname__ = "torch", name
        setattr(torch, name, function)
        torch.jit._builtins._register_builtin(function, f"aten::{name}")
    for name in _METHODS:
        setattr(torch.Tensor, name, _pinning(getattr(torch.Tensor, name)))


def _of_lists(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Take lists of numbers that are on virtual devices: torch reads those in C++, and fails."""

    @functools.wraps(factory)
    def make(data: object, *args: object, **kwargs: object) -> torch.Tensor:
        try:
            return factory(data, *args, **kwargs)
        except RuntimeError:
            if not isinstance(data, (list, tuple)):
                raise
            return factory(_on_host(data), *args, **kwargs)

    return make


def _on_host(data: object) -> object:
    """Nested lists with copies on the host of the virtual tensors in them."""
    if isinstance(data, (list, tuple)):
        return [_on_host(value) for value in data]
    return data.detach().cpu() if isinstance(data, VirtualTensor) else data


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: object, **kwargs: object) -> torch.Tensor:
        if not kwargs.pop("pin_memory", False):
            return factory(*args, **kwargs)
        tensor = factory(*args, **kwargs)
        if tensor.device.type != "cpu":
            raise RuntimeError(f"only dense CPU tensors can be pinned, not one on {tensor.device}")
        return runtime.current_runtime().pinned.lock(tensor)

    return make


# --- random number generators ---------------------------------------------------------------------


def _replace_generator() -> None:
    """Let `torch.Generator` be made for virtual devices: one of the CPU, as their arithmetic is."""
    theirs = torch.Generator

    class Kind(type(theirs)):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs)

    class Generator(theirs, metaclass=Kind):
        __doc__ = theirs.__doc__

        def __new__(cls, device: object = "cpu") -> torch.Generator:
            place = torch.device(device)
            if place.type != TYPE:
                return theirs(place)
            generator = super().__new__(cls, runtime.current_runtime().backing)
            generator._index = streams.device_number(place)
            return generator

        def __init__(self, device: object = "cpu") -> None:
            super().__init__()

        @property
        def device(self) -> torch.device:
            return naming().device(self._index)

    Generator.__module__ = "torch"
    torch.Generator = Generator


def _replace_compile() -> None:
    """Let what `torch.compile` makes run on virtual devices, operation by operation: if it were
    traced, it is our own code that would be compiled."""
    torch_compile = torch.compile

    @functools.wraps(torch_compile)
    def compile(*args, **kwargs):
        from torch import _dynamo

        if isinstance(VirtualTensor.dispatcher, Dispatcher):
            VirtualTensor.dispatcher = staticmethod(_dynamo.disable(VirtualTensor.dispatcher))
        return torch_compile(*args, **kwargs)

    torch.compile = compile


def _replace_tracing() -> None:
    """Let `make_fx`, and so `torch.func.linearize`, note operations on virtual tensors: of types
    that it does not know, it notes what their own code does with the values."""
    setattr(*torch_private.TRACED_TYPES, (*getattr(*torch_private.TRACED_TYPES), VirtualTensor))
