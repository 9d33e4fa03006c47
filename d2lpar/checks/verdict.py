"""What a check says, and how the check of an exercise becomes one that says it."""

from __future__ import annotations

import functools
import math
import numbers
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

import torch

RIGHT, WRONG, NOT_YET = "right", "wrong", "not attempted yet"
MARKS = {RIGHT: "✓", WRONG: "✗", NOT_YET: "○"}

OF_EXERCISE = "of_exercise"  # what marks the check of an exercise
NOTHING_YET = object()
LONGEST_VALUE = 80
FEW = 3  # values of a tensor in a message

TEXT_NOT_YET = "write the function, then run this cell again"
RAISED = "your function raised {error}{where}"
RETURNED_NOTHING = "your function returned nothing: end it with `return …`"
NOTHING_HERE = "{wrong}. Your function returned nothing here: is there a `return …` on every path?"
VIRTUAL = ". The GPUs here are virtual: take torch.get_device_module(device) for torch.cuda"
# What it says where there is no driver, where torch was built without, and of a device of ours.
TORCH_CUDA = (
    *("NVIDIA driver", "CUDA driver version"),
    *("Torch not compiled with CUDA", "Expected a cuda device"),
)
UNUSABLE = "your function returned {value}, which cannot be used here ({error}){expected}"
EXPECTED = ". Expected of {what}"


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


class Refused(Exception):  # noqa: N818 (it is a verdict, not an error)
    """An answer that is not run, or does not count: the text says which line does what."""


def exercise(check: Callable[[Callable], str]) -> Callable[[Callable], Verdict]:
    """Turn a check that raises `Wrong` or returns praise into one that returns a verdict."""
    gives_a_value = not str(check.__annotations__.get("answer")).endswith("None]")

    @functools.wraps(check)
    def judge(answer: Callable) -> Verdict:
        watched = _Watched(answer, gives_a_value, _first_paragraph(check))
        try:
            return Verdict(RIGHT, check(watched))
        except Wrong as wrong:
            return Verdict(WRONG, watched.told(wrong))
        except Refused:  # by the grader's process, which says so itself
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError) and _left_to_do(answer, error):
                return Verdict(NOT_YET, TEXT_NOT_YET)
            return Verdict(WRONG, watched.blame(error))

    setattr(judge, OF_EXERCISE, True)
    return judge


class _Watched:
    """The student's function, and what it returned last, to tell its errors from the check's."""

    def __init__(self, answer: Callable, gives_a_value: bool, what: str) -> None:
        functools.update_wrapper(self, answer)
        self._answer, self._gives_a_value, self._what = answer, gives_a_value, what
        self._returned: object = NOTHING_YET

    def __call__(self, *args: object, **kwargs: object) -> object:
        self._returned = NOTHING_YET
        self._returned = self._answer(*args, **kwargs)
        return self._returned

    def told(self, wrong: Wrong) -> str:
        """The text of a verdict, and that a `return` is missing if that is what is wrong."""
        forgotten = self._returned is None and self._gives_a_value
        return NOTHING_HERE.format(wrong=wrong) if forgotten else str(wrong)

    def blame(self, error: Exception) -> str:
        """What to say of an error that neither the function nor the check has handled."""
        if self._returned is NOTHING_YET:
            return RAISED.format(error=_named(error), where=_line(self._answer, error))
        if self._returned is None and self._gives_a_value:
            return RETURNED_NOTHING
        expected = EXPECTED.format(what=self._what) if self._what else ""
        value = shortened(repr(self._returned))
        return UNUSABLE.format(value=value, error=_named(error), expected=expected)


def _first_paragraph(check: Callable) -> str:
    """What the docstring of an exercise's check says of the function to write."""
    paragraph = (check.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).rstrip(".")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}{advice(error)}"


def advice(error: BaseException) -> str:
    """What to write instead, for who has called `torch.cuda` where GPUs are virtual."""
    return VIRTUAL if any(said in str(error) for said in TORCH_CUDA) else ""


def shortened(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def few(tensor: torch.Tensor) -> str:
    """The first values of a tensor, for a message."""
    values = tensor.detach().cpu().flatten().tolist()
    shown = [f"{value:.4g}" for value in values[:FEW]]
    return f"[{', '.join(shown)}{', …' if len(values) > FEW else ''}]"


def _line(answer: Callable, error: Exception) -> str:
    """The last line of the student's own code that the error has passed, with its number."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if _is_own(answer, f)]
    if not own:
        return ""
    return f" in line {own[-1].lineno}" + (f" (`{own[-1].line}`)" if own[-1].line else "")


def _is_own(answer: Callable, frame: traceback.FrameSummary) -> bool:
    code = getattr(answer, "__code__", None)
    return code is not None and frame.filename == code.co_filename


def _left_to_do(answer: Callable, error: NotImplementedError) -> bool:
    """Whether the student's own line raised it: torch raises the same for what it cannot do."""
    frames = traceback.extract_tb(error.__traceback__)
    return _is_own(answer, frames[-1]) or not hasattr(answer, "__code__")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, of Python or of NumPy; no tensor, no truth value."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)  # type: ignore[arg-type]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number by its type, of Python or of NumPy; 2.0 is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors' values, wherever they are."""
    return (a.detach().cpu() - b.detach().cpu()).abs().max().item()
