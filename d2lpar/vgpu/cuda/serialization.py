"""Checkpoints as CUDA writes and reads them: each storage remembers "cuda:1", and returns there."""

from __future__ import annotations

import torch

from ..vgpu import _torch, saving
from .devices import CUDA, VIRTUAL, inward, number
from .patches import Patches

_BEFORE_VIRTUAL = 4  # torch asks for storages in this order; those of virtual devices have 5


def install(patches: Patches) -> None:
    places: dict[int, int] = {}  # the device of each storage that a `torch.save` has met
    on_host, save = saving._on_host, torch.save

    def noting_on_host(tensor: torch.Tensor) -> torch.Tensor:
        host = on_host(tensor)
        places[host.untyped_storage()._cdata] = tensor._index
        return host

    def forgetting_save(*args: object, **kwargs: object) -> None:
        try:
            save(*args, **kwargs)
        finally:
            places.clear()

    def tag(storage: torch.UntypedStorage) -> str | None:
        index = places.get(storage._cdata)
        return None if index is None else f"{CUDA}:{index}"

    patches.set(saving, "_on_host", noting_on_host)
    for module in (torch, torch.serialization):
        patches.replace(module, "save", forgetting_save)
    entry = (_BEFORE_VIRTUAL, tag, _restore)
    registry = [*getattr(*_torch.STORAGE_REGISTRY), entry]
    patches.set(*_torch.STORAGE_REGISTRY, sorted(registry, key=lambda entry: entry[0]))
    patches.replace(_torch.StorageBase, "cuda", _storage_to_cuda)


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if not location.startswith(CUDA):
        return None
    return saving._restore(storage, str(inward(location)))


def _storage_to_cuda(
    storage: torch.UntypedStorage, device: object = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """`storage.cuda()`, as the function has it that `torch.load` may be given to map locations."""
    return saving._restore(storage, f"{VIRTUAL}:{number(device)}")
