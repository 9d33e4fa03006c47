"""Copies of what one process gives another: made as by pickling, but for what processes share."""

from __future__ import annotations

import ctypes
import io
import multiprocessing.connection
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import pickle
from collections.abc import Sequence
from typing import Any

import torch

_C_NUMBER: Any = ctypes.c_int.__base__  # of all of them

# Tensors are shared by processes (of a GPU by CUDA's handles, of the host in shared memory), and so
# are the means by which they talk.
SHARED = (
    torch.Tensor,
    torch.UntypedStorage,
    multiprocessing.connection.Connection,
    multiprocessing.synchronize.SemLock,
    multiprocessing.sharedctypes.SynchronizedBase,
    ctypes.Array,
    _C_NUMBER,
)


class PickledCopy:
    """Something pickled; `load` makes a copy of it.

    `shared` are kinds of object that are not copied, besides tensors. Raises what `pickle` raises
    for an object that it cannot take.
    """

    def __init__(self, value: object, shared: Sequence[type] = ()) -> None:
        file, self._kept = io.BytesIO(), list[object]()
        _Pickler(file, self._kept, (*SHARED, *shared)).dump(value)
        self._bytes = file.getvalue()

    def load(self) -> object:
        """A copy; classes and functions are those that this process imports."""
        return _Unpickler(io.BytesIO(self._bytes), self._kept).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: list[object], shared: tuple[type, ...]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._kept, self._shared = kept, shared

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, self._shared) or isinstance(obj, torch.nn.Parameter):
            return None
        self._kept.append(obj)
        return len(self._kept) - 1

    def reducer_override(self, obj: Any) -> Any:
        """A parameter is another object, of the same memory."""
        if isinstance(obj, torch.nn.Parameter):
            return torch.nn.Parameter, (obj.detach(), obj.requires_grad)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[object]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: int) -> object:
        kept = self._kept[pid]
        if isinstance(kept, torch.Tensor):  # the memory is shared, and gradients are not
            return kept.detach().requires_grad_(kept.requires_grad)
        return kept
