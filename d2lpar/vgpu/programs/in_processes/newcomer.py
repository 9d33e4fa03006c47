"""The beginning and the end of a process that a program of a run has started: see `starting`."""

from __future__ import annotations

import atexit
import os
import pickle
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing import current_process, util
from pathlib import Path

from ...conductor import starting
from ...conductor.process import Conducted, Place, come, wire_here
from ...cuda import emulate_cuda
from ...patching import Patches
from ...ranks.torch_names import names_of_torch
from ...torch_backend.machine.runtime import current_runtime
from .rank_process import ProcessReport, watched


def begin() -> None:
    """Have the virtual GPUs of the run from now on."""
    told = starting.told()
    machine = pickle.loads(Path(told["machine"]).read_bytes())
    stack, report = ExitStack(), ProcessReport()
    stack.enter_context(
        emulate_cuda(
            told["gpus"],
            machine,
            shape_only=told["shapes_only"],
            verbose=False,
            own_processes=False,
        )
    )
    node = told["node"]
    place = Place(
        0,
        current_process().name,
        [node],
        node,
        {},
        [],
        told["folder"],
        told["records"],
        told["door"],
    )
    conducted = come(place)
    stack.enter_context(names_of_torch())
    starting.install(Patches(lambda: True), wire_here)
    stack.enter_context(watched(current_runtime(), report, hazards=told["hazards"]))
    pid = os.getpid()

    def end() -> None:
        if os.getpid() != pid or Conducted.current is not conducted:
            return
        stack.close()
        conducted.report = asdict(report)
        conducted.end()

    atexit.register(end)
    util.Finalize(None, end, exitpriority=-100)  # of a process that multiprocessing ends
