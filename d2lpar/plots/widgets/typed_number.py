"""Numbers as people type them, with or without a unit: 460 ms, 1/2, 1,5 GB/s, 3x, 90 %."""

from __future__ import annotations

import re
from fractions import Fraction

DECIMAL = r"(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,2})?"
TYPED = re.compile(
    rf"[~≈]?\s*(?P<times>[x×]?)\s*(?P<number>[+-]?{DECIMAL})(?:\s*/\s*(?P<by>{DECIMAL}))?"
    r"\s*(?P<unit>\D.*)?"
)
THOUSANDS_OR_NOT = re.compile(r"(?<![0-9])([1-9][0-9]{0,2})[.,]([0-9]{3})(?![0-9eE])")

PREFIXES: dict[str, int | str] = {
    "": 1, "n": "1e-9", "u": "1e-6", "µ": "1e-6", "μ": "1e-6", "m": "1e-3",
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
PREFIXED = {
    "s": "s", "B": "B", "B/s": "B/s", "bit": "bit", "bit/s": "bit/s",
    "FLOP": "FLOP", "FLOP/s": "FLOP/s", "FLOPS": "FLOP/s",
}  # fmt: skip
WHOLE: dict[str, tuple[int | str, str]] = {
    **dict.fromkeys(("sec", "second", "seconds"), (1, "s")),
    **dict.fromkeys(("min", "minute", "minutes"), (60, "s")),
    **dict.fromkeys(("h", "hour", "hours"), (3600, "s")),
    **dict.fromkeys(("x", "×", "times", "-fold", "fold"), (1, "times")),
    **dict.fromkeys(("%", "percent"), ("1/100", "")),
}


def number_in(unit: str, text: str) -> float | None:
    """The number in `unit` that `text` says, which has the same unit, one that can be converted
    to it, or none; None for all that is not one number, or can be read in two ways.

    A fraction without a unit is a share where per cent are asked for: 1/4 is 25 %.
    """
    found = TYPED.fullmatch(text.strip().replace("−", "-"))
    if not found or two_readings(text):
        return None
    typed = found["times"] + "".join((found["unit"] or "").split())
    if not typed and not (found["by"] and unit == "%"):
        typed = unit
    (factor, of), (asked, wanted) = _scale(typed), _scale(unit)
    if of != wanted:
        return None
    try:
        return float(_fraction(found["number"]) / _fraction(found["by"] or "1") * factor / asked)
    except (ZeroDivisionError, OverflowError):
        return None


def two_readings(text: str) -> tuple[str, str] | None:
    """The two numbers that a text may mean, as "1,500" and "1.500" mean 1.5 here and 1500 there."""
    found = THOUSANDS_OR_NOT.search(text)
    return found and (f"{float('.'.join(found.groups())):g}", "".join(found.groups()))


def _scale(unit: str) -> tuple[Fraction, str]:
    """What a unit is a multiple of, and how large a one."""
    if unit in WHOLE:
        factor, of = WHOLE[unit]
        return Fraction(str(factor)), of
    for name, of in PREFIXED.items():
        if unit.endswith(name) and (prefix := unit.removesuffix(name)) in PREFIXES:
            return Fraction(str(PREFIXES[prefix])), of
    return Fraction(1), unit


def _fraction(decimal: str) -> Fraction:
    return Fraction(decimal.replace(",", "."))
