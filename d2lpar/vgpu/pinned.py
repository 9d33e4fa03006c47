"""Which host tensors are page-locked for virtual devices: a mark on the storage, no real lock."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class PinnedMemory:
    """The marked storages of one process; a mark ends with its storage."""

    def __init__(self) -> None:
        self._marked: dict[int, StorageWeakRef] = {}

    def mark(self, tensor: torch.Tensor) -> torch.Tensor:
        """Treat the storage of a CPU tensor as page-locked."""
        storage = tensor.untyped_storage()
        for key in [key for key, ref in self._marked.items() if ref.expired()]:
            del self._marked[key]
        self._marked[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def __contains__(self, tensor: torch.Tensor) -> bool:
        ref = self._marked.get(tensor.untyped_storage()._cdata)
        return ref is not None and not ref.expired()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A page-locked copy of a CPU tensor; the tensor itself if it is page-locked already.

        Raises RuntimeError for tensors that are not on the CPU.
        """
        if tensor.device.type != "cpu":
            raise RuntimeError(
                f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned"
            )
        return tensor if tensor in self else self.mark(tensor.clone())
