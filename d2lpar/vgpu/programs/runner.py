"""Running a program on virtual GPUs, unchanged, in processes of its own: one a rank."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ...timeline.formatting import seconds_text
from ...timeline.printing import say
from ..conductor.conductor import Conductor
from ..conductor.seat import Watches
from ..conductor.values import exchange_folder
from ..cuda.block import emulating
from ..cuda.lazy_init import all_devices
from ..races.call_sites import CallSite
from ..races.sync_debug import Waits
from ..ranks.world.garbage import older_objects_apart
from ..sim.event_queue import QueuedWork
from ..torch_backend.machine.runtime import Runtime, current_runtime
from . import failure
from .advice.advice import advise
from .advice.recent import MANY, RecentTimeline
from .in_processes.children import Children, Run, name_of
from .in_processes.rank_process import ProcessReport
from .launch_plan import LaunchPlan
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
from .watched.step_marks import StepMarks

# What torch imports itself with the first operation, and with the first optimizer.
IMPORTED_ONCE = ("torch._dynamo", "torch.distributed.tensor", "torch.utils.flop_counter")


@dataclass
class _Watched(Watches):
    """What is watched while the program runs, and what its processes have said."""

    rt: Runtime
    ranks: int
    usage: UsageTimeline
    recent: RecentTimeline
    hazards: list[str] | None
    waits: Waits = field(default_factory=Waits)
    marks: StepMarks = field(default_factory=StepMarks)
    logs: RankLogs | None = None
    attempt: int = 0
    said_by: list[ProcessReport] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)  # ranks that have said how they ended
    failures: list[str] = field(default_factory=list)
    status: int = 0
    restarts: int = 0
    unwritten: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    _calls: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

    # what the conductor tells

    def said(self, rank: int, stream: int, text: str) -> None:
        """Print for a rank."""
        to = (sys.stdout, sys.stderr)[stream]
        if self.logs is None:
            to.write(text)
            to.flush()
        else:
            self.logs.write(rank, stream + 1, self.attempt, text, to)

    def stepped(self, rank: int, optimizer: int, work: QueuedWork) -> None:
        """Note the end of a step."""
        self.marks.add(rank, optimizer, work)

    def waited(
        self, rank: int, number: int, call: str, place: CallSite, seconds: float, device: str
    ) -> None:
        """Note a wait for a device."""
        noted = self._calls.setdefault((rank, number), {})
        self.waits.note(noted, call, place, seconds, device)

    def ended(self, rank: int, report: dict[str, Any] | None) -> bool:
        """Note what a process has said at its end; whether all are to end."""
        if report is None:
            return True  # all that meet with it
        said = ProcessReport(**report)
        self.reported.add(rank)
        if rank >= self.ranks:  # one that the program has started, and knows what to make of it
            said.failures.clear()
            said.status = 0
        self.said_by.append(said)
        self.failures += said.failures
        if said.hazards is not None and self.hazards is not None:
            self.hazards += said.hazards
        if said.status == INTERRUPTED:
            self.is_interrupted = True
        self.status = self.status or said.status
        return bool(said.status)


def run(launch: LaunchPlan, options: RunOptions) -> RunReport:
    """Run a program to its end, and report. An error of the program's is in the report.

    Raises ValueError for an unknown machine, OSError if the timeline cannot be written: if that
    turns out when the program has run, the report says so.
    """
    begin_s = time.perf_counter()
    gpus = max(1, launch.gpus)  # without any, ranks see none of the machine whose clock runs
    machine = with_nodes_of(launch, options.machine)
    with emulating(gpus, machine, shape_only=options.shapes_only):
        rt = current_runtime()
        with all_devices(), older_objects_apart(rt), _watched(rt, options) as watched:
            start_s = rt.now_s()
            _run_as_planned(launch, options, watched)
        report = RunReport(
            launch.target, list(launch.arguments), *machine_of(rt, options),
            launch.world_size, launch.nodes, launch.gpus,
        )  # fmt: skip
        _fill(report, watched, options, start_s)
    report.wall_s = time.perf_counter() - begin_s
    return report


@contextmanager
def _watched(rt: Runtime, options: RunOptions) -> Iterator[_Watched]:
    """Watch the virtual machine in the block; at its end, all that was queued has its time."""
    usage = UsageTimeline(f"simulated on {rt.machine.name}", rt.now_s())
    recent = RecentTimeline(usage.clock, MANY, samples_memory=options.share)
    watched = _Watched(rt, 0, usage, recent, [] if options.hazards else None)
    with ExitStack() as stack:
        if options.timeline is not None:
            stack.enter_context(recorded(rt, options.timeline, watched.unwritten))
        rt.clock.timelines = [*rt.clock.timelines, usage, recent]
        stack.enter_context(progress(partial(_progress_line, watched), shown=not options.quiet))
        try:
            yield watched
        finally:
            rt.host_threads.settle()
            ours = (usage, recent)
            rt.clock.timelines = [
                t for t in rt.clock.timelines if not any(t is own for own in ours)
            ]
            usage.finish()


def _progress_line(watched: _Watched, seconds: float) -> str:
    steps = f", {watched.marks.count} steps" if watched.marks.count else ""
    simulated = seconds_text(watched.usage.last_s)
    advised = advice(watched.rt.values_s, seconds)
    more = f"; {advised}" if advised else ""
    return f"d2lpar: {seconds:.0f} s, simulated {simulated}{steps}{more}"


# --- processes ------------------------------------------------------------------------------------


def _run_as_planned(launch: LaunchPlan, options: RunOptions, watched: _Watched) -> None:
    """After a failure all start again, as often as torchrun was told."""
    watched.logs = None if launch.logs is None else RankLogs(launch.logs)
    for attempt in range(launch.max_restarts + 1):
        watched.attempt = watched.restarts = attempt
        with nullcontext() if watched.logs is None else watched.logs.opened():
            _attempt(launch, options, watched, attempt)
        if watched.status in (0, INTERRUPTED) or attempt == launch.max_restarts:
            return
        again = f"all ranks start again: {attempt + 1} of {launch.max_restarts}"
        for line in (*watched.failures, again):
            say(f"d2lpar: {line}", stream=sys.stderr)
        _forget(watched)


def _forget(watched: _Watched) -> None:
    """Let nothing be left of processes that have failed."""
    watched.failures.clear()
    watched.said_by.clear()
    watched.reported.clear()
    watched.status = 0


def _attempt(launch: LaunchPlan, options: RunOptions, watched: _Watched, restarts: int) -> None:
    processes = launch.processes(restarts)
    names = [name_of(process, len(processes)) for process in processes]
    watched.ranks = len(processes)
    if len(processes) > 1:
        for name in IMPORTED_ONCE:
            importlib.import_module(name)
    with ExitStack() as stack:
        folder = stack.enter_context(exchange_folder())
        children = Children(Run(launch, options, watched.rt, folder), processes)
        conductor = Conductor(watched.rt, names, watched, folder)
        stack.callback(conductor.close)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # so that no threads of OpenMP are there when it forks again
        with children.passing_signals_on():
            conductor.serve(children.seats)
            children.wait(conductor)
    watched.is_interrupted |= children.interrupts > 1
    if watched.status or children.died or children.interrupts:
        children.end_what_they_have_started()
    _explain_end(watched, conductor, children.died, names)


def _explain_end(
    watched: _Watched, conductor: Conductor, died: list[tuple[int, int]], names: list[str]
) -> None:
    """Say why a run has ended of which its processes have said nothing."""
    error = conductor.world.scheduler.error
    if watched.is_interrupted:
        watched.status = INTERRUPTED
        watched.failures[:] = ["\n".join(["interrupted", *watched.failures])]
    elif watched.failures:
        watched.status = watched.status or FAILED
    elif error is not None:  # ranks that wait for one another
        watched.failures.append(failure.said(error))
        watched.status = FAILED
    for rank, status in died if not watched.failures else []:
        who = names[rank] if len(names) > 1 else "the program"
        if status < 0:
            watched.failures.append(f"{who} was ended by {signal.Signals(-status).name}")
            watched.status = 128 - status
        elif rank not in watched.reported:
            watched.failures.append(f"{who} ended with exit status {status}, by os._exit()")
            watched.status = status


# --- the report -----------------------------------------------------------------------------------


def _fill(report: RunReport, watched: _Watched, options: RunOptions, start_s: float) -> None:
    report.status = watched.status
    report.restarts = watched.restarts
    report.error = watched.failures[0] if watched.failures else None
    host_s = max(watched.usage.last_s, watched.rt.now_s())
    report.simulated_s = host_s - start_s
    report.values_s = watched.rt.values_s + sum(said.values_s for said in watched.said_by)
    report.loader_s = sum(said.loader_s for said in watched.said_by)
    report.loader_workers = max((said.loader_workers for said in watched.said_by), default=0)
    report.unknown_reads = sum(said.unknown_reads for said in watched.said_by)
    report.steps = watched.marks.count
    step_s = watched.marks.seconds()
    report.ms_per_step = None if step_s is None else step_s * 1e3
    of_peaks = [said.peak_bytes for said in watched.said_by]
    of_twice = [said.twice_bytes for said in watched.said_by]
    report.devices = [
        device_report(
            watched.rt, watched.usage, i, host_s, _on(i, of_peaks), _on(i, of_twice) or None
        )
        for i in range(report.gpus)
    ]
    report.hazards = watched.hazards
    report.syncs = syncs(watched.waits)
    report.unwritten = watched.unwritten
    if options.share:
        report.timeline = watched.recent
    if options.advises:
        prices = next((said.prices for said in watched.said_by if said.prices), [])
        advise(report, watched.recent, watched.marks.last_half(), watched.rt.machine, prices)


def _on(number: int, by_process: Iterable[Sequence[int]]) -> int:
    """The bytes on a device of all processes; some know of fewer devices."""
    return sum(sum(of_devices[number : number + 1]) for of_devices in by_process)
