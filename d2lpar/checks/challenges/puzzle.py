"""What a puzzle is: its name, its limit, and what decides on an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...trials.calling import Called

OVER = "right, but over the limit"  # a status
MS = "ms"
MARGIN = 0.1  # the simulator's times are off by about that much, so no points hinge on less
ROUNDING = 1e-9
AT_LIMIT, AT_PAR, AT_RECORD = 60, 80, 100  # points
LEVELS = ("", "●", "●●", "●●●")


@dataclass(frozen=True)
class Outcome:
    """What a right answer came to: `figure` counts, less is better.

    `picture` is plain data, which `pictures` draws: see there. `beside` is that of a good run of
    the same case, where the judge knows one.
    """

    figure: float
    praise: str
    picture: dict = field(default_factory=dict)
    beside: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Puzzle:
    """A function to write, called `name`; `level` is 1, 2 or 3.

    `judge(answer, seed)` runs it on cases that it draws from the seed, returns an `Outcome` or
    raises `Wrong`, or `Over` for a limit that it knows itself. The outcome's figure, in
    `unit`, must be `limit` at most. `par` is that of a good solution, `record` that of the best
    which we know. `refuses` are attributes that an answer must not use, each with the reason.
    `on_clock`: the figure is read from the simulated clock, which runs where the answer runs;
    `trial` is the module of trials that only this answer may know. An `example` is solved on the
    page, and earns nothing. `one_way`: hardly another program is possible, so nobody is told that
    theirs is a copy.
    """

    name: str
    judge: Callable[[Called, int], Outcome]
    level: int
    unit: str
    limit: float
    par: float
    record: float
    refuses: Mapping[str, str] = field(default_factory=dict)
    on_clock: bool = False
    trial: str = ""
    example: bool = False
    one_way: bool = False

    @property
    def margin(self) -> float:
        """The share by which a figure may be larger and counts as the same: none but for times."""
        return MARGIN if self.unit == MS else ROUNDING

    def allows(self, figure: float) -> bool:
        """Whether a figure is within the limit."""
        return figure <= self.limit * (1 + self.margin)

    def is_new_record(self, figure: float) -> bool:
        """Whether a figure is better than the record, by more than what counts as the same."""
        return figure < self.record * (1 - self.margin)

    def points(self, figure: float) -> int:
        """100 at the record, 80 at par, 60 at the limit; `margin` more counts as the same."""
        for most, points in (
            (self.record, AT_RECORD), (self.par, AT_PAR), (self.limit, AT_LIMIT),
        ):  # fmt: skip
            if figure <= most * (1 + self.margin):
                return points
        return 0

    def in_words(self, figure: float) -> str:
        """The figure beside limit, par and record."""
        said = {"limit": self.limit, "par": self.par, "record": self.record}
        others = ", ".join(f"{name} {number(value)}" for name, value in said.items())
        return f"{number(figure)} {self.unit} ({others})"


def number(value: float) -> str:
    """Three digits, or all that there are before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
