"""Modules that are seen to when a program imports them: to import them for all takes too long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class LateImports(MetaPathFinder):
    """Calls `see_to(module)` for each module of `names`: at once, if it is there, else as soon as
    it is imported, until `end`."""

    def __init__(self, names: Sequence[str], see_to: Callable[[ModuleType], None]) -> None:
        self._names = names
        self._see_to = see_to
        self._asked: set[str] = set()  # whose lock of Python's import this thread has
        for name in names:
            if name in sys.modules:
                see_to(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What other finders find (packages may have their own); when that has run, it is seen to.

        One of these may ask all finders, too, and gets nothing here.
        """
        if name not in self._names or name in self._asked:
            return None
        self._asked.add(name)
        try:
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asked.remove(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._see_to(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def end(self) -> None:
        """See to no more modules."""
        sys.meta_path.remove(self)
