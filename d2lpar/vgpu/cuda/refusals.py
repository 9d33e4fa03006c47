"""What is not emulated says so by its name, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable


def refusal(name: str, remedy: str) -> Callable[..., object]:
    """A function that raises NotImplementedError: `name` is not emulated, `remedy` helps."""

    def refuse(*args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{name} is not emulated: {remedy}")

    return refuse
