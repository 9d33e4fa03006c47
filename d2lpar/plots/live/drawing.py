"""A drawing that is open inside a `with` statement, and stays behind as one static picture."""

from types import TracebackType

from .. import texts
from . import interrupts
from .pace import Pace
from .screens import LiveFigure, TextProgress


class Drawing:
    """Shows its screen at a pace; subclasses open `_screen` in `__enter__`.

    `closed` is the message of the RuntimeError that drawing raises outside the `with` statement.
    """

    def __init__(self, pace: Pace, closed: str) -> None:
        self._pace, self._closed = pace, closed
        self._screen: LiveFigure | TextProgress | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        screen, self._screen = self._open_screen(), None
        if interrupts.put_off(screen.finish) and error is None:
            raise KeyboardInterrupt(texts.STOPPED_LATE)
        interrupts.short(error, traceback)

    def draw(self) -> None:
        """Draw now, whatever the pace says."""
        self._open_screen().draw()
        self._pace.drawn()

    def _draw_if_due(self) -> None:
        self._open_screen()
        if self._pace.due:
            self.draw()

    def _open_screen(self) -> LiveFigure | TextProgress:
        if self._screen is None:
            raise RuntimeError(self._closed)
        return self._screen
