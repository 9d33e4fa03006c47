"""What a live plot shows, apart from how: curves, labels and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import texts
from .curve import Curve

Limits = tuple[float, float] | None
LINEAR, LOG = "linear", "log"


@dataclass
class Chart:
    """Named curves and the words around them; an axis without limits follows the data.

    The limits of y begin at zero if `from_zero` says so.
    """

    curves: dict[str, Curve]
    xlabel: str
    ylabel: str
    xlim: Limits
    ylim: Limits
    title: str
    note: str
    size_px: tuple[int, int]
    xscale: str = LINEAR
    yscale: str = LINEAR
    marks: frozenset[str] = frozenset()  # curves of points that no line joins
    places: Mapping[str, float] = field(default_factory=dict)  # of the x axis, that have names
    status: str = ""
    from_zero: bool = False

    def summary(self) -> str:
        """What is drawn, in words that stay the same from run to run."""
        return texts.LIVE.format(curves=", ".join(self.curves), xlabel=self.xlabel or "x")

    def last_values(self) -> str:
        """Where the curves are now, in words."""
        drawn = {name: curve.last for name, curve in self.curves.items() if curve.last}
        if not drawn:
            return texts.NO_POINTS
        values = (f"{name} {y:.3g}" for name, (_, y) in drawn.items())
        return texts.joined(f"{self.xlabel or 'x'} {self.last_x():g}", *values)

    def last_x(self) -> float:
        """The x of the last point of the curve that has come farthest; -inf before the first."""
        return self.reach("x")[1]

    def reach(self, axis: str) -> tuple[float, float]:
        """The lowest and the highest "x" or "y" of all curves; (inf, -inf) before the first."""
        ranges = [getattr(curve, f"{axis}_range") for curve in self.curves.values()]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        return (min(low, 0.0) if self.from_zero and axis == "y" else low), high
