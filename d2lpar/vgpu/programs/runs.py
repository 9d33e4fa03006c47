"""What runs of programs have in common: their options, their machine, and parts of the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ... import machines
from ..device_naming import text
from ..races.sync_debug import Waits
from ..torch_backend.machine.runtime import Runtime
from .launch_plan import LaunchPlan
from .report import DeviceReport, SyncReport
from .watched.device_usage import UsageTimeline

FAILED, INTERRUPTED = 1, 130  # exit statuses, as a shell has them


@dataclass(frozen=True)
class RunOptions:
    """How to run: the machine to simulate, where to write a timeline, what to look for; `compiled`:
    with its modules as `torch.compile` makes them."""

    machine: str | None = None
    timeline: str | None = None
    share: bool = False
    shapes_only: bool = False
    hazards: bool = False
    quiet: bool = False
    advises: bool = True
    traceback: bool = False
    compiled: bool = False


def with_nodes_of(launch: LaunchPlan, name: str | None) -> str | machines.Machine | None:
    """The machine of that name; of a cluster's nodes only what the program uses of each, so that
    its nodes are the cluster's."""
    whole, here = machines.machine(name), launch.gpus // launch.nodes
    if launch.nodes > 1 and whole.nodes > 1 and 0 < here < (whole.node_size or 1):
        return whole.of_each_node(here)
    return name


def machine_of(rt: Runtime, options: RunOptions) -> tuple[str, int, int]:
    """Name, GPUs and nodes of the machine that was asked for: the program may have been given more
    GPUs, like its own."""
    named, running = machines.machine(options.machine), rt.machine
    own = named if named.name == running.name else running
    return running.name, len(own.accelerators), running.nodes


@contextmanager
def recorded(rt: Runtime, path: str, unwritten: list[str]) -> Iterator[None]:
    """Write a timeline of the block; what cannot be written is noted, as the program has run."""
    recording = rt.recording(to=path)
    recording.__enter__()
    try:
        yield
    finally:
        try:
            recording.__exit__(None, None, None)
        except OSError as error:
            unwritten.append(str(error))


def device_report(
    rt: Runtime,
    timeline: UsageTimeline,
    number: int,
    end_s: float,
    peak_bytes: int,
    twice_bytes: int | None,
) -> DeviceReport:
    """What a device did until that time; its tensors occupied so many bytes at most, and would
    `twice_bytes` with twice the batch."""
    usage, memory = timeline.usage[text(number)], rt.memories[number]
    return DeviceReport(
        text(number),
        usage.compute_s,
        usage.communication_s,
        usage.exposed_communication_s,
        usage.waits_for_host_s,
        usage.waits_for_others_s,
        max(0.0, end_s - usage.last_s),
        peak_bytes,
        twice_bytes,
        memory.capacity_bytes,
    )


def syncs(waits: Waits) -> list[SyncReport]:
    """What made hosts wait, by place."""
    return [SyncReport(t.call, str(t.place), t.count, t.seconds) for t in waits.by_place()]
