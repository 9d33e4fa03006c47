"""Processes that a program starts are virtual ranks: `torch.multiprocessing` inside the block.

Processes of libraries, such as the workers of a DataLoader, stay real ones. Those of the program
run when it waits for them, all that it has started until then together, each with a device of its
own to exchange data with others, as long as there are enough; the program goes on when all have
ended.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FunctionType, ModuleType
from typing import Any

import torch.multiprocessing

from ...memory.process_memory import of_processes
from ...patching import Patches
from ...races.user_code import is_user_frame
from ...ranks.by_rank import own_loggers
from ...ranks.launcher import ProcessStart, current_process, run_processes
from ...ranks.state import main_module
from ...ranks.state.own_methods import OwnMethods
from ...ranks.state.own_modules import OwnModules, is_of_one_process
from ...ranks.state.own_patches import OwnPatches, PatchesOfCaller
from ...ranks.state.pickled_copy import PickledCopy
from ...torch_backend.machine.runtime import current_runtime
from .. import lazy_init
from . import exit_hooks, process_objects
from .child_tracebacks import text_of
from .managers import MAKERS
from .shared import Shared

FAILED, ENDED = 1, -15  # exit codes: of an error, and of a process that was terminated
SPAWN, FORK = "spawn", "fork"
FRESH = "fresh"  # one that runs a program of its own, and not its parent's again

_pids = itertools.count(100_001)


class Children:
    """The processes that a program has started and that have not run yet."""

    def __init__(self) -> None:
        self._waiting: list[Child] = []

    def install(self, patches: Patches) -> None:
        """Let processes of the program be virtual from now on."""
        base, context = multiprocessing.process.BaseProcess, multiprocessing.context.BaseContext
        patches.replace(base, "start", self._starting(base.start))
        patches.replace(multiprocessing, "active_children", self._active)
        module = sys.modules["torch.multiprocessing.spawn"]
        for owner in (module, torch.multiprocessing):
            patches.replace(owner, "spawn", self._spawn)
            patches.replace(owner, "start_processes", self._start_processes)
        for name, make in MAKERS.items():
            owners: tuple[object, ...] = (context, multiprocessing, torch.multiprocessing)
            for place in owners:
                patches.replace(place, name, self._making(make, getattr(place, name)))

    def _active(self) -> list[object]:
        self.run()
        return []

    def _starting(self, theirs: Callable[..., object]) -> Callable[..., object]:
        def start(process: multiprocessing.process.BaseProcess) -> None:
            if is_user_frame(_getframe(2)):
                target = partial(_live_as, type(process), _given_to(process))
                child = Child(self, process.name, target, _method_of(process), process)
                self.start(child, process)
            else:
                theirs(process)

        return start

    def _making(
        self, ours: Callable[..., object], theirs: Callable[..., object]
    ) -> Callable[..., object]:
        """What makes queues, locks, …: ours for the program and frameworks that start its
        processes for it, theirs for other libraries."""

        def make(*args: object, **kwargs: object) -> object:
            caller = _getframe(2)
            if not (is_user_frame(caller) or is_of_one_process(caller.f_globals["__name__"])):
                return theirs(*args, **kwargs)
            by_context = bool(args) and isinstance(args[0], multiprocessing.context.BaseContext)
            return ours(self.run, *args[by_context:], **kwargs)

        return make

    def _spawn(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = SPAWN,
    ) -> object:
        return self._start_processes(fn, args, nprocs, join, daemon, start_method)

    def _start_processes(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = SPAWN,
        **others: object,
    ) -> object:
        new = multiprocessing.get_context(start_method).Process  # type: ignore[attr-defined]
        children = [
            Child(self, f"process {i}", partial(fn, i, *args), start_method, new())
            for i in range(nprocs)
        ]
        for child in children:
            self.start(child)
        context = SpawnedProcesses(children)
        return context.join() and None if join else context

    def start(
        self, child: Child, process: multiprocessing.process.BaseProcess | None = None
    ) -> None:
        """Let a child wait for its turn; what it is given is what it has now."""
        child.pack()
        if process is not None:
            vars(process).update(_popen=child, _sentinel=child.sentinel)
        self._waiting.append(child)

    def run(self) -> None:
        """Run those that wait, until all have ended. One that fails ends the others."""
        children, self._waiting = self._waiting, []
        if not children:
            return
        devices = lazy_init.devices_here()
        with of_processes([current_runtime().memories[i] for i in devices]):
            _run_together(children, devices)
        for child in children:
            child.finish()


def _run_together(children: Sequence[Child], devices: Sequence[int]) -> None:
    """Run processes, each of which sees these devices."""
    parent = current_process()
    own_modules = parent is not None and parent.process.has(OwnModules)
    main = sys.modules[main_module.MAIN] if own_modules else None
    starts = [child.start_of(devices, own_modules=own_modules) for child in children]
    own: list[Any] = [] if parent is not None else [lazy_init.ProcessDevices(), PatchesOfCaller()]
    lives = [partial(child.live, main) for child in children]
    try:
        with process_objects.kept():
            run_processes(lives, _own_first(devices, len(children)), starts, own)
    except Exception as error:
        if not any(child.error for child in children):  # such as ranks that wait for each other
            children[0].error = error


class Child:
    """A process of the program's: it has a place in `multiprocessing` as a real one's Popen has."""

    sentinel = -1

    def __init__(
        self,
        children: Children,
        name: str,
        target: Callable[[], object],
        method: str,
        process: multiprocessing.process.BaseProcess,
    ) -> None:
        self.pid = next(_pids)
        self.returncode: int | None = None
        self.error: BaseException | None = None
        self.told = False  # whether somebody has been told the error
        self.name = name
        self._children, self._target, self._method = children, target, method
        self._object = process
        self._packed: PickledCopy | None = None
        self._loggers = own_loggers.of_this_process() if method == FORK else {}

    def pack(self) -> None:
        """Pickle what it is given, as for a process that is spawned; a forked one need not be."""
        try:
            self._packed = PickledCopy(self._target, [Shared])
        except Exception:
            parent = current_process()
            in_notebook = parent is None or not parent.process.has(OwnModules)
            if self._method == SPAWN and not in_notebook:
                raise

    def start_of(self, devices: Sequence[int], *, own_modules: bool) -> ProcessStart:
        """How its rank begins."""
        forked = self._method == FORK
        states: list[Any] = [
            lazy_init.ProcessDevices(list(devices)),
            process_objects.CurrentProcess(self._object),
            OwnPatches(forked=forked),
        ]
        if own_modules:
            states += [OwnModules(), OwnMethods()]
        first = devices[0] if devices else 0
        return ProcessStart(
            self.name, first, states=states, same_random_numbers=forked, has_parent=True
        )

    def live(self, main: ModuleType | None) -> None:
        """Its life, in its rank's thread."""
        own_loggers.take(self._loggers)
        spawned = self._method == SPAWN  # others end without a word
        try:
            with exit_hooks.called_at_the_end() if spawned else contextlib.nullcontext():
                self._target_in(main)()
        except SystemExit as end:
            self.returncode = exit_status(end)
            if self.returncode:
                self.error = RuntimeError(f"{self.name} called sys.exit({end.code!r})")
                raise self.error from end
        except Exception as error:
            self.error = error
            raise
        self.returncode = 0

    def _target_in(self, main: ModuleType | None) -> Callable[[], object]:
        """What it runs, in modules of its own where the program is a script that can be run again
        without its starting processes again."""
        target = self._target
        if main is not None and self._method != FRESH:
            if self._method == SPAWN:
                main_module.run_again(main)
            elif self._packed is not None and main_module.is_guarded(main):
                with contextlib.redirect_stdout(io.StringIO()):
                    again = main_module.run_again(main)
                _take_data(vars(main), vars(again))
            else:
                sys.modules[main_module.MAIN] = main
                return target
        return target if self._packed is None else self._packed.load()  # type: ignore[return-value]

    def finish(self) -> None:
        """Say how it ended, when all that ran with it are over."""
        if self.error is not None:
            self.returncode = FAILED
        elif self.returncode is None:
            self.returncode = ENDED

    # --- what multiprocessing asks of a Popen -----------------------------------------------

    def poll(self, flag: int = 0) -> int | None:
        """The exit code; it runs now if it has not."""
        if self.returncode is None:
            self._children.run()
            if self.error is not None and not self.told:
                self.told = True
                print(f"Process {self.name}:", file=sys.stderr)
                print(text_of(self.error), end="", file=sys.stderr)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Run it if it has not, and give its exit code."""
        return self.poll()

    join = wait

    def is_alive(self) -> bool:
        """False: who asks waits for it, so it runs to its end."""
        return self.poll() is None

    @property
    def exitcode(self) -> int | None:
        """The exit code; None if it has not run."""
        return self.returncode

    def terminate(self) -> None:
        """Nothing is left to end: it runs to its end when somebody waits for it."""

    kill = interrupt = close = terminate


class SpawnedProcesses:
    """What `torch.multiprocessing.spawn(join=False)` gives."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.processes = list(children)

    def pids(self) -> list[int]:
        """Numbers that stand for the processes' own."""
        return [child.pid for child in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Run them. Raises ProcessRaisedException, caused by the error of the first that failed."""
        for child in self.processes:
            child.told = True
            child.wait()
        for i, child in enumerate(self.processes):
            if child.error is not None:
                lines = text_of(child.error)
                text = f"\n\n-- Process {i} terminated with the following error:\n{lines}"
                raised = torch.multiprocessing.ProcessRaisedException(text, i, child.pid)
                raise raised from child.error
        return True


def _own_first(devices: Sequence[int], count: int) -> list[list[int]]:
    """The devices that each of so many processes sees, first that of its number: more processes
    than devices share them. Without any, all processes compute on the host."""
    if not devices:
        return [[] for _ in range(count)]
    first = [devices[i % len(devices)] for i in range(count)]
    return [[mine, *(d for d in devices if d != mine)] for mine in first]


def exit_status(end: SystemExit) -> int:
    """The exit status of a process that ends so; a text is printed, and counts as 1."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return FAILED


def _given_to(process: multiprocessing.process.BaseProcess) -> dict[str, object]:
    """What a process object holds, but for what only the process has that made it."""
    return {name: value for name, value in vars(process).items() if name not in _NOT_GIVEN}


_NOT_GIVEN = ("_config", "_popen", "_sentinel")


def _live_as(kind: Any, given: Mapping[str, object]) -> None:
    """Run what a process object of that kind runs, `run` of a class of the program's included.

    It has the settings of the one that was started, from which it names locks of its own.
    """
    process = kind.__new__(kind)
    vars(process).update(given, _config=vars(multiprocessing.current_process())["_config"])
    process_objects.become(process)
    process.run()


def _method_of(process: multiprocessing.process.BaseProcess) -> str:
    method = getattr(process, "_start_method", None)
    return method or multiprocessing.get_start_method() or FORK


def _take_data(theirs: Mapping[str, object], ours: dict[str, object]) -> None:
    """Give a forked process the global variables that its parent had, beside what it imports."""
    for name, value in theirs.items():
        if name.startswith("__") or isinstance(value, (FunctionType, ModuleType, type)):
            continue
        with contextlib.suppress(Exception):  # what cannot be copied is as it was imported
            ours[name] = PickledCopy(value, [Shared]).load()
