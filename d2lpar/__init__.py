"""d2lpar: the helper package of an interactive course on parallel deep learning.

Names are loaded when they are first used: importing the package starts no device and brings in
neither matplotlib nor the virtual GPUs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# Where each name lives. Names of modules are their own: `par.launch` is `processes/dist_env`.
_HOME = {
    "devices": "vgpu",
    "record": "vgpu",
    "simulate": "vgpu",
    "shape_only": "vgpu",
    "host_work": "vgpu",
    "Timer": "vgpu",
    "measure": "vgpu",
    "clock_name": "vgpu",
    "hazards": "vgpu",
    "syncs": "vgpu",
    "without_nccl": "vgpu",
    "emulate_cuda": "vgpu",
    "run_alike": "vgpu",
    "run_ranks": "vgpu",
    "cluster": "processes.cluster.launcher",
    "report": "processes.cluster.reports",
    "portable": "processes.spawn",
    "Checkpoints": "processes.checkpoint",
    "CourseText": "lesson.course_text",
    "fashion_mnist": "lesson.data",
    "trace_graph": "lesson.op_graph",
    "Timeline": "timeline",
    "calibrate": "machines.measuring.calibrating",
    "machine": "machines.lookup",
    "challenge": "checks.challenges",
    "check": "checks",
    "predict": "plots",
    "doctor": "command.diagnosis",
    "plan_model": "parallelism.model_plan",
}
_MODULES = {
    "challenges": "checks.challenges",
    "checks": "checks",
    "collectives": "lesson.collectives",
    "launch": "processes.dist_env",
    "machines": "machines",
    "models": "lesson.models",
    "pipeline": "parallelism.pipeline",
    "planner": "parallelism.planner",
    "plots": "plots",
    "recorded": "lesson.results_table",
    "scaling": "parallelism.scaling",
    "scoreboard": "parallelism.scoreboard",
    "timing": "vgpu.api.timing",
}

__version__ = "1.0.0"
__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def requirement(extra: str, version: str = "") -> str:
    """What pip installs for an extra of this package, such as "traces": it is on no index, so from
    the repository of `[project.urls]`, at a tag such as "v1.0.0" if one is given; from the folder
    that this package came from, if that names none."""
    if (address := published_at()) is None:
        return f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}[{extra}]"
    return f"d2lpar[{extra}] @ git+{address}{version and f'@{version}'}"


def published_at() -> str | None:
    """The address of the repository that this package was installed with, if it has one."""
    try:
        urls = importlib.metadata.metadata(__name__).get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:  # never installed: a copy on the path
        return None
    known = dict(url.split(", ", 1) for url in urls)
    return known.get("Repository")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Make the cell magic `%%emulate_cuda 2` known: importing the package in a notebook does it,
    and so does `%load_ext d2lpar`."""
    importlib.import_module(".lesson.cuda_cells", __name__).know(shell)


def _meet_the_shell() -> None:
    """In a notebook there is `%%emulate_cuda`, an error shows the learner's lines, and pictures
    have texts: see `lesson/cell_tracebacks` and `lesson/described_figures`."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        load_ipython_extension(shell)
        importlib.import_module(".lesson.cell_tracebacks", __name__).shorten(shell)
        importlib.import_module(".lesson.described_figures", __name__).describe(shell)


_meet_the_shell()


def __dir__() -> list[str]:
    return sorted(__all__)
