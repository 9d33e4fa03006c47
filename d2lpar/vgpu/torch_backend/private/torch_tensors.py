"""The parts of torch's tensors and storages that have no public name."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.parameter

from ...patching import FOR_GOOD
from .torch_operators import _aten

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
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


def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """`tensor.data = other`, as torch has it, whatever function modes there are."""
    with torch._C.DisableTorchFunction():
        _data.__set__(tensor, other)


# Tensors of one type as one flat tensor and back, in pieces of so many bytes, in the old order.
flattened: Callable[[Sequence[torch.Tensor]], torch.Tensor] = torch._utils._flatten_dense_tensors
unflattened: Callable[[torch.Tensor, Sequence[torch.Tensor]], Sequence[torch.Tensor]] = (
    torch._utils._unflatten_dense_tensors
)
pieces: Callable[[Sequence[torch.Tensor], int], Iterable[list[torch.Tensor]]] = (
    torch._utils._take_tensors
)
in_order_of: Callable[[Iterable[torch.Tensor], Sequence[torch.Tensor]], Iterable[torch.Tensor]] = (
    torch._utils._reorder_tensors_as
)

are_alike = _aten._has_compatible_shallow_copy_type.default
efficient_zeros = torch._efficientzerotensor
is_zero: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor


def version(tensor: torch.Tensor) -> int:
    """How often the tensor was written; 0 if it is one for inference, where nobody counts."""
    return 0 if tensor.is_inference() else _version(tensor)


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The same of several, quicker where all are counted."""
    plain = not any(map(torch.Tensor.is_inference, tensors))
    return [*map(_version if plain else version, tensors)]


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Say how often the tensor was written, by which autograd knows whether it still is what a
    backward pass has saved."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def storage_id(storage: torch.UntypedStorage) -> int:
    """What all tensors on one storage have in common, and no others."""
    return storage._cdata


_storage_device = inspect.getattr_static(torch.UntypedStorage, "device")


def storage_device(storage: torch.UntypedStorage) -> torch.device:
    """Where the bytes of a storage really are, whatever its class says."""
    return _storage_device.__get__(storage)


def sparse_parts(sparse: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that make up a sparse one: those with the indices, then the values."""
    if sparse.layout is torch.sparse_coo:  # coalesced or not
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    if sparse.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]
    return [sparse]  # a layout of another library, such as mkldnn's


def mark_parameter(tensor: torch.Tensor) -> None:
    """Make `isinstance(tensor, nn.Parameter)` true of a tensor of another class."""
    tensor._is_param = True


def make_subclass() -> Callable[..., torch.Tensor]:
    """What makes a tensor of a subclass over the memory of another."""
    return torch.Tensor._make_subclass


def replace_make_subclass(make: Callable[..., torch.Tensor]) -> None:
    """Let `make(cls, data, require_grad)` take its place."""
    FOR_GOOD.set(torch.Tensor, "_make_subclass", staticmethod(make))


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

    FOR_GOOD.set(torch._tensor, "_rebuild_from_type_v2", rebuild)


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

    FOR_GOOD.set(torch._utils, "_get_obj_state", state_of)


TensorBase = torch._C.TensorBase
STORAGE_REGISTRY = (torch.serialization, "_package_registry")
StorageBase = torch.storage._StorageBase
LazyTensor = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
METHODS_OF_LAZY_TENSORS = (LazyTensor, "_allowed_methods")
