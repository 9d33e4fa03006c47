"""What torch, or what stands for CUDA's driver, keeps for a process in variables of its modules,
which virtual ranks would share.

Each rank has its own, as each process has; a rank begins with what a fresh import has, and with the
methods of modules as whoever starts it finds them.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, ItemsView
from functools import partial
from typing import Any

import torch

from ...races import sync_debug
from ...torch_backend.tensors import virtual_storage

Variable = tuple[str, str, str]  # a module, a class in it ("": none), its attribute

_HOOKS = (
    *("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_pre_hooks"),
    *("_global_forward_hooks", "_global_forward_hooks_always_called"),
    *("_global_forward_hooks_with_kwargs", "_global_buffer_registration_hooks"),
    *("_global_module_registration_hooks", "_global_parameter_registration_hooks"),
)
_OPTIMIZERS = "torch.optim.optimizer"
_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_OURS = __name__.partition(".")[0] + "."


def _our_hooks(name: str) -> OrderedDict[int, Callable[..., object]]:
    """Those of all optimizers by which the package counts what a step takes."""
    hooks = vars(sys.modules[_OPTIMIZERS])[name]
    ours = {key: hook for key, hook in hooks.items() if str(getattr(hook, "__module__", "")).startswith(_OURS)}
    return OrderedDict(ours)


_FRESH: dict[Variable, Callable[[], object]] = {
    # `enable_wrap`, in which modules are made and so parameters exchanged
    ("torch.distributed.fsdp.wrap", "_ConfigAutoWrap", "in_autowrap_context"): bool,
    ("torch.distributed.fsdp.wrap", "_ConfigAutoWrap", "wrapper_cls"): lambda: None,
    ("torch.distributed.fsdp.wrap", "_ConfigAutoWrap", "kwargs"): dict,
    # what FSDP measures while it gathers the state of an optimizer
    ("torch.distributed.fsdp._debug_utils", "SimpleProfiler", "profiling"): set,
    ("torch.distributed.fsdp._debug_utils", "SimpleProfiler", "results"): (
        lambda: defaultdict(float)
    ),
    # hooks of all modules and all optimizers of a process, as torch's trackers of memory use them
    **{("torch.nn.modules.module", "", name): OrderedDict for name in _HOOKS},
    **{(_OPTIMIZERS, "", name): partial(_our_hooks, name) for name in _OPTIMIZER_HOOKS},
    # what `make_fx` traces with, which may wait in the middle for a collective
    ("torch.fx._symbolic_trace", "", "CURRENT_PATCHER"): lambda: None,
    ("torch.fx.experimental.proxy_tensor", "", "_CURRENT_MAKE_FX_TRACER"): lambda: None,
    # what programs set of checkpoints for a while, and of `nn.Module.to`
    ("torch.utils.checkpoint", "", "_checkpoint_debug_enabled"): lambda: None,
    ("torch.utils.checkpoint", "", "_enable_checkpoint_early_stop"): lambda: None,
    ("torch.utils.checkpoint", "DefaultDeviceType", "_default_device_type"): lambda: None,
    ("torch.__future__", "", "_overwrite_module_params_on_conversion"): bool,
    ("torch.__future__", "", "_swap_module_params_on_conversion"): bool,
    # what becomes of calls that make the host wait
    (sync_debug.__name__, "", "_mode"): lambda: sync_debug.IGNORED,
    # what these trackers replace for a while
    ("torch", "UntypedStorage", "resize_"): lambda: virtual_storage.resize,
}

# What a trace replaces until it ends, and a rank may wait in the middle: another would trace on top
# of that, and put back what it has found.
_TRACED = [("torch.nn.modules.module", "Module", name) for name in ("__call__", "__getattr__")]

_ALL = _FRESH.keys() | {*_TRACED}
_found: dict[Variable, object] = {}  # whoever has them, since it is imported


class ModuleVariables:
    """The variables of one process; at first as after a fresh import."""

    def __init__(self) -> None:
        self._values: dict[Variable, Any] = {
            variable: getattr(torch.nn.Module, variable[2]) for variable in _TRACED
        }

    def save(self) -> None:
        """Keep what the running process has, of the modules that are imported."""
        self._values = {variable: getattr(owner, variable[2]) for variable, owner in _owners()}

    def restore(self) -> None:
        """Let the running process have what was kept."""
        for variable, owner in _owners():
            kept = variable in self._values
            value = self._values[variable] if kept else _FRESH[variable]()
            if getattr(owner, variable[2]) is not value:  # to change a class slows its use down
                setattr(owner, variable[2], value)


def _owners() -> ItemsView[Variable, object]:
    """The classes and modules that have the variables, where this torch has them."""
    for variable in _ALL - _found.keys():
        module, owner, name = variable
        found: object = sys.modules.get(module)
        found = getattr(found, owner, None) if owner else found
        if hasattr(found, name):
            _found[variable] = found
    return _found.items()
