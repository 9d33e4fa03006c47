"""What a program asks of the allocator: by PYTORCH_ALLOC_CONF, or while it runs.

Expandable segments are simulated; of what else changes how memory is given out a warning tells.
"""

from __future__ import annotations

import os
import re
import warnings
from functools import cache

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_LEFT_OUT = ("max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions")
_OPTION = re.compile(r"(\w+):(\[[^]]*\]|[^,]*)")

_chosen: str | None = None  # while a program runs


def choose(settings: str | None) -> None:
    """Let these settings be in force, not the environment's; None: the latter."""
    global _chosen
    _chosen = settings


def text() -> str:
    """The settings in force, as a program writes them."""
    if _chosen is not None:
        return _chosen
    return next(filter(None, map(os.environ.get, VARIABLES)), "")


def is_expandable() -> bool:
    """Whether they ask for expandable segments."""
    return _is_expandable(text())


@cache
def _is_expandable(settings: str) -> bool:
    options = dict(_OPTION.findall(settings.replace(" ", "")))
    for name in _LEFT_OUT:
        if name in options:
            warnings.warn(
                f"{name} is not simulated: memory is given out as without it", stacklevel=2
            )
    return options.get("expandable_segments", "").lower() == "true"
