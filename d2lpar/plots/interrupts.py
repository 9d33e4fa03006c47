"""A cell that is stopped while it draws: one line, and not the way through a hundred frames."""

from types import TracebackType

from . import texts


def short(kind: type[BaseException] | None, traceback: TracebackType | None) -> None:
    """Called by `__exit__`: raise a KeyboardInterrupt anew, with the cell's own line alone.

    What it interrupted, somewhere in the library, means nothing to whoever pressed the button.
    """
    if kind is not None and issubclass(kind, KeyboardInterrupt) and traceback is not None:
        error = KeyboardInterrupt(texts.STOPPED.format(line=traceback.tb_lineno))
        raise error.with_traceback(None) from None
