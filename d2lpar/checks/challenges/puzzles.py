"""All puzzles by name, with limits, pars and records."""

from __future__ import annotations

from . import capstone, of_memory, of_pipelines, of_plans, on_gpus, on_ranks
from .puzzle import Puzzle

SEARCH = "to find the mix is the puzzle. Search yourself, with par.planner.step and memory"
READY = "to work it out is the puzzle. Use on(), busy_s and overlap_s"

ALL = (
    Puzzle("spread", on_gpus.spread, "ms", 1.1, 0.75649, 0.64849, on_clock=True),
    Puzzle("broadcast", on_gpus.broadcast, "ms", 0.8, 0.55859, 0.48439, on_clock=True),
    Puzzle("three_lanes", on_gpus.three_lanes, "ms", 6, 5.195, 5.195, on_clock=True),
    Puzzle("unsynced", on_gpus.unsynced, "ms", 7, 6.2528, 5.7279, on_clock=True),
    Puzzle("relay", on_gpus.relay, "ms", 5, 4.707, 4.707, on_clock=True),
    Puzzle("sum_gradients", on_gpus.sum_gradients, "ms", 6.8, 5.3097, 2.028, on_clock=True),
    Puzzle("unstuck", on_ranks.unstuck, "ms", 1, 0.62682, 0.32496, on_clock=True),
    Puzzle("schedule", of_pipelines.schedule, "% bubble", 25, 20, 7.6923),
    Puzzle("cut", of_pipelines.cut, "ms", 1000, 914.5, 852.38),
    Puzzle("recompute", of_memory.recompute, "ms", 1250, 1096.8, 1071.85),
    Puzzle(
        "mix", of_plans.mix, "ms", 40000, 35118, 29510,
        {"plans": SEARCH, "best": SEARCH, "explain": SEARCH},
    ),
    Puzzle("small_gpt", capstone.small_gpt, "wrong scores", 0, 0, 0),
    Puzzle(
        "train_on_ranks", capstone.train_on_ranks, "ms", 38, 28.266, 27.373,
        on_clock=True, trial="training",
    ),
    Puzzle(
        "read_timeline", capstone.read_timeline, "wrong shares", 0, 0, 0,
        {"exposed_communication_s": READY},
    ),
    Puzzle("mixes", capstone.mixes, "GPU-seconds", 4500, 3316.4, 3216.3),
    Puzzle("rent", capstone.rent, "wrong choices", 0, 0, 0),
)  # fmt: skip
PUZZLES = {puzzle.name: puzzle for puzzle in ALL}
