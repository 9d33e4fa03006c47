"""What `CommDebugMode` counts: collectives of `torch.distributed`, which torch runs as operators.

Virtual groups take them before they become operators, and so tell the mode themselves; the method
that the program calls is one, whichever others it calls. Functional collectives are operators here,
too, and are counted without this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..private import c10d as c10d_private

# torch's operator for each method of a group.
OPERATORS = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "reduce": "reduce_",
    "broadcast": "broadcast_",
    "allgather": "allgather_",
    "allgather_coalesced": "allgather_coalesced_",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "alltoall": "alltoall_",
    "all_to_all_single": "alltoall_base_",
    "gather": "gather_",
    "scatter": "scatter_",
}


class _Operator:
    """An operator that has been run: what a mode sees of it."""

    def __init__(self, name: str) -> None:
        self._overloadpacket = getattr(torch.ops.c10d, name)

    def __call__(self) -> None:
        """Nothing is left to do."""


def counted(method: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """A group's method, which the modes count that are on; the group knows its `operator` then."""

    @functools.wraps(method)
    def call(self: Any, *args: object, **kwargs: object) -> object:
        if self.operator is not None:  # it is part of another
            return method(self, *args, **kwargs)
        for mode in c10d_private.modes_that_count():
            mode.__torch_dispatch__(_Operator(operator), (), ())
        self.operator = operator
        try:
            return method(self, *args, **kwargs)
        finally:
            self.operator = None

    return call
