"""Host tensors that a non-blocking copy may still be writing, or reading.

They are plain CPU tensors, and torch has no hook for those. So while such a copy is under way a
tensor gets a class of ours, which looks at every use; it is a plain `torch.Tensor` again as soon as
the host has waited for the copy, or has been warned. A view of it is watched as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...races.call_sites import call_site_of, mark
from ...races.stream_sanitizer import Hazard, stream_name
from ...races.vector_clock import Access, StreamKey, VectorClocks
from ..private import torch_tensors

KEPT_COPIES = 1000

# What says something of a tensor and nothing of its values.
_ABOUT = {
    *("__get__", "__set__", "__len__", "__hash__", "size", "stride", "dim", "ndimension", "numel"),
    *("nelement", "element_size", "storage_offset", "data_ptr", "untyped_storage", "storage"),
    *("is_contiguous", "is_pinned", "is_floating_point", "is_complex", "is_signed", "get_device"),
    *(
        "is_inference",
        "is_shared",
        "register_hook",
        "retain_grad",
        "requires_grad_",
        "is_same_size",
    ),
}
_TAKES_APART = {"__reduce_ex__", "__deepcopy__", "__repr__"}  # these note the class
_COPIES = {"to", "copy_", "cuda", "vgpu"}  # between devices: streams order them, not the host
_WRITES = {
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"),
    *("__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}


class InFlightTensor(torch.Tensor):
    """A CPU tensor that a copy between host and device still uses: `vgpu_copies`."""

    vgpu_copies: InFlightCopies

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = func.__name__
        if name not in _ABOUT:
            for tensor in _in_flight((args, list(kwargs.values()))):
                tensor.vgpu_copies.owner.settle()
        tensors = _in_flight((args, list(kwargs.values())))
        if name in _TAKES_APART:
            _used(tensors, False)
            with _plain(tensors):
                return func(*args, **kwargs)
        with torch_tensors.as_plain_tensors():
            result = func(*args, **kwargs)
        if name not in _ABOUT and tensors:
            _look(name, tensors, args, kwargs, result)
        return result


def _look(
    name: str, tensors: list[InFlightTensor], args: tuple, kwargs: dict, result: object
) -> None:
    """Whether a call that is over has used the values of its unfinished arguments."""
    results = list(_tensors(result))
    if name in _COPIES and any(map(_is_virtual, (*_tensors(args), *results))):
        return
    written = _in_flight([kwargs.get("out")])
    if name in _WRITES or (name.endswith("_") and not name.endswith("__")):
        written += _in_flight(args[:1])
    _used(written, True)
    watched = {t.vgpu_copies.key: t.vgpu_copies for t in tensors if type(t) is InFlightTensor}
    shared = [None if _is_virtual(t) else watched.get(_key(t)) for t in results]
    if results and all(shared) and not written:
        for tensor, copies in zip(results, shared, strict=True):
            if copies is not None:
                copies.watch(tensor)
        return
    _used([t for t in tensors if all(t is not other for other in written)], False)


@contextmanager
def _plain(tensors: list[InFlightTensor]) -> Iterator[None]:
    """Make the tensors plain in the block, so that copies and pickles of them are."""
    watched: list[tuple[torch.Tensor, InFlightCopies]] = [
        (tensor, tensor.vgpu_copies) for tensor in tensors if type(tensor) is InFlightTensor
    ]
    for tensor, _ in watched:
        tensor.__class__ = torch.Tensor
        del tensor.__dict__["vgpu_copies"]
    try:
        yield
    finally:
        for tensor, copies in watched:
            tensor.__class__ = InFlightTensor
            tensor.__dict__["vgpu_copies"] = copies


def _used(tensors: list[InFlightTensor], writes: bool) -> None:
    for tensor in tensors:
        if type(tensor) is InFlightTensor:
            tensor.vgpu_copies.used(tensor, writes)


class InFlightCopies:
    """The copies from and to one host storage that the host has not waited for."""

    def __init__(self, owner: HostCopies, tensor: torch.Tensor) -> None:
        self.owner = owner
        self.key = _key(tensor)
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.written: Access | None = None
        self.reads: dict[StreamKey, Access] = {}
        self._watched: list[weakref.ref[torch.Tensor]] = []

    def watch(self, tensor: torch.Tensor) -> None:
        """Look at all uses of a tensor on this storage (not if a program has given it a class)."""
        if type(tensor) is torch.Tensor:
            tensor.__class__ = InFlightTensor
            tensor.__dict__["vgpu_copies"] = self
            self._watched.append(weakref.ref(tensor))

    def release(self) -> None:
        """Make the tensors plain again."""
        for ref in self._watched:
            tensor = ref()
            if tensor is not None and tensor.__class__ is InFlightTensor:
                _make_plain(tensor)
        self._watched.clear()

    def settle(self, order: VectorClocks) -> bool:
        """Forget copies that the host knows to be over; whether none is left."""
        if self.written is not None and order.is_done(self.written):
            self.written = None
        self.reads = {s: read for s, read in self.reads.items() if not order.is_done(read)}
        return self.written is None and not self.reads

    def used(self, tensor: torch.Tensor, writes: bool) -> None:
        """The host uses a tensor: report it, and be done with this storage, if that is early."""
        before = self.written
        if before is None and writes and self.reads:
            before = next(iter(self.reads.values()))
        if before is not None:
            self.owner.forget(self)
            self.owner.report(_hazard(tensor, before, before is self.written, writes))


def _make_plain(tensor: torch.Tensor) -> None:
    tensor.__class__ = torch.Tensor
    del tensor.__dict__["vgpu_copies"]


class HostCopies:
    """All copies of one virtual machine that its host has not waited for."""

    def __init__(self, order: VectorClocks, report: Callable[[Hazard], None]) -> None:
        self._order = order
        self.report = report
        self._copies: dict[int, InFlightCopies] = {}

    def note(self, tensor: torch.Tensor, access: Access, *, writes: bool) -> None:
        """A non-blocking copy writes (or reads) the tensor of the host."""
        if len(self._copies) > KEPT_COPIES:
            self.settle()
        key = _key(tensor)
        copies = self._copies.get(key)
        if copies is None or copies.storage.expired():
            copies = self._copies[key] = InFlightCopies(self, tensor)
        if writes:
            copies.written = access
        else:
            copies.reads[access[0]] = access
        copies.watch(tensor)

    def check(self, tensor: torch.Tensor, access: Access, *, writes: bool) -> None:
        """A copy is queued that uses a tensor of the host: other streams' copies come first."""
        copies = self._copies.get(_key(tensor)) if self._copies else None
        if copies is None or copies.storage.expired():
            return
        before = [copies.written, *(copies.reads.values() if writes else ())]
        for other in before:
            if other is not None and not self._order.is_before(other, access[0]):
                self.forget(copies)
                self.report(_hazard(tensor, other, other is copies.written, writes))
                return

    def settle(self) -> None:
        """The host has waited for something: make tensors whose copies are over plain again."""
        for copies in list(self._copies.values()):
            if copies.storage.expired() or copies.settle(self._order):
                self.forget(copies)

    def forget(self, copies: InFlightCopies) -> None:
        """Watch the tensors on this storage no longer."""
        copies.release()
        if self._copies.get(copies.key) is copies:
            del self._copies[copies.key]


def _hazard(tensor: torch.Tensor, before: Access, was_written: bool, writes: bool) -> Hazard:
    first, second = call_site_of(before[2]), call_site_of(mark())
    size = " × ".join(map(str, tensor.shape)) or "one value"
    what = f"a CPU tensor of {size} {str(tensor.dtype).removeprefix('torch.')}"
    doing = "write" if was_written else "read"
    done = "overwritten" if writes else "read"
    text = (
        f"{what} is {done} at {second}, while the non-blocking copy on {stream_name(before[0])} "
        f"that was started at {first} may still {doing} it. Wait for it first: call "
        "synchronize() on the stream or the device, or on an event recorded after the copy."
    )
    return Hazard("host write" if writes else "host read", first, second, text)


def _key(tensor: torch.Tensor) -> int:
    return torch_tensors.storage_id(tensor.untyped_storage())


def _is_virtual(tensor: torch.Tensor) -> bool:
    return "vgpu_allocation" in tensor.__dict__


def _tensors(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _in_flight(value: object) -> list[InFlightTensor]:
    return [tensor for tensor in _tensors(value) if type(tensor) is InFlightTensor]
