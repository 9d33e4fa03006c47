"""The beginning and the end of a process that a program of a run has started: see `starting`."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing import util
from pathlib import Path

from ...conductor import starting
from ...conductor.process import Place, come, conducted_here
from ...cuda.block import emulating
from ...patching import Patches
from ...ranks.torch_names import names_of_torch
from ...torch_backend.machine.runtime import current_runtime
from .rank_process import ProcessReport, watched


def begin() -> None:
    """Have the virtual GPUs of the run from now on."""
    told = starting.told()
    machine = pickle.loads(Path(told.machine).read_bytes())
    stack, report = ExitStack(), ProcessReport()
    stack.enter_context(emulating(told.gpus, machine, shape_only=told.shapes_only))
    place = Place(0, "", [told.node], told.node, {}, [], told)
    conducted = come(place)
    stack.enter_context(names_of_torch())
    starting.install(Patches())
    stack.enter_context(watched(current_runtime(), report, hazards=told.hazards))
    pid = os.getpid()

    def end() -> None:
        if os.getpid() != pid or conducted_here() is not conducted:
            return
        stack.close()
        conducted.report = asdict(report)
        conducted.end()

    atexit.register(end)
    if any("multiprocessing.forkserver" in word for word in sys.orig_argv):  # ends by os._exit
        util.Finalize(None, end, exitpriority=-100)
