"""The program in one process of a run: what is watched there, and how it ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any

from ...conductor import starting
from ...conductor.process import Place, live
from ...patching import Patches
from ...races.call_sites import CallSite
from ...races.stream_sanitizer import collecting
from ...races.sync_debug import SyncingCall, listening
from ...ranks.state import main_module
from ...ranks.state.host_values import left_unset
from ...ranks.world.rank_scheduler import Ended
from ...sim.clock import HostThread
from ...torch_backend.machine.runtime import Runtime
from ...torch_backend.patches.compiling import compile_modules
from .. import failure
from ..launch_plan import LaunchPlan
from ..runs import INTERRUPTED, RunOptions
from ..watched.batch_memory import BatchMemory
from ..watched.kernel_prices import KernelPrice, kernel_prices
from ..watched.loading import Loading
from ..watched.step_marks import steps_told

SET_PARENTS_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass
class ProcessReport:
    """What a process says of its life."""

    status: int = 0
    failures: list[str] = field(default_factory=list)
    values_s: float = 0.0
    unknown_reads: int = 0
    hazards: list[str] | None = None
    peak_bytes: list[int] = field(default_factory=list)  # of each device
    twice_bytes: list[int] = field(default_factory=list)  # of each, with twice the batch
    prices: list[KernelPrice] = field(default_factory=list)  # for advice, by the first rank
    loader_s: float = 0.0
    loader_workers: int = 0


class _FarWaits:
    """Tells the conductor of waits for devices."""

    def __init__(self, rt: Runtime) -> None:
        self._clock: Any = rt.clock
        self._calls: dict[int, SyncingCall] = {}

    def begins(self, host_thread: HostThread) -> object:
        return self._clock.wait_begins(host_thread)

    def ends(
        self, begun: Any, host_thread: HostThread, call: SyncingCall, place: CallSite, device: str
    ) -> None:
        number = call.noted.setdefault(id(self), len(self._calls))
        self._calls.setdefault(number, call)
        where = (place.file, place.line)
        self._clock.wait_ends(host_thread, begun, number, call.name, where, device)


@contextmanager
def watched(rt: Runtime, report: ProcessReport, *, hazards: bool) -> Iterator[None]:
    """Tell the run what the process does in the block, and note in the report what it took."""
    clock: Any = rt.clock
    with ExitStack() as stack:
        stack.enter_context(listening(_FarWaits(rt)))
        found = stack.enter_context(collecting()) if hazards else None
        stack.enter_context(steps_told(rt, clock.mark))
        loading, batch_memory = Loading(), BatchMemory(rt)
        stack.enter_context(loading.noted())
        stack.enter_context(batch_memory.noted())
        if rt.shape_only:
            stack.enter_context(left_unset())
        try:
            yield
        finally:
            with suppress(Ended):
                rt.host_threads.flush()
            report.values_s, report.unknown_reads = rt.values_s, rt.unknown_reads
            report.hazards = None if found is None else [str(hazard) for hazard in found]
            report.loader_s, report.loader_workers = loading.seconds, loading.workers
            report.peak_bytes = [memory.highest_bytes for memory in rt.memories]
            report.twice_bytes = batch_memory.twice_bytes


def life(
    launch: LaunchPlan, number: int, options: RunOptions
) -> Callable[[Runtime], dict[str, Any]]:
    """What `conductor.process.live` calls in the process: it runs the program, and reports."""

    def run(rt: Runtime) -> dict[str, Any]:
        report = ProcessReport()
        starting.install(Patches())
        if options.compiled:
            compile_modules()
        with watched(rt, report, hazards=options.hazards):
            _run_program(launch, number, options, rt, report)
        if options.advises and number == 0:
            report.prices = kernel_prices(rt.machine.accelerators[0])
        return dict(vars(report))

    return run


def _run_program(
    launch: LaunchPlan, number: int, options: RunOptions, rt: Runtime, report: ProcessReport
) -> None:
    pid = os.getpid()
    try:
        with main_module.values_forgotten():
            try:
                if launch.is_module:
                    main_module.run_module(launch.target)
                else:
                    main_module.run_script(launch.target)
            finally:
                _end_as_python_does()
            rt.now_s()  # raises what the conductor has to say of calls that nobody waited for
    except Ended:
        report.status = 1
    except BaseException as error:
        if os.getpid() == pid:
            _tell_failure(error, launch, number, options, rt, report)
        else:  # the program has forked, and ends here as well
            report.status = _ended_as_python_does(error)


def _ended_as_python_does(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return exit_status(error)
    traceback.print_exception(error)
    return 1


def _tell_failure(
    error: BaseException,
    launch: LaunchPlan,
    number: int,
    options: RunOptions,
    rt: Runtime,
    report: ProcessReport,
) -> None:
    if isinstance(error, KeyboardInterrupt):
        report.status = INTERRUPTED
        report.failures.append(f"{_who(launch, number)} was interrupted{failure.place(error)}")
        return
    if isinstance(error, SystemExit):
        report.status = exit_status(error)
        message = f"{_who(launch, number)} ended with exit status {report.status}"
    else:
        report.status = 1
        in_full = options.traceback
        message = failure.told(error, number, launch.world_size, in_full=in_full)
    if report.status:
        lines = [message, *_remedies(error, launch, options, rt)]
        report.failures.append("\n".join(lines))


def _who(launch: LaunchPlan, number: int) -> str:
    return f"rank {number}" if launch.world_size > 1 else "the program"


def _remedies(
    error: BaseException, launch: LaunchPlan, options: RunOptions, rt: Runtime
) -> list[str]:
    found = failure.launch_remedy(error, launch)
    if options.shapes_only:
        found += failure.values_remedy(error, rt.unknown_reads)
    return found


def _end_as_python_does() -> None:
    """Wait for threads and child processes, and call what the program wants to be called."""
    getattr(threading, "_shutdown", lambda: None)()
    getattr(atexit, "_run_exitfuncs", lambda: None)()
    getattr(util, "_exit_function", lambda: None)()


def exit_status(end: SystemExit) -> int:
    """The exit status of a process that ends so; a text is printed, and counts as 1."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _end_with_the_parent() -> None:
    """Let Linux end this process when who has started it is killed: one that says nothing would not
    notice. Others end with the next that they say."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENTS_DEATH_SIGNAL, signal.SIGKILL)


def begin(place: Place, connection: Connection, launch: LaunchPlan, options: RunOptions) -> None:
    """Be that process, which has just begun, until it ends. Does not return."""
    status = 1
    try:
        atexit._clear()  # noqa: SLF001 - what the parent wants to be called at its own end
        for number in (signal.SIGINT, signal.SIGTERM):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
        _end_with_the_parent()
        with suppress(OSError, AttributeError):  # it is that already; Windows has none
            os.setpgid(0, 0)  # a terminal interrupts who has started it, and that passes it on
        status = live(place, connection, life(launch, place.number, options))
    except BaseException as error:
        if not isinstance(error, Ended | KeyboardInterrupt):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status & 0xFF)
