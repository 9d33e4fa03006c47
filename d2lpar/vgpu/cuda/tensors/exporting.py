"""`torch.export` traces tensors without values, which virtual ones cannot be: it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from ...patching import Patches
from ...torch_backend.tensors.tensor import VirtualTensor
from ..refusals import refusal

_refuse = refusal(
    "torch.export of a model on a GPU",
    "export it on the CPU, with inputs there; the stages of a pipeline that is traced so go to "
    "their devices by build_stage(index, device)",
)


def install(patches: Patches) -> None:
    """Refuse to export models on emulated GPUs, and to trace again what was moved there."""
    patches.replace(torch.export, "export", _unless_virtual(torch.export.export))
    decompose = ExportedProgram.run_decompositions
    patches.replace(ExportedProgram, "run_decompositions", _unless_virtual(decompose))


def _unless_virtual(theirs: Callable[..., object]) -> Callable[..., object]:
    def trace(*args: Any, **kwargs: Any) -> object:
        found = tree_leaves((args, kwargs))
        for what in filter(_has_tensors, tuple(found)):
            found += [*what.parameters(), *what.buffers()]
            found += tree_leaves(getattr(what, "example_inputs", None))
        if any(isinstance(tensor, VirtualTensor) for tensor in found):
            return _refuse()
        return theirs(*args, **kwargs)

    return trace


def _has_tensors(value: object) -> bool:
    return isinstance(value, (nn.Module, ExportedProgram))
