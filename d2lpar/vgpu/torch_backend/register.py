"""Registering virtual GPUs with torch: the device, its kernels, and what is replaced for it.

torch knows one out-of-tree kind of device, "PrivateUse1"; here it is renamed "vgpu". That cannot be
undone, so it is done when the first virtual device is asked for, and never on real GPUs. Where
torch's own functions ask CUDA or a C++ device guard, which a Python backend cannot supply, those of
`patches/` take their place: they ask `torch.vgpu` for virtual devices and otherwise do what torch's
did.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import torch

from ...machines import Machine
from ..bounds import OLDEST_TORCH
from ..device_naming import TYPE
from ..signals import hold_handlers
from . import kernels
from .cost import host_cost, optimizer_on_host
from .machine import runtime
from .module import autocast, device_module
from .operations import serialization
from .operations.dispatch import Dispatcher
from .patches import (
    accelerator,
    autograd,
    beside,
    compiling,
    data,
    generators,
    pinning,
    staging,
    storages,
)
from .patches.networks import (
    data_parallel,
    losses,
    modules,
    parameters,
    shapes_alone,
)
from .private import torch_autograd
from .tensors.tensor import VirtualTensor

_library: list[torch.library.Library] = []  # kernels live as long as their library
_is_registered = False
_lock = threading.RLock()  # the first uses of devices may be those of several threads


def start(machine: Machine, count: int, backing: torch.device) -> None:
    """Make `machine`, with `count` accelerators or more, this process's virtual machine.

    Registers it with torch the first time. Raises RuntimeError if this torch cannot have a device
    written in Python.
    """
    register_backend()
    with _lock:
        running = runtime.running()
        if running is None or not running.machine.is_like(machine):
            runtime.start(machine.with_accelerators(max(count, len(machine.accelerators))), backing)
        elif running.device_count < count:
            running.grow(running.machine.with_accelerators(count))


def register_backend() -> None:
    """Make "vgpu" a device of torch, once a process; other threads wait until it is one."""
    global _is_registered
    if not _is_registered:
        with _lock:
            if not _is_registered:
                _register()
                _is_registered = True


def _register() -> None:
    setup = _setup_function()
    module = sys.modules[device_module.__name__]
    setup(rename=TYPE, backend_module=module, device_guard=torch_autograd.make_device_guard())
    dispatcher = VirtualTensor.dispatcher = Dispatcher()
    _library.extend([*kernels.kernels(dispatcher), *autocast.kernels()])
    autocast.replace_clearing()
    autograd.replace_backward()
    data_parallel.replace_parallel()
    accelerator.replace_accelerator()
    modules.replace_modules()
    parameters.replace_parameters()
    shapes_alone.replace_sync_batch_norm()
    shapes_alone.replace_grad_scaler()
    losses.replace_ctc_loss()
    pinning.replace_pinning()
    beside.replace_readers()
    generators.replace_generator()
    compiling.refuse_code()
    compiling.replace_compile()
    compiling.replace_flex_attention()
    compiling.replace_tracing()
    staging.replace_staging()
    storages.replace_storages()
    data.replace_data()
    serialization.install()
    host_cost.count_python()
    optimizer_on_host.take_time()
    hold_handlers()


def _setup_function() -> Callable[..., None]:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    try:
        from torch.utils.backend_registration import (
            _setup_privateuseone_for_python_backend as setup,
        )
    except ImportError as error:
        raise RuntimeError(
            f"virtual GPUs need torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer, and this is "
            f"torch {torch.__version__}"
            + ("" if version < OLDEST_TORCH else ", which no longer lets Python define a device")
        ) from error
    return setup
