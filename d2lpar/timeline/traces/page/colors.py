"""The colours of timelines: Okabe and Ito's (https://jfly.uni-koeln.de/color)."""

from __future__ import annotations

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
GREY, PALE = "#B0B0B0", "#D9D9D9"

KINDS = {
    "compute": BLUE, "copy": ORANGE, "dispatch": GREY, "host": PURPLE, "collective": GREEN,
    "wait": SKY,
}  # fmt: skip
PASSES = {  # of a micro-batch through a stage, from dark to light
    "forward": BLUE, "backward": ORANGE, "inputs": SKY, "weights": YELLOW, "again": PALE,
    "all_gather": GREEN, "reduce_scatter": SKY, "update": PURPLE,
}  # fmt: skip
OTHERS = (VERMILION, YELLOW)
DARK = (BLUE, GREEN)  # on which letters are white
CURVES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def of_kind(kind: str) -> str:
    """That of spans of a kind; one that is new has the same in every chart."""
    known = KINDS.get(kind) or PASSES.get(kind)
    return known or OTHERS[sum(kind.encode()) % len(OTHERS)]
