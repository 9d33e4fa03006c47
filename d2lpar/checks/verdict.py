"""What a check says, and how the check of an exercise becomes one that says it."""

from __future__ import annotations

import functools
import math
import numbers
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from ..locale import translated
from ..timeline.printing import is_watched, say
from ..trials.calling import NOTHING_YET, Called, Fault, InProcess
from ..trials.plain import Seen

RIGHT, WRONG, NOT_YET = "right", "wrong", "not attempted yet"
NOT_GRADED = "not graded"  # by no fault of the answer's
SHOWN = {
    RIGHT: "✓ right: {text}",
    WRONG: "✗ wrong: {text}",
    NOT_YET: "○ not attempted yet: {text}",
    NOT_GRADED: "? not graded: {text}",
}

OF_EXERCISE = "of_exercise"  # what marks the check of an exercise
ON_CLOCK = "on_clock"  # and that of one that reads the clock
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
TEXT_FAILED = (
    "the check of {name} has failed itself, with {error}{where}: that is a fault of the course's, "
    "and your answer may be right"
)


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` ("right", "wrong", "not attempted yet"; "not graded" where the
    check itself has failed) and a text.

    `picture` is plain data of `trials.evidence`: what the answer did, right or wrong. A notebook
    draws it under the text, with `title` above it, and last of all shows the line `below`.
    """

    status: str
    text: str
    picture: dict = field(default_factory=dict, compare=False)
    title: str = ""
    below: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return self.status == RIGHT

    def __repr__(self) -> str:
        return translated(SHOWN[self.status].format(text=self.text))

    def _ipython_display_(self) -> None:
        from . import pictures  # the grader, which judges too, draws nothing

        drawn = pictures.drawn(self.picture, self.title)
        if drawn is None and not is_watched():
            raise NotImplementedError  # by which IPython is told to store the text, as ever
        say(repr(self))
        if drawn is not None:
            drawn._ipython_display_()
        if self.below:
            say(self.below)


class Wrong(Exception):  # noqa: N818 (it is a verdict, not an error)
    """Raised inside a check with the text of a verdict, and perhaps a picture of the run."""

    def __init__(self, text: str, picture: dict | None = None) -> None:
        super().__init__(text)
        self.picture = picture or {}


class Over(Wrong):
    """What is right as far as values go, and breaks a limit of time, waiting or the like."""


class Refused(Exception):  # noqa: N818 (it is a verdict, not an error)
    """An answer that is not run, or does not count: the text says which line does what."""


class Ended(Exception):  # noqa: N818 (it is a verdict, not an error)
    """An answer whose process has ended before it answered, with what is said of it."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


def exercise(
    check: Callable[[Called], str] | None = None,
    *,
    on_clock: bool = False,
    gives_a_value: bool = True,
) -> Callable[..., Any]:
    """Turn a check that raises `Wrong` or returns praise into one that returns a verdict.

    The check calls the answer, or lets a trial call it, and looks at what comes before it uses it:
    an error of any other kind is its own, and blames nobody's answer. What a trial brings as
    "picture" it shows with the verdict. `on_clock`: what is judged is
    read from the simulated clock and machine, which run where the answer does. `gives_a_value`: an
    answer that returns None has forgotten to return something.

    In a notebook an answer runs beside its check, and can deceive it: nobody is protected there
    from himself. `checks.grader` runs it in a process of its own.
    """
    if check is None:
        return functools.partial(exercise, on_clock=on_clock, gives_a_value=gives_a_value)

    @functools.wraps(check)
    def judge(answer: Callable) -> Verdict:
        called = answer if isinstance(answer, Called) else InProcess(answer)
        return replace(judged(called), picture=called.picture, title=f"your {check.__name__}")

    def judged(called: Called) -> Verdict:
        try:
            return Verdict(RIGHT, check(called))
        except Wrong as wrong:
            forgotten = called.returned is None and gives_a_value
            return Verdict(WRONG, NOTHING_HERE.format(wrong=wrong) if forgotten else str(wrong))
        except (Refused, Ended):  # by what grades, which says so itself
            raise
        except Fault as fault:
            if fault.left_to_do:
                return Verdict(NOT_YET, TEXT_NOT_YET)
            return Verdict(WRONG, blame(fault, gives_a_value, _first_paragraph(check)))
        except Exception as error:
            return Verdict(NOT_GRADED, failed(check.__name__, error))

    setattr(judge, OF_EXERCISE, True)
    setattr(judge, ON_CLOCK, on_clock)
    return judge


def blame(fault: Fault, gives_a_value: bool = True, what: str = "") -> str:
    """What to say of an error; `what` is said of the function to write."""
    advised = advice(fault.text)
    text = fault.text.partition("\n")[0] if advised else fault.text
    error = f"{fault.name}: {text}{advised}"
    if fault.returned is NOTHING_YET:
        return RAISED.format(error=error, where=fault.where)
    if fault.returned is None and gives_a_value:
        return RETURNED_NOTHING
    expected = EXPECTED.format(what=what) if what else ""
    value = shortened(repr(fault.returned))
    return UNUSABLE.format(value=value, error=error, expected=expected)


def failed(name: str, error: Exception) -> str:
    """What to say where the check of a function has failed itself."""
    *_, frame = traceback.extract_tb(error.__traceback__) or [None]
    where = "" if frame is None else f" in {os.path.basename(frame.filename)}:{frame.lineno}"
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return TEXT_FAILED.format(name=name, error=shortened(told), where=where)


def _first_paragraph(check: Callable) -> str:
    """What the docstring of an exercise's check says of the function to write."""
    paragraph = (check.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).rstrip(".")


def advice(error: object) -> str:
    """What to write instead, for who has called `torch.cuda` where GPUs are virtual."""
    return VIRTUAL if any(said in str(error) for said in TORCH_CUDA) else ""


def shortened(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def few(tensor: torch.Tensor | Seen) -> str:
    """The first values of a tensor, for a message."""
    values = values_of(tensor).detach().cpu().flatten().tolist()
    shown = [f"{value:.4g}" for value in values[:FEW]]
    return f"[{', '.join(shown)}{', …' if len(values) > FEW else ''}]"


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, of Python or of NumPy; no tensor, no truth value."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)  # type: ignore[arg-type]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number by its type, of Python or of NumPy; 2.0 is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_tensor(value: object) -> TypeGuard[torch.Tensor | Seen]:
    """Whether it is a tensor, or what was seen of one."""
    return isinstance(value, torch.Tensor | Seen)


def values_of(tensor: torch.Tensor | Seen) -> torch.Tensor:
    """A tensor's values, wherever they are."""
    return tensor.values if isinstance(tensor, Seen) else tensor


def largest_difference(a: torch.Tensor | Seen, b: torch.Tensor | Seen) -> float:
    """The largest difference of two tensors' values, wherever they are; infinite if the shapes
    differ."""
    own, other = values_of(a).detach().cpu(), values_of(b).detach().cpu()
    if own.shape != other.shape:
        return math.inf
    return (own - other).abs().max().item()
