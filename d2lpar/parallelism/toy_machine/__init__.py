"""A toy machine: GPUs that train layers by six verbs, in known times and known memory.

programs = [recorded(ddp, Gpu(rank, job)) for rank in range(job.ranks)]
run = play(programs, job)       # what ran when, what was held, and what went wrong
"""

from .job import BACKWARD_MS, EXCHANGE_MS, FORWARD_MS, UPDATE_MS, Job
from .player import Run, play
from .program import Gpu, Order

__all__ = [
    "BACKWARD_MS", "EXCHANGE_MS", "FORWARD_MS", "UPDATE_MS",
    "Gpu", "Job", "Order", "Run", "play",
]  # fmt: skip
