"""Backward passes run on the thread that asks for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.graph

from ...patching import FOR_GOOD
from ..private import torch_autograd
from ..private.torch_autograd import Parameters, Result


def replace_backward() -> None:
    """Run backward passes on the thread that asks for them: the engine's own threads are counted
    by a C++ device guard, which says that there is one virtual device."""
    engine = torch_autograd.raising_late(torch.autograd.graph._engine_run_backward)
    for module in (torch.autograd.graph, torch.autograd):
        FOR_GOOD.set(module, "_engine_run_backward", _on_this_thread(engine))
    torch_autograd.replace_engine(_Engine)


class _Engine:
    """The engine as programs call it themselves, such as Megatron's pipelines."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self.run_backward = _on_this_thread(torch_autograd.raising_late(theirs.run_backward))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def _on_this_thread(
    engine: Callable[Parameters, Result],
) -> Callable[Parameters, Result]:
    @functools.wraps(engine)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with torch.autograd.set_multithreading_enabled(False):
            return engine(*args, **kwargs)

    return run
