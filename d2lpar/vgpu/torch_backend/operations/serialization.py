"""Deep copies and checkpoints: tensors that share memory still do so afterwards.

A checkpoint holds tensors of the CPU, so that plain `torch.load` reads it where there are no
virtual GPUs; `map_location="vgpu:1"` brings them to one.
"""

from __future__ import annotations

import copy
import functools
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.serialization import STORAGE

from ...device_naming import TYPE, naming
from ...memory.caching_allocator import Allocation
from ...memory.graph_pools import uncounted
from ...patching import FOR_GOOD
from ..machine.runtime import Runtime, current_runtime
from ..private import torch_tensors
from ..tensors.parameter_kinds import kind_of, with_kind
from ..tensors.tensor import (
    ELSEWHERE,
    MOVED,
    TensorLayout,
    VirtualTensor,
    adopt,
    attributes,
    is_parameter,
    layout_of,
    separate,
    wrap,
)
from ..tensors.virtual_storage import VirtualStorage, storage_of
from . import copies

_BEFORE_CPU = 5  # torch asks for storages in this order; its own CPU has 10


class _Save:
    """What the `torch.save` under way has met, by the identity of storages.

    `copies` are the host's copies of the storages with the values; of each storage that is written
    `devices` has the number of the device that its tensor was on.
    """

    def __init__(self) -> None:
        self.copies: dict[int, torch.UntypedStorage] = {}
        self.devices: dict[int, int] = {}

    def note(self, host: torch.Tensor, index: int) -> None:
        self.devices[torch_tensors.storage_id(host.untyped_storage())] = index


_under_way: ContextVar[_Save | None] = ContextVar("under way", default=None)


def install() -> None:
    """Let tensors, `torch.save` and `torch.load` use this module."""
    for name, ours in (
        ("__deepcopy__", deep_copy),
        ("__copy__", shallow_copy),
        ("__reduce_ex__", reduce),
    ):
        FOR_GOOD.set(VirtualTensor, name, ours)
    torch_tensors.replace_rebuild(VirtualTensor)
    for name in (ELSEWHERE, MOVED):
        torch_tensors.keep_out_of_files(name)
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _sent)
    torch.serialization.register_package(_BEFORE_CPU, _location, restore)
    torch_save = torch.save

    @functools.wraps(torch_save)
    def save(*args: Any, **kwargs: Any) -> None:
        token = _under_way.set(_Save())
        try:
            torch_save(*args, **kwargs)
        finally:
            _under_way.reset(token)

    for module in (torch, torch.serialization):
        FOR_GOOD.set(module, "save", save)


# --- copies in the same process -------------------------------------------------------------------


def deep_copy(tensor: VirtualTensor, memo: dict) -> VirtualTensor:
    """`copy.deepcopy`: a leaf with memory of its own, on the same device.

    Raises RuntimeError for a tensor that was computed from one that requires gradients.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment"
        )
    values = copy.deepcopy(tensor.vgpu_values, memo)
    layout = layout_of(tensor) if values is None else None
    allocation = _deep_copied(tensor, values, memo)
    twin = memo[id(tensor)] = wrap(values, tensor.vgpu_index, layout=layout, allocation=allocation)
    torch.autograd.graph.increment_version(twin)
    twin.requires_grad_(tensor.requires_grad)
    if is_parameter(tensor):
        torch_tensors.mark_parameter(twin)
        return with_kind(twin, kind_of(tensor))  # as torch: without attributes and gradient
    for name, value in attributes(tensor).items():
        twin.__dict__[name] = copy.deepcopy(value, memo)
    if tensor.grad is not None:
        twin.grad = copy.deepcopy(tensor.grad, memo)
    return twin


def shallow_copy(tensor: VirtualTensor) -> VirtualTensor:
    """`copy.copy`: another tensor over the same memory, whose writes autograd counts apart."""
    twin = separate(tensor)
    assert isinstance(twin, VirtualTensor)
    torch.autograd.graph.increment_version(twin)
    twin.requires_grad_(tensor.requires_grad)
    if is_parameter(tensor):
        torch_tensors.mark_parameter(twin)
        twin = with_kind(twin, torch.nn.Parameter)  # as torch, whatever class the parameter has
    twin.__dict__.update(attributes(tensor))
    return twin


def _deep_copied(tensor: VirtualTensor, values: torch.Tensor | None, memo: dict) -> Allocation:
    """The memory of the copy, which has these values."""
    mine = tensor.vgpu_allocation
    if id(mine) not in memo:
        memo[id(mine)] = _of_copied_storage(values) or _taken(tensor.vgpu_index, mine.nbytes)
    return memo[id(mine)]


def _of_copied_storage(values: torch.Tensor | None) -> Allocation | None:
    """The memory of a storage that a program has seen: that has been copied as a storage is."""
    if values is None or not _is_plain(values):
        return None
    storage = values.untyped_storage()
    return storage.vgpu_allocation if isinstance(storage, VirtualStorage) else None


def _taken(index: int, nbytes: int) -> Allocation:
    allocation = current_runtime().memories[index].allocate(nbytes)
    copies.account_within(current_runtime(), index, 2 * nbytes)
    return allocation


# --- saving and loading ---------------------------------------------------------------------------


_has_others = False  # whether other processes have the same virtual GPUs


def processes_share_devices(others: bool) -> None:
    """Say whether other processes have the virtual GPUs of this one: then tensors can be sent."""
    global _has_others
    _has_others = others


def _sent(tensor: torch.Tensor) -> tuple:
    """What another process is sent, by torch's tables of types: those of virtual tensors are equal
    to those of the host. As with CUDA, the other one has the same memory."""
    if not isinstance(tensor, VirtualTensor):
        return reduce_tensor(tensor)
    if not _has_others:
        raise ValueError(
            f"a tensor on {tensor.device} cannot be sent to another process, for virtual GPUs are "
            "in one only: send tensor.cpu()"
        )
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that was computed from one that requires gradients cannot be sent to another "
            "process, which has not its graph: send tensor.detach()"
        )
    values, memory = tensor.vgpu_values, None
    if values is not None and _is_plain(values):
        memory = _shared(values.untyped_storage())
    elif values is not None and not values.is_meta:
        raise ValueError(f"a tensor of layout {values.layout} cannot be sent: send tensor.cpu()")
    kept = tensor.vgpu_index, tensor.vgpu_allocation.requested_bytes
    return _received, (memory, layout_of(tensor), *kept, tensor.requires_grad, is_parameter(tensor))


def _shared(storage: torch.UntypedStorage) -> tuple:
    """How to make the storage in another process, of the same memory, as torch does of one of the
    host, which it is below."""
    ours = type(storage)
    storage.__class__ = torch.UntypedStorage
    try:
        memory: tuple = reduce_storage(storage)
    finally:
        storage.__class__ = ours
    return memory


def _received(
    memory: tuple | None,
    layout: TensorLayout,
    index: int,
    nbytes: int,
    requires_grad: bool,
    is_parameter: bool,
) -> VirtualTensor:
    """The tensor in the process that it is sent to. Who has sent it goes on to hold the memory."""
    held = current_runtime().memories[index]
    with uncounted([held]):
        allocation = held.allocate(nbytes)
    values = None
    if memory is not None:
        make, args = memory
        place = layout.offset, layout.shape, layout.stride
        values = torch.empty(0, dtype=layout.dtype).set_(make(*args), *place)
    tensor = wrap(values, index, layout=layout if values is None else None, allocation=allocation)
    tensor.requires_grad_(requires_grad)
    if is_parameter:
        torch_tensors.mark_parameter(tensor)
        return with_kind(tensor, torch.nn.Parameter)
    return tensor


def reduce(tensor: VirtualTensor, protocol: int) -> tuple:
    """Pickle as a CPU tensor (or Parameter) with the same values and attributes."""
    values = _on_host(tensor).requires_grad_(tensor.requires_grad)
    if is_parameter(tensor):
        values = torch.nn.Parameter(values.detach(), tensor.requires_grad)
    values.__dict__.update(attributes(tensor))
    return values.__reduce_ex__(protocol)


def _on_host(tensor: VirtualTensor) -> torch.Tensor:
    """The values in host memory; in one `torch.save`, tensors that share memory share it there."""
    save, values = _under_way.get() or _Save(), tensor.vgpu_values
    if values is not None and _is_plain(values):
        host = _sharing(save, tensor, values)
    else:
        host = tensor.detach().cpu()
    save.note(host, tensor.vgpu_index)
    return host


def _sharing(save: _Save, tensor: VirtualTensor, values: torch.Tensor) -> torch.Tensor:
    storage = values.untyped_storage()
    number = torch_tensors.storage_id(storage)
    if number not in save.copies:
        save.copies[number] = storage if _is_written_itself(tensor, storage) else storage.cpu()
        copies.account(current_runtime(), tensor.vgpu_index, None, storage.nbytes())
    host = save.copies[number]
    place = (host, values.storage_offset(), values.shape, values.stride())
    return torch.empty(0, dtype=values.dtype).set_(*place)


def _is_written_itself(tensor: VirtualTensor, storage: torch.UntypedStorage) -> bool:
    """Whether torch, too, may write the storage, which then is one with `tensor.storage()`: if it
    is to return to its device, and torch can read it."""
    returns = naming().saved_on(tensor.vgpu_index) is not None
    return (
        returns
        and _under_way.get() is not None
        and isinstance(storage, VirtualStorage)
        and torch_tensors.storage_device(storage).type == "cpu"
    )


def _is_plain(values: torch.Tensor) -> bool:
    return values.layout is torch.strided and not (
        values.is_meta or values.is_neg() or values.is_conj()
    )


def _location(storage: STORAGE) -> str | None:
    """torch's question where a storage is that is being saved."""
    save = _under_way.get()
    if isinstance(storage, VirtualStorage):
        return naming().saved_on(storage.vgpu_allocation.memory.device)
    if not isinstance(storage, torch.UntypedStorage):
        return None
    index = None if save is None else save.devices.get(torch_tensors.storage_id(storage))
    return None if index is None else naming().saved_on(index)


def restore(storage: STORAGE, location: str) -> torch.UntypedStorage | None:
    """torch's question where a storage goes that was saved from, or is mapped to, `location`."""
    if not (location.startswith(TYPE) and isinstance(storage, torch.UntypedStorage)):
        return None
    rt, device = current_runtime(), torch.device(location)
    index = rt.current_device if device.index is None else rt.check_index(device.index)
    # A copy, for what torch.load has read cannot become larger.
    values = torch.empty(storage.nbytes(), dtype=torch.uint8, device=rt.backing)
    values.untyped_storage().copy_(storage)
    copies.account(rt, None, index, storage.nbytes())
    return storage_of(values, rt.memories[index].allocate(storage.nbytes()))


def set_storage(rt: Runtime, args: tuple, kwargs: dict) -> VirtualTensor:
    """`tensor.set_(storage, …)`, for storages of the same device. RuntimeError for others."""
    tensor, storage, *place = args
    if not isinstance(storage, VirtualStorage) or storage.device != tensor.device:
        raise RuntimeError(
            f"Attempted to set the storage of a tensor on device {tensor.device} to a storage on "
            f"device {storage.device}: the devices must match. Use tensor.copy_()"
        )
    real = torch_tensors.storage_device(storage)
    values = torch.empty(0, dtype=tensor.dtype, device=real).set_(storage, *place)
    layout = None if storage.has_values else layout_of(values)
    shared = storage.vgpu_allocation
    given = values if layout is None else None
    adopt(tensor, wrap(given, tensor.vgpu_index, layout=layout, allocation=shared))
    return tensor
