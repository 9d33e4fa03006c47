"""What `DistributedDataParallel` tells of itself: the construction-time part of torch's data."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def logging_data(ddp: Any) -> dict[str, object]:
    """What `_get_ddp_logging_data` of torch says, by its names; measured times are left out, as
    simulated ones are on the timeline."""
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
        "comm_hook": ddp.hook_name,
        "bucket_sizes": ddp.first_bucket_sizes if rebuilt else sizes,
        "has_rebuilt_buckets": int(rebuilt),
        "rebuilt_bucket_sizes": sizes if rebuilt else "",
        "num_buckets_reduced": len(reducer.buckets),
    }
