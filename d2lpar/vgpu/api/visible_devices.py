"""Which devices a program may see: a variable such as CUDA_VISIBLE_DEVICES, read when they start.

The rules are those of CUDA (Programming Guide, "CUDA Environment Variables"): a list of numbers
separated by commas; what is listed is numbered anew from 0, in the order of the list; the first
number that is no device ends it; an empty text or "-1" hides everything. Of the rest the guide
says nothing; it is as in PyTorch, whose tests were written to match NVIDIA's driver 525.60.13
(github.com/pytorch/pytorch/pull/92315): a number listed twice hides everything, spaces around a
number do no harm ("0, 5"), and of "1gpu" the number is read.
"""

from __future__ import annotations

import os
import re

CUDA = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"[+-]?[0-9]+")


def listed(text: str) -> list[int]:
    """The numbers of a list such as "2,3", up to the first entry that is no device of any machine.

    Agrees with what `torch.cuda` makes of CUDA_VISIBLE_DEVICES. UUIDs ("GPU-8932f937") are no
    numbers: virtual devices have none.
    """
    numbers: list[int] = []
    for entry in text.split(","):
        found = _NUMBER.match(entry.strip())
        number = -1 if found is None else int(found[0])
        if number in numbers:
            return []
        if number < 0:
            break
        numbers.append(number)
    return numbers


class Variable:
    """An environment variable that says which devices are visible, and says it once.

    It is what the environment says until `start` is called; after that, later changes are ignored.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_started = False
        self._text: str | None = None

    def start(self) -> None:
        """Devices are used from now on: keep to what the variable says now."""
        if not self.is_started:
            self._text, self.is_started = os.environ.get(self.name), True

    def forget(self) -> None:
        """Devices are used no more: heed the environment again."""
        self._text, self.is_started = None, False

    @property
    def text(self) -> str | None:
        """What it says; None if it is not set, which shows all devices."""
        return self._text if self.is_started else os.environ.get(self.name)

    @property
    def is_ignored(self) -> bool:
        """Whether the environment says something else by now."""
        return self.text != os.environ.get(self.name)

    def visible(self, count: int) -> list[int]:
        """The numbers of those of `count` devices that a program sees, in its order."""
        if self.text is None:
            return list(range(count))
        numbers = listed(self.text)
        invalid = (place for place, number in enumerate(numbers) if number >= count)
        return numbers[: next(invalid, len(numbers))]

    def __str__(self) -> str:
        return self.name if self.text is None else f"{self.name}={self.text!r}"
