"""Checks that a student can call: of exercises, and of the bugs that multi-GPU code is prone to.

An exercise is checked by running the student's function on inputs that the notebook does not show.
Every check returns a `Verdict`, whose text says what was expected, what came, and why it matters.
"""

from .auto_parallelism import prefetch, run_and_copy, shortest, timed
from .bugs import possible_rate, same_everywhere, same_step, separate_memory
from .by_name import check, exercises
from .channel_parallelism import by_input_channels, columns_then_rows
from .distributed_sgd import best_batch, busiest_bytes, mended, ring_plan, stale_sgd
from .distributed_sgd_core import all_reduce_ring, step_model
from .gpus_and_links import could_wait_for, fewest_workers, mean_loss
from .hardware import batch_at_ridge, linear_intensity
from .memory_and_mixes import fsdp_backward, fsdp_forward, groups_of, zero_1, zero_bytes
from .multi_gpu_concise import bucket_plan, bucketed, flat, overlapped, shards_seen, whole_batch
from .multi_gpu_from_scratch import (
    accumulate,
    all_reduce,
    all_reduce_buckets,
    shares,
    split_batch,
    train_batch,
)
from .museum import (
    backward_over_tokens,
    contrasted,
    handed_on,
    orders_seen,
    read_back,
    restored,
    resumed,
    summed_by_class,
    trained_heads,
    trained_on_all,
    validated,
    validation_loss,
)
from .pipelining import balance, fewest_micro_batches, one_f_one_b
from .pipelining_core import gpipe, simulate
from .verdict import NOT_YET, RIGHT, WRONG, Verdict

__all__ = [
    "NOT_YET",
    "RIGHT",
    "WRONG",
    "Verdict",
    "accumulate",
    "all_reduce",
    "all_reduce_buckets",
    "all_reduce_ring",
    "backward_over_tokens",
    "balance",
    "batch_at_ridge",
    "best_batch",
    "bucket_plan",
    "bucketed",
    "busiest_bytes",
    "by_input_channels",
    "check",
    "columns_then_rows",
    "contrasted",
    "could_wait_for",
    "exercises",
    "fewest_micro_batches",
    "fewest_workers",
    "flat",
    "fsdp_backward",
    "fsdp_forward",
    "gpipe",
    "groups_of",
    "handed_on",
    "linear_intensity",
    "mean_loss",
    "mended",
    "one_f_one_b",
    "orders_seen",
    "overlapped",
    "possible_rate",
    "prefetch",
    "read_back",
    "restored",
    "resumed",
    "ring_plan",
    "run_and_copy",
    "same_everywhere",
    "same_step",
    "separate_memory",
    "shards_seen",
    "shares",
    "shortest",
    "simulate",
    "split_batch",
    "stale_sgd",
    "step_model",
    "summed_by_class",
    "timed",
    "train_batch",
    "trained_heads",
    "trained_on_all",
    "validated",
    "validation_loss",
    "whole_batch",
    "zero_1",
    "zero_bytes",
]
