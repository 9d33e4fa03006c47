"""FSDP's own test models as tests of an older checkout call them.

Where a model is moved was a mode called `CUDAInitMode`; since other accelerators are tested, too,
it is `DEVICEInitMode`, its members and the arguments likewise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

_BEFORE, _NOW = "cuda_init_mode", "device_init_mode"


def cuda_init_mode(helpers: ModuleType) -> SimpleNamespace:
    """The modes under the names that they had; from now on `helpers` take the old argument, too."""
    for owner in vars(helpers).values():
        if isinstance(owner, type):
            _take_old_argument(owner)
    modes = helpers.DEVICEInitMode
    return SimpleNamespace(**{mode.name.replace("DEVICE", "CUDA"): mode for mode in modes})


def _take_old_argument(owner: type) -> None:
    if isinstance(init := vars(owner).get("init"), staticmethod):
        setattr(owner, "init", staticmethod(_with_old_argument(init.__func__)))  # noqa: B010
    if callable(parity := vars(owner).get("_test_fsdp_parity")):
        setattr(owner, "_test_fsdp_parity", _with_old_argument(parity))  # noqa: B010


def _with_old_argument(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _BEFORE in kwargs:
            kwargs[_NOW] = kwargs.pop(_BEFORE)
        return theirs(*args, **kwargs)

    return call
