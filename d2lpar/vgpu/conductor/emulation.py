"""`emulate_cuda`: the block in which code written for CUDA runs, with the processes it starts."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from ... import machines
from ..cuda import lazy_init
from ..cuda.block import emulating
from ..patching import Patches
from ..ranks.launcher import let_others_go_on
from ..torch_backend.machine.runtime import current_runtime
from ..torch_backend.operations.serialization import processes_share_devices
from . import starting
from .newcomers import Newcomers
from .process import come_as_fork
from .seat import Watches
from .starting import FOUND_BY, Told
from .values import exchange_folder


@contextmanager
def emulate_cuda(
    n: int = 1,
    machine: str | machines.Machine | None = None,
    *,
    shape_only: bool = False,
    verbose: bool = True,
) -> Iterator[list[torch.device]]:
    """`with emulate_cuda(2):` code written for CUDA runs on `n` virtual GPUs, unchanged.

    Inside, `torch.cuda.is_available()` is true, tensors are on "cuda:1" however that is spelt, and
    they, their errors and d2lpar's timelines say so. Real GPUs cannot be seen. What is not emulated
    raises NotImplementedError by its name. Leaving the block restores everything; tensors that
    leave it are on "vgpu:1", and checkpoints written in it are those that CUDA would have written.

    CUDA_VISIBLE_DEVICES is obeyed as it is when the program first uses CUDA, in each block anew:
    of the `n` devices the program sees those that it lists (`d2lpar.vgpu.api.visible_devices` has
    the rules), on a clock that ends with the block. A value that it gets there is gone after it.

    `machine` is what is simulated: a name of the catalogue, or a `Machine` (default: the machine in
    use, else that of `d2lpar.devices`). Its clock and tensors go on in later blocks. With
    `shape_only` no values are computed, for large models: see `d2lpar.shape_only`.

    Time: `time`, `timeit`, `%timeit` and the wall time of `%time` give the user's code simulated
    seconds since the virtual machine's start, under any name that a module of the user's has for
    them (functions kept in default arguments or attributes stay as they are); libraries read the
    real clock, and so does `datetime`. As on CUDA, reading a clock does not wait for devices. Only
    what devices do, queueing it, `time.sleep`, and steps of optimizers whose parameters are on the
    CPU take simulated time: plain Python and other work on CPU tensors take none (say how long they
    take with `d2lpar.host_work`). Threads share the host's time: the work of one follows that of
    another, so threads that wait for their devices gain nothing. A loop that only reads a clock
    spends time on reading, and ends.

    `torch.profiler` tells of simulated time, too, and of each process for itself: see `profiler`.

    Processes that the program starts, by whatever way, are real ones that see the devices, too, and
    may form groups; as with CUDA, one that is forked must be so before CUDA has started. Where the
    program calls `init_process_group` for a group of one, it is a rank itself, till the block ends.

    The block yields its devices. Raises RuntimeError inside another such block.
    """
    with emulating(n, machine, shape_only=shape_only, verbose=verbose) as devices:
        patches, door = Patches(), Door(n)
        starting.install(patches)
        starting.become(door)
        try:
            yield devices
        finally:
            starting.leave(door)
            patches.undo([])
            door.close()


class Door:
    """Where processes call that the program of a block starts. It opens with the first."""

    def __init__(self, gpus: int) -> None:
        self._gpus, self._pid = gpus, os.getpid()
        self._stack = ExitStack()
        self._told: Told | None = None
        self._newcomers: Newcomers | None = None

    def starts(self) -> None:
        """Let the process that is about to be started find the block, at its present time."""
        if os.getpid() != self._pid:
            return
        if self._newcomers is None:
            self._open()
        starting.note_start(current_runtime().now_s())

    def _open(self) -> None:
        rt = current_runtime()
        folder = self._stack.enter_context(exchange_folder())
        Path(folder, "machine").write_bytes(pickle.dumps(rt.machine))
        self._newcomers = Newcomers(rt, folder, 1, Watches())
        self._stack.callback(self._newcomers.close)
        others, rt.clock.others = rt.clock.others, let_others_go_on
        self._stack.callback(setattr, rt.clock, "others", others)
        self._stack.callback(_set_environment, {name: os.environ.get(name) for name in FOUND_BY})
        self._told = Told(
            self._gpus,
            f"{folder}/machine",
            lazy_init.devices_of_host(),
            folder,
            self._newcomers.address,
            bool(rt.clock.timelines),
            rt.shape_only,
        )
        starting.tell(self._told)
        processes_share_devices(True)
        self._stack.callback(processes_share_devices, False)

    def forks(self) -> None:
        """What is forked by others than the program needs no GPUs."""
        if self._newcomers is not None:
            starting.note_start(current_runtime().now_s())

    def rests(self) -> None:
        """Who waits for processes keeps nobody from going on."""

    def has_waited(self) -> None:
        """Go on no earlier than the processes have ended that this one has waited for."""
        if self._newcomers is not None and os.getpid() == self._pid:
            catch_up = partial(self._newcomers.catch_up, self._pid)
            current_runtime().host_threads.ask(catch_up)

    def has_forked(self) -> None:
        """Call at the door, in a process that was forked before CUDA has started."""
        if self._told is not None and not lazy_init.is_started():
            come_as_fork(self._told)

    def close(self) -> None:
        """Let nobody in any more."""
        self._stack.close()


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
