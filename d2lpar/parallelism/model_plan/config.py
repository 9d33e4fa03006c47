"""A model by its `config.json`, its name or a few numbers: read and checked without torch.

Field names are those of Hugging Face's transformers; what a file leaves out has the value that the
family's configuration class gives it there (`src/transformers/models/FAMILY/configuration_*.py`).
Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...timeline.inputs import is_whole

MOST_BYTES = 10**7  # of a config.json; those of large models take some kilobytes
# Nobody has built larger ones; what is, is a slip of the finger.
LIMITS = {
    "layers": 10_000,
    "width": 10**6,
    "words": 10**8,
    "positions": 10**9,
    "heads": 10_000,
    "experts": 10_000,
    "pixels": 100_000,
}
IMAGES, TOKENS = "images", "tokens"
NUMBERS = "--layers --hidden --heads --ffn --vocabulary"


@dataclass(frozen=True)
class ModelConfig:
    """What is to be planned: `sizes` are arguments of `planner.Transformer`.

    `longest` is the most tokens that a sample may have (None: not bounded); `encoder` says that it
    reads a sample at once and writes nothing. `unit` is what throughput counts, and `source` says
    where the figures are from.
    """

    name: str
    family: str
    sizes: Mapping[str, Any]
    longest: int | None = None
    encoder: bool = False
    unit: str = TOKENS
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether samples have one length, as pictures do."""
        return self.unit == IMAGES

    def sequence(self, wanted: int | None, default: int) -> int:
        """Tokens of a sample: those wanted, or `default` but not more than it reads.

        Raises ValueError for more tokens than it has learned positions for.
        """
        if self.fixed:
            own = int(self.sizes["sequence"])
            if wanted not in (None, own):
                raise ValueError(
                    f"{self.name} reads pictures of {own} patches, not {wanted}: leave the "
                    "sequence out, or change image_size in its config.json"
                )
            return own
        if wanted is None:
            return default if self.longest is None else min(default, self.longest)
        learned = self.sizes.get("positions") == "learned"
        if learned and self.longest is not None and wanted > self.longest:
            raise ValueError(
                f"{self.name} has learned {self.longest:,} positions, and a sequence of {wanted:,} "
                f"tokens needs as many: take {self.longest:,} at most"
            )
        return wanted


# --- the fields of a file -------------------------------------------------------------------------


@dataclass
class Fields:
    """A config.json whose fields are asked for by name, each refused by its name."""

    where: str
    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def count(self, name: str, kind: str, default: int | None = None) -> int:
        """A whole number from 1 to the limit of its kind; required without a default."""
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise ValueError(
                f"{self.where} has no {name!r}: take the whole config.json of the model, or give "
                f"its numbers ({NUMBERS})"
            )
        if not is_whole(value) or not 1 <= value <= LIMITS[kind]:
            raise ValueError(
                f"{self.where}: {name!r} is a whole number from 1 to {LIMITS[kind]:,}, not "
                f"{_short(value)}"
            )
        return int(value)

    def optional(self, name: str, kind: str) -> int | None:
        """The same, or None where it is left out."""
        return None if self.values.get(name) is None else self.count(name, kind)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name!r} is true or false, not {_short(value)}")
        return value

    def share(self, name: str, default: float) -> float:
        """A number from 0 on below 1."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(
                f"{self.where}: {name!r} is a number from 0 to less than 1, not {_short(value)}"
            )
        return float(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_file(path: str | os.PathLike[str]) -> Fields:
    """The fields of a config.json.

    Raises ValueError for what is no such file, naming it and what to do.
    """
    file, where = Path(path), os.fspath(path)
    if file.is_dir():
        raise ValueError(f"{where} is a folder: name the config.json in it")
    if not file.exists():
        raise ValueError(
            f"there is no file {where}: nothing is downloaded, so save the model's config.json "
            "from its page, or name a model that is known"
        )
    if not file.is_file():
        raise ValueError(f"{where} is no regular file: name a config.json")
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{where} cannot be read ({error.strerror}): name a config.json") from None
    return Fields(where, _parsed(content, where))


def _parsed(content: bytes, where: str) -> Mapping[str, Any]:
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"{where} is larger than {MOST_BYTES // 10**6} MB, so it is no config.json: name the "
            "config.json beside it"
        )
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(
            f"{where} is no text, but binary: name the config.json beside it"
        ) from None
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", "nested too deeply")
        line = getattr(error, "lineno", None)
        at = f", line {line}" if line else ""
        raise ValueError(f"{where} is no JSON ({what}{at}): name a config.json") from None
    if not isinstance(values, dict):
        raise ValueError(
            f"{where} holds no fields, but {_short(values)}: name a config.json of a model"
        )
    return values
