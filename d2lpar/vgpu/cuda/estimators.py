"""torch's estimator of times, which asks CUDA's driver: refused where it would.

`torch.distributed._tools`' trackers of memory need nothing from here: they see what is allocated.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.utils._python_dispatch import TorchDispatchMode

from .patches import Patches
from .refusals import refusal

_ESTIMATOR = ("torch.distributed._tools.runtime_estimator", "RuntimeEstimator")
_REFUSED = refusal(
    "RuntimeEstimator on the current device",
    "it asks CUDA's driver for peak rates, or runs kernels there. Name a device that torch has a "
    'datasheet of, RuntimeEstimator(gpu_type="NVIDIA H100") with "operator-level-cost-model", or '
    "let d2lpar simulate the step: `with d2lpar.record() as timeline:`",
)


def install(patches: Patches) -> None:
    """Look at each dispatch mode when it is entered: importing the estimator takes seconds."""
    patches.replace(TorchDispatchMode, "__enter__", _enter(TorchDispatchMode.__enter__))


def _enter(theirs: Callable) -> Callable:
    def __enter__(self: TorchDispatchMode) -> object:  # noqa: N807, as Python calls it
        if (type(self).__module__, type(self).__name__) == _ESTIMATOR and not _asks_nothing(self):
            self._mod_tracker.__exit__()  # type: ignore[attr-defined]  # which is on already
            _REFUSED()
        return theirs(self)

    return __enter__


def _asks_nothing(estimator: object) -> bool:
    """Whether it estimates from a datasheet alone."""
    named = getattr(estimator, "_gpu_type", None) is not None
    return named and getattr(estimator, "_estimate_mode_type", "") == "operator-level-cost-model"
