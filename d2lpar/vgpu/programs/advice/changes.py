"""The changes that `d2lpar run --try` knows; it needs no torch, as the command line does not."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import NamedTuple


class Change(NamedTuple):
    """Its modules compiled, or (with a name) another machine."""

    machine: str | None = None

    def __str__(self) -> str:
        return "compile" if self.machine is None else f"machine={self.machine}"


COMPILE = Change()


def change(text: str) -> Change:
    """Read a change. Raises ArgumentTypeError for another one."""
    word, _, name = text.partition("=")
    if text == str(COMPILE):
        return COMPILE
    if word != "machine" or not name:
        raise ArgumentTypeError(f"it takes {COMPILE}, or machine=NAME, not {text!r}")
    return Change(name)
