"""`torch.backends.cuda.cufft_plan_cache`: how many plans cuFFT may keep for each device.

Transforms need no plans here, so that none are kept; the limit is as programs set it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
import torch.backends.cuda

from .device_translation import place
from .patches import Patches

DEFAULT = 4096  # cuFFT's of CUDA 10 and later: CuFFTPlanCache.h


def install(patches: Patches) -> None:
    """Replace functions that ask cuFFT, and a cache of caches for another number of devices."""
    cuda = torch.backends.cuda
    functions = {function.__name__: function for function in _Limits().functions()}
    for name, function in functions.items():
        patches.replace(torch, name, function)
    of_cache = {
        "size": ("_cufft_get_plan_cache_size", _READ_ONLY),
        "max_size": (
            "_cufft_get_plan_cache_max_size",
            functions["_cufft_set_plan_cache_max_size"],
        ),
    }
    for name, (getter, setter) in of_cache.items():
        attribute = cuda.cuFFTPlanCacheAttrContextProp(functions[getter], setter)
        patches.set(cuda.cuFFTPlanCache, name, attribute)
    patches.set(cuda, "cufft_plan_cache", cuda.cuFFTPlanCacheManager())


_READ_ONLY = (
    ".size is a read-only property showing the number of plans currently in the cache. To change "
    "the cache capacity, set cufft_plan_cache.max_size."
)


class _Limits:
    """The limit of each device, under the names that torch calls."""

    def __init__(self) -> None:
        self._limits: defaultdict[int | None, int] = defaultdict(lambda: DEFAULT)

    def functions(self) -> tuple[Callable, ...]:
        return (
            self._cufft_get_plan_cache_size, self._cufft_get_plan_cache_max_size,
            self._cufft_set_plan_cache_max_size, self._cufft_clear_plan_cache,
        )  # fmt: skip

    def _cufft_get_plan_cache_size(self, device_index: int) -> int:
        place(device_index)
        return 0

    def _cufft_get_plan_cache_max_size(self, device_index: int) -> int:
        return self._limits[place(device_index).index]

    def _cufft_set_plan_cache_max_size(self, device_index: int, max_size: int) -> None:
        if max_size < 0:
            raise RuntimeError(
                f"cuFFT plan cache size must be non-negative, but got {max_size}: 0 keeps no plans"
            )
        self._limits[place(device_index).index] = max_size

    def _cufft_clear_plan_cache(self, device_index: int) -> None:
        place(device_index)
