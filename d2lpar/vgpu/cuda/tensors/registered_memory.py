"""Memory that a program has already, and page-locks by its address.

torch.distributed.checkpoint does so with the CUDA runtime's `cudaHostRegister`, where its default
stager copies a state for `async_save`.
"""

from __future__ import annotations

import importlib

from ...memory import pinned
from ...patching import Patches
from ...torch_backend.machine.runtime import current_runtime

_BY_ADDRESS = "torch.cuda._pin_memory_utils"


def install(patches: Patches) -> None:
    """Replace torch's two functions, where this torch has them."""
    try:
        functions = importlib.import_module(_BY_ADDRESS)
    except ModuleNotFoundError:
        return
    patches.replace(functions, "pin_memory", _pin_memory)
    # What torch calls when such memory goes, perhaps after the block.
    patches.set(functions, "unpin_memory", pinned.unregister)


def _pin_memory(data_ptr: int, size: int) -> None:
    current_runtime().pinned.register(data_ptr, size)
