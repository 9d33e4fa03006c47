"""What every process has of its own, and virtual ranks exchange when the turn passes.

Random numbers of torch (of the CPU and of the virtual devices), of Python and of NumPy; the
environment variables by which torchrun tells a process who it is; and `shape_only`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping

import torch

from ..device_naming import RANK_DEVICE, TYPE
from ..torch_backend.runtime import Runtime

Variables = Mapping[str, str | None]  # None: not there


class ProcessState:
    """The state of a process: that of the running one when made, then exchanged with it."""

    def __init__(self, rt: Runtime, variables: Variables | None = None) -> None:
        self._rt = rt
        self.save(variables)

    def save(self, variables: Variables | None = None) -> None:
        """Keep what the running process has; `variables` instead of its own, if given."""
        shape_only, seed, random_state = self._rt.own_state()
        self._machine = (shape_only, seed, dict(random_state))
        self._torch = torch.random.default_generator.get_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy else None
        now = {name: os.environ.get(name) for name in VARIABLES}
        self._variables: Variables = variables or now

    def restore(self) -> None:
        """Be the process that is running."""
        self._rt.take_state(self._machine)
        torch.random.default_generator.set_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    RANK_DEVICE,
)
MASTER = ("localhost", 29500)  # as torchrun has it; nobody meets there


def variables_of(rank: int, world_size: int, device: int) -> dict[str, str]:
    """torchrun's variables; LOCAL_RANK is the number of the device, as it is on one machine."""
    values = (rank, device, world_size, world_size, *MASTER, f"{TYPE}:{device}")
    return dict(zip(VARIABLES, map(str, values), strict=True))
