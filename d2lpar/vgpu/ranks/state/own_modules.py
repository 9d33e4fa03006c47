"""Modules that each process imports for itself: the user's. Those of most libraries are shared.

So a global variable of a module of the program's, such as the groups of Megatron's
`parallel_state`, has a value in each virtual rank, as it has in each process. Libraries that keep
in such variables what process they are in are imported by each rank, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

from ...late_imports import AskingFinder
from ...races.user_code import is_user_file, is_user_frame
from . import own_patches
from .stateful_libraries import stateful_libraries

MAIN = ("__main__", "__mp_main__")


class OwnModules(AskingFinder):
    """The modules that one virtual process has imported; while it runs, `sys.modules` has them.

    It stands before the finders of `sys.meta_path`, and notes which modules of the user's they
    find.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before = frozenset(sys.modules)
        self._names = {*MAIN, *filter(is_of_one_process, sys.modules)}
        self._kept: dict[str, ModuleType] = {MAIN[0]: ModuleType(MAIN[0])}
        self._finds = True  # but for who ran before there were several, and goes on alone

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find; a module of the user's is one of this process's."""
        found = self.ask_others(name, path, target)
        if found is not None and (is_of_one_process(name) or _is_users(found)):
            self._names.add(name)
            own_patches.watch(found.origin or "")
        return found

    def is_asked(self, finder: object) -> bool:
        """Those of other processes would take the module for theirs."""
        return not isinstance(finder, OwnModules)

    def save(self) -> None:
        """Take the process's modules out of `sys.modules`."""
        if sys.meta_path[0] is not self:  # but a finder that came later, such as pytest's
            self._names.update(self._overlooked())
        taken = {name: sys.modules.pop(name, None) for name in self._names}
        self._kept = {name: module for name, module in taken.items() if module is not None}
        self._finds = self in sys.meta_path
        if self._finds:
            sys.meta_path.remove(self)

    def restore(self) -> None:
        """Put them back."""
        sys.modules.update(self._kept)
        if self._finds:
            sys.meta_path.insert(0, self)

    def _overlooked(self) -> Iterator[str]:
        """The modules of this process that finders before this one may have found."""
        for name in sys.modules.keys() - self._before - self._names:
            spec = getattr(sys.modules[name], "__spec__", None)
            if is_of_one_process(name) or (spec is not None and _is_users(spec)):
                yield name


def is_of_one_process(name: str) -> bool:
    """Whether a module is part of a library of which each process needs its own."""
    return name.partition(".")[0] in stateful_libraries()


def is_shared(frame: FrameType) -> bool:
    """Whether code of a module runs that is imported once for all ranks."""
    name = frame.f_globals.get("__name__", "")
    return not (is_of_one_process(name) or is_user_frame(frame))


def _is_users(spec: ModuleSpec) -> bool:
    """Whether a module is the user's, and its code not a library's."""
    if spec.origin in ("built-in", "frozen"):
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
    return any(place is not None and is_user_file(place) for place in places)
