"""Modules of torch whose names are replaced: data parallelism, batch normalisation, loaders."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.parallel.data_parallel
import torch.utils.data

from ...patching import FOR_GOOD

# The package holds functions of the same names as these two modules.
_parallel_functions = sys.modules["torch.nn.parallel._functions"]
data_parallel = sys.modules["torch.nn.parallel.data_parallel"]
SYNC_BATCH_NORM = sys.modules["torch.nn.modules._functions"].SyncBatchNorm
# What torch.nn.parallel.comm calls in C++; builds for the CPU have none of them.
COMM_PRIMITIVES = (
    *("broadcast", "broadcast_out", "broadcast_coalesced"),
    *("scatter", "scatter_out", "gather", "gather_out"),
)


def tunes_loops() -> bool:
    """Whether a program has told Inductor to tune all loops that it writes."""
    config = sys.modules.get("torch._inductor.config")
    return config is not None and bool(config.coordinate_descent_tuning)


INDUCTOR_DEVICES = "torch._inductor.codegen.common"  # imported with the first code


def refuse_code(module: Any, device_type: str, why: str) -> None:
    """Let Inductor say why it writes no code for devices of a type."""
    theirs = module.get_device_op_overrides

    @functools.wraps(theirs)
    def ours(device: str) -> object:
        if device == device_type:
            raise RuntimeError(why)
        return theirs(device)

    _replace_everywhere(theirs, ours)


def comm_primitive(name: str) -> Callable[..., object] | None:
    """One of `COMM_PRIMITIVES`; None in a build of torch that has none."""
    return getattr(torch._C, f"_{name}", None)


def set_comm_primitive(name: str, ours: Callable[..., object]) -> None:
    """Let torch.nn.parallel.comm call ours."""
    FOR_GOOD.set(torch._C, f"_{name}", ours)


def replace_device_type_query(ask: Callable[[Callable[[], str | None]], str | None]) -> None:
    """Let `ask(theirs)` answer which kind of device there is, in whatever has imported torch's."""
    theirs = torch._utils._get_available_device_type

    @functools.wraps(theirs)
    def ours() -> str | None:
        return ask(theirs)

    _replace_everywhere(theirs, ours)


def _replace_everywhere(theirs: Callable[..., object], ours: Callable[..., object]) -> None:
    """In whatever has imported it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(theirs.__name__) is theirs:
            FOR_GOOD.set(module, theirs.__name__, ours)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` has made a module of another one."""
    return "_orig_mod" in module._modules


def data_fetchers() -> list[Any]:
    """The classes whose `fetch` puts a batch of a DataLoader together."""
    fetch = torch.utils.data._utils.fetch
    return [fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher]
