"""`torch.export` of a model on an emulated GPU: of a copy on the host, whose graph is moved then.

torch traces a model with tensors that have no values, which virtual tensors cannot stand for. So
the copy has no values either; the program that comes of it has the model's own parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves, tree_map_only

from ...patching import Patches
from ...torch_backend.tensors.tensor import VirtualTensor
from ..refusals import refusal

_refuse = refusal(
    "torch.export.export",
    "the model or its inputs are on several devices: move both to one, or export on the CPU",
)
_NOTE = (
    "exported was a copy of the model on the CPU, as virtual GPUs have no FakeTensors: in "
    "forward() make tensors where others are (device=x.device), and on no device by its name"
)


def install(patches: Patches) -> None:
    """Let models on emulated GPUs be exported."""
    patches.replace(torch.export, "export", _export(torch.export.export))
    decompose = ExportedProgram.run_decompositions
    patches.replace(ExportedProgram, "run_decompositions", _run_decompositions(decompose))


def _export(theirs: Callable[..., ExportedProgram]) -> Callable[..., object]:
    def export(mod: nn.Module, *args: Any, **kwargs: Any) -> object:
        tensors = [*mod.parameters(), *mod.buffers(), *tree_leaves((args, kwargs))]
        devices = {t.device for t in tensors if isinstance(t, torch.Tensor)}
        if not any(isinstance(tensor, VirtualTensor) for tensor in tensors):
            return theirs(mod, *args, **kwargs)
        if len(devices) > 1:
            return _refuse()
        on_host = tree_map_only(VirtualTensor, _without_values, (args, kwargs))
        try:
            program = theirs(_copied(mod), *on_host[0], **on_host[1])
        except Exception as error:
            error.add_note(_NOTE)
            raise
        return _moved(program, _tensors_of(mod), devices.pop(), *args, **kwargs)

    return export


def _run_decompositions(theirs: Callable[..., ExportedProgram]) -> Callable[..., ExportedProgram]:
    """The same for a program that has been exported: torch traces it once more."""

    def run_decompositions(self: ExportedProgram, *args: Any, **kwargs: Any) -> ExportedProgram:
        own = {**self.state_dict, **self.constants}
        tensors = [t for t in (*own.values(), *tree_leaves(self.example_inputs)) if _is_virtual(t)]
        if not tensors:
            return theirs(self, *args, **kwargs)
        program = theirs(_program_on_host(self), *args, **kwargs)
        return _moved(program, own, tensors[0].device, *(self.example_inputs or ((), {})))

    return run_decompositions


def _is_virtual(value: object) -> bool:
    return isinstance(value, VirtualTensor)


def _program_on_host(program: ExportedProgram) -> ExportedProgram:
    """A copy of a program, with tensors of the host that have no values."""
    copied: Any = copy.copy(program)
    vars(copied)["_graph_module"] = copy.deepcopy(program.graph_module)
    for node, theirs in zip(copied.graph.nodes, program.graph.nodes, strict=True):
        node.name = theirs.name  # a copy may have another for `input`
    for name in ("_state_dict", "_constants", "_example_inputs"):
        kept = getattr(program, name)
        setattr(copied, name, tree_map_only(VirtualTensor, _without_values, kept))
    return move_to_device_pass(copied, "cpu")


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host of the same kind, with any values."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _copied(mod: nn.Module) -> nn.Module:
    """The module on the host; what is one tensor in it is one in the copy."""
    attributes = [value for part in mod.modules() for value in vars(part).values()]
    tensors = [*mod.parameters(), *mod.buffers(), *attributes]
    return copy.deepcopy(
        mod, {id(t): _without_values(t) for t in tensors if isinstance(t, VirtualTensor)}
    )


def _moved(
    program: ExportedProgram,
    own: dict[str, Any],
    device: torch.device,
    args: tuple,
    kwargs: dict | None = None,
    **options: object,
) -> ExportedProgram:
    """The program on the device, with the inputs, and by their names the module's `own` tensors."""
    program.example_inputs = (args, kwargs or {})
    _give(program, own)
    program = move_to_device_pass(program, device)
    _give(program, own)  # the pass makes parameters anew
    return program


def _tensors_of(mod: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and what else a module has, by their names."""
    found: dict[str, Any] = mod.state_dict(keep_vars=True) | dict(mod.named_buffers())
    return found | {
        f"{path}.{name}".removeprefix("."): value
        for path, part in mod.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _give(program: ExportedProgram, own: dict[str, Any]) -> None:
    for kept in (program.state_dict, program.constants):
        for name in kept.keys() & own.keys():
            kept[name] = own[name]
