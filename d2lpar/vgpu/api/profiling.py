"""Timelines of real devices: what torch.profiler measures, as spans.

Only runs on a CPU were tried; traces of real GPUs were not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from ...timeline import MEASURED, Timeline
from ...timeline.streaming import recording
from .timing import Devices, synchronize

SILENT = ("KINETO_LOG_LEVEL", "99")  # it tells on stderr of each start, and of GPUs not found


@contextmanager
def record(devices: Devices = None, *, to: str | os.PathLike | None = None) -> Iterator[Timeline]:
    """Measure the block; the timeline is empty in it and filled when it ends.

    torch.profiler watches the host, and CUDA devices where there are some; its own work makes
    small operations slower. `devices` are waited for before the block begins.
    """
    os.environ.setdefault(*SILENT)
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    synchronize(devices)
    with recording(MEASURED, to=to) as timeline:
        profiler = profile(activities=activities, profile_memory=on_gpu)
        _start(profiler)
        try:
            yield timeline
        finally:
            profiler.stop()
            seen = Timeline.from_profiler(profiler)
            for span in seen.spans:
                timeline.add(span)
            for sample in seen.memory:
                timeline.add_memory(sample)


def _start(profiler: profile) -> None:
    with warnings.catch_warnings():
        # torch 2.10 says so even of the first cycle, and there is no other here. Accumulating
        # events would silence it, but parses all of them: that takes longer than all the rest.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        profiler.start()
