"""Functional collectives of torch.distributed on virtual tensors.

torch defines them by others: memory for the result, the collective of a process group, and a note
in C++ that whoever uses the result must wait for it first. It finds the note by the storage, which
a tensor and its views share on CUDA. Virtual tensors share an allocation instead: it knows for
which tensors there are notes.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from ..compiling import compiled
from ..cost.host_cost import count_functional
from ..machine.runtime import Runtime
from ..private import torch_operators
from ..tensors.tensor import VirtualTensor


def are_begun(func: torch._ops.OpOverload, results: object) -> None:
    """Note which tensors an operation fills, if it is a functional collective."""
    if func.namespace != torch_operators.COLLECTIVES or "::_" in func.name():
        return  # torch 2.15 wraps results by operations of this namespace
    filled = [tensor for tensor in tree_leaves(results) if isinstance(tensor, VirtualTensor)]
    is_new = not any(tensor.vgpu_allocation.awaited for tensor in filled)  # not one within another
    if is_new and compiled.current() is None:  # compiled code has none of its Python
        count_functional()
    for tensor in filled:
        allocation = tensor.vgpu_allocation
        allocation.awaited = [*(allocation.awaited or ()), tensor]


def wait_tensor(rt: Runtime, args: tuple, kwargs: dict) -> VirtualTensor:
    """`wait_tensor(tensor)`: wait for the collectives that fill the memory of a tensor."""
    tensor: VirtualTensor
    (tensor,) = args
    allocation = tensor.vgpu_allocation
    awaited, allocation.awaited = allocation.awaited, None
    for each in awaited or ():
        torch_operators.wait_for_noted(each)
    return tensor


def wait_tensors(rt: Runtime, args: tuple, kwargs: dict) -> list[VirtualTensor]:
    """The same for several."""
    (tensors,) = args
    return [wait_tensor(rt, (tensor,), {}) for tensor in tensors]
