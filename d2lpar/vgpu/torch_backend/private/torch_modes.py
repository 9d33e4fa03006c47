"""What torch asks before an operation: modes of functions and of dispatch, the default device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.fx.experimental.proxy_tensor
import torch.utils._device
import torch.utils._python_dispatch


def function_modes() -> list[torch.overrides.TorchFunctionMode]:
    """The function modes of this thread, the topmost last."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(i) for i in range(count)]


def leave_function_mode(mode: torch.overrides.TorchFunctionMode) -> None:
    """Take a function mode off this thread's stack, wherever it is: torch takes the topmost one.

    If torch has taken this one so for another, which ended first, the topmost is that other's.
    """
    modes = function_modes()
    if any(other is mode for other in modes):
        modes = [other for other in modes if other is not mode]
    elif modes and modes[-1] is not default_device_context():  # which is ended by its own place
        modes.pop()
    _set_function_modes(modes)


def _set_function_modes(modes: Sequence[torch.overrides.TorchFunctionMode]) -> None:
    for _ in function_modes():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def set_default_device(device: torch.device | None) -> None:
    """`torch.set_default_device`, also within `with device:`, which torch takes for its own."""
    context, modes = default_device_context(), function_modes()
    _set_function_modes([mode for mode in modes if mode is context])
    torch.set_default_device(device)
    _set_function_modes([*function_modes(), *(mode for mode in modes if mode is not context)])


def casts_on_cuda(name: str) -> bool:
    """Whether this build of torch casts the inputs of an operation in autocast on CUDA."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"))


def autocast_is_over() -> AbstractContextManager[object]:
    """A context manager in which operations on virtual devices do not cast their inputs any more,
    as the kernel that runs has done so."""
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
    guard: AbstractContextManager[object] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


def counting() -> AbstractContextManager[object]:
    """A context manager in which torch counts writes and notes views although an operation has
    arrived here already."""
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded.remove(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(included, excluded)


@contextmanager
def differentiating() -> Iterator[None]:
    """A block in which autograd follows operations of the host although one has arrived here
    already, which it follows itself."""
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutogradOther"):
        excluded = excluded.remove(torch._C._dispatch_key_parse(key))
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad(), unwatched():
        yield


def masks_select_all() -> AbstractContextManager[object]:
    """On `meta` a mask has no values. In this block it selects everything; in a torch that cannot
    take it so, the operation raises, as elsewhere."""
    config = importlib.import_module("torch.fx.experimental._config")
    name = "meta_nonzero_assume_all_nonzero"
    return config.patch(**{name: True}) if hasattr(config, name) else nullcontext()


def unwatched() -> AbstractContextManager:
    """A block in which no dispatch mode sees operations: those of the host that stand for what
    devices do are no operations of the program."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    return torch.utils._python_dispatch._disable_current_modes()


TRACED_TYPES = (torch.fx.experimental.proxy_tensor, "HANDLED_TYPES")
DeviceContext = torch.utils._device.DeviceContext


def factories() -> list[tuple[object, str]]:
    """Where the functions are found that make tensors on a device: their modules and names."""
    elsewhere = {
        "fft_fftfreq": (torch.fft, "fftfreq"),
        "fft_rfftfreq": (torch.fft, "rfftfreq"),
        "nested_tensor": (torch.nested, "nested_tensor"),
    }
    names = sorted(f.__name__ for f in torch.utils._device._device_constructors())
    return [elsewhere.get(name, (torch, name)) for name in names]


def default_device_context() -> DeviceContext | None:
    """What `torch.set_default_device` has set in this thread."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def script_builtins() -> dict[int, str]:
    """What scripts may call, by the identity of the function: the operations that it stands for."""
    return torch.jit._builtins._get_builtin_table()


def take_functions_by_parts(*kinds: type[torch.Tensor]) -> None:
    """Let operators that take functions, such as `flex_attention`, run on tensors of some kinds as
    the operations that they stand for. Torch asks each of them for a rule for each kind."""
    by_parts = torch._C.DispatchKey.CompositeExplicitAutograd
    for operator in torch._ops._higher_order_ops.values():
        if by_parts in operator.py_kernels:
            for kind in kinds:
                operator.python_key_table.setdefault(kind, operator.py_kernels[by_parts])


def look_anew_for_functions() -> None:
    """Let Dynamo, if it is there, look anew which functions are torch's: it keeps those that it met
    first, and they may have been replaced since."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()
