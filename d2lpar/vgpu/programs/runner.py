"""Running a program on virtual GPUs, unchanged, and finding out what it took."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ...timeline.formatting import seconds_text
from ...timeline.printing import say
from ..api import detectors
from ..cuda import emulate_cuda
from ..cuda.lazy_init import ProcessDevices, all_devices
from ..cuda.processes import exit_hooks
from ..cuda.processes.processes import exit_status
from ..cuda.processes.subprocesses import StartsItself, starts_of_itself_heard
from ..races.stream_sanitizer import Hazard
from ..races.sync_debug import Waits
from ..ranks.launcher import ProcessStart, rank_number, run_processes
from ..ranks.state import main_module
from ..ranks.state.own_methods import OwnMethods
from ..ranks.state.own_modules import OwnModules
from ..ranks.state.own_patches import OwnPatches, PatchesOfCaller
from ..ranks.state.process_state import OwnState
from ..ranks.world.garbage import collect_tensors, older_objects_apart
from ..sim.clock import HostThread, StreamKey
from ..torch_backend.machine.runtime import Runtime, current_runtime
from . import failure
from .launch_plan import LaunchPlan, Process
from .progress import progress
from .rank_logs import RankLogs
from .report import RunReport
from .runs import (
    FAILED,
    INTERRUPTED,
    RunOptions,
    device_report,
    machine_of,
    recorded,
    syncs,
    with_nodes_of,
)
from .shapes_advice import advice
from .watched.device_usage import UsageTimeline
from .watched.loading import Loading
from .watched.step_marks import StepMarks, steps_told


@dataclass
class _Watched:
    """What is watched while the program runs."""

    rt: Runtime
    usage: UsageTimeline
    waits: Waits
    marks: StepMarks
    loading: Loading
    hazards: list[Hazard] | None
    values_before_s: float
    reads_before: int
    failures: list[str] = field(default_factory=list)
    status: int = 0
    restarts: int = 0
    held_before: list[int] = field(default_factory=list)  # bytes, by device
    unwritten: list[str] = field(default_factory=list)
    starts_itself: int | None = None  # as so many ranks


def run(launch: LaunchPlan, options: RunOptions) -> RunReport:
    """Run a program to its end, and report. An error of the program's is in the report.

    Raises ValueError for an unknown machine, OSError if the timeline cannot be written: if that
    turns out when the program has run, the report says so.
    """
    begin_s = time.perf_counter()
    gpus = max(1, launch.gpus)  # without any, ranks see none of the machine whose clock runs
    machine = with_nodes_of(launch, options.machine)
    with emulate_cuda(gpus, machine, shape_only=options.shapes_only, verbose=False):
        rt = current_runtime()
        collect_tensors(rt)
        with all_devices(), older_objects_apart(rt), _watched(rt, options) as watched:
            start_s = rt.now_s()
            launch = _run_processes(launch, options, watched)
        report = RunReport(
            launch.target, list(launch.arguments), *machine_of(rt, options),
            launch.world_size, launch.nodes, launch.gpus,
        )  # fmt: skip
        _fill(report, watched, start_s)
    report.wall_s = time.perf_counter() - begin_s
    return report


def _mark(
    rt: Runtime, marks: StepMarks, host_thread: HostThread, optimizer: int, stream: StreamKey
) -> None:
    marks.add(rank_number(), optimizer, rt.clock.record_event(host_thread, stream))


@contextmanager
def _watched(rt: Runtime, options: RunOptions) -> Iterator[_Watched]:
    """Watch the virtual machine in the block; at its end, all that was queued has its time."""
    usage = UsageTimeline(f"simulated on {rt.machine.name}", rt.now_s())
    marks, loading = StepMarks(), Loading()
    for memory in rt.memories:
        memory.highest_bytes = memory.allocated_bytes
    with ExitStack() as stack:
        waits = stack.enter_context(detectors.syncs())
        hazards = stack.enter_context(detectors.hazards()) if options.hazards else None
        before = (rt.values_s, rt.unknown_reads)
        watched = _Watched(rt, usage, waits, marks, loading, hazards, *before)
        watched.held_before = [memory.allocated_bytes for memory in rt.memories]
        if options.timeline is not None:
            stack.enter_context(recorded(rt, options.timeline, watched.unwritten))
        rt.clock.timelines = [*rt.clock.timelines, usage]
        stack.enter_context(steps_told(rt, partial(_mark, rt, marks)))
        stack.enter_context(loading.noted())
        stack.enter_context(progress(partial(_progress_line, watched), shown=not options.quiet))
        try:
            yield watched
        finally:
            rt.host_threads.settle()
            rt.clock.timelines = [t for t in rt.clock.timelines if t is not usage]
            usage.finish()


def _progress_line(watched: _Watched, seconds: float) -> str:
    steps = f", {watched.marks.count} steps" if watched.marks.count else ""
    simulated = seconds_text(watched.usage.last_s)
    advised = advice(watched.rt.values_s - watched.values_before_s, seconds)
    more = f"; {advised}" if advised else ""
    return f"d2lpar: {seconds:.0f} s, simulated {simulated}{steps}{more}"


# --- processes ------------------------------------------------------------------------------------


def _run_processes(launch: LaunchPlan, options: RunOptions, watched: _Watched) -> LaunchPlan:
    """Run them, and give what was started in the end: a program that starts itself as ranks begins
    anew as these."""
    _run_as_planned(launch, options, watched)
    ranks = watched.starts_itself
    if ranks is None or ranks > launch.gpus:
        return launch
    again = f"{watched.failures[0]}: all begin anew, as with --nproc-per-node {ranks}"
    say(f"d2lpar: {again}", stream=sys.stderr)
    _forget(watched)
    launch = replace(launch, per_node=ranks)
    _run_as_planned(launch, options, watched)
    return launch


def _run_as_planned(launch: LaunchPlan, options: RunOptions, watched: _Watched) -> None:
    """After a failure all start again, as often as torchrun was told."""
    logs = None if launch.logs is None else RankLogs(launch.logs)
    for attempt in range(launch.max_restarts + 1):
        with nullcontext() if logs is None else logs.used(attempt):
            _attempt(launch, options, watched, attempt)
        watched.restarts = attempt
        if watched.status in (0, INTERRUPTED) or attempt == launch.max_restarts:
            return
        again = f"all ranks start again: {attempt + 1} of {launch.max_restarts}"
        for line in (*watched.failures, again):
            say(f"d2lpar: {line}", stream=sys.stderr)
        _forget(watched)


def _forget(watched: _Watched) -> None:
    """Let nothing be left of processes that have failed."""
    watched.failures.clear()
    watched.status = 0
    gc.collect()
    for memory in watched.rt.memories:
        memory.empty_cache()


def _attempt(launch: LaunchPlan, options: RunOptions, watched: _Watched, restarts: int) -> None:
    processes = launch.processes(restarts)
    lives = [partial(_live, launch, options, watched, process) for process in processes]
    starts = [_start_of(process, len(processes)) for process in processes]
    own: list[OwnState] = [OwnModules(), OwnMethods(), PatchesOfCaller(), ProcessDevices()]
    try:
        devices = [process.own_first for process in processes]
        run_processes(lives, devices, starts, own, with_signals=True)
    except KeyboardInterrupt:
        watched.failures.append("interrupted")
        watched.status = INTERRUPTED
    except Exception as error:
        watched.status = watched.status or FAILED
        if not watched.failures:  # ranks that wait for one another
            watched.failures.append(failure.said(error))


def _start_of(process: Process, ranks: int) -> ProcessStart:
    name = "main" if ranks == 1 else f"rank {process.number}"
    devices = ProcessDevices(list(process.devices))
    states: list[OwnState] = [OwnModules(), OwnMethods(), OwnPatches(), devices]
    return ProcessStart(
        name,
        next(iter(process.devices), 0),
        process.variables,
        process.arguments,
        states,
        same_random_numbers=process.number == 0,
    )


def _live(launch: LaunchPlan, options: RunOptions, watched: _Watched, process: Process) -> None:
    """The life of one process, in its rank's thread."""
    try:
        heard = starts_of_itself_heard() if launch.per_node is None else nullcontext()
        with main_module.values_forgotten():
            with heard, exit_hooks.called_at_the_end():
                _run_main(launch)
            multiprocessing.active_children()  # a process waits for its children before it ends
    except StartsItself as start:
        watched.starts_itself = start.ranks
        message = f"{start}"
        if start.ranks > launch.gpus:
            message += f", and needs --gpus {start.ranks}"
        watched.failures.append(message)
        raise RuntimeError(message) from start
    except SystemExit as end:
        watched.status = exit_status(end)
        if watched.status:
            who = f"rank {process.number}" if launch.world_size > 1 else "the program"
            ended = f"{who} ended with exit status {watched.status}"
            watched.failures.append("\n".join([ended, *_remedies(end, launch, options, watched)]))
            raise RuntimeError(watched.failures[0]) from end
    except Exception as error:
        message = failure.told(error, process.number, launch.world_size, in_full=options.traceback)
        watched.failures.append("\n".join([message, *_remedies(error, launch, options, watched)]))
        raise


def _remedies(
    error: BaseException, launch: LaunchPlan, options: RunOptions, watched: _Watched
) -> list[str]:
    found = failure.launch_remedy(error, launch)
    if options.shapes_only:
        reads = watched.rt.unknown_reads - watched.reads_before
        found += failure.values_remedy(error, reads)
    return found


def _run_main(launch: LaunchPlan) -> None:
    if launch.is_module:
        main_module.run_module(launch.target)
    else:
        main_module.run_script(launch.target)


# --- the report -----------------------------------------------------------------------------------


def _fill(report: RunReport, watched: _Watched, start_s: float) -> None:
    rt = watched.rt
    report.status = watched.status
    report.restarts = watched.restarts
    report.error = watched.failures[0] if watched.failures else None
    host_s = max(watched.usage.last_s, watched.rt.now_s())
    report.simulated_s = host_s - start_s
    report.values_s = watched.rt.values_s - watched.values_before_s
    report.loader_s, report.loader_workers = watched.loading.seconds, watched.loading.workers
    report.unknown_reads = watched.rt.unknown_reads - watched.reads_before
    report.steps = watched.marks.count
    step_s = watched.marks.seconds()
    report.ms_per_step = None if step_s is None else step_s * 1e3
    report.devices = [
        device_report(rt, watched.usage, i, host_s, _peak_bytes(watched, i))
        for i in range(report.gpus)
    ]
    if watched.hazards is not None:
        report.hazards = [str(hazard) for hazard in watched.hazards]
    report.syncs = syncs(watched.waits)
    report.unwritten = watched.unwritten


def _peak_bytes(watched: _Watched, number: int) -> int:
    before = watched.held_before[number] if number < len(watched.held_before) else 0
    return watched.rt.memories[number].highest_bytes - before
