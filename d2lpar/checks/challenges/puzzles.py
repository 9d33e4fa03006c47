"""All puzzles by name, with limits, pars and records."""

from __future__ import annotations

from . import capstone, of_memory, of_pipelines, of_plans, on_gpus, on_ranks
from .puzzle import Puzzle

SEARCH = "to find the mix is the puzzle. Search yourself, with par.planner.step and memory"
READY = "to work it out is the puzzle. Use on(), busy_s and overlap_s"

ALL = (
    Puzzle("spread", on_gpus.spread, "ms", 9, 9, 9),
    Puzzle("broadcast", on_gpus.broadcast, "ms", 9, 9, 9),
    Puzzle("three_lanes", on_gpus.three_lanes, "ms", 99, 9, 9),
    Puzzle("unsynced", on_gpus.unsynced, "ms", 99, 9, 9),
    Puzzle("relay", on_gpus.relay, "ms", 99, 9, 9),
    Puzzle("sum_gradients", on_gpus.sum_gradients, "ms", 99, 9, 9),
    Puzzle("unstuck", on_ranks.unstuck, "ms", 99, 9, 9),
    Puzzle("schedule", of_pipelines.schedule, "% bubble", 99, 9, 9),
    Puzzle("cut", of_pipelines.cut, "ms", 9999, 9, 9),
    Puzzle("recompute", of_memory.recompute, "ms", 9999, 9, 9),
    Puzzle(
        "mix", of_plans.mix, "ms", 99999, 9, 9,
        {"plans": SEARCH, "best": SEARCH, "explain": SEARCH},
    ),
    Puzzle("small_gpt", capstone.small_gpt, "wrong scores", 0, 0, 0),
    Puzzle("train_on_ranks", capstone.train_on_ranks, "ms", 999, 9, 9),
    Puzzle(
        "read_timeline", capstone.read_timeline, "wrong shares", 0, 0, 0,
        {
            "exposed_communication_fraction": READY,
            "exposed_communication_s": READY,
        },
    ),
    Puzzle("mixes", capstone.mixes, "GPU-seconds", 99999, 9, 9),
    Puzzle("rent", capstone.rent, "wrong choices", 0, 0, 0),
)  # fmt: skip
PUZZLES = {puzzle.name: puzzle for puzzle in ALL}
