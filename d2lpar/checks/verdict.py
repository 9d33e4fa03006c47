"""What a check says, and how the check of an exercise becomes one that says it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

RIGHT, WRONG, NOT_YET = "right", "wrong", "not attempted yet"
MARKS = {RIGHT: "✓", WRONG: "✗", NOT_YET: "○"}

TEXT_NOT_YET = "write the function, then run this cell again"


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` ("right", "wrong", "not attempted yet") and a text."""

    status: str
    text: str

    def __bool__(self) -> bool:
        return self.status == RIGHT

    def __repr__(self) -> str:
        return f"{MARKS[self.status]} {self.status}: {self.text}"


class Wrong(Exception):  # noqa: N818 (it is a verdict, not an error)
    """Raised inside a check with the text of a verdict."""


def exercise(check: Callable[[Callable], str]) -> Callable[[Callable], Verdict]:
    """Turn a check that raises `Wrong` or returns praise into one that returns a verdict."""

    @functools.wraps(check)
    def judge(answer: Callable) -> Verdict:
        try:
            return Verdict(RIGHT, check(answer))
        except NotImplementedError:
            return Verdict(NOT_YET, TEXT_NOT_YET)
        except Wrong as wrong:
            return Verdict(WRONG, str(wrong))
        except Exception as error:
            return Verdict(WRONG, f"your function raised {type(error).__name__}: {error}")

    return judge


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors' values, wherever they are."""
    return (a.detach().cpu() - b.detach().cpu()).abs().max().item()
