"""`torch.compile` and `make_fx`: what they make of operations on virtual tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves

from ...device_naming import TYPE, naming
from ...late_imports import LateImports
from ...patching import FOR_GOOD
from ..compiling import compiled
from ..compiling.flex_attention import attend
from ..machine.runtime import current_runtime, running
from ..operations.dispatch import Dispatcher
from ..private import torch_attention, torch_devices, torch_modes, torch_modules
from ..tensors.tensor import VirtualParameter, VirtualTensor, is_virtual
from ..tensors.wrapper_tensors import wraps_virtual

# What makes Inductor use CUDA graphs.
GRAPHED = ("reduce-overhead", "max-autotune")
TUNED = ("max-autotune", "max-autotune-no-cudagraphs")

NOT_CALLED = (
    "torch.compile(backend={backend}) traces nothing that is on virtual GPUs, so the backend is "
    "not called: the operations run one by one. Values are the same; of compiled code only "
    "Inductor's is modelled, which is the default backend"
)


COMPILED_EARLY = (
    "what torch.compile made before there was a virtual GPU cannot take its tensors: call "
    "torch.compile after the first virtual GPU was made, such as by par.devices()"
)


def refuse_code() -> None:
    """Let Inductor, which knows no virtual devices, say what was compiled too early."""
    LateImports(
        [torch_modules.INDUCTOR_DEVICES],
        lambda module: torch_modules.refuse_code(module, TYPE, COMPILED_EARLY),
    )


def replace_compile() -> None:
    """Let `torch.compile` run what is on virtual devices as compiled code would run (`compiled`).

    The values are those of the operations one by one. With another backend than Inductor they also
    cost that: if they were traced, it is our own code that would be compiled.
    """
    torch_compile = torch.compile

    @functools.wraps(torch_compile)
    def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        _hide_from_dynamo()
        make = functools.cache(functools.partial(torch_compile, model, **options))
        if inspect.isroutine(model) and not options:
            return _choosing(model, make)
        made: Any = make()
        backend = options.get("backend", "inductor")
        if options.get("disable"):
            return made
        if backend != "inductor":
            return _choosing_as_it_is(model, made, backend)
        mode, chosen = options.get("mode"), options.get("options") or {}
        whole = mode in GRAPHED or bool(chosen.get("triton.cudagraphs"))
        tuned = mode in TUNED or bool(chosen.get("coordinate_descent_tuning"))
        choosing = functools.partial(_choosing, whole=whole, tuned=tuned)
        if not isinstance(model, torch.nn.Module):
            return choosing(model, make)
        traced = made.forward
        made.forward = choosing(model.__call__, lambda: traced, module=model)
        return made

    FOR_GOOD.set(torch, "compile", compile)


def compile_modules() -> None:
    """Let modules that a program calls run from now on as if `torch.compile` had made them: each
    that is called by none that is compiled itself, has parameters, and wraps no replica."""
    call = torch.nn.Module.__call__
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    sizes: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()

    @functools.wraps(call)
    def called(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, wrappers) or torch_modules.is_compiled(self):
            return call(self, *args, **kwargs)
        if self not in sizes:
            has_any = next(self.parameters(), None) is not None
            sizes[self] = sum(1 for _ in self.modules()) if has_any else 0
        if not sizes[self] or not _works_on_virtual(self, args, kwargs):
            return call(self, *args, **kwargs)
        with torch_attention.flex_is_compiled():
            return compiled.run(call, (self, *args), kwargs, modules=sizes[self])

    FOR_GOOD.set(torch.nn.Module, "__call__", called)


TENSOR_KINDS = (VirtualTensor, VirtualParameter)  # torch has rules for the very type of a tensor


def replace_flex_attention() -> None:
    """Let `flex_attention` run on virtual devices, as soon as a program imports it."""
    LateImports(
        [torch_attention.FLEX_ATTENTION],
        lambda module: torch_attention.replace_flex_attention(module, attend, *TENSOR_KINDS),
    )


def _hide_from_dynamo() -> None:
    from torch import _dynamo

    if isinstance(VirtualTensor.dispatcher, Dispatcher):
        VirtualTensor.dispatcher = staticmethod(_dynamo.disable(VirtualTensor.dispatcher))


def _choosing(
    function: Callable[..., Any],
    make: Callable[[], Callable[..., Any]],
    *,
    whole: bool = False,
    tuned: bool = False,
    module: torch.nn.Module | None = None,
) -> Callable[..., Any]:
    """What torch makes of a function, but for what works on virtual devices.

    Of a function without options it is made when it is first called: this takes torch 40 ms, and
    at first it loads Inductor, and on virtual devices nobody calls it.
    """
    modules = 0 if module is None else sum(1 for _ in module.modules())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _works_on_virtual(module, args, kwargs):
            with torch_attention.flex_is_compiled():
                tunes = tuned or torch_modules.tunes_loops()
                return compiled.run(
                    function, args, kwargs, whole=whole, tuned=tunes, modules=modules
                )
        return (function if _is_renamed() else make())(*args, **kwargs)

    return call


def _choosing_as_it_is(model: Any, made: Any, backend: object) -> Any:
    """What torch has `made` of a function or module with another backend than Inductor, but for
    what works on virtual devices: Dynamo knows no such tensors. The function itself has the values,
    and with backends that run what was traced one operation after the other also the cost."""
    torch_modes.take_functions_by_parts(*TENSOR_KINDS)
    module = model if isinstance(model, torch.nn.Module) else None
    function, traced = (model, made) if module is None else (module.__call__, made.forward)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        wrapped = wraps_virtual(*_tensors_of(module, args, kwargs))
        if not (wrapped or _is_renamed() or _works_on_virtual(module, args, kwargs)):
            return traced(*args, **kwargs)
        if not torch_devices.runs_as_it_is(backend):
            name = getattr(backend, "__name__", backend)
            current_runtime().say_once(NOT_CALLED.format(backend=name))
        return function(*args, **kwargs)

    if module is None:
        return call
    made.forward = call
    return made


def _is_renamed() -> bool:
    """Whether programs call virtual devices by another name, as in `emulate_cuda`. Dynamo's guards
    ask for the accelerator in C++, which has their own; what works on the host is run untraced."""
    return naming().type != TYPE


def _works_on_virtual(module: torch.nn.Module | None, args: tuple, kwargs: dict) -> bool:
    """Whether a tensor among the arguments or the parameters is on a virtual device; without any,
    such as for the step of an optimizer, whether there are such devices."""
    tensors = _tensors_of(module, args, kwargs)
    return is_virtual(*tensors) if tensors else running() is not None


def _tensors_of(module: torch.nn.Module | None, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    return tensors if module is None else [*tensors, *module.parameters()]


def replace_tracing() -> None:
    """Let `make_fx`, and so `torch.func.linearize`, note operations on virtual tensors: of types
    that it does not know, it notes what their own code does with the values."""
    FOR_GOOD.set(*torch_modes.TRACED_TYPES, (*getattr(*torch_modes.TRACED_TYPES), VirtualTensor))
