"""The classes of the program's that inherit DistributedDataParallel, as those of virtual ranks."""

from __future__ import annotations

import functools
from typing import Any

from ..private import c10d as c10d_private
from .wrapper import DistributedDataParallel


@functools.cache
def ours(kind: type) -> type:
    """DistributedDataParallel of virtual ranks; of a class of the program's that inherits torch's,
    one with its methods before ours."""
    if kind is c10d_private.TorchDDP:
        return DistributedDataParallel
    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "_theirs": kind,
    }
    names["__reduce_ex__"] = _reduce
    return type(kind.__name__, (kind, DistributedDataParallel), names)


def _reduce(self: Any, protocol: int) -> tuple:
    return _remade, (self._theirs,), self.__getstate__()


def _remade(kind: type) -> object:
    made: Any = ours(kind)
    return made.__new__(made)
