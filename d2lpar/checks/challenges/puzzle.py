"""What a puzzle is: its name, its limit, and what decides on an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...trials.calling import Called

CLOSE = 1e-3  # figures that close are the same
AT_LIMIT, AT_PAR, AT_RECORD = 60, 80, 100  # points


@dataclass(frozen=True)
class Outcome:
    """What a right answer came to: `figure` counts, less is better.

    `picture` is plain data, which `pictures` draws: see there.
    """

    figure: float
    praise: str
    picture: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Puzzle:
    """A function to write, called `name`.

    `judge(answer)` runs it, returns an `Outcome` or raises `Wrong`. The outcome's figure, in
    `unit`, must be `limit` at most. `par` is that of a good solution, `record` that of the best
    which we know. `refuses` are attributes that an answer must not use, each with the reason.
    `on_clock`: the figure is read from the simulated clock, which runs where the answer runs;
    `trial` is the module of trials that only this answer may know.
    """

    name: str
    judge: Callable[[Called], Outcome]
    unit: str
    limit: float
    par: float
    record: float
    refuses: Mapping[str, str] = field(default_factory=dict)
    on_clock: bool = False
    trial: str = ""

    def points(self, figure: float) -> int:
        """60 at the limit, 80 at par, 100 at the record or under it; in between as it lies."""
        if figure <= self.record * (1 + CLOSE):
            return AT_RECORD
        if figure <= self.par * (1 + CLOSE):
            return round(AT_RECORD - (AT_RECORD - AT_PAR) * _share(self.record, figure, self.par))
        return round(AT_PAR - (AT_PAR - AT_LIMIT) * _share(self.par, figure, self.limit))

    def in_words(self, figure: float) -> str:
        """The figure beside limit, par and record."""
        said = {"limit": self.limit, "par": self.par, "record": self.record}
        others = ", ".join(f"{name} {number(value)}" for name, value in said.items())
        return f"{number(figure)} {self.unit} ({others})"


def number(value: float) -> str:
    """Three digits, or all that there are before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _share(low: float, value: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0
