"""An answer in a process of its own, called from here: what comes back is plain data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ...trials import starter
from ...trials.calling import NOTHING_YET, Called, Fault, directly
from ...trials.confinement import Limits
from ...trials.plain import EndOfMessagesError, NotPlainError, Other
from ...trials.starter import DONE, FULL, KILLED, LONG, STARVED, WAITED, Process
from ..verdict import NOT_GRADED, WRONG, Ended, Refused

MOST_TEXT = 2000
TEXT_LONG = "your function took longer than {seconds:g} s, and was ended"
TEXT_WAITED = "your function waited, took longer than {seconds:g} s, and was ended"
TEXT_CRASH = "your function ended the process that it ran in ({how})"
TEXT_NONSENSE = "your function sent its judge what is no answer ({error})"
TEXT_CHANGED = "the answer has changed {what} while it ran, and so does not count"
TEXT_STARVED = "other programs kept this machine busy: grade it again when it has less to do"
TEXT_KILLED = "its process was killed from outside: has this machine memory enough?"
TEXT_START = "no process could be made ready for it: {error}"
TEXT_FULL = "no memory was left to answer with: grade it with more than {gb:g} GB"
TEXT_MEMORY = "the exercise itself needs more memory than {gb:g} GB: grade it with more"
TEXT_OWN_MEMORY = "your function asked for more of this computer's memory than it may have"


class Remote(Called):
    """The answer `name` in `text`. It lives as long as the block.

    Raises `Fault` for its errors, `Refused` if it has changed the clock, `Ended` if its process has
    ended, or could not be started.
    """

    def __init__(
        self, name: str, text: str, limits: Limits, *, on_clock: bool = False, trial: str = ""
    ) -> None:
        self._limits = limits
        self.printed = ""
        self._process: Process | None = None
        try:
            self._process = _starter().start(limits, trial)
            self.lacks = self._process.lacks
        except OSError as error:
            raise Ended(NOT_GRADED, TEXT_START.format(error=error)) from None
        try:
            self._prepare(on_clock)
            self._ask([name, text])
        except BaseException:
            self.end()
            raise

    def run(self, trial: Callable, *args: object) -> Any:
        """What the trial returns, as a copy."""
        self.returned = NOTHING_YET
        name = (
            "" if trial is directly else f"{trial.__module__.rpartition('.')[2]}.{trial.__name__}"
        )
        reply = self._ask([name or "calling.directly", list(args)])
        value = reply.get("value")
        self.returned = value if trial is directly else reply.get("returned")
        return value

    def end(self) -> str:
        """End its process and all that it has started; how it had ended."""
        process, self._process = self._process, None
        return process.end() if process is not None else DONE

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _prepare(self, on_clock: bool) -> None:
        """Nothing of the answer has run yet: what goes wrong is the machine's."""
        try:
            self._ask(on_clock)
        except (Ended, Fault) as error:
            raise Ended(NOT_GRADED, TEXT_START.format(error=error)) from None

    def _ask(self, question: object) -> dict:
        if self._process is None:
            raise Ended(WRONG, TEXT_CRASH.format(how=DONE))
        try:
            reply = self._process.ask(question)
        except (EndOfMessagesError, OSError):
            raise self._ended(self.end()) from None
        except NotPlainError as error:
            self.end()
            raise Ended(WRONG, TEXT_NONSENSE.format(error=error)) from None
        self.printed = str(reply.get("printed", ""))[:MOST_TEXT]
        if reply.get("changed"):
            raise Refused(TEXT_CHANGED.format(what=str(reply["changed"])[:80]))
        if "fault" in reply:
            raise self._fault(reply)
        return reply

    def _ended(self, how: str) -> Ended:
        seconds = self._limits.seconds
        texts = {
            LONG: (WRONG, TEXT_LONG.format(seconds=seconds)),
            WAITED: (WRONG, TEXT_WAITED.format(seconds=seconds)),
            STARVED: (NOT_GRADED, TEXT_STARVED),
            KILLED: (NOT_GRADED, TEXT_KILLED),
            FULL: (NOT_GRADED, TEXT_FULL.format(gb=self._limits.nbytes / 1e9)),
        }
        return Ended(*texts.get(how, (WRONG, TEXT_CRASH.format(how=how))))

    def _fault(self, reply: dict) -> Exception:
        told, returned = reply["fault"], reply.get("returned")
        if not (isinstance(told, list) and len(told) == 4):
            return Ended(WRONG, TEXT_NONSENSE.format(error="an error that is none"))
        name, text, where = (str(each)[:MOST_TEXT] for each in told[:3])
        known = returned if returned is None or isinstance(returned, Other) else None
        fault = Fault(
            name, text, where, told[3] is True, NOTHING_YET if reply.get("gone") else known
        )
        if not fault.of_memory:
            return fault
        if not where and fault.returned is NOTHING_YET:  # none of its lines has asked for it
            return Ended(NOT_GRADED, TEXT_MEMORY.format(gb=self._limits.nbytes / 1e9))
        return Ended(WRONG, f"{name}: {TEXT_OWN_MEMORY}{where}")


@functools.cache
def _starter() -> starter.Starter:
    return starter.starter()


def start_with(own: starter.Starter) -> None:
    """Use this starter, which has been started before anything that answers may not know."""
    global _starter
    _starter = functools.cache(lambda: own)


def lacks(limits: Limits) -> list[str]:
    """What this machine does not have of the boundary around an answer."""
    with Remote("f", "def f(): pass", limits) as remote:
        remote.end()
        return list(dict.fromkeys(remote.lacks))
