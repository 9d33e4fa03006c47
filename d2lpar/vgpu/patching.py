"""The one way to replace attributes of torch, Python and programs, and to put back what was there.

What takes the place of something that a program may keep (a function, a class) is a *stand-in*: a
new object that is ours where the patches hold (inside a block, on a virtual rank) and does what it
stands for elsewhere. So a name that was bound by `from time import perf_counter` goes on to work.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence

from .late_imports import LateImports

Holds = Callable[[], object]  # true where ours are meant


def stand_in(theirs: Callable, ours: Callable, holds: Holds) -> Callable:
    """A function that is `ours` where the patches hold, and `theirs` elsewhere."""

    @functools.wraps(theirs)
    def choose(*args: object, **kwargs: object) -> object:
        return (ours if holds() else theirs)(*args, **kwargs)

    return choose


def stand_in_class(
    theirs: type, make: Callable[..., object], holds: Holds, ours: type | None = None
) -> type:
    """A class that is `make(…)` when called where the patches hold; its instances are those of
    `theirs` and `ours`, whose attributes it shows."""

    class Chooser(type):
        def __call__(cls, *args: object, **kwargs: object) -> object:
            return (make if holds() else theirs)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (theirs, ours or theirs))

        def __getattr__(cls, name: str) -> object:
            return getattr((ours or theirs) if holds() else theirs, name)

    names = {"__doc__": theirs.__doc__, "__module__": theirs.__module__}
    return Chooser(theirs.__name__, (), names)


_INHERITED = object()


class Patches:
    """Attributes that are replaced, and how to put back what was there; `holds()` says where
    stand-ins are ours.

    Others replace attributes, too (`unittest.mock`, libraries), and may end earlier than the block
    or later: what is not ours any more by then is left to them.
    """

    def __init__(self, holds: Holds = lambda: True) -> None:
        self.holds = holds
        self._undo: list[Callable[[], None]] = []
        self._stand_ins: dict[int, tuple[object, object]] = {}
        self._originals: dict[int, tuple[object, object]] = {}

    def set(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of a module, a class or a function until `undo`."""
        before = _attribute(owner, name)
        setattr(owner, name, value)
        ours = _attribute(owner, name)

        def put_back() -> None:
            if _attribute(owner, name) is not ours:
                return
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(put_back)

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` with `undo`."""
        self._undo.append(action)

    def set_item(self, mapping: dict, key: object, value: object) -> None:
        """Set an entry of a dictionary until `undo`."""
        before = mapping.get(key, _INHERITED)
        mapping[key] = value

        def put_back() -> None:
            if mapping.get(key, _INHERITED) is not value:
                return
            if before is _INHERITED:
                del mapping[key]
            else:
                mapping[key] = before

        self._undo.append(put_back)

    def replace(self, owner: object, name: str, ours: Callable) -> None:
        """Let a stand-in, `ours` where the patches hold, take the place of a function."""
        self.substitute(owner, name, stand_in(getattr(owner, name), ours, self.holds))

    def replace_class(
        self, owner: object, name: str, make: Callable[..., object], ours: type | None = None
    ) -> None:
        """Let a stand-in, `make` where the patches hold, take the place of a class."""
        theirs = getattr(owner, name)
        self.substitute(owner, name, stand_in_class(theirs, make, self.holds, ours))

    def substitute(self, owner: object, name: str, value: object) -> None:
        """Set an attribute, and note it as the stand-in of what was there, for `spread`."""
        theirs = getattr(owner, name)
        self.set(owner, name, value)
        self._stand_ins.setdefault(id(theirs), (theirs, value))
        self._originals[id(value)] = (value, theirs)

    def see_to(self, names: Sequence[str], replace_in: Callable[[types.ModuleType], None]) -> None:
        """Call `replace_in` for each of these modules, at once or when it is imported."""
        self.at_end(LateImports(names, replace_in).end)

    def spread(self, namespaces: Iterable[dict]) -> None:
        """Put stand-ins where these namespaces hold the originals under any name."""
        _exchange(namespaces, self._stand_ins)

    def gather(self, namespaces: Iterable[dict]) -> None:
        """Put originals where these namespaces hold stand-ins."""
        _exchange(namespaces, self._originals)

    def undo(self, namespaces: Iterable[dict] = ()) -> None:
        """Put back what was there, the last first; also where these namespaces hold stand-ins."""
        while self._undo:
            self._undo.pop()()
        self.gather(namespaces)
        self._stand_ins, self._originals = {}, {}


def _attribute(owner: object, name: str) -> object:
    """What is set on the owner itself; `_INHERITED` where its class has it, or nobody."""
    if name not in vars(owner) and isinstance(owner, types.FunctionType):
        return getattr(owner, name)  # such as __defaults__
    return vars(owner).get(name, _INHERITED)


def _exchange(namespaces: Iterable[dict], pairs: dict[int, tuple[object, object]]) -> None:
    for namespace in namespaces:
        if pairs.keys().isdisjoint(map(id, list(namespace.values()))):
            continue  # nearly all, and this is the quickest way to see it
        for name, value in list(namespace.items()):
            known = pairs.get(id(value))
            if known is not None and known[0] is value:
                namespace[name] = known[1]


FOR_GOOD = Patches()  # what stays as long as the process: nobody calls its `undo`
