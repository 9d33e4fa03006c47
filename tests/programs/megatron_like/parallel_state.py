"""Groups of a rank, kept in global variables as Megatron-LM keeps its own."""

import torch.distributed as dist

_GROUP = None
_RANK = None


def initialize():
    global _GROUP, _RANK
    assert _GROUP is None, "already initialized"
    size = dist.get_world_size()
    for ranks in (range(0, size, 2), range(1, size, 2)):
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            _GROUP, _RANK = group, dist.get_rank(group)


def group():
    return _GROUP
