"""Machines as JSON files, so that a machine of one's own can be written down, kept and shared."""

from __future__ import annotations

import os
from pathlib import Path

from ..timeline.inputs import checked
from . import json_dataclass
from .hardware import Machine
from .measuring.calibration import KIND as CALIBRATION
from .measuring.calibration import Calibration

KIND, VERSION = "d2lpar machine", 1


@checked
def save(machine: Machine, path: str | os.PathLike[str]) -> Path:
    """Write a machine to a JSON file that `load` reads; returns its path."""
    file = Path(path).expanduser()
    json_dataclass.write(file, json_dataclass.text(KIND, VERSION, machine))
    return file


@checked
def load(path: str | os.PathLike[str]) -> Machine:
    """The machine in a JSON file, whether `save` wrote it or `Calibration.save`.

    Raises ValueError with the file's name and what is wrong: no such file, no JSON, of another
    kind or schema version, a missing or unknown field, a wrong type or value.
    """
    file = Path(path).expanduser()
    found = json_dataclass.read(file)
    kind = found.get("kind")
    if kind == CALIBRATION:
        return Calibration.load(file).machine()
    if kind != KIND:
        raise ValueError(
            f"{file}: the field 'kind' must be {KIND!r} or {CALIBRATION!r}, not {kind!r}"
        )
    return json_dataclass.build(Machine, found, file, VERSION)
