"""A cell that is stopped while it draws: one line, and not the way through a hundred frames."""

import signal
import threading
from collections.abc import Callable
from types import TracebackType

from .. import texts


def short(error: BaseException | None, traceback: TracebackType | None) -> None:
    """Called by `__exit__`: cut a KeyboardInterrupt, which goes on, to the cell's own line.

    What it interrupted, somewhere in the library, means nothing to whoever pressed the button.
    """
    if isinstance(error, KeyboardInterrupt) and traceback is not None:
        line = traceback.tb_lineno
        error.args = (texts.STOPPED.format(line=line),)
        error.__context__ = None
        error.__traceback__ = TracebackType(None, traceback.tb_frame, traceback.tb_lasti, line)


def put_off(finish: Callable[[], object]) -> bool:
    """Call `finish`, and whether the button was pressed meanwhile: half a picture helps nobody."""
    heed = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()  # no other gets signals
    if not (in_main and callable(heed)):
        finish()
        return False
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        finish()
    finally:
        signal.signal(signal.SIGINT, heed)
    return bool(came)
