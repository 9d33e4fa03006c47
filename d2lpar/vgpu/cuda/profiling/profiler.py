"""`torch.profiler` on emulated devices: profiles whose times are simulated, for each process.

PyTorch's own profiler measures one process, and there it would find a processor that computes what
a GPU should. So a profile records what the simulated clock tells of its process: what its host
queued, ran and waited for, what its devices did, and blocks that it has named. Schedules,
tables and handlers of traces are PyTorch's own code, above that.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch.autograd
import torch.autograd.profiler
import torch.profiler
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity

from ....timeline.host_processes import MAIN
from ....timeline.printing import say
from ....timeline.whole_file import whole
from ...patching import Patches
from ...ranks.launcher import host_time_s
from ...ranks.world.rank import Rank, here
from ...torch_backend.machine.op_details import Wanted
from ...torch_backend.machine.runtime import current_runtime
from .. import lazy_init
from ..device_translation import CUDA
from ..refusals import refusal
from .profiled_events import OwnSpans, Profiled

SIMULATED = (
    "torch.profiler: all times are simulated ones, of the emulated GPUs and of the host that "
    "queues their work. What is computed on the CPU takes no time there, and is not listed"
)
Profile: Any = torch.autograd.profiler.profile
Kineto: Any = sys.modules["torch.profiler.profiler"]._KinetoProfile


def install(patches: Patches) -> None:
    """Let profiles record simulated time."""
    profiles = _Profiles()
    for name, ours in (
        ("__init__", _init(Profile.__init__)),
        ("_prepare_trace", lambda self: setattr(self, "entered", True)),
        ("_start_trace", profiles.start),
        ("__exit__", profiles.stop),
        ("_parse_kineto_results", _events),
        ("export_chrome_trace", _export),
        ("toggle_collection_dynamic", profiles.toggle),
    ):
        patches.replace(Profile, name, ours)
    patches.replace(Kineto, "export_chrome_trace", _export_of_steps)
    for name in ("export_stacks", "export_chrome_trace"):
        patches.replace(EventList, name, whole(getattr(EventList, name), "path"))
    patches.at_end(profiles.end)
    patches.replace(torch.autograd, "_add_metadata_json", profiles.note)
    patches.replace(torch.autograd, "_supported_activities", _supported_activities)
    remedy = (
        "use torch.cuda.memory._record_memory_history() and _dump_snapshot(FILE), which "
        "https://pytorch.org/memory_viz draws, or d2lpar.record(), whose timeline has memory"
    )
    refuse = refusal("the profiler's export_memory_timeline", remedy)
    patches.replace(Kineto, "export_memory_timeline", refuse)


def _supported_activities() -> set[ProfilerActivity]:
    """What a profile records if the program does not say: CUDA, too, where there is a device."""
    of_devices = {ProfilerActivity.CUDA} if lazy_init.device_count() else set()
    return {ProfilerActivity.CPU, *of_devices}


def _init(theirs: Callable) -> Callable:
    """Keep what is wanted of devices: torch's code would look whether a real one can be asked."""

    @functools.wraps(theirs)
    def __init__(  # noqa: N807
        self: Any,
        *args: object,
        use_cuda: bool = False,
        use_device: str | None = None,
        use_cpu: bool = True,
        **options: object,
    ) -> None:
        theirs(self, *args, use_device=None, use_cpu=True, **options)
        self.use_device = CUDA if use_cuda or use_device == CUDA else None
        self.use_cpu = use_cpu

    return __init__


def _events(profile: Any, result: Profiled, timeout_s: float | None = None) -> list:
    return result.function_events(host=profile.use_cpu, device=profile.use_device is not None)


def _export(
    profile: Any, path: str, metadata: Mapping[str, str] | None = None, *_: object, **__: object
) -> None:
    if profile.kineto_results is None:
        raise RuntimeError("a profile is exported when it has ended: call stop() first")
    profile.kineto_results.save(path, metadata or {})


def _export_of_steps(kineto: Any, path: str, *_: object, **__: object) -> None:
    """As `_export`: torch's would pack a trace into a file as it is written."""
    if kineto.profiler is None:
        raise AssertionError("Profiler must be initialized before exporting chrome trace")
    _export(kineto.profiler, path, getattr(kineto, "_trace_metadata", None))


class _Profiles:
    """The profiles that run, one a process."""

    def __init__(self) -> None:
        self._running: dict[Rank | None, _Running] = {}
        self._said = False

    def start(self, profile: Any) -> None:
        if not self._said:
            self._said = True
            say(SIMULATED, stream=sys.stderr)
        rank = _rank()
        if rank in self._running:
            raise RuntimeError(
                "a profiler runs already in this process: end it before another one begins"
            )
        self._running[rank] = running = _Running(profile, rank)
        running.collect(True)

    def stop(self, profile: Any, *error: object) -> bool:
        running = self._of(profile)
        if not getattr(profile, "enabled", True) or running is None:
            return False
        del self._running[running.rank]
        running.finish()
        if profile._function_events and profile.acc_events:
            profile._old_function_events = profile._function_events
        profile._function_events, profile._needs_processing = None, True
        profile.entered = False
        profile.kineto_results = Profiled(running.spans, running.metadata)
        if profile.acc_events:
            profile._ensure_function_events()
        return False

    def end(self) -> None:
        """Record no more, as those do not whom an error has kept from their end."""
        while self._running:
            self._running.popitem()[1].collect(False)

    def toggle(self, profile: Any, enabled: bool, activities: object) -> None:
        running = self._of(profile)
        if running is not None:
            running.collect(enabled)

    def note(self, key: str, value: str) -> None:
        """What takes the place of `torch.autograd._add_metadata_json`."""
        running = self._running.get(_rank())
        if running is not None:
            json.loads(value)  # an error is of who adds it, not of who exports
            running.metadata[key] = value

    def _of(self, profile: Any) -> _Running | None:
        found = (each for each in self._running.values() if each.profile is profile)
        return next(found, None)


class _Running:
    """A profile that records, and what it has recorded so far."""

    def __init__(self, profile: Any, rank: Rank | None) -> None:
        self.profile, self.rank, self.rt = profile, rank, current_runtime()
        process = MAIN if rank is None else rank.host_thread.name
        self.begin_s = host_time_s()
        self.spans = OwnSpans(f"simulated on {self.rt.machine.name}", process, self.begin_s)
        self._wanted = Wanted(profile.record_shapes, profile.with_stack, profile.profile_memory)
        self.metadata: dict[str, str] = {}

    def collect(self, on: bool) -> None:
        """Record from now on, or no more."""
        self.rt.host_threads.flush()
        clock = self.rt.clock
        others = [timeline for timeline in clock.timelines if timeline is not self.spans]
        if on != (len(others) < len(clock.timelines)):
            details = self.rt.op_details
            if on:
                details.begin(self._wanted, self.rt.current_device)
            else:
                if self._wanted.memory:
                    self.spans.end_of_memory(host_time_s(), details.rest())
                details.end(self._wanted)
        clock.timelines = [*others, self.spans] if on else others

    def finish(self) -> None:
        """Wait for the devices, as torch does, so that all spans are known; record no more.

        After an error nobody waits: it may be why what others wait for never comes.
        """
        failed = sys.exc_info()[0] is not None
        if self.profile.use_device is not None and not failed:
            for device in sorted({self.rt.current_device, *self.spans.devices_used()}):
                self.rt.synchronize(device)
        self.collect(False)


def _rank() -> Rank | None:
    """The virtual process whose thread this is, if it is one."""
    return getattr(here, "rank", None)
