"""The private parts of torch that tensors and lanes need; `backend` holds those of registration."""

from __future__ import annotations

from collections.abc import Callable

import torch

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
set_data = torch.Tensor.data.__set__
get_data = torch.Tensor.data.__get__
set_conj: Callable[[torch.Tensor, bool], None] = torch._C._set_conj
set_neg: Callable[[torch.Tensor, bool], None] = torch._C._set_neg
no_torch_function = torch._C._disabled_torch_function_impl


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward pass that this thread runs has finished."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def decomposes(func: torch._ops.OpOverload) -> bool:
    """Whether torch defines the operation by others (it arrives whole only without autograd)."""
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)

