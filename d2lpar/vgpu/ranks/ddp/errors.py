"""Errors of `DistributedDataParallel`.

They begin with the words by which torch's are known, so that what is written about them can be
found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

CHANGED = (
    "Your training graph has changed in this iteration: a parameter got more gradients than in the "
    "first pass, which is what counts with static_graph=True. Leave static_graph out, or let every "
    "step use the same parameters"
)
_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. "
)
_REMEDY_IF_STATIC = (
    "This error indicates that your training graph has changed in this iteration, e.g., one "
    "parameter is used in first iteration, but then got unused in the second iteration. this is "
    "not compatible with static_graph set to True."
)
_REMEDY = (
    "The last backward pass left parameters without a gradient, so their buckets were never "
    "averaged. Enable unused parameter detection by passing the keyword argument "
    "`find_unused_parameters=True` to DDP, or make sure that all `forward` function outputs "
    "participate in calculating loss. On real GPUs, set the environment variable "
    "TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to see their names:"
)


def unfinished(ddp: Any, missing: Mapping[int, str]) -> str:
    """The error of a pass in which these parameters, by number, got no gradient."""
    rank = dist.get_rank(ddp.process_group)
    numbers, names = " ".join(map(str, missing)), ", ".join(missing.values())
    return (
        f"{_UNFINISHED}{_REMEDY_IF_STATIC if ddp.static_graph else _REMEDY}\n"
        f"Parameter indices which did not receive grad for rank {rank}: {numbers}\n"
        f"Parameters which did not receive grad for rank {rank}: {names}"
    )
