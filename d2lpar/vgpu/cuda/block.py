"""The block in which code written for CUDA runs on virtual GPUs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ... import machines
from ...timeline.printing import say
from ..api import simulation
from ..api.device_choice import devices
from ..device_naming import named_by
from ..patching import Patches
from ..races.user_code import all_namespaces, user_namespaces
from ..torch_backend.machine.runtime import Runtime, current_runtime, returning, running
from ..torch_backend.private import torch_modes
from . import lazy_init, own_kernels, threads
from .device_translation import CudaNaming, cuda, translate
from .mode import CudaMode
from .profiling import memory_history, profiler, user_annotations, user_clock
from .tensors import (
    attention,
    exporting,
    operator_keys,
    registered_memory,
    serialization,
    warned_lines,
)
from .tensors import methods as tensors
from .torch_cuda import (
    c_functions,
    communication,
    cuda_module,
    cuda_runtime,
    default_generators,
    precision,
    submodules,
    tensor_types,
)

_PARTS = (
    tensors,
    tensor_types,
    precision,
    operator_keys,
    own_kernels,
    attention,
    communication,
    cuda_module,
    cuda_runtime,
    default_generators,
    c_functions,
    user_annotations,
    profiler,
    submodules,
    exporting,
    memory_history,
    registered_memory,
    serialization,
    user_clock,
    warned_lines,
)


@contextmanager
def emulating(
    n: int = 1,
    machine: str | machines.Machine | None = None,
    *,
    shape_only: bool = False,
    verbose: bool = False,
) -> Iterator[list[torch.device]]:
    """The same without the processes that the program starts: see `conductor.emulation`."""
    with ExitStack() as stack:
        stack.enter_context(_only_block())
        before = running()
        stack.enter_context(returning())
        wanted = before.machine if machine is None and before is not None else machine
        devices(n, machine=wanted, kind="virtual", verbose=False)
        rt = current_runtime()
        if shape_only:
            stack.enter_context(simulation.shape_only())
        stack.enter_context(_current_device_kept(rt))
        stack.enter_context(lazy_init.unstarted())
        stack.enter_context(_patched(n))
        if verbose:
            say(_describe(rt))
        try:
            yield [cuda(i) for i in range(lazy_init.device_count())]
        except Exception as error:
            translate(error)
            raise


_taken = threading.Lock()  # by the block that there is, of whatever thread


@contextmanager
def _only_block() -> Iterator[None]:
    if not _taken.acquire(blocking=False):
        raise RuntimeError(
            "CUDA is being emulated already: emulate_cuda blocks cannot be nested, and are of the "
            "whole process. End the other block first; a generator that has stopped in one ends it "
            "with close()"
        )
    try:
        yield
    finally:
        _taken.release()


@contextmanager
def _patched(n: int) -> Iterator[None]:
    patches, mode = Patches(lazy_init.emulated_count), CudaMode()
    thread, default_device = threading.get_ident(), torch_modes.default_device_context()
    try:
        for part in _PARTS:
            part.install(patches)
        threads.install(patches, mode)
        if "IPython" in sys.modules:
            from .profiling import timeit_magic

            timeit_magic.install(patches)
        patches.spread([*cuda_module.namespaces(), *user_namespaces()])
        torch_modes.look_anew_for_functions()
        lazy_init.set_emulated_count(n)
        with named_by(CudaNaming()), mode:
            yield
    finally:
        mode.is_over = True
        lazy_init.set_emulated_count(0)
        patches.undo(all_namespaces())
        torch_modes.look_anew_for_functions()
        here = threading.get_ident() == thread  # not where another thread collects garbage
        if here and torch_modes.default_device_context() is not default_device:
            device = None if default_device is None else default_device.device
            torch_modes.set_default_device(device)


@contextmanager
def _current_device_kept(rt: Runtime) -> Iterator[None]:
    """Start on device 0 and its default stream; leave the current device and streams as found."""
    device = rt.current_device
    numbers = [rt.current_stream(i) for i in range(rt.device_count)]
    rt.current_device = 0
    try:
        yield
    finally:
        rt.current_device = device
        for i, number in enumerate(numbers):
            rt.set_stream(i, number)


def _describe(rt: Runtime) -> str:
    count = lazy_init.device_count()
    names = ", ".join(str(cuda(i)) for i in range(count)) or "no device"
    name, why = rt.machine.accelerators[0].name, lazy_init.restriction()
    text = f"{names}  ·  {count} emulated {name}: time simulated on {rt.machine.name}"
    return f"{text}; {why}" if why else text
