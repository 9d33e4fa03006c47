"""`nvidia-smi`, which programs start to log what GPUs there are: of emulated GPUs.

It answers queries: names, memory, compute capability. A temperature or a power they have not;
other fields are "[N/A]", as those of a GPU that does not measure them.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...device_naming import device
from ...patching import Patches
from ...torch_backend.module import device_module
from ..lazy_init import devices_of_host, emulated_count
from . import cuda_module

COMMAND = "nvidia-smi"
_MIB = 2**20

# What a process prints, and how it ends: the words after this one.
_SAY = "import sys; sys.stdout.write(sys.argv[1]); sys.exit(int(sys.argv[2]))"


def install(patches: Patches) -> None:
    """Let the command tell of the emulated GPUs, whoever starts it."""
    theirs = subprocess.Popen.__init__

    @functools.wraps(theirs)
    def start(self: Any, args: Any, *others: Any, **options: Any) -> None:
        told = None
        if emulated_count() and not others:
            told = stand_in(args, shell=bool(options.get("shell")))
        if told is not None:
            args, options = told, {**options, "shell": False, "executable": None}
        theirs(self, args, *others, **options)

    patches.set(subprocess.Popen, "__init__", start)


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
    parser = _Parser(prog=COMMAND, add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--id")
    parser.add_argument("--query-gpu", default="index,name,memory.used,memory.total")
    parser.add_argument("--format", default="csv")
    try:
        given = parser.parse_args(options)
        return _query(_chosen(given.id), given.query_gpu.split(","), given.format.split(",")), 0
    except ValueError as error:
        return f"{error}\n", 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(
            f"{COMMAND} of virtual GPUs: {message}. It has -i, --query-gpu and --format=csv"
        )


def _chosen(numbers: str | None) -> list[int]:
    count = len(devices_of_host())
    if numbers is None:
        return [*range(count)]
    if not all(word.strip().isdigit() and int(word) < count for word in numbers.split(",")):
        raise ValueError(f"No devices were found: {numbers!r} is none of 0 to {count - 1}")
    return [int(word) for word in numbers.split(",")]


def _query(gpus: Sequence[int], fields: Sequence[str], layout: Sequence[str]) -> str:
    """A line for each GPU, and one above for the names of the fields."""
    fields = [field.strip() for field in fields]
    units = [" [MiB]" if field.startswith("memory.") else "" for field in fields]
    heads = [f + u for f, u in zip(fields, units, strict=True)]
    lines = [] if "noheader" in layout else [", ".join(heads)]
    plain = "nounits" in layout
    for gpu in gpus:
        known = _known(gpu)
        values = [str(known.get(field, "[N/A]")) for field in fields]
        texts = [f"{v} MiB" if u and not plain else v for v, u in zip(values, units, strict=True)]
        lines.append(", ".join(texts))
    return "".join(f"{line}\n" for line in lines)


def _known(gpu: int) -> dict[str, object]:
    """What it knows of one, by the names of its fields."""
    emulated = device(devices_of_host()[gpu])
    found = cuda_module.properties_of(emulated)
    free, total = (nbytes // _MIB for nbytes in device_module.mem_get_info(emulated))
    return {
        "index": gpu,
        "count": len(devices_of_host()),
        "name": found.name,
        "gpu_name": found.name,
        "uuid": f"GPU-{found.uuid}",
        "gpu_uuid": f"GPU-{found.uuid}",
        "compute_cap": f"{found.major}.{found.minor}",
        "memory.total": total,
        "memory.free": free,
        "memory.used": total - free,
    }
