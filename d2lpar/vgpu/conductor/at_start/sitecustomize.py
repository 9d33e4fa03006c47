"""What Python calls when it starts, in processes that a program of `d2lpar run` starts: as soon as
one of them has imported torch, it has the run's virtual GPUs. Nothing is imported before."""

import importlib.util
import os
import runpy
import sys
from typing import Any

NAME = "torch"


class _OnceTorchIsThere:
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                from d2lpar.vgpu.programs.in_processes import newcomer

                newcomer.begin()

            vars(spec.loader)["exec_module"] = exec_module
        return spec


def _customize_as_without() -> None:
    """Run the `sitecustomize` that this one stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        file = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != here and os.path.isfile(file):
            runpy.run_path(file)
            return


if "D2LPAR_RUN" in os.environ:
    sys.meta_path.insert(0, _OnceTorchIsThere())
_customize_as_without()
