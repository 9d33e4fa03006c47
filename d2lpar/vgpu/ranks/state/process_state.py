"""What every process has of its own, and virtual ranks exchange when the turn passes.

Random numbers of torch (of the CPU and of the virtual devices), of Python and of NumPy;
`shape_only`, the default data type, and what else it sets of torch; what DTensor and FSDP keep;
which warnings it shows; the environment, `sys.argv`, `sys.path` and the working folder.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ...device_naming import RANK_DEVICE, TYPE
from ...torch_backend.machine.runtime import Runtime
from ..private.dtensor import LibraryAsImported, LibraryState
from .module_variables import ModuleVariables
from .own_settings import OwnSettings
from .own_warnings import OwnWarnings

Environment = dict[Any, Any]  # as the operating system has it: encoded


class OwnState(Protocol):
    """Something else that each process has of its own."""

    def save(self) -> None:
        """Keep what the running process has."""

    def restore(self) -> None:
        """Let the running process have what was kept."""


class ProcessState:
    """The state of a process: that of the running one when made, then exchanged with it.

    `others` are further things to exchange; `library` is what DTensor begins with.
    """

    def __init__(
        self, rt: Runtime, others: Sequence[OwnState] = (), library: LibraryAsImported | None = None
    ) -> None:
        self._rt = rt
        if library is not None:
            of_torch = (LibraryState(library), ModuleVariables(), OwnSettings())
            others = [*of_torch, OwnWarnings(), *others]
        self._others: Sequence[OwnState] = ()
        self.save()
        shape_only, seed, sequences, blocks = rt.own_state()
        self._machine = shape_only, seed, {i: s.copy() for i, s in sequences.items()}, blocks
        self._others = others

    def save(self) -> None:
        """Keep what the running process has."""
        self._machine = self._rt.own_state()
        self._torch = torch.random.default_generator.get_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy else None
        self._dtype = torch.get_default_dtype()
        self._environment = _environment()
        self._arguments, self._path, self._folder = sys.argv, list(sys.path), _folder()
        for other in self._others:
            other.save()

    def restore(self) -> None:
        """Be the process that is running."""
        self._rt.take_state(self._machine)
        torch.random.default_generator.set_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_default_dtype(self._dtype)
        _set_environment(self._environment)
        sys.argv = self._arguments
        if sys.path != self._path:
            sys.path[:] = self._path
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
        for other in self._others:
            other.restore()

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Let the process find these in its environment besides its own."""
        encode = os.environ.encodekey, os.environ.encodevalue
        self._environment |= {encode[0](k): encode[1](v) for k, v in variables.items()}


def _environment() -> Environment:
    """The environment, still encoded: to decode all of it takes longer than a turn may."""
    return dict(vars(os.environ)["_data"])


def _set_environment(wanted: Environment) -> None:
    now = vars(os.environ)["_data"]
    if now == wanted:
        return
    decode = os.environ.decodekey, os.environ.decodevalue
    for name in now.keys() - wanted.keys():
        del os.environ[decode[0](name)]
    for name, value in wanted.items() - now.items():
        os.environ[decode[0](name)] = decode[1](value)


def _folder() -> str | None:
    """The working folder; None if somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    RANK_DEVICE,
)
MASTER = ("localhost", 29500)  # as torchrun has it; nobody meets there


def variables_of(rank: int, world_size: int, devices: Sequence[int]) -> dict[str, str]:
    """torchrun's variables; LOCAL_RANK is the number of the device, as it is on one machine, and
    that of the rank where it has several devices, or none."""
    local = devices[0] if len(devices) == 1 else rank
    values = (rank, local, world_size, world_size, *MASTER, *(f"{TYPE}:{d}" for d in devices[:1]))
    return dict(zip(VARIABLES, map(str, values), strict=False))
