"""What traces models, and is refused: `torch.export` does it with tensors without values, which
virtual ones cannot be, and `torch.jit.trace` does not see what the virtual GPU carries out itself,
such as convolutions, whose results would become constants. Files of scripted models are written and
read by C++, which knows no emulated GPU: they come from the CPU, and are loaded there first."""

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

_refuse_export = refusal(
    "torch.export of a model on a GPU",
    "export it on the CPU, with inputs there; the stages of a pipeline that is traced so go to "
    "their devices by build_stage(index, device)",
)
_refuse_trace = refusal(
    "torch.jit.trace of a model on a GPU", "use torch.compile or torch.jit.script"
)
_refuse_save = refusal(
    "torch.jit.save of a model on a GPU",
    "save model.cpu(); torch.jit.load(file, map_location=device) loads it to any device",
)


def install(patches: Patches) -> None:
    """Refuse to export models on emulated GPUs, and to trace again what was moved there."""
    for owner, name, refuse in (
        (torch.export, "export", _refuse_export),
        (ExportedProgram, "run_decompositions", _refuse_export),
        (torch.jit, "trace", _refuse_trace),
        (torch.jit, "trace_module", _refuse_trace),
        (torch.jit, "save", _refuse_save),
        (torch.jit.RecursiveScriptModule, "save", _refuse_save),
        (torch.jit.RecursiveScriptModule, "save_to_buffer", _refuse_save),
    ):
        patches.replace(owner, name, _unless_virtual(getattr(owner, name), refuse))
    patches.replace(torch.jit, "load", _loading(torch.jit.load))


def _loading(theirs: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> nn.Module:
        loaded = theirs(f, "cpu", *args, **kwargs)
        return loaded if map_location is None else loaded.to(map_location)

    return load


def _unless_virtual(
    theirs: Callable[..., object], refuse: Callable[..., object]
) -> Callable[..., object]:
    def trace(*args: Any, **kwargs: Any) -> object:
        found = tree_leaves((args, kwargs))
        for what in filter(_has_tensors, tuple(found)):
            found += [*what.parameters(), *what.buffers()]
            found += tree_leaves(getattr(what, "example_inputs", None))
        if any(isinstance(tensor, VirtualTensor) for tensor in found):
            return refuse()
        return theirs(*args, **kwargs)

    return trace


def _has_tensors(value: object) -> bool:
    return isinstance(value, (nn.Module, ExportedProgram))
