"""The private parts of torch that the engine needs; `patches/` those that it replaces."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

import torch
import torch.fx.experimental.proxy_tensor
import torch.nn.attention
import torch.nn.parallel.data_parallel
import torch.nn.parameter
import torch.utils._device
import torch.utils._python_dispatch
import torch.utils.data

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
NO_TASK = -1  # what it says where there is no backward pass
LIBRARY = torch._C  # what torch has in C++, as programs name it
_data = inspect.getattr_static(torch.Tensor, "data")
get_data: Callable[[torch.Tensor], torch.Tensor] = _data.__get__
_grad = inspect.getattr_static(torch.Tensor, "grad")
set_grad: Callable[[torch.Tensor, torch.Tensor | None], None] = _grad.__set__
_version: Callable[[torch.Tensor], int] = inspect.getattr_static(torch.Tensor, "_version").__get__
# To `map` over tensors.
shape: Callable[[torch.Tensor], torch.Size] = inspect.getattr_static(torch.Tensor, "shape").__get__
dtype: Callable[[torch.Tensor], torch.dtype] = inspect.getattr_static(torch.Tensor, "dtype").__get__
set_conj: Callable[[torch.Tensor, bool], None] = torch._C._set_conj
set_neg: Callable[[torch.Tensor, bool], None] = torch._C._set_neg
ZERO_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor)
no_torch_function = torch._C._disabled_torch_function_impl
as_plain_tensors = torch._C.DisableTorchFunctionSubclass  # a context manager

CALLS_ONLY = "sees_calls_only"  # an attribute of function modes that do nothing with gradients read


def get_grad(tensor: torch.Tensor) -> torch.Tensor | None:
    """`tensor.grad`, as torch has it. If the only function mode there is wants calls only, it is
    not asked: that takes three times as long, and optimizers read all gradients several times."""
    modes = torch._C._len_torch_function_stack()
    is_plain = type(tensor).__torch_function__ is no_torch_function
    if modes == 1 and is_plain and hasattr(torch._C._get_function_stack_at(0), CALLS_ONLY):
        with torch._C.DisableTorchFunction():
            return _grad.__get__(tensor)
    return _grad.__get__(tensor)


def function_modes() -> list[torch.overrides.TorchFunctionMode]:
    """The function modes of this thread, the topmost last."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(i) for i in range(count)]


def leave_function_mode(mode: torch.overrides.TorchFunctionMode) -> None:
    """Take a function mode off this thread's stack, wherever it is: torch takes the topmost one.

    If torch has taken this one so for another, which ended first, the topmost is that other's.
    """
    modes = function_modes()
    if any(other is mode for other in modes):
        modes = [other for other in modes if other is not mode]
    elif modes and modes[-1] is not default_device_context():  # which is ended by its own place
        modes.pop()
    _set_function_modes(modes)


def _set_function_modes(modes: Sequence[torch.overrides.TorchFunctionMode]) -> None:
    for _ in function_modes():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def set_default_device(device: torch.device | None) -> None:
    """`torch.set_default_device`, also within `with device:`, which torch takes for its own."""
    context, modes = default_device_context(), function_modes()
    _set_function_modes([mode for mode in modes if mode is context])
    torch.set_default_device(device)
    _set_function_modes([*function_modes(), *(mode for mode in modes if mode is not context)])


softmax, softmax_backward = torch.ops.aten._softmax, torch.ops.aten._softmax_backward_data
log_softmax = torch.ops.aten._log_softmax
log_softmax_backward = torch.ops.aten._log_softmax_backward_data
rms_norm = torch.ops.aten._fused_rms_norm
rms_norm_backward = torch.ops.aten._fused_rms_norm_backward
product_with_activation = torch.ops.aten._addmm_activation


def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """`tensor.data = other`, as torch has it, whatever function modes there are."""
    with torch._C.DisableTorchFunction():
        _data.__set__(tensor, other)


PREPARE_PROFILER = (torch.autograd.profiler.profile, "_prepare_trace")
END_PROFILER = (torch.autograd.profiler.profile, "__exit__")


def stop_profiling() -> None:
    """Stop torch's profiler if this thread has started it."""
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
        torch.autograd.profiler._run_on_profiler_stop()


def is_profiling() -> bool:
    """Whether torch's profiler runs, in any thread."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward pass that this thread runs has finished."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


_ADDS_UP = 2**64 - 1  # the number that autograd gives to nodes that add up gradients in leaves
next_node_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


def node_number() -> int | None:
    """The number of the node whose backward operation this thread runs; None where that says
    nothing of its forward operation."""
    node = torch._C._current_autograd_node()
    number = _ADDS_UP if node is None else node._sequence_nr()
    return None if number == _ADDS_UP else number


def nodes_from(tensors: Iterable[object], start: int) -> Iterator[Any]:
    """The nodes that made tensors, back to the number `start` of this thread; without those that
    add up gradients in leaves."""
    seen: set[Any] = set()
    waiting = [getattr(tensor, "grad_fn", None) for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or not start <= node._sequence_nr() < _ADDS_UP:
            continue
        seen.add(node)
        yield node
        waiting += [before for before, _ in node.next_functions]


def notes_of_node() -> dict[Any, Any]:
    """What was noted in the `metadata` of the node whose backward operation this thread runs."""
    node: Any = torch._C._current_autograd_node()
    return {} if node is None else node.metadata


_DEVICE_OF_STREAM: Any = torch.Stream.device_index


def device_of_stream(stream: torch.Stream) -> int:
    """The number of the virtual device, whatever the program calls that."""
    found: int = _DEVICE_OF_STREAM.__get__(stream)
    return found


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether gradients are added up in it. A view that was made without autograd, and whose base
    has changed since, is none: torch raises when it is asked."""
    try:
        return tensor.requires_grad and tensor.is_leaf
    except RuntimeError:
        return False


def leaf_of_node() -> torch.Tensor | None:
    """The leaf to which the node gives its gradient that this thread runs; None of other nodes."""
    return getattr(torch._C._current_autograd_node(), "variable", None)


Operator = torch._ops.OperatorBase  # what a name of `torch.ops` is


# --- operations that only torch itself calls ------------------------------------------------------

_aten = torch.ops.aten
to_copy = _aten._to_copy
copy_from = _aten._copy_from.default
item = _aten._local_scalar_dense.default
pin_memory = _aten._pin_memory.default
are_alike = _aten._has_compatible_shallow_copy_type.default
lstm_cell = _aten._thnn_fused_lstm_cell.default
gru_cell = _aten._thnn_fused_gru_cell.default
pack_padded_sequence = _aten._pack_padded_sequence.default
foreach_copy = _aten._foreach_copy_.default
is_mask_left_aligned = _aten._nested_tensor_from_mask_left_aligned.default
sparse_product_reduced = _aten._sparse_mm_reduce_impl.default
convolution = _aten._convolution
choose_attention = _aten._fused_sdp_choice.default
multi_head_attention = _aten._native_multi_head_attention.default
encoder_layer = _aten._transformer_encoder_layer_fwd.default
scaled_product = _aten._scaled_mm
plain_attention = _aten._scaled_dot_product_attention_math
attention_of_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
attention_of_cpu_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
flash_attention = _aten._scaled_dot_product_flash_attention.default
flash_attention_backward = _aten._scaled_dot_product_flash_attention_backward.default
efficient_attention = _aten._scaled_dot_product_efficient_attention.default
efficient_attention_backward = _aten._scaled_dot_product_efficient_attention_backward.default
cudnn_attention = _aten._scaled_dot_product_cudnn_attention.default
cudnn_attention_backward = _aten._scaled_dot_product_cudnn_attention_backward.default
attention_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order
to_dense = _aten._to_dense
coalesce = _aten._coalesce
efficient_zeros = torch._efficientzerotensor
is_zero: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor


def attention_order_is_set() -> bool:
    """Whether a program has set the order in which kernels of attention are tried."""
    return getattr(torch.nn.attention, "_is_sdp_priority_order_active", bool)()


def schema_of(func: torch._ops.OpOverload) -> torch.FunctionSchema:
    """What an operation says of itself: its name, its arguments, what it returns and writes."""
    return func._schema


ON_CUDA = torch._C.DispatchKey.CUDA
_ON_CUDA_BY = re.compile(r"^CUDA: registered at (.*):\d+ ::", re.MULTILINE)
_OF_TORCH = ("aten", "prims")
_FOLDER = os.path.dirname(torch.__file__)
_SOURCES_OF_C = (".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh")


def definition_of(func: torch._ops.OpOverload) -> torch._C.DispatchKey | None:
    """The key of the kernel by which an operation is defined by others, if it is: it is whole here
    without autograd only, or is of torch.distributed or a library, and one kernel for all devices;
    or a program has written one in Python for CUDA.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(func.name(), "CUDA") and _is_programs(func):
        return ON_CUDA
    if has(func.name(), "CompositeImplicitAutograd"):
        return torch._C.DispatchKey.CompositeImplicitAutograd
    if func.namespace not in _OF_TORCH and has(func.name(), "CompositeExplicitAutograd"):
        return torch._C.DispatchKey.CompositeExplicitAutograd
    return None


def _is_programs(func: torch._ops.OpOverload) -> bool:
    """Whether an operation's kernel for CUDA was registered by Python, and not by torch for one of
    its own operations."""
    found = _ON_CUDA_BY.search(torch._C._dispatch_dump(func.name()))
    if found is None or found[1].endswith(_SOURCES_OF_C):
        return False
    return func.namespace not in _OF_TORCH or not found[1].startswith(_FOLDER)


def casts_on_cuda(name: str) -> bool:
    """Whether this build of torch casts the inputs of an operation in autocast on CUDA."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"))


def autocast_is_over() -> AbstractContextManager[object]:
    """A context manager in which operations on virtual devices do not cast their inputs any more,
    as the kernel that runs has done so."""
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
    guard: AbstractContextManager[object] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


def lacks_meta_kernel(name: str) -> bool:
    """Whether this build of torch has an operation of aten's, and none for shapes alone."""
    has, name = torch._C._dispatch_has_kernel_for_dispatch_key, f"aten::{name}"
    return torch._C._dispatch_has_kernel(name) and not has(name, "Meta")


COLLECTIVES = "_c10d_functional"  # the operations that fill a tensor which is waited for later
_collectives = getattr(torch.ops, COLLECTIVES)
wait_tensor = _collectives.wait_tensor.default
# torch 2.15 has one for several tensors, too
wait_tensors = getattr(_collectives, "wait_tensors", _collectives.wait_tensor).default


def wait_for_noted(tensor: object) -> None:
    """Wait for the collective that C++ has noted for the storage of this tensor."""
    wait_tensor._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, tensor)


def counts(func: torch._ops.OpOverload) -> bool:
    """Whether torch itself counts what the operation writes, and notes of what its result is a
    view. Where it writes lists of tensors, the kernels have to."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView")


def decompose(
    func: torch._ops.OpOverload, key: torch._C.DispatchKey, args: tuple, kwargs: dict
) -> object:
    """Carry out an operation by those others, as torch does it for the CPU."""
    with nullcontext() if counts(func) else counting():
        return func._op_dk(key, *args, **kwargs)


def counting() -> AbstractContextManager[object]:
    """A context manager in which torch counts writes and notes views although an operation has
    arrived here already."""
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded.remove(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def version(tensor: torch.Tensor) -> int:
    """How often the tensor was written; 0 if it is one for inference, where nobody counts."""
    return 0 if tensor.is_inference() else _version(tensor)


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The same of several, quicker where all are counted."""
    plain = not any(map(torch.Tensor.is_inference, tensors))
    return [*map(_version if plain else version, tensors)]


def cudnn_version() -> int | None:
    """The version of cuDNN in this build of torch, whatever devices there are."""
    return torch._C._cudnn.getVersionInt() if torch._C._has_cudnn else None


# Where torch asks whether cuDNN wants the weights of a recurrent network in one piece.
FLATTENS_WEIGHTS = (torch, "_use_cudnn_rnn_flatten_weight")


def masks_select_all() -> AbstractContextManager[object]:
    """On `meta` a mask has no values. In this block it selects everything; in a torch that cannot
    take it so, the operation raises, as elsewhere."""
    config = importlib.import_module("torch.fx.experimental._config")
    name = "meta_nonzero_assume_all_nonzero"
    return config.patch(**{name: True}) if hasattr(config, name) else nullcontext()


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Say how often the tensor was written, by which autograd knows whether it still is what a
    backward pass has saved."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


# --- errors in a backward pass --------------------------------------------------------------------

_PRIVATE_USE_1 = torch._C._autograd.DeviceType.PrivateUse1
_notice = functools.partial(id, None)  # cheap; and Python checks its result for a pending exception


def make_device_guard() -> object:
    """What tells the engine the type of the device.

    It is asked even while the engine unwinds because a hook has raised. A Python function that
    returns with an exception pending fails, and the process would end; so the exception is put
    aside, and `raising_late` raises it when the engine is out.
    """

    class DeviceGuard(torch._C._acc.DeviceGuard):
        type_ = _type_of_device  # type: ignore[assignment]  # torch's stub says a device

    return DeviceGuard()


def _type_of_device(_: object) -> object:
    try:
        _notice()
    except SystemError as error:
        _late.error = error.__cause__
    return _PRIVATE_USE_1


_late = threading.local()


def raising_late(engine: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Call the autograd engine; raise what was put aside by the device guard."""

    @functools.wraps(engine)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            with _tracing_all_but(_type_of_device.__code__):
                return engine(*args, **kwargs)
        except SystemError:
            error = _late.__dict__.pop("error", None)
            if error is None:
                raise
            try:
                raise error from error.__cause__
            finally:
                del error  # it knows this frame: a cycle that would keep all of the graph

    return run


@contextmanager
def _tracing_all_but(code: CodeType) -> Iterator[None]:
    """Let a trace function, such as a debugger's, not see this code: where an exception is pending
    it would fail, and the process would end."""
    trace = sys.gettrace()
    if trace is None:
        yield
        return

    def see(frame: FrameType, event: Any, arg: Any) -> Any:
        return None if frame.f_code is code else trace(frame, event, arg)

    sys.settrace(see)
    try:
        yield
    finally:
        if sys.gettrace() is see:
            sys.settrace(trace)


def unwatched() -> AbstractContextManager:
    """A block in which no dispatch mode sees operations: those of the host that stand for what
    devices do are no operations of the program."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    return torch.utils._python_dispatch._disable_current_modes()


# --- the parts of a tensor ------------------------------------------------------------------------


def storage_id(storage: torch.UntypedStorage) -> int:
    """What all tensors on one storage have in common, and no others."""
    return storage._cdata


def address_of_generator(generator: torch.Generator) -> int:
    """What torch calls a generator by, however Python holds it."""
    address: int = generator._cdata  # type: ignore[attr-defined]  # torch's stub lacks it
    return address


_storage_device = inspect.getattr_static(torch.UntypedStorage, "device")


def storage_device(storage: torch.UntypedStorage) -> torch.device:
    """Where the bytes of a storage really are, whatever its class says."""
    return _storage_device.__get__(storage)


def coo_parts(sparse: torch.Tensor) -> list[torch.Tensor]:
    """Indices and values of a sparse tensor in coordinate format, coalesced or not."""
    return [sparse._indices(), sparse._values()]


# --- the identity of a parameter ------------------------------------------------------------------


def mark_parameter(tensor: torch.Tensor) -> None:
    """Make `isinstance(tensor, nn.Parameter)` true of a tensor of another class."""
    tensor._is_param = True


def make_subclass() -> Callable[..., torch.Tensor]:
    """What makes a tensor of a subclass over the memory of another."""
    return torch.Tensor._make_subclass


def replace_make_subclass(make: Callable[..., torch.Tensor]) -> None:
    """Let `make(cls, data, require_grad)` take its place."""
    replace(torch.Tensor, "_make_subclass", staticmethod(make))


def take_hooks(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Give `tensor` the hooks on the gradient of another."""
    tensor._backward_hooks = other._backward_hooks
    tensor._post_accumulate_grad_hooks = other._post_accumulate_grad_hooks


def is_held(tensor: torch.Tensor) -> bool:
    """Whether torch's C++ has it, too, as a graph, or a parameter whose gradient it is."""
    return tensor._use_count() > 1


def exchange(a: torch.Tensor, b: torch.Tensor) -> None:
    """Make each of two leaves the other, as `torch.utils.swap_tensors` does, also where a graph
    holds `a`: that graph can give it gradients when it is exchanged back, and else says so."""
    if a.requires_grad and is_held(a):
        check = functools.partial(_check_graph, weakref.ref(a), a._cdata)
        torch.autograd.graph.get_gradient_edge(a).node.register_prehook(check)
    try:
        torch._C._swap_tensor_impl(a, b)
    except RuntimeError as error:
        if "weakrefs" not in str(error):
            raise
        raise NotImplementedError(
            "a parameter cannot move to another device while torch.profiler keeps track of it "
            "(with_stack=True together with profile_memory=True or record_shapes=True): move the "
            "module before the profiler starts"
        ) from error
    a.__class__, b.__class__ = b.__class__, a.__class__
    a.__dict__, b.__dict__ = b.__dict__, a.__dict__


def _check_graph(leaf: weakref.ref, number: int, _: object) -> None:
    """Before a graph gives gradients to what was a leaf when it was made."""
    tensor = leaf()
    if tensor is None or tensor._cdata != number:
        raise RuntimeError(
            "this graph was made before its parameters moved to another device (or type), and "
            "cannot give them gradients: call backward() first, or run the forward pass again"
        )


AcceleratorError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
MOMENTS_OF_GRAPHS = ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end")


def hooks_of_graphs(moment: str) -> Mapping[int, Callable[..., object]]:
    """What programs have registered for a moment of all CUDA graphs, where this torch has that."""
    found: Mapping = getattr(sys.modules["torch.cuda.graphs"], f"_global_{moment}_hooks", {})
    return found


# --- what virtual devices replace, and emulated ones again: modules and names ---------------------


def replace(owner: object, name: str, ours: object) -> None:
    """Let a class or module of torch's have ours under that name, whatever its type was."""
    setattr(owner, name, ours)


def replace_rebuild(plain: type) -> None:
    """Let tensors with attributes that are loaded as `plain` ones stay them, and be no views: files
    name the class torch.Tensor, and `plain` is what it is on virtual devices."""
    torch_rebuild = torch._tensor._rebuild_from_type_v2

    @functools.wraps(torch_rebuild)
    def rebuild(make: Callable[..., object], kind: type, args: tuple, state: object) -> object:
        tensor = make(*args)
        if kind is torch.Tensor and type(tensor) is plain:
            kind = plain
        return torch_rebuild(lambda: tensor, kind, (), state)

    replace(torch._tensor, "_rebuild_from_type_v2", rebuild)


def keep_out_of_files(name: str) -> None:
    """Let no tensor be pickled with the attribute of that name, which is none of the program's."""
    torch_state = torch._utils._get_obj_state

    @functools.wraps(torch_state)
    def state_of(thing: object) -> object:
        state = torch_state(thing)
        first, *slots = state if isinstance(state, tuple) else (state,)
        if not isinstance(first, dict) or name not in first:
            return state
        kept = {key: value for key, value in first.items() if key != name}
        return (kept, *slots) if slots else kept

    replace(torch._utils, "_get_obj_state", state_of)


TensorBase = torch._C.TensorBase

# The package holds functions of the same names as these two modules.
_parallel_functions = sys.modules["torch.nn.parallel._functions"]
data_parallel = sys.modules["torch.nn.parallel.data_parallel"]

SYNC_BATCH_NORM = sys.modules["torch.nn.modules._functions"].SyncBatchNorm

# What torch.nn.parallel.comm calls in C++; builds for the CPU have none of them.
COMM_PRIMITIVES = (
    *("broadcast", "broadcast_out", "broadcast_coalesced"),
    *("scatter", "scatter_out", "gather", "gather_out"),
)


def comm_primitive(name: str) -> Callable[..., object] | None:
    """One of `COMM_PRIMITIVES`; None in a build of torch that has none."""
    return getattr(torch._C, f"_{name}", None)


def set_comm_primitive(name: str, ours: Callable[..., object]) -> None:
    """Let torch.nn.parallel.comm call ours."""
    setattr(torch._C, f"_{name}", ours)


def replace_device_type_query(ask: Callable[[Callable[[], str | None]], str | None]) -> None:
    """Let `ask(theirs)` answer which kind of device there is, in whatever has imported torch's."""
    theirs = torch._utils._get_available_device_type

    @functools.wraps(theirs)
    def ours() -> str | None:
        return ask(theirs)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(theirs.__name__) is theirs:
            replace(module, theirs.__name__, ours)


GET_ACCELERATOR = (torch._C, "_get_accelerator")
STREAM_OF_COPIES = (_parallel_functions, "_get_stream")
# What torch.cuda.memory asks of C++ about what allocators have done; not in builds for the CPU.
MEMORY_HISTORY = {
    "record": (torch._C, "_cuda_record_memory_history"),
    "record_legacy": (torch._C, "_cuda_record_memory_history_legacy"),
    "snapshot": (torch._C, "_cuda_memorySnapshot"),
    "observe_oom": (torch._C, "_cuda_attach_out_of_memory_observer"),
}
# What young builds ask of C++ for texts in the history.
MEMORY_METADATA = {
    "set": (torch._C, "_cuda_setMemoryMetadata"),
    "get": (torch._C, "_cuda_getMemoryMetadata"),
    "supported": (torch._C, "_cuda_memoryMetadataSupported"),
    "annotate": (torch.cuda.memory, "_annotate_tensor"),
}
PARSE_TO = (torch._C._nn, "_parse_to")  # what Module.to is told
TRACED_TYPES = (torch.fx.experimental.proxy_tensor, "HANDLED_TYPES")
STORAGE_REGISTRY = (torch.serialization, "_package_registry")
StorageBase = torch.storage._StorageBase
LazyTensor = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
METHODS_OF_LAZY_TENSORS = (LazyTensor, "_allowed_methods")

# --- devices that torch is told without being asked -----------------------------------------------

DeviceContext = torch.utils._device.DeviceContext


def factories() -> list[tuple[object, str]]:
    """Where the functions are found that make tensors on a device: their modules and names."""
    elsewhere = {
        "fft_fftfreq": (torch.fft, "fftfreq"),
        "fft_rfftfreq": (torch.fft, "rfftfreq"),
        "nested_tensor": (torch.nested, "nested_tensor"),
    }
    names = sorted(f.__name__ for f in torch.utils._device._device_constructors())
    return [elsewhere.get(name, (torch, name)) for name in names]


def default_device_context() -> DeviceContext | None:
    """What `torch.set_default_device` has set in this thread."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def script_builtins() -> dict[int, str]:
    """What scripts may call, by the identity of the function: the operations that it stands for."""
    return torch.jit._builtins._get_builtin_table()


def take_functions_by_parts(*kinds: type[torch.Tensor]) -> None:
    """Let operators that take functions, such as `flex_attention`, run on tensors of some kinds as
    the operations that they stand for. Torch asks each of them for a rule for each kind."""
    by_parts = torch._C.DispatchKey.CompositeExplicitAutograd
    for operator in torch._ops._higher_order_ops.values():
        if by_parts in operator.py_kernels:
            for kind in kinds:
                operator.python_key_table.setdefault(kind, operator.py_kernels[by_parts])


_FLEX_OPERATOR = "torch._higher_order_ops.flex_attention"
FLEX_ATTENTION = "torch.nn.attention.flex_attention"  # a module that takes long to import


def replace_flex_attention(
    module: Any, function: Callable[..., object], *kinds: type[torch.Tensor]
) -> None:
    """Let a function carry out the operator `flex_attention`, gradients included, on tensors of
    some kinds, whatever their device is called."""
    operator, keys = module.flex_attention_hop, torch._C.DispatchKey
    operator.python_key_table.update(dict.fromkeys(kinds, function))
    operator.py_impl(keys.AutogradPrivateUse1)(function)
    operator.fallthrough(keys.AutocastPrivateUse1)  # type: ignore[attr-defined]
    check = module._validate_device
    module._validate_device = lambda *three: None if isinstance(three[0], kinds) else check(*three)


def flex_by_parts(*args: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the operator stands for: result, logarithms of sums and maxima of rows, to base 2."""
    return sys.modules[_FLEX_OPERATOR].math_attention(*args)


def permuted_like(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor in the order of memory that strides have, as `flex_attention` gives its result."""
    return sys.modules[_FLEX_OPERATOR]._permute_strides(tensor, strides)


def leaves_scores(score_mod: Callable[..., torch.Tensor]) -> bool:
    """Whether it is what `flex_attention` takes if it is given none."""
    return score_mod is sys.modules[FLEX_ATTENTION]._identity


def over_all(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of four numbers (batch, head, query, key) for all of four lists of them."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped = sys.modules[FLEX_ATTENTION]._vmap_for_bhqkv(function, prefix=())

    def call(*lists: torch.Tensor) -> torch.Tensor:
        with TransformGetItemToIndex():
            return mapped(*lists)

    return call


@contextmanager
def flex_is_compiled() -> Iterator[None]:
    """In the block `flex_attention` does not warn that nobody has compiled it."""
    flex, warning = sys.modules.get(FLEX_ATTENTION), "flex_attention_performance"
    if flex is None or warning in flex._WARNINGS_SHOWN:
        yield
        return
    flex._WARNINGS_SHOWN.add(warning)
    try:
        yield
    finally:
        flex._WARNINGS_SHOWN.discard(warning)


def look_anew_for_functions() -> None:
    """Let Dynamo, if it is there, look anew which functions are torch's: it keeps those that it met
    first, and they may have been replaced since."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()


def has_instructions_for(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies numbers of a half precision on this machine's processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return bool(operators._is_mkldnn_fp16_supported())


def runs_as_it_is(backend: object) -> bool:
    """Whether a backend of `torch.compile` runs what was traced one operation after the other."""
    if isinstance(backend, str):
        return backend == "eager" or backend.startswith("aot_eager")
    return getattr(backend, "__module__", None) == "torch._dynamo.backends.debugging"


def cuts_products() -> bool:
    """Whether Inductor is told to exchange the operands and results of matrix products in pieces,
    beside them (asynchronous tensor parallelism)."""
    config = sys.modules.get("torch._inductor.config")
    return bool(getattr(config, "_micro_pipeline_tp", False))


def replace_engine(make: Callable[[object], object]) -> None:
    """Let programs that call the autograd engine themselves call what `make` makes of it."""
    owner: Any = torch.autograd.Variable
    owner._execution_engine = make(owner._execution_engine)


# --- operators that programs define ---------------------------------------------------------------

MAKE_LIBRARY = (torch._C, "_dispatch_library")
LIBRARY_OF_OPERATOR = (torch._library.custom_ops, "get_library_allowing_overwrite")
# What is registered of operators besides kernels, such as the shapes of their results.
OPERATOR_ENTRIES: Any = torch._library.simple_registry.SimpleLibraryRegistry
OperatorEntry: Any = torch._library.simple_registry.SimpleOperatorEntry
_MODULES_OF_LIBRARIES = ("torch.library", "torch._library.")


def libraries_of_operators() -> dict[str, torch.library.Library]:
    """By the names of operators that `custom_op` has defined: their libraries."""
    return torch._library.custom_ops.OPDEF_TO_LIB


def destroy_library(library: torch.library.Library) -> None:
    """Take back all that it has registered."""
    library._destroy()


def forget_operator(namespace: str, name: str) -> None:
    """Let torch look anew for an operator that is no more: what it has kept would call it."""
    known: Any = getattr(torch.ops, namespace)
    name = name.partition(".")[0]
    if name in vars(known):
        delattr(known, name)
        if name in known._dir:
            known._dir.remove(name)


def are_equal_schemas(one: str, other: str) -> bool:
    """Whether two texts say the same of an operator."""
    return one == other or torch._C.parse_schema(one) == torch._C.parse_schema(other)


def is_of_libraries(module: str) -> bool:
    """Whether code of a module is torch's own of registering operators."""
    return module.startswith(_MODULES_OF_LIBRARIES)


# --- settings of a process ------------------------------------------------------------------------


def data_fetchers() -> list[Any]:
    """The classes whose `fetch` puts a batch of a DataLoader together."""
    fetch = torch.utils.data._utils.fetch
    return [fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher]


Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # how to read it, and how to set it
# By the name of what reads one in C++, after "_get_" there: the name of what sets it, if that is
# another, after "_set_".
_SETTINGS = {
    "float32_matmul_precision": "",
    "deterministic_fill_uninitialized_memory": "",
    **dict.fromkeys(("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"), ""),
    **dict.fromkeys(("mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled"), ""),
    "flash_sdp_enabled": "sdp_use_flash",
    "mem_efficient_sdp_enabled": "sdp_use_mem_efficient",
    "math_sdp_enabled": "sdp_use_math",
    "cudnn_sdp_enabled": "sdp_use_cudnn",
    "overrideable_sdp_enabled": "sdp_use_overrideable",
    "math_sdp_allow_fp16_bf16_reduction": "",
    "sdp_priority_order": "",
    "cublas_allow_fp16_reduced_precision_reduction": "",
    "cublas_allow_bf16_reduced_precision_reduction": "",
    "cublas_allow_fp16_accumulation": "",
    "warnAlways": "",
}
_PRINT_OPTIONS = torch._tensor_str.PRINT_OPTS
_PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def settings() -> list[Setting]:
    """What programs set of torch in C++ for all threads of their process, in the order in which it
    can be set: some set others with them."""
    found: list[Setting] = [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (_anomaly, lambda value: torch.set_anomaly_enabled(*value)),
        (lambda: dict(vars(_PRINT_OPTIONS)), lambda value: vars(_PRINT_OPTIONS).update(value)),
    ]
    for name, other in _SETTINGS.items():
        get = getattr(torch._C, f"_get_{name}", None)
        put = getattr(torch._C, f"_set_{other or name}", None)
        if get is not None and put is not None:
            found.append((get, functools.partial(_put, put)))
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    bound = functools.partial
    return [*found, *((bound(read, *place), bound(write, *place)) for place in _PRECISIONS)]


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _put(put: Callable[..., object], value: object) -> None:
    if isinstance(value, tuple):
        put(*value)
    else:
        put(value)
