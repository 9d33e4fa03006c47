"""Which mix of data, pipeline and tensor parallelism trains a transformer fastest on a machine.

    found = planner.plans("gpt-3-13b", "8x-h200-nvswitch", batch=256)
    print(planner.explain(found))
    planner.best(found).parts       # seconds of the step, part by part

Times are predicted: layers are simulated, exchanges and stages added up. Only transformers.
"""

from __future__ import annotations

from .choice import USABLE, best, explain, plans
from .costs.memory_model import Memory, memory, state_bytes
from .costs.steps import StepTime, step
from .layout import Layout
from .mesh import AXES, Mesh, Wiring
from .models import MODELS, model
from .plan import Plan
from .search_space import gpus_that_do
from .transformer import Experts, Transformer
from .uncertainty import relative_uncertainty, ties

__all__ = [
    "AXES",
    "MODELS",
    "USABLE",
    "Experts",
    "Layout",
    "Memory",
    "Mesh",
    "Plan",
    "StepTime",
    "Transformer",
    "Wiring",
    "best",
    "explain",
    "gpus_that_do",
    "memory",
    "model",
    "plans",
    "relative_uncertainty",
    "state_bytes",
    "step",
    "ties",
]
