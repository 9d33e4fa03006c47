"""Libraries that keep in global variables what process they are in: each rank needs its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

# What they keep: `PartialState` (its rank and device), `GlobalHydra` (the configuration), the rank
# of `rank_zero_only`, groups of ranks; and libraries that take such objects of theirs by name. And
# what a program has told a library that knows no torch: its flags (absl), the sinks of its log
# (loguru), functions by name (gin, omegaconf), the run that is tracked (wandb). All are of Python
# only, so that they can be imported again.
KNOWN = frozenset(
    (
        *("absl", "accelerate", "colossalai", "deepspeed", "fairscale", "gin", "hydra"),
        *("lightning", "lightning_fabric", "loguru", "megatron", "nanotron", "omegaconf", "peft"),
        *("pytorch_lightning", "torchtitan", "torchtune", "transformers", "trl", "wandb"),
    )
)

_OURS = __name__.partition(".")[0]
_NEEDS_TORCH = re.compile(r"^Requires-Dist: torch(?![\w-])", re.MULTILINE)
_DISTRIBUTED = re.compile(rb"\btorch\.distributed\b|\bfrom torch import distributed\b")
_SETS_GLOBALS = re.compile(rb"^[ \t]+global \w", re.MULTILINE)
_COMPILED = {".so", ".pyd"}


@cache
def stateful_libraries() -> frozenset[str]:
    """The names of packages of which each process needs its own.

    Besides those that are known: what is installed, needs torch, is of Python only, and has a
    module that speaks of `torch.distributed` and whose functions set global variables, such as
    `ignite.distributed.utils`.
    """
    others = {folder.name for folder in _packages_on_torch() if _keeps_state(folder)}
    return KNOWN | others - {_OURS}


def _packages_on_torch() -> Iterator[Path]:
    """The folders of installed packages that need torch."""
    for distribution in metadata.distributions():
        if _NEEDS_TORCH.search(distribution.read_text("METADATA") or ""):
            files = distribution.files or ()
            names = {f.parts[0] for f in files if len(f.parts) == 2 and f.name == "__init__.py"}
            yield from (Path(str(distribution.locate_file(name))) for name in names - KNOWN)


def _keeps_state(package: Path) -> bool:
    files = list(package.rglob("*"))
    if any(file.suffix in _COMPILED for file in files):
        return False
    return any(_may_keep(file.read_bytes()) for file in files if file.suffix == ".py")


def _may_keep(source: bytes) -> bool:
    return bool(_DISTRIBUTED.search(source) and _SETS_GLOBALS.search(source))
