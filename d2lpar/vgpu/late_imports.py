"""Modules that are seen to when a program imports them: to import them for all takes too long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class LateImports(MetaPathFinder):
    """Calls `see_to(module)` for each module of `names`: at once, if it is there, else as soon as
    it is imported, until `end`.

    It asks the other finders, wherever they stand. Of these some may ask all finders, too, and get
    nothing here.
    """

    def __init__(self, names: Sequence[str], see_to: Callable[[ModuleType], None]) -> None:
        self._asked: set[str] = set()  # whose lock of Python's import this thread has
        self._names = names
        self._see_to = see_to
        for name in names:
            if name in sys.modules:
                see_to(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the others find (packages may have finders of their own); when that has run, it is
        seen to."""
        spec = self._ask_others(name, path, target) if name in self._names else None
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

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """What the first of them finds."""
        if name in self._asked:
            return None
        self._asked.add(name)
        try:
            finders = [finder for finder in sys.meta_path if finder is not self]
            found = (finder.find_spec(name, path, target) for finder in finders)
            return next((spec for spec in found if spec is not None), None)
        finally:
            self._asked.remove(name)
