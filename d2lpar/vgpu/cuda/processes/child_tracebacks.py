"""The traceback of a virtual process that has failed: its program's frames, and not the engine's.

A real process shows what its program has called, down to torch's functions; what d2lpar does below
and above these would hide the line that matters.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

_ENGINE = str(Path(__file__).parents[2])


def text_of(error: BaseException) -> str:
    """What Python prints of an error and of what has caused it, without frames of the engine."""
    told = traceback.TracebackException.from_exception(error)
    for each in _chain(told):
        kept = [frame for frame in each.stack if not frame.filename.startswith(_ENGINE)]
        each.stack = traceback.StackSummary.from_list(kept)
    return "".join(told.format())


def _chain(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            yield from _chain(other)
