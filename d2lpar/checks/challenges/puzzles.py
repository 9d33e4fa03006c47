"""All puzzles in the order of the page, with levels, limits, pars and records."""

from __future__ import annotations

from . import capstone, of_memory, of_pipelines, of_plans, of_toys, on_gpus, on_ranks
from .puzzle import Puzzle

SEARCH = "to find the mix is the puzzle. Search yourself, with par.planner.step and memory"
READY = "to work it out is the puzzle. Use on(), busy_s and overlap_s"
TOY, BEST = "% of the optimum", "% of the best"

ALL = (
    Puzzle("toy_accumulate", of_toys.accumulate, 1, TOY, 115, 110, 100, example=True),
    Puzzle("toy_ddp", of_toys.ddp, 1, TOY, 120, 110, 100),
    Puzzle("toy_zero_1", of_toys.zero_1, 2, TOY, 125, 116, 100),
    Puzzle("toy_fsdp", of_toys.fsdp, 3, TOY, 190, 110, 100),
    Puzzle("toy_gpipe", of_toys.gpipe, 1, TOY, 115, 110, 100, one_way=True),
    Puzzle("toy_1f1b", of_toys.one_f_one_b, 2, TOY, 115, 110, 100),
    Puzzle("spread", on_gpus.spread, 1, "ms", 1.1, 0.75649, 0.64849, on_clock=True),
    Puzzle("broadcast", on_gpus.broadcast, 2, "ms", 0.8, 0.55859, 0.48439, on_clock=True),
    Puzzle("sum_gradients", on_gpus.sum_gradients, 2, "ms", 6.8, 5.3097, 2.028, on_clock=True),
    Puzzle("unstuck", on_ranks.unstuck, 2, "ms", 1, 0.62682, 0.32496, on_clock=True),
    Puzzle("three_lanes", on_gpus.three_lanes, 3, "ms", 6, 5.195, 5.195, on_clock=True),
    Puzzle("unsynced", on_gpus.unsynced, 1, "ms", 7, 6.233, 5.7932, on_clock=True),
    Puzzle("relay", on_gpus.relay, 2, "ms", 6, 5.177, 5.177, on_clock=True),
    Puzzle("schedule", of_pipelines.schedule, 3, "passes idle", 4, 3, 1),
    Puzzle("cut", of_pipelines.cut, 2, BEST, 115, 106, 100),
    Puzzle("recompute", of_memory.recompute, 2, BEST, 170, 155, 100),
    Puzzle(
        "mix", of_plans.mix, 3, BEST, 135, 120, 100,
        {"plans": SEARCH, "best": SEARCH, "explain": SEARCH},
    ),
    Puzzle("small_gpt", capstone.small_gpt, 1, "wrong scores", 0, 0, 0, one_way=True),
    Puzzle(
        "train_on_ranks", capstone.train_on_ranks, 2, "ms", 20, 16.481, 15.782,
        on_clock=True, trial="training",
    ),
    Puzzle(
        "read_timeline", capstone.read_timeline, 1, "wrong shares", 0, 0, 0,
        {"exposed_communication_s": READY},
    ),
    Puzzle("mixes", capstone.mixes, 2, BEST, 130, 105, 100),
    Puzzle("rent", capstone.rent, 1, "wrong choices", 0, 0, 0),
)  # fmt: skip
PUZZLES = {puzzle.name: puzzle for puzzle in ALL}
COUNTED = [puzzle for puzzle in ALL if not puzzle.example]
# What the page calls them, in its order.
PLACES = [*"ABCDE", *map(str, range(1, 12)), *(f"C{step}" for step in range(1, 6))]
