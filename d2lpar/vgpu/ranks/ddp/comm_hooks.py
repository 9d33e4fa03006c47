"""Communication hooks of DistributedDataParallel: what programs exchange instead of gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from .reducer import Reducer

ProgramHook = Callable[[object, object], torch.futures.Future]


def register(reducer: Reducer, state: object, hook: ProgramHook) -> None:
    """Let `hook(state, bucket)` exchange the gradients of each bucket.

    Raises TypeError for a hook that cannot be called, ValueError for other annotations than torch's
    and RuntimeError for a second hook, as torch does.
    """
    _check(hook)
    if reducer.hook is not None:
        raise RuntimeError(
            "register_comm_hook or register_builtin_comm_hook can only be called once"
        )
    reducer.hook = partial(hook, state)


def builtin(kind: object) -> ProgramHook:
    """The hook in Python that does what torch's own in C++ of this `BuiltinCommHookType` does."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    kinds = dist.BuiltinCommHookType
    hooks = {
        kinds.ALLREDUCE: default_hooks.allreduce_hook,
        kinds.FP16_COMPRESS: default_hooks.fp16_compress_hook,
    }
    return hooks[kind]  # type: ignore[index, return-value]


def _check(hook: ProgramHook) -> None:
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    signature = inspect.signature(hook)
    empty = inspect.Signature.empty
    bucket = signature.parameters.get("bucket")
    if bucket is not None and bucket.annotation not in (empty, dist.GradBucket, "dist.GradBucket"):
        raise ValueError("Communication hook: bucket annotation should be dist.GradBucket.")
    future = torch.futures.Future[torch.Tensor]
    texts = ("torch.futures.Future[torch.Tensor]", "Future[torch.Tensor]")
    if signature.return_annotation not in (empty, future, *texts):
        raise ValueError(
            "Communication hook: return annotation should be torch.futures.Future[torch.Tensor]."
        )
