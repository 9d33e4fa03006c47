"""The copies on the host that checkpoints in the background are written from.

torch copies a storage once for all of its views, and keeps the copy for the next time. So it is
here; only what a program has attached to a tensor is copied beside, not what is ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ...late_imports import LateImports
from ...patching import FOR_GOOD
from ..tensors.tensor import VirtualTensor, attributes

STAGER = "torch.distributed.checkpoint._state_dict_stager"


def replace_staging() -> None:
    """Let states on virtual devices be copied so, as soon as a program imports what does it."""
    LateImports([STAGER], _replace_in)


def _replace_in(module: ModuleType) -> None:
    stager: Any = getattr(module, "StateDictStager", None)
    if hasattr(stager, "_offload_tensor") and hasattr(stager, "_stage_untyped_storage"):
        FOR_GOOD.set(stager, "_offload_tensor", _copying(stager._offload_tensor))


def _copying(theirs: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(theirs)
    def copy(self: Any, x: torch.Tensor, memo: dict, *args: Any, **kwargs: Any) -> torch.Tensor:
        if type(x).__name__ == "ShardedTensor":  # loaded by whoever has one
            raise NotImplementedError(
                "async_save cannot copy a ShardedTensor to the host, in torch neither: take the "
                "state from torch.distributed.checkpoint.state_dict.get_state_dict, which gives "
                "DTensors, or save it with dcp.save"
            )
        if not isinstance(x, VirtualTensor):
            return theirs(self, x, memo, *args, **kwargs)
        made = memo[id(x)] = _view_on_host(self, x, memo, *args, **kwargs)
        for name, value in attributes(x).items():
            setattr(made, name, self.deepcopy_with_tensor_offload(value, memo, *args, **kwargs))
        return made

    return copy


def _view_on_host(self: Any, x: VirtualTensor, memo: dict, *args: Any, **kw: Any) -> torch.Tensor:
    """The same view of the copy of its storage."""
    if not x.untyped_storage().nbytes():
        return torch.empty_like(x, device="cpu")
    storage = x.untyped_storage()
    if id(storage) not in memo:
        memo[id(storage)] = self._stage_untyped_storage(storage, *args, **kw)
    place = (memo[id(storage)], x.storage_offset(), x.size(), x.stride())
    return torch.empty(0, dtype=x.dtype).set_(*place)
