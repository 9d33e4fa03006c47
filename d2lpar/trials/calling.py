"""How a check calls an answer, wherever the answer runs, and what is told of its errors."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NOTHING_YET = object()
MEMORY = ("MemoryError", "not enough memory", "can't allocate memory", "Cannot allocate memory")


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818 (of the answer's, told in plain data)
    """An error that an answer has raised, or that what it returned has caused.

    `where` is the answer's own last line that it passed, `left_to_do` says that this line raised
    NotImplementedError, `returned` is what the answer returned, or `NOTHING_YET`.
    """

    name: str
    text: str
    where: str = ""
    left_to_do: bool = False
    returned: Any = NOTHING_YET

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"

    @property
    def of_memory(self) -> bool:
        """Whether there was not memory enough."""
        return any(word in f"{self.name}: {self.text}" for word in MEMORY)


class Called(ABC):
    """An answer that can be called, with what it returned last.

    `picture` is what a trial has brought last of what the answer did: see `trials.evidence`.
    """

    returned: Any = NOTHING_YET
    picture: dict = {}  # noqa: RUF012 (replaced, never changed)

    def tried(self, trial: Callable, *args: object) -> Any:
        """What `trial(answer, *args)` returns. Raises `Fault`."""
        found = self.run(trial, *args)
        if isinstance(found, dict) and isinstance(found.get("picture"), dict):
            self.picture = found["picture"]
        return found

    @abstractmethod
    def run(self, trial: Callable, *args: object) -> Any:
        """Run it, wherever the answer is. Raises `Fault`."""

    def __call__(self, *args: object) -> Any:
        """What the answer itself returns. Raises `Fault`."""
        return self.tried(directly, *args)


def directly(answer: Callable, *args: object) -> object:
    """The trial that only calls the answer."""
    return answer(*args)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a loop of Python's that is still running after so many seconds.

    A notebook would otherwise hang until somebody interrupts it. What waits in C is not ended.
    """
    ends_s, before = time.monotonic() + seconds, sys.gettrace()

    def look(*_: object) -> Callable:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"it has not ended after {seconds:g} s: is there a loop for ever?")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


class InProcess(Called):
    """An answer that runs here: in a notebook, or in the answer's own process."""

    def __init__(self, answer: Callable) -> None:
        functools.update_wrapper(self, answer)
        self._answer = answer
        self._code = getattr(inspect.unwrap(answer), "__code__", None)  # as under @torch.no_grad()

    def run(self, trial: Callable, *args: object) -> Any:
        """What the trial returns. Raises `Fault`."""
        self.returned = NOTHING_YET
        try:
            return trial(self._called, *args)
        except Exception as error:
            raise self.fault(error) from error

    def _called(self, *args: object, **kwargs: object) -> object:
        self.returned = NOTHING_YET
        self.returned = self._answer(*args, **kwargs)
        return self.returned

    def fault(self, error: BaseException) -> Fault:
        """An error in plain data."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if self._is_own(frame)]
        left = isinstance(error, NotImplementedError) and (
            self._code is None or self._is_own(frames[-1])
        )
        try:
            text = str(error)
        except Exception:
            text = "an error that cannot be printed"
        return Fault(type(error).__name__, text, _line(own), left, self.returned)

    def _is_own(self, frame: traceback.FrameSummary) -> bool:
        return self._code is not None and frame.filename == self._code.co_filename


def _line(own: list[traceback.FrameSummary]) -> str:
    """The last line of the student's own code that an error has passed, with its number."""
    if not own:
        return ""
    return f" in line {own[-1].lineno}" + (f" (`{own[-1].line}`)" if own[-1].line else "")
