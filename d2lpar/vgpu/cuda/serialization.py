"""Checkpoints as CUDA writes and reads them: each storage remembers "cuda:1", and returns there."""

from __future__ import annotations

import torch

from ..torch_backend import serialization, torch_private
from .device_translation import CUDA, VIRTUAL, inward, number
from .patches import Patches

_BEFORE_VIRTUAL = 4  # torch asks for storages in this order; those of virtual devices have 5


def install(patches: Patches) -> None:
    places: dict[int, int] = {}  # the device of each storage that a `torch.save` has met
    on_host, save = serialization._on_host, torch.save

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

    patches.set(serialization, "_on_host", noting_on_host)
    for module in (torch, torch.serialization):
        patches.replace(module, "save", forgetting_save)
    entry = (_BEFORE_VIRTUAL, tag, _restore)
    registry = [*getattr(*torch_private.STORAGE_REGISTRY), entry]
    patches.set(*torch_private.STORAGE_REGISTRY, sorted(registry, key=lambda entry: entry[0]))
    patches.replace(torch_private.StorageBase, "cuda", _storage_to_cuda)


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if not location.startswith(CUDA):
        return None
    return serialization._restore(storage, str(inward(location)))


def _storage_to_cuda(
    storage: torch.UntypedStorage, device: object = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """`storage.cuda()`, as the function has it that `torch.load` may be given to map locations."""
    return serialization._restore(storage, f"{VIRTUAL}:{number(device)}")
