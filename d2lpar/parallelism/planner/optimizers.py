"""What an optimizer keeps of each parameter and moves to update it, by its recipe of precision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Bytes of a parameter: `state_bytes` are kept beside it, `moved_bytes` read and written."""

    state_bytes: int
    moved_bytes: int


# Parameters of two bytes, with an fp32 copy in the state (Rajbhandari et al. 2020: 12 bytes with
# Adam). An update reads the copy, a gradient of four bytes and the moments, and writes them and a
# parameter of two bytes.
MIXED = {
    "adam": Recipe(12, 4 + 4 + 8 + 4 + 8 + 2),
    "adam-bf16": Recipe(4, 2 + 2 + 4 + 2 + 4),  # no copy, moments of two bytes
    "sgd": Recipe(8, 4 + 4 + 4 + 4 + 4 + 2),  # with momentum
    "none": Recipe(0, 0),
}
# Parameters of four bytes are their own copy.
FULL = {
    "adam": Recipe(8, 4 + 4 + 8 + 4 + 8),
    "sgd": Recipe(4, 4 + 4 + 4 + 4 + 4),
    "none": Recipe(0, 0),
}
OPTIMIZERS = tuple(MIXED)


def recipe(optimizer: str, parameter_bytes: int) -> Recipe:
    """That of an optimizer for parameters of 2 or 4 bytes. Raises ValueError if there is none."""
    known = FULL if parameter_bytes == 4 else MIXED
    if optimizer not in known:
        raise ValueError(
            f"optimizer is one of {', '.join(known)} for parameters of {parameter_bytes} bytes, "
            f"not {optimizer!r}"
        )
    return known[optimizer]
