"""Making and moving tensors on devices that are called "cuda:1"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import _getframe  # documented, and quicker than `inspect.currentframe`

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...patching import Patches
from ...torch_backend.private import torch_devices, torch_modes, torch_tensors
from ...torch_backend.tensors import wrapper_tensors
from ...torch_backend.tensors.tensor import VirtualTensor
from ..device_translation import (
    CUDA,
    VIRTUAL,
    cuda,
    is_backing,
    local_number,
    to_cuda,
    to_virtual,
    translated,
)

LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
NEW = ("new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def install(patches: Patches) -> None:
    """Replace what makes and moves tensors, streams, events and generators."""
    for owner, name, make in _table():
        theirs = getattr(owner, name)
        patches.replace(owner, name, make(theirs))
        _let_scripts_call(patches, theirs, getattr(owner, name))
    for name in ("Event", "Generator", "Stream"):
        theirs = getattr(torch, name)
        patches.replace_class(torch, name, _on_device(theirs))
    _let_lazy_parameters_move(patches)


def _table() -> Iterator[tuple[object, str, Callable[[Callable], Callable]]]:
    """Owner and name of each function, and what makes ours of it."""
    yield from ((owner, name, _with_device) for owner, name in torch_modes.factories())
    yield from ((torch, f"{name}_like", _with_device) for name in LIKE)
    yield torch, "normal", _with_device
    yield from ((torch.Tensor, name, _with_device) for name in NEW)
    yield torch.Tensor, "_make_wrapper_subclass", _make_wrapper_subclass
    yield torch.Tensor, "to", _to
    yield *torch_devices.PARSE_TO, _parse_to
    yield torch.Tensor, "cuda", _cuda
    yield torch.Tensor, "type", _type
    yield torch_modes.DeviceContext, "__torch_function__", _default_device
    yield torch_tensors.LazyTensor, "materialize", _materialize


def _let_scripts_call(patches: Patches, theirs: Callable, ours: Callable) -> None:
    """TorchScript knows the functions that it may call by their identity."""
    builtins = torch_modes.script_builtins()
    if id(theirs) in builtins:
        patches.set_item(builtins, id(ours), builtins[id(theirs)])


def _with_device(theirs: Callable) -> Callable:
    def call(*args: object, **kwargs: object) -> object:
        if "device" in kwargs:
            kwargs = translated(kwargs, _getframe(2))
        return theirs(*args, **kwargs)

    return call


def _make_wrapper_subclass(theirs: Callable) -> Callable:
    """Subclasses that wrap others, such as AsyncCollectiveTensor, are where what they wrap is."""
    make = _with_device(theirs)

    def call(kind: type, *args: object, **kwargs: object) -> object:
        wrapper_tensors.answer_for(kind)
        return make(kind, *args, **kwargs)

    return call


def _to(theirs: Callable) -> Callable:
    def to(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        caller = _getframe(2)
        if args and not is_backing(args[0], caller):
            args = (to_virtual(args[0]), *args[1:])
        return theirs(self, *args, **translated(kwargs, caller))

    return to


def _parse_to(theirs: Callable) -> Callable:
    """What `Module.to` is told: there, too, a number is one of CUDA's."""

    def parse(*args: object, **kwargs: object) -> object:
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (torch.device(CUDA, args[0]), *args[1:])
        return theirs(*args, **kwargs)

    return parse


def _cuda(_: Callable) -> Callable:
    def cuda(
        self: torch.Tensor,
        device: object = None,
        non_blocking: bool = False,
        *,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        target = to_virtual(CUDA if device is None else device)
        if not (isinstance(target, torch.device) and target.type == VIRTUAL):
            raise RuntimeError(f"Invalid device, must be cuda device: {device}")
        return self.to(target, non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def _type(theirs: Callable) -> Callable:
    def type(
        self: torch.Tensor, dtype: object = None, non_blocking: bool = False, **kwargs: object
    ) -> object:
        if dtype is None:
            return theirs(self).replace(f"torch.{VIRTUAL}.", f"torch.{CUDA}.")
        found = cuda_dtype(dtype)
        if found is None:
            return theirs(self, named(dtype), non_blocking, **kwargs)
        target = self.device if isinstance(self, VirtualTensor) else cuda(local_number())
        return self.to(target, found, non_blocking=non_blocking)

    return type


def named(kind: object) -> object:
    """A type of tensors by its name, as torch takes it of the classes that stand for its own."""
    return f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else kind


def cuda_dtype(kind: object) -> torch.dtype | None:
    """The dtype of "torch.cuda.FloatTensor", given as a text or the class; None for others."""
    if not isinstance(kind, str):
        return getattr(kind, "cuda_dtype", None)
    package, _, name = kind.rpartition(".")
    return getattr(torch.cuda, name).cuda_dtype if package == "torch.cuda" else None


def _default_device(theirs: Callable) -> Callable:
    def __torch_function__(  # noqa: N807, as torch calls it
        self: torch_modes.DeviceContext,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        shown, self.device = self.device, to_virtual(self.device)
        try:
            return theirs(self, func, types, args, kwargs)
        finally:
            self.device = shown

    return __torch_function__


def _materialize(theirs: Callable) -> Callable:
    def materialize(
        self: torch.Tensor,
        shape: Sequence[int],
        device: object = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        theirs(self, shape, to_virtual(device), dtype)

    return materialize


def _let_lazy_parameters_move(patches: Patches) -> None:
    """Parameters without a shape allow some methods only, and know them by identity."""
    known = torch_tensors.METHODS_OF_LAZY_TENSORS
    patches.set(*known, [*getattr(*known), torch.Tensor.to, torch.Tensor.cuda])
    for kind in (UninitializedParameter, UninitializedBuffer):
        patches.set(kind, "__new__", _lazy_new(kind.__new__))
        patches.set(kind, "device", property(_lazy_device))
        patches.set(kind, "is_cuda", property(lambda lazy: _lazy_device(lazy).type == CUDA))


def _lazy_new(theirs: Callable) -> Callable:
    def new(
        cls: type,
        requires_grad: bool = True,
        device: object = None,
        dtype: torch.dtype | None = None,
    ) -> object:
        options = {"requires_grad": requires_grad} if cls is UninitializedParameter else {}
        device = to_virtual(torch.get_default_device() if device is None else device)
        return theirs(cls, **options, device=device, dtype=dtype)

    return new


def _lazy_device(lazy: torch.Tensor) -> torch.device:
    home = lazy.__dict__.get("vgpu_device")
    return torch.device("cpu") if home is None else to_cuda(home)


# --- streams, events, generators ------------------------------------------------------------------


def _on_device(theirs: type) -> Callable:
    """What makes a stream, an event or a generator: it takes a device first, or none."""

    def make(*args: object, **kwargs: object) -> object:
        if args:
            return theirs(to_virtual(args[0]), *args[1:], **kwargs)
        return theirs(**translated(kwargs, _getframe(2)))

    return make
