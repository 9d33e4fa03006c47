"""Checkpoints as CUDA reads them: a storage that remembers "cuda:1" returns there."""

from __future__ import annotations

import torch

from ...patching import Patches
from ...torch_backend.operations import serialization
from ...torch_backend.private import torch_tensors
from ..device_translation import CUDA, VIRTUAL, number, to_virtual

_BEFORE_VIRTUAL = 4  # torch asks for storages in this order; those of virtual devices have 5


def install(patches: Patches) -> None:
    """Let `torch.load` put storages of "cuda:1" back on that device."""
    entry = (_BEFORE_VIRTUAL, lambda storage: None, _restore)
    registry = [*getattr(*torch_tensors.STORAGE_REGISTRY), entry]
    patches.set(*torch_tensors.STORAGE_REGISTRY, sorted(registry, key=lambda entry: entry[0]))
    patches.replace(torch_tensors.StorageBase, "cuda", _storage_to_cuda)


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if not location.startswith(CUDA):
        return None
    torch.serialization.validate_cuda_device(location)  # its error names a remedy: map_location
    return serialization.restore(storage, str(to_virtual(location)))


def _storage_to_cuda(
    storage: torch.UntypedStorage, device: object = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """`storage.cuda()`, as the function has it that `torch.load` may be given to map locations."""
    restored = serialization.restore(storage, f"{VIRTUAL}:{number(device)}")
    assert restored is not None  # as that is the name of a virtual device
    return restored
