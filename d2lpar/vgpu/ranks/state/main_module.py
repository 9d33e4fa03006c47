"""Running a script or a module as `python FILE` and `python -m NAME` do, in this process."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FunctionType, ModuleType

MAIN = "__main__"


def run_script(path: str) -> ModuleType:
    """Run a file as the main module, with its folder first in `sys.path`.

    Its `__file__` is absolute, as Python has it: processes that are really spawned, such as workers
    of a DataLoader, find it by that. Raises FileNotFoundError, and what the script raises.
    """
    if os.path.isdir(path):
        path, folder = os.path.join(path, "__main__.py"), path
    else:
        folder = os.path.dirname(os.path.abspath(path))
    path = os.path.abspath(path)
    code = SourceFileLoader(MAIN, path).source_to_code(_source(path), path)
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    module = ModuleType(MAIN)
    module.__file__ = path
    return _run(module, code)


def run_module(target: str) -> ModuleType:
    """Run a module, or a package's `__main__`, as the main module.

    The working folder becomes the first of `sys.path`. Raises ModuleNotFoundError.
    """
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    spec = _spec(target)
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    if code is None:
        raise ModuleNotFoundError(f"{target} has no code that Python can run")
    module = ModuleType(MAIN)
    module.__spec__, module.__file__ = spec, spec.origin
    module.__package__ = spec.parent
    sys.argv[0] = spec.origin or sys.argv[0]
    return _run(module, code)


@contextmanager
def values_forgotten() -> Iterator[None]:
    """Drop what the main module has computed when the block ends, as Python does when it ends.

    Their `__del__` still find functions and modules; at the end of this process they would find
    no device any more.
    """
    try:
        yield
    finally:
        values = vars(sys.modules.get(MAIN, ModuleType(MAIN)))
        for name, value in list(values.items()):
            stays = isinstance(value, ModuleType | FunctionType | type)
            if not (stays or name.startswith("__")):
                del values[name]
        value = None
        gc.collect()


def _run(module: ModuleType, code: CodeType) -> ModuleType:
    sys.modules[MAIN] = module
    module.__dict__["__builtins__"] = __builtins__
    exec(code, module.__dict__)
    return module


def _source(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _spec(target: str) -> ModuleSpec:
    spec = importlib.util.find_spec(target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{target}.__main__")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module is called {target!r}, or it cannot be run")
    return spec
