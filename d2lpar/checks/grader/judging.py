"""One answer, judged: here, what it does elsewhere is compared with what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...trials.calling import Called, Fault
from ...trials.confinement import Limits
from ..verdict import NOT_GRADED, WRONG, Ended, Refused, Wrong, blame, failed
from . import source
from .remote import Remote

MOST_SAID = 600  # characters
TEXT_NAME = ". A challenge sees only the cell in which it stands, and torch, nn, F, dist, math, par"


def judged(
    name: str,
    text: str,
    judge: Callable[[Called], dict],
    limits: Limits,
    *,
    on_clock: bool = False,
    refuses: Mapping[str, str] | None = None,
    trial: str = "",
) -> dict:
    """What `judge` says of the function `name` in `text`, as plain data with what was printed.

    `on_clock`: the figure comes from the simulated clock, and what could reach that is refused.
    `refuses` are attributes that the answer must not use, each with the reason; ways round their
    names are refused, too. The status of an
    answer that does not count is "refused", that of one that could not be graded "not graded".
    """
    printed = ""
    try:
        own = source.graded_part(text, name)
        source.check(source.parsed(own), refuses or {}, closed=on_clock or bool(refuses))
        with Remote(name, own, limits, on_clock=on_clock, trial=trial) as remote:
            try:
                report = judge(remote)
            finally:
                printed = remote.printed
    except Refused as refused:
        report = {"status": source.REFUSED, "text": str(refused)}
    except Wrong as wrong:
        report = {"status": WRONG, "text": str(wrong)}
    except Ended as ended:
        report = {"status": ended.status, "text": str(ended)}
    except Fault as fault:
        hint = TEXT_NAME if fault.name == "NameError" else ""
        report = {"status": WRONG, "text": blame(fault) + hint}
    except Exception as error:  # the judge's own
        report = {"status": NOT_GRADED, "text": failed(name, error)}
    return report | {"text": _shortened(report["text"]), "printed": printed}


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SAID else text[: MOST_SAID - 1] + "…"
