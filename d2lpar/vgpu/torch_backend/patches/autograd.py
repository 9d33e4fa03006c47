"""Backward passes run on the thread that asks for them."""

from __future__ import annotations

import functools

import torch
import torch.autograd.graph

from .. import torch_private


def replace_backward() -> None:
    """Run backward passes on the thread that asks for them: the engine's own threads are counted
    by a C++ device guard, which says that there is one virtual device."""
    engine = torch_private.raising_late(torch.autograd.graph._engine_run_backward)

    @functools.wraps(engine)
    def on_this_thread(*args: object, **kwargs: object) -> object:
        with torch.autograd.set_multithreading_enabled(False):
            return engine(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = on_this_thread
    torch.autograd._engine_run_backward = on_this_thread
