"""What a row says about its workload, read as numbers and words; and what a run comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, overload

T = TypeVar("T")

_MISSING = object()

# They tell the reader more; nothing is simulated differently.
_DESCRIBES = {
    *("framework", "transpose", "link", "heads", "classes", "qk_norm", "network", "nccl_channels"),
    *("averaged", "async"),
}
_RATES = {
    "s": ("seconds", 1.0),
    "GB/s": ("bytes", 1e9),
    "TFLOP/s": ("flops", 1e12),
    "images/s": ("samples", 1.0),
    "sequences/s": ("samples", 1.0),
    "tokens/s": ("tokens", 1.0),
    "GiB": ("memory_bytes", 2.0**30),
}
_PER_GPU = {
    "images/s/gpu": "images/s",
    "samples/s per GPU": "sequences/s",
    "tokens/s/gpu": "tokens/s",
    "TFLOP/s/gpu": "TFLOP/s",
}
_RATIOS = ("efficiency", "ratio", "speedup", "fraction")
_UNITS = (*_RATES, *_PER_GPU, *_RATIOS)


class Parameters:
    """The parameters of a row, and which of them were used."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._used: set[str] = set()

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: T) -> str | T: ...
    def text(self, name: str, default: object = _MISSING) -> object:
        """The parameter as it is written, or the default. Raises ValueError if there is neither."""
        self._used.add(name)
        value = self._values.get(name, default)
        if value is _MISSING:
            raise ValueError(f"it needs the parameter {name}")
        return value

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: T) -> float | T: ...
    def number(self, name: str, default: object = _MISSING) -> object:
        """The parameter as a number, or the default. Raises ValueError for other words."""
        text = self.text(name, default)
        try:
            return float(text) if isinstance(text, str) else default
        except ValueError:
            raise ValueError(f"the parameter {name} must be a number, not {text!r}") from None

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: T) -> int | T: ...
    def integer(self, name: str, default: object = _MISSING) -> object:
        """The parameter as a whole number, or the default. Raises ValueError for other numbers."""
        value = self.number(name, default)
        if not isinstance(value, float):
            return default
        if value != int(value):
            raise ValueError(f"the parameter {name} must be a whole number, not {value!r}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        """Whether the parameter, or the default, is true. Raises ValueError for other words."""
        text = self.text(name, str(default).lower())
        if text not in ("true", "false"):
            raise ValueError(f"the parameter {name} must be true or false, not {text!r}")
        return text == "true"

    def choice(self, name: str, choices: Mapping[str, T], default: str | None = None) -> T:
        """What the word stands for in `choices`. Raises ValueError for a word that is not there."""
        text = self.text(name) if default is None else self.text(name, default)
        if text not in choices:
            raise ValueError(f"the parameter {name} must be {' or '.join(choices)}, not {text!r}")
        return choices[text]

    def unused(self) -> list[str]:
        """Parameters that nobody has asked for: somebody's misprint, or a workload's gap."""
        return sorted(set(self._values) - self._used - _DESCRIBES)


@dataclass(frozen=True)
class Naive:
    """Seconds of a naive model, or the ratio where two runs were compared."""

    seconds: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulated run comes to: seconds, and what was done in them on `gpus` GPUs in all.

    `ratio` is given instead where two runs were compared, `memory_bytes` where a GPU was filled.
    `naive` is what a naive model says of the same run: the peak rate, the rate of the link, or so
    many GPUs times one.
    """

    seconds: float | None = None
    samples: float | None = None
    flops: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    memory_bytes: float | None = None
    gpus: int = 1
    ratio: float | None = None
    naive: Naive | None = None

    def repeated(self, count: int, *, beside_s: float = 0.0) -> SimulatedRun:
        """So many such runs in a row, and what takes so long besides."""

        def times(amount: float | None) -> float | None:
            return None if amount is None else count * amount

        naive = self.naive and replace(self.naive, seconds=times(self.naive.seconds))
        return replace(
            self,
            seconds=None if self.seconds is None else count * self.seconds + beside_s,
            naive=naive,
            samples=times(self.samples),
            flops=times(self.flops),
            bytes=times(self.bytes),
            tokens=times(self.tokens),
        )

    def in_naive_unit(self, unit: str) -> float | None:
        """The naive model's figure in the unit of the row; None where there is none."""
        if self.naive is None:
            return None
        run = replace(self, seconds=self.naive.seconds, ratio=self.naive.ratio)
        return run.in_unit(unit)

    def in_unit(self, unit: str) -> float:
        """The run in the unit of its row. Raises ValueError for one that it cannot be given in."""
        amount = self._amount(unit)
        if amount is None:
            known = [known for known in _UNITS if self._amount(known) is not None]
            raise ValueError(f"this workload has no result in {unit!r}, but in {', '.join(known)}")
        per = self.gpus if unit in _PER_GPU else 1
        name, scale = _RATES.get(_PER_GPU.get(unit, unit), (None, 1.0))
        if unit in _RATIOS or name == "seconds":
            return amount
        if name == "memory_bytes":
            return amount / scale
        assert self.seconds is not None  # or there would be a ratio only
        return amount / self.seconds / scale / per

    def _amount(self, unit: str) -> float | None:
        """What a result in this unit begins with; None where there is none."""
        name, _ = _RATES.get(_PER_GPU.get(unit, unit), (None, 1.0))
        return self.ratio if unit in _RATIOS else getattr(self, name) if name else None
