"""A toy machine: GPUs that train layers by eight verbs, in known times and known memory.

job = Job(ranks=4, layers=4, batches=4, capacity_gb=72)
gpus = [Gpu(rank, job) for rank in range(job.ranks)]
for gpu in gpus:
    program(gpu)  # writes its verbs down
run = play([gpu.orders for gpu in gpus], job)
run.problem, run.ms, run.peak_gb(0)
"""

from .job import BACKWARD_MS, EXCHANGE_MS, FORWARD_MS, UPDATE_MS, Job
from .player import Run, play
from .program import Gpu, Order

__all__ = [
    "BACKWARD_MS", "EXCHANGE_MS", "FORWARD_MS", "UPDATE_MS",
    "Gpu", "Job", "Order", "Run", "play",
]  # fmt: skip
