"""Does a model fit, how long does it take, what does it cost: from its configuration alone.

    print(par.plan_model("llama-3.1-8b", "8x-h100-nvswitch", batch=64))

What reads a configuration needs no torch; the planner is imported when a plan is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .planning import plan_model as plan_model
    from .result import ModelPlan as ModelPlan

__all__ = ["ModelPlan", "plan_model"]


def __getattr__(name: str) -> Any:
    if name == "plan_model":
        from .planning import plan_model

        return plan_model
    if name == "ModelPlan":
        from .result import ModelPlan

        return ModelPlan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
