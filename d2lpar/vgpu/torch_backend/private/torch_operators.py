"""Operators: those that only torch itself calls, what they say of themselves, who defined them."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext

import torch

from .torch_modes import counting

LIBRARY = torch._C  # what torch has in C++, as programs name it
softmax, softmax_backward = torch.ops.aten._softmax, torch.ops.aten._softmax_backward_data
log_softmax = torch.ops.aten._log_softmax
log_softmax_backward = torch.ops.aten._log_softmax_backward_data
rms_norm = torch.ops.aten._fused_rms_norm
rms_norm_backward = torch.ops.aten._fused_rms_norm_backward
product_with_activation = torch.ops.aten._addmm_activation
Packet = torch._ops.OpOverloadPacket  # an operation with all its overloads
Operator = torch._ops.OperatorBase  # what a name of `torch.ops` is
_aten = torch.ops.aten
to_copy = _aten._to_copy
copy_from = _aten._copy_from.default
upsample_antialiased = _aten._upsample_bilinear2d_aa
solve = _aten._linalg_solve_ex
determinant, log_determinant = _aten._linalg_det, _aten._linalg_slogdet
symmetric_eigenvalues, eigenvalues = _aten._linalg_eigh, _aten._linalg_eigvals
singular_values = _aten._linalg_svd
item = _aten._local_scalar_dense.default
pin_memory = _aten._pin_memory.default
pack_padded_sequence = _aten._pack_padded_sequence.default
foreach_copy = _aten._foreach_copy_.default
is_mask_left_aligned = _aten._nested_tensor_from_mask_left_aligned.default
sparse_product = _aten._sparse_addmm
sparse_product_reduced = _aten._sparse_mm_reduce_impl.default
convolution = _aten._convolution
scaled_product = _aten._scaled_mm
to_dense = _aten._to_dense
coalesce = _aten._coalesce
adaptive_avg_pool2d_backward = _aten._adaptive_avg_pool2d_backward
embedding_bag = _aten._embedding_bag
embedding_bag_forward_only = _aten._embedding_bag_forward_only
index_put_in_place = _aten._index_put_impl_
unsafe_index = _aten._unsafe_index


def schema_of(func: torch._ops.OpOverload) -> torch.FunctionSchema:
    """What an operation says of itself: its name, its arguments, what it returns and writes."""
    return func._schema


ON_CUDA = torch._C.DispatchKey.CUDA
BY_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
_FOR_ALL_DEVICES = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_ON_CUDA_BY = re.compile(r"^CUDA: registered at (.*):\d+ ::", re.MULTILINE)
_OF_TORCH = ("aten", "prims")
_FOLDER = os.path.dirname(torch.__file__)
_SOURCES_OF_C = (".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh")


def definition_of(
    func: torch._ops.OpOverload, *, for_all_devices: bool
) -> torch._C.DispatchKey | None:
    """The key of the kernel by which an operation is defined by others, if it is: it is whole here
    without autograd only, or has one kernel `for_all_devices`, as it does if it is of
    torch.distributed or a library; or a program has written one in Python for CUDA.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(func.name(), "CUDA") and _is_programs(func):
        return ON_CUDA
    if has(func.name(), "CompositeImplicitAutograd"):
        return BY_OTHERS
    if for_all_devices or func.namespace not in _OF_TORCH:
        return next((key for key in _FOR_ALL_DEVICES if has(func.name(), key.name)), None)
    return None


def _is_programs(func: torch._ops.OpOverload) -> bool:
    """Whether an operation's kernel for CUDA was registered by Python, and not by torch for one of
    its own operations."""
    found = _ON_CUDA_BY.search(torch._C._dispatch_dump(func.name()))
    if found is None or found[1].endswith(_SOURCES_OF_C):
        return False
    return func.namespace not in _OF_TORCH or not found[1].startswith(_FOLDER)


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
