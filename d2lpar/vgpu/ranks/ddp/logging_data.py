"""What `DistributedDataParallel` tells of itself: torch's data of its making, and its errors.

The errors begin with the words by which torch's are known, so that what is written about them can
be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch.distributed as dist
from torch.nn import SyncBatchNorm

Error = TypeVar("Error", bound=BaseException)

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


class DDPLog:
    """The last error of a DDP, and whether it has seen uneven inputs; torch's logger's names."""

    def __init__(self) -> None:
        self.error = ""
        self.uneven_inputs = False

    def noted(self, error: Error) -> Error:
        """An error, which is remembered."""
        self.set_error_and_log(f"{type(error)}: {error}")
        return error

    def set_error_and_log(self, text: str) -> None:
        """Remember an error."""
        self.error = text


def unfinished(ddp: Any, missing: Mapping[int, str]) -> str:
    """The error of a pass in which these parameters, by number, got no gradient."""
    rank = dist.get_rank(ddp.process_group)
    numbers, names = " ".join(map(str, missing)), ", ".join(missing.values())
    return (
        f"{_UNFINISHED}{_REMEDY_IF_STATIC if ddp.static_graph else _REMEDY}\n"
        f"Parameter indices which did not receive grad for rank {rank}: {numbers}\n"
        f"Parameters which did not receive grad for rank {rank}: {names}"
    )


def logging_data(ddp: Any) -> dict[str, object]:
    """What torch's `_get_ddp_logging_data` says, by its names; its times are in a timeline."""
    reducer, parameters = ddp.reducer, list(ddp.names)
    sizes = ", ".join(str(bucket.flat.nbytes) for bucket in reducer.buckets)
    rebuilt = ddp.rebuilds and not reducer.rebuilds
    return {
        "world_size": dist.get_world_size(ddp.process_group),
        "rank": dist.get_rank(ddp.process_group),
        "module_name": type(ddp.module).__name__,
        "device_ids": ", ".join(map(str, ddp.device_ids or ())),
        "output_device": -1 if ddp.output_device is None else ddp.output_device,
        "broadcast_buffers": int(ddp.forward_sync_buffers),
        "bucket_cap_bytes": int(ddp.bucket_bytes_cap),
        "find_unused_parameters": int(ddp.find_unused_parameters),
        "gradient_as_bucket_view": int(reducer.as_views),
        "static_graph": int(ddp.static_graph),
        "backend_name": dist.get_backend(ddp.process_group),
        "iteration": ddp.iteration,
        "num_parameter_tensors": len(parameters),
        "total_parameter_size_bytes": sum(p.nbytes for p in parameters),
        "dtypes": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        "is_multi_device_module": int(len({p.device for p in parameters}) > 1),
        **({"comm_hook": ddp.hook_name} if ddp.hook_name else {}),
        "bucket_sizes": ddp.first_bucket_sizes if rebuilt else sizes,
        "has_rebuilt_buckets": int(rebuilt),
        "rebuilt_bucket_sizes": sizes if rebuilt else "",
        "rebuilt_per_bucket_param_indices": _numbers_by_bucket(reducer) if rebuilt else "",
        "prev_iteration_grad_ready_order_indices": ", ".join(map(str, ddp.ready_order)),
        "num_buckets_reduced": sum(bucket.result is not None for bucket in reducer.buckets),
        "has_sync_bn": int(any(isinstance(m, SyncBatchNorm) for m in ddp.module.modules())),
        "join_uneven_inputs": int(ddp.logger.uneven_inputs),
        **({"has_error": 1, "error": ddp.logger.error} if ddp.logger.error else {}),
    }


def _numbers_by_bucket(reducer: Any) -> str:
    number = {p: i for i, p in enumerate(reducer.parameters)}
    return ", ".join(" ".join(str(number[p]) for p in bucket.views) for bucket in reducer.buckets)
