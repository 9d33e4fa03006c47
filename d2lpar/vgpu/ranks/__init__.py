"""Virtual ranks: programs for `torch.distributed`, in one process and in simulated time."""

from .run import run_ranks

__all__ = ["run_ranks"]
