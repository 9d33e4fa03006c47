"""Names that tests of an older checkout import, and the installed torch has elsewhere or no more.

A file that asks for one could not be judged at all. So what has moved is found where it is now.
What is gone is stood in for, and whoever uses it raises `Gone`: with this torch that could not run
on any device. Only names that the file itself asks for in vain are ever supplied.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar

from torch_judge.older_init_modes import cuda_init_mode

Loaded = TypeVar("Loaded")

# Where modules and names were, and where they are.
_DTENSOR = "torch.distributed.tensor"
MOVED_MODULES = {
    "torch.distributed._tensor.ops.basic_strategy": f"{_DTENSOR}._ops._einsum_strategy",
    "torch.distributed._tensor.ops.common_rules": f"{_DTENSOR}._ops._common_rules",
    "torch.distributed._tensor.ops.embedding_ops": f"{_DTENSOR}._ops._embedding_ops",
    "torch.distributed._tensor.ops.matrix_ops": f"{_DTENSOR}._ops._matrix_ops",
    "torch.distributed._tensor.ops.view_ops": f"{_DTENSOR}._ops._view_ops",
    "torch.distributed._tensor.ops": f"{_DTENSOR}._ops",
    "torch.distributed._tensor.debug.comm_mode": f"{_DTENSOR}.debug._comm_mode",
    "torch.distributed._tensor.experimental.attention": f"{_DTENSOR}.experimental._attention",
    "torch.distributed._tensor.experimental.tp_transform": f"{_DTENSOR}.experimental._tp_transform",
    "torch.distributed._tensor.random": f"{_DTENSOR}._random",
    "torch.distributed._tensor": _DTENSOR,
    "torch.distributed._composable.fsdp": "torch.distributed.fsdp._fully_shard",
}
_FSDP_HELPERS = "torch.testing._internal.common_fsdp"
MOVED_NAMES: dict[tuple[str, str], str | Callable[[ModuleType], object]] = {
    (f"{_DTENSOR}.placement_types", "_Partial"): "Partial",
    ("torch.distributed._tensor.placement_types", "_Partial"): "Partial",
    (f"{_DTENSOR}._op_schema", "PlacementStrategy"): "OpSpec",
    ("torch.distributed.pipelining._utils", "PipeliningShapeError"): "PipeliningMetadataError",
    (_FSDP_HELPERS, "CUDAInitMode"): cuda_init_mode,
    (_FSDP_HELPERS, "_maybe_cuda"): "_move_to_device",
    (_FSDP_HELPERS, "test_compiled_fsdp"): "compiled_fsdp_test",
    ("torch.testing._internal.common_distributed", "skip_if_rocm"): "skip_if_rocm_multiprocess",
}
# What `MultiProcContinuousTest` was before, as its authors misspelt it.
OLDER_BASE = "MultiProcContinousTest"
RANKS = "D2LPAR_JUDGE_RANKS"  # the variable that says how many ranks its tests have
_IN_VAIN = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_ABSENT = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")


class Gone(Exception):  # noqa: N818  # it names a state, as StopIteration does
    """A test uses what the installed torch does not have."""


def load(importing: Callable[[], Loaded]) -> Loaded:
    """What `importing` returns, called again after each name of torch's that it misses is there."""
    sys.meta_path.append(_MovedModules())
    supplied: set[str] = set()
    StandIn.bears_use = True
    try:
        while True:
            try:
                return importing()
            except (ImportError, AttributeError) as error:
                name = _supplied(error)
                if name is None or name in supplied:
                    raise
                supplied.add(name)
    finally:
        StandIn.bears_use = False


def _supplied(error: ImportError | AttributeError) -> str | None:
    """The name that a file missed, and that is there now; None if it is none of torch's."""
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        if not name.startswith("torch."):
            return None
        _supply_module(name)
        return name
    owner, name = _missed(str(error))
    if not owner.startswith("torch."):
        return None
    place = sys.modules[owner]
    now = MOVED_NAMES.get((owner, name))
    full = f"{owner}.{name}"
    if now is None:
        supplied: object = StandIn(full)
    else:
        supplied = getattr(place, now) if isinstance(now, str) else now(place)
    setattr(place, name, supplied)
    return full


def _missed(text: str) -> tuple[str, str]:
    """The module and the name that an error's text says are not there; "", "" for another error."""
    if found := _IN_VAIN.search(text):
        return found[2], found[1]
    if found := _ABSENT.search(text):
        return found[1], found[2]
    return "", ""


def is_gone(error: BaseException) -> bool:
    """Whether a test ends so that has used, or imported, what torch does not have any more."""
    if isinstance(error, AttributeError):
        return _is_mentioned_no_more(error.obj, error.name or "")
    of_torch = isinstance(error, ImportError) and (error.name or "").startswith("torch.")
    return of_torch or isinstance(error, Gone)


def _is_mentioned_no_more(owner: object, name: str) -> bool:
    """Whether it is an attribute of torch's, a module, a class or an object of one, in whose own
    text the name does not occur. What a module in C++ has depends on how it was built."""
    if isinstance(owner, ModuleType):
        if owner.__name__.startswith("torch._C"):
            return False
        modules = [owner.__name__]
    else:
        kind = owner if isinstance(owner, type) else type(owner)
        modules = [each.__module__ for each in kind.__mro__]
    libraries = {module.split(".")[0] for module in modules}
    is_torchs = "torch" in libraries and libraries <= {"torch", *sys.stdlib_module_names}
    return is_torchs and not any(re.search(rf"\b{name}\b", _text_of(m)) for m in modules)


def _text_of(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # in C++
        return ""


def _supply_module(name: str) -> None:
    sys.modules[name] = module = _GoneModule(name)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


class _MovedModules(MetaPathFinder, Loader):
    """Finds modules under the names that they had, also when a test runs."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Nothing for a module that has not moved."""
        return ModuleSpec(fullname, self, is_package=True) if _moved_to(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """One that stands for the other."""
        target = _moved_to(spec.name)
        assert target is not None, "it has been found"
        return _Elsewhere(spec.name, target)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to do."""


def _moved_to(name: str) -> ModuleType | None:
    """The module that has what the one of that name had, by the longest name in the table."""
    for before, now in MOVED_MODULES.items():
        if name == before or name.startswith(f"{before}."):
            now += name.removeprefix(before)
            try:
                return importlib.import_module(now)
            except ModuleNotFoundError:
                return None
    return None


class _Elsewhere(ModuleType):
    """A module under the name that it had, for reading and setting what it has.

    Nothing is found on its path: modules of the one that it stands for would be there twice.
    """

    def __init__(self, name: str, target: ModuleType) -> None:
        super().__init__(name)
        vars(self)["_target"] = target

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_target"], name)

    def __setattr__(self, name: str, value: object) -> None:
        own = name.startswith("__") or isinstance(value, ModuleType)
        if own:  # as an import sets them
            super().__setattr__(name, value)
        else:
            setattr(vars(self)["_target"], name, value)


class _GoneModule(ModuleType):
    """A module that is no more."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class StandIn:
    """A function or a class that is no more.

    While a file is loaded it bears being used, as a decorator, too. What it has decorated raises
    when it is called, as the stand-in itself does.
    """

    bears_use = False

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        if not StandIn.bears_use:
            raise self._gone()
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if not StandIn.bears_use:
            raise self._gone()
        if len(args) == 1 and isinstance(args[0], FunctionType):
            return self._decorated(args[0])
        return self

    def _decorated(self, function: FunctionType) -> FunctionType:
        def raises(*_: object, **__: object) -> None:
            raise self._gone()

        raises.__name__, raises.__module__ = function.__name__, function.__module__
        raises.__qualname__ = function.__qualname__
        return raises

    def _gone(self) -> Gone:
        return Gone(f"torch {version('torch')} has no {self._name}")
