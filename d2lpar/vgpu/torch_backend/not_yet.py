"""`torch.vgpu` before there is a virtual device: an error that says what to call first.

torch asks its module's `__getattr__` for what it does not have. Registering gives it the name, and
nothing here is asked any more; `hasattr(torch, "vgpu")` is True from then on, as torch expects.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ..device_naming import TYPE
from .late_imports import LateImports

MESSAGE = (
    f"torch.{TYPE} is there as soon as a virtual GPU is: call `par.devices(2, kind='virtual')` "
    'first, or use it within `with par.simulate("2x-v100-textbook"):` (`import d2lpar as par`)'
)


def answer() -> None:
    """Let torch say so, at once or as soon as it is imported, which is not done here."""
    if torch := sys.modules.get("torch"):
        _teach(torch)
        return

    def see_to(torch: ModuleType) -> None:
        late.end()
        _teach(torch)

    late = LateImports(("torch",), see_to)


def _teach(torch: ModuleType) -> None:
    theirs = torch.__getattr__

    def __getattr__(name: str) -> object:  # noqa: N807 - what Python calls it
        if name == TYPE:
            raise AttributeError(MESSAGE)
        return theirs(name)

    torch.__getattr__ = __getattr__  # type: ignore[method-assign]
