"""What torch's own description of an operation says about how to treat it; read once for each."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from . import torch_operators

aten = torch.ops.aten

# They return views but do not say so in their schema.
_SILENT_VIEWS = {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"}

# Which of their arguments may be tensors of the host although others are on a device, as on CUDA:
# indices, sizes and lengths that the host needs in any case, and a learning rate in a tensor. By
# number, or by name if it has none.
_HOST_ARGUMENT: dict[str, int | str] = {
    "aten::index": 1,
    "aten::index_put": 1,
    "aten::index_put_": 1,
    "aten::_index_put_impl_": 1,
    "aten::_unsafe_index": 1,
    "aten::_unsafe_index_put": 1,
    "aten::tensor_split": 1,
    "aten::_pack_padded_sequence": 1,
    "aten::_pack_padded_sequence_backward": 2,
    "aten::_fused_adam_": "lr",
    "aten::_fused_adamw_": "lr",
    "aten::_fused_sgd_": "lr",
    "aten::_fused_adagrad_": "lr",
}

# Inductor generates loops for them, besides those that torch calls pointwise. Products, attention
# and convolutions stay calls of libraries; sorting and pooling are taken so, too.
_FUSED = {
    *("aten::sum", "aten::mean", "aten::var", "aten::std", "aten::amax", "aten::amin"),
    *("aten::argmax", "aten::argmin", "aten::any", "aten::all", "aten::norm", "aten::cumsum"),
    *("aten::linalg_vector_norm", "aten::_softmax", "aten::_softmax_backward_data"),
    *("aten::_log_softmax", "aten::_log_softmax_backward_data"),
    *("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    *("aten::native_group_norm", "aten::native_group_norm_backward"),
    *("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    *("aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"),
    *("aten::native_dropout", "aten::native_dropout_backward", "aten::bernoulli"),
    *("aten::fill", "aten::zero", "aten::full_like", "aten::ones_like", "aten::zeros_like"),
    *("aten::copy", "aten::_to_copy", "aten::cat", "aten::stack", "aten::embedding"),
    *("aten::gather", "aten::masked_fill", "aten::tril", "aten::triu"),
    *("aten::arange", "aten::constant_pad_nd", "aten::mse_loss", "aten::mse_loss_backward"),
    *("aten::nll_loss_forward", "aten::nll_loss_backward"),
}

# They only reserve memory.
_ALLOCATES = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}

# What sharded data parallelism adds to torch: its kernels for CUDA are Python, made of others.
_OF_OTHERS = {
    *("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat", "fsdp::copy_"),
}


_DROPOUT = ("dropout_p", "dropout")  # names of the argument

# torch has one definition of them for all devices: kernels that meet in memory.
_OF_SEVERAL = {
    *("aten::masked_fill", "aten::masked_scatter", "aten::index_fill", "aten::index_put"),
    *("aten::slice_backward", "aten::select_backward", "aten::diagonal_backward"),
    *("aten::constant_pad_nd", "aten::block_diag", "aten::affine_grid_generator"),
    *("aten::logsumexp", "aten::_safe_softmax", "aten::dist", "aten::_euclidean_dist"),
    *("aten::binary_cross_entropy_with_logits", "aten::soft_margin_loss"),
    *("aten::soft_margin_loss_backward", "aten::count_nonzero"),
}

# torch defines them by others where a device has no kernel of its own: CUDA has.
_ONE_KERNEL = {"aten::_fused_rms_norm"}


class OpTraits(NamedTuple):
    """How an operation is carried out on a virtual device."""

    name: str
    is_view: bool
    of_one: bool  # a view of its first argument, which no other argument is a tensor beside
    allocates: bool  # memory, and nothing else
    launches: bool  # a kernel: views and allocations take but the host's time
    mutates: bool
    written: tuple[tuple[int, str], ...]  # the arguments that it writes: number and name
    reshapes: bool  # what it writes, perhaps
    definition: (
        torch._C.DispatchKey | None
    )  # the key of the kernel that defines it by others; None for most
    draws_random: bool
    dropout: int | None  # the number of the argument that says how much: 0 draws nothing
    waits: bool
    host_argument: int | str | None
    counts_writes: bool  # by itself: for all others torch does before they get here
    fuses: bool  # with its neighbours, into one kernel, when compiled
    packet: torch._ops.OpOverloadPacket


@cache
def traits_of(func: torch._ops.OpOverload) -> OpTraits:
    """How to carry out an operation. NotImplementedError for those on strided nested tensors."""
    schema, tags = torch_operators.schema_of(func), func.tags
    if schema.name.startswith("aten::_nested_"):
        raise strided_nested(func)
    aliases = [r.alias_info for r in schema.returns]
    written = tuple(
        (number, a.name)
        for number, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    writes = bool(written)
    aliasing = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
    is_view = schema.name in _SILENT_VIEWS or (aliasing and not writes)
    return OpTraits(
        name=schema.name.removeprefix("aten::"),
        is_view=is_view,
        of_one=is_view and not writes and _takes_one_tensor(schema),
        allocates=schema.name in _ALLOCATES,
        launches=not is_view and schema.name not in {*_ALLOCATES, "aten::_efficientzerotensor"},
        mutates=writes,
        written=written,
        reshapes=writes and not _keeps_shapes(schema.name),
        definition=_definition(func, schema.name),
        draws_random=torch.Tag.nondeterministic_seeded in tags,
        dropout=next((n for n, a in enumerate(schema.arguments) if a.name in _DROPOUT), None),
        waits=torch.Tag.data_dependent_output in tags
        or (torch.Tag.dynamic_output_shape in tags and schema.name not in _HOST_ARGUMENT),
        host_argument=_HOST_ARGUMENT.get(schema.name),
        counts_writes=writes and not torch_operators.counts(func),
        fuses=torch.Tag.pointwise in tags or schema.name.removesuffix("_") in _FUSED,
        packet=func.overloadpacket,
    )


def _keeps_shapes(name: str) -> bool:
    """Whether it is known to: so do the steps of optimizers, which write many tensors at once."""
    return name.startswith(("aten::_foreach_", "aten::_fused_")) and name.endswith("_")


def _takes_one_tensor(schema: torch.FunctionSchema) -> bool:
    kinds = [str(argument.type) for argument in schema.arguments]
    return kinds[:1] == ["Tensor"] and not any("Tensor" in kind for kind in kinds[1:])


def _definition(func: torch._ops.OpOverload, name: str) -> torch._C.DispatchKey | None:
    if func.overloadpacket in flop_registry or name in _ONE_KERNEL:
        return None
    if name in _OF_OTHERS:
        return torch_operators.ON_CUDA
    return torch_operators.definition_of(func, for_all_devices=name in _OF_SEVERAL)


def strided_nested(operation: object) -> NotImplementedError:
    """Tensors of several sizes in one have no shape, and wrappers must have one."""
    return NotImplementedError(
        f"{operation} makes or reads a nested tensor of layout torch.strided, and virtual GPUs "
        "have none: make it with layout=torch.jagged, or pad its parts to one size with "
        "torch.nn.utils.rnn.pad_sequence()"
    )
