"""How often a picture that grows is drawn."""

from collections.abc import Callable

from .. import texts


class Pace:
    """On average at most `max_fps` pictures a second, by a `clock` in seconds.

    Pictures come only between the steps of a program. So that late ones do not make all of them
    rare, the next is due a pause after this one *was due*; but half a pause is kept free between
    two, for the program. Raises ValueError unless `max_fps` is positive.
    """

    def __init__(self, max_fps: float, clock: Callable[[], float]) -> None:
        if not max_fps > 0:
            raise ValueError(texts.ERROR_FPS.format(fps=max_fps))
        self._pause_s, self._clock, self._due_s = 1 / max_fps, clock, clock()

    @property
    def due(self) -> bool:
        """Whether it is time for the next picture."""
        return self._clock() >= self._due_s

    def drawn(self) -> None:
        """Begin the pause after a picture."""
        self._due_s = max(self._due_s + self._pause_s, self._clock() + self._pause_s / 2)
