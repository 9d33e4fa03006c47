"""Does a model fit, how long does it take, what does it cost: from its configuration alone.

    print(par.plan_model("llama-3.1-8b", "8x-h100-nvswitch", batch=64))

What reads a configuration needs no torch; the planner is imported when a plan is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .planning import ModelPlan as ModelPlan
    from .planning import plan_model as plan_model

__all__ = ["ModelPlan", "plan_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import planning

    return getattr(planning, name)
