"""`nvidia-smi`, which programs start to log what GPUs there are: of emulated GPUs.

It tells what is known of them: names, memory, compute capability. A temperature or a power they
have not; such fields are "[N/A]", as those of a GPU that does not measure them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from ..device_naming import device
from ..torch_backend import device_module
from ..torch_backend.runtime import current_runtime
from . import cuda_module
from .capability import CudaDeviceProperties
from .lazy_init import devices_of_host

COMMAND = "nvidia-smi"
_MIB = 2**20

# What a process prints, and how it ends: the words after this one.
_SAY = "import sys; sys.stdout.write(sys.argv[1]); sys.exit(int(sys.argv[2]))"


def stand_in(command: object, *, shell: bool) -> list[str] | None:
    """The words of a process that prints what `nvidia-smi` would; None for another command."""
    words = _words(command, shell=shell)
    if not words or Path(words[0]).name != COMMAND:
        return None
    text, status = answer(words[1:])
    return [sys.executable, "-I", "-S", "-c", _SAY, text, str(status)]


def _words(command: object, *, shell: bool) -> list[str]:
    """The words of a command; none of one that a shell must read."""
    if isinstance(command, (str, Path)):
        text = str(command)
        is_plain = not shell or not set(text) & set("|&;<>()$`*?\n")
        return shlex.split(text) if is_plain and COMMAND in text else []
    if isinstance(command, (list, tuple)) and not shell:
        return [str(word) for word in command]
    return []


def answer(options: Sequence[str]) -> tuple[str, int]:
    """What it prints for these options, and its exit status."""
    try:
        given = _parser().parse_args(options)
        gpus = _chosen(given.id)
        if given.list_gpus:
            return _list(gpus), 0
        if given.query_gpu is not None:
            return _query(gpus, given.query_gpu.split(","), given.format.split(",")), 0
        return _overview(gpus), 0
    except ValueError as error:
        return f"{error}\n", 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(
            f"{COMMAND} of virtual GPUs: {message}. It has -L, -i, --query-gpu and --format=csv"
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=COMMAND, add_help=False, allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu")
    parser.add_argument("--format", default="csv")
    return parser


def _chosen(numbers: str | None) -> list[int]:
    count = len(devices_of_host())
    if numbers is None:
        return [*range(count)]
    if not all(word.strip().isdigit() and int(word) < count for word in numbers.split(",")):
        raise ValueError(f"No devices were found: {numbers!r} is none of 0 to {count - 1}")
    return [int(word) for word in numbers.split(",")]


# --- what it prints -------------------------------------------------------------------------------


def _list(gpus: Sequence[int]) -> str:
    return "".join(f"GPU {gpu}: {_of(gpu).name} (UUID: GPU-{_of(gpu).uuid})\n" for gpu in gpus)


def _query(gpus: Sequence[int], fields: Sequence[str], layout: Sequence[str]) -> str:
    """A line for each GPU, and one above for the names of the fields."""
    fields = [field.strip() for field in fields]
    units = [" [MiB]" if field.startswith("memory.") else "" for field in fields]
    heads = [f + u for f, u in zip(fields, units, strict=True)]
    lines = [] if "noheader" in layout else [", ".join(heads)]
    plain = "nounits" in layout
    for gpu in gpus:
        values = [_value(gpu, field) for field in fields]
        texts = [f"{v} MiB" if u and not plain else v for v, u in zip(values, units, strict=True)]
        lines.append(", ".join(texts))
    return "".join(f"{line}\n" for line in lines)


def _overview(gpus: Sequence[int]) -> str:
    """A table for readers."""
    rule = "+" + "-" * 73 + "+"
    machine = current_runtime().machine.name
    title = f"{COMMAND.upper()} of virtual GPUs: {machine}, CUDA {torch.version.cuda}"
    rows = [
        f"{gpu:>3}  {_of(gpu).name:<38} {_value(gpu, 'memory.used'):>9}MiB / "
        f"{_value(gpu, 'memory.total'):>9}MiB"
        for gpu in gpus
    ]
    lines = [rule, *(f"| {line:<71} |" for line in [title, "GPU  Name", *rows]), rule]
    return "".join(f"{line}\n" for line in lines)


# --- fields ---------------------------------------------------------------------------------------


def _of(gpu: int) -> CudaDeviceProperties:
    return cuda_module.properties_of(device(devices_of_host()[gpu]))


def _mib(gpu: int) -> tuple[int, int]:
    """Free and all memory."""
    free, total = device_module.mem_get_info(device(devices_of_host()[gpu]))
    return free // _MIB, total // _MIB


def _capability(gpu: int) -> str:
    known = _of(gpu)
    return f"{known.major}.{known.minor}"


_FIELDS: dict[str, Callable[[int], object]] = {
    "index": lambda gpu: gpu,
    "count": lambda gpu: len(devices_of_host()),
    "name": lambda gpu: _of(gpu).name,
    "gpu_name": lambda gpu: _of(gpu).name,
    "uuid": lambda gpu: f"GPU-{_of(gpu).uuid}",
    "gpu_uuid": lambda gpu: f"GPU-{_of(gpu).uuid}",
    "compute_cap": _capability,
    "pci.bus": lambda gpu: f"0x{_of(gpu).pci_bus_id:02X}",
    "pci.bus_id": lambda gpu: f"00000000:{_of(gpu).pci_bus_id:02X}:00.0",
    "gpu_bus_id": lambda gpu: f"00000000:{_of(gpu).pci_bus_id:02X}:00.0",
    "memory.total": lambda gpu: _mib(gpu)[1],
    "memory.free": lambda gpu: _mib(gpu)[0],
    "memory.used": lambda gpu: _mib(gpu)[1] - _mib(gpu)[0],
}
_UNKNOWN = "[N/A]"
_UNKNOWN_OF_ALL = (
    *("driver_version", "vbios_version", "serial", "timestamp", "pstate", "fan.", "display_"),
    *("temperature.", "power.", "clocks.", "clocks_", "utilization.", "ecc.", "pcie.", "mig."),
    *("encoder.", "compute_mode", "persistence_mode", "enforced.power", "retired_", "pci."),
)


def _value(gpu: int, field: str) -> str:
    if field in _FIELDS:
        return str(_FIELDS[field](gpu))
    if field.startswith(_UNKNOWN_OF_ALL):
        return _UNKNOWN
    raise ValueError(f'Field "{field}" is not a valid field to query.')
