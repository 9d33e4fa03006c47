"""Which code is the user's: all but Python's own, installed packages and this one."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from sys import _getframe  # documented, and quicker than `inspect.currentframe`
from types import FrameType, ModuleType

_FOLDERS = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
_FOLDERS.append(Path(__file__).parents[2])
_LIBRARIES = tuple({f"{path}{os.sep}" for f in _FOLDERS for path in (f, f.resolve())})

# Where installed packages are, also those that a virtual environment has from another Python.
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Packages whose clocks time what their callers do: the textbook's `d2l.Timer` and `d2l.Benchmark`.
_FOR_USERS = tuple(f"{folder}d2l{os.sep}" for folder in _PACKAGES)


@cache
def is_user_file(name: str) -> bool:
    """Whether code compiled from a file of this name is the user's; cells and strings are."""
    return any(package in name for package in _FOR_USERS) or belongs_to_user(name)


def belongs_to_user(name: str) -> bool:
    """Whether code of a file of this name is the user's, and not a library's."""
    if any(package in name for package in _PACKAGES) or _is_installed(name):
        return False
    return not name.startswith(("<frozen", "<torch_package", "<eval_with_key", *_LIBRARIES))


def _is_installed(name: str) -> bool:
    """Whether a file is in a folder of `PYTHONPATH` into which pip has installed packages.

    The program's own folder, the first in `sys.path`, is the user's all the same.
    """
    return any(
        name.startswith(os.path.join(folder, "")) and _has_installed_packages(folder)
        for folder in sys.path[1:]
    )


@cache
def _has_installed_packages(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def is_user_frame(frame: FrameType) -> bool:
    """Whether it runs code of the user's."""
    return is_user_file(frame.f_code.co_filename)


def user_namespaces() -> Iterator[dict]:
    """The global names of the user's modules, and of the user's code that is being run."""
    return _each_once(filter(_is_user_module, _modules()))


def all_namespaces() -> Iterator[dict]:
    """The global names of every module, and of the user's code that is being run."""
    return _each_once(_modules())


def _modules() -> Iterator[ModuleType]:
    return (module for module in list(sys.modules.values()) if isinstance(module, ModuleType))


def _is_user_module(module: ModuleType) -> bool:
    file = vars(module).get("__file__")  # `getattr` would make lazy modules import others
    return module is sys.modules.get("__main__") or (isinstance(file, str) and is_user_file(file))


def _each_once(modules: Iterable[ModuleType]) -> Iterator[dict]:
    """The names of modules, and of the user's frames that belong to no module any more."""
    seen: set[int] = set()
    for namespace in chain(map(vars, modules), _globals_of_frames()):
        if id(namespace) not in seen:
            seen.add(id(namespace))
            yield namespace


def _globals_of_frames() -> Iterator[dict]:
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if is_user_frame(frame):
            yield frame.f_globals
        frame = frame.f_back
