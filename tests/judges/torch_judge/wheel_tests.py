"""The tests of torch.distributed that ship with torch: over NCCL, on virtual ranks.

`DistributedTest` asks its environment for the backend and the number of ranks when it is imported.
"""

from __future__ import annotations

import os

os.environ.update(BACKEND="nccl", WORLD_SIZE=os.environ.get("D2LPAR_JUDGE_RANKS", "4"))

from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)

# Where torchvision is there, some train a ResNet-50 on images of 1000 x 1000 besides: longer, on a
# processor, than a test may take.
distributed_test.HAS_TORCHVISION = False


class TestDistributed(TestDistBackend, DistributedTest._DistTestBase):
    """All tests of `DistributedTest`, as PyTorch's own `test_distributed_spawn.py` has them."""


del TestDistBackend  # or the loader takes it for a test case, too
