"""Virtual ranks: programs for `torch.distributed`, in one process and in simulated time."""

from .launcher import run_alike, run_ranks

__all__ = ["run_alike", "run_ranks"]
