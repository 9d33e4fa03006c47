"""One call on ranks: sends it, passes on what comes meanwhile, and fails fast."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from ipyparallel import serialize

from . import failures, texts
from .engines import Engines
from .on_rank import Failure, Part, Reply
from .output import Output
from .reports import KEY

OnReport = Callable[[int, dict], None]

_LOOK_S = 0.05  # how often the processes of the ranks are looked at
_NOTICED_LATE_S = 0.25  # a death may be this old when it is seen, and its victims' errors younger
_SURVIVORS_S = 1.0  # how long ranks may take to finish when one has raised
_AGAIN_S = 0.3
_DEAD_S = 0.3  # the same when one has died: for what they still have to say
_LAST_WORDS_S = 2.0  # how long what was printed may come after the reply


class Call:
    """A request to some of the ranks, and what came of it."""

    def __init__(self, engines: Engines, ranks: Sequence[int], action: str, payload: bytes):
        self._engines, self._ranks = engines, list(ranks)
        self._action, self._payload = action, payload
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._done: dict[int, float] = {}  # rank -> since when there is a reply
        self._silent: set[int] = set()  # ranks that have sent all that they printed
        self._looked_s = 0.0
        self.outputs = {rank: Output(rank) for rank in self._ranks}
        self.replies: dict[int, Reply] = {}
        self.troubles: dict[int, failures.Trouble] = {}
        self.controller: str | None = None  # how it ended, if it did

    def wait(self, on_report: OnReport | None) -> bool:
        """Let the ranks work until all are done, or one went wrong and others stay blocked.

        Reports are given to `on_report` in this thread. Returns whether the ranks can be used
        further; if not, they must be ended.
        """
        for rank in self._ranks:
            self._send(rank, on_report is not None)
        self._engines.flush()
        return self._wait(on_report, limit_s=None)

    def interrupt(self) -> bool:
        """Stop the ranks where they run Python. Returns whether they can be used further."""
        usable = self._is_sound() if not self._unfinished() else False
        limit_s = time.monotonic() + _SURVIVORS_S
        while self._unfinished() and time.monotonic() < limit_s:
            # Again and again: a rank that has not begun yet does not hear it.
            self._engines.interrupt(self._unfinished())
            usable = self._wait(None, limit_s=time.monotonic() + _AGAIN_S)
        return usable

    def _wait(self, on_report: OnReport | None, limit_s: float | None) -> bool:
        while self._unfinished() and not self.controller:
            self._take(on_report)
            self._look()
            if self.troubles and limit_s is None:
                limit_s = time.monotonic() + _SURVIVORS_S
            if self._is_anyone_dead():
                limit_s = min(limit_s, time.monotonic() + _DEAD_S)
                return self._say_goodbye(on_report, limit_s)
            if limit_s is not None and time.monotonic() > limit_s:
                return False
        return not self.controller and self._is_sound()

    def _say_goodbye(self, on_report: OnReport | None, limit_s: float) -> bool:
        """A rank is dead: hear what the others say until the limit, and use none of them again."""
        while self._unfinished() and time.monotonic() < limit_s:
            self._take(on_report)
            self._look()
        return False

    # ---- what comes from the ranks

    def _send(self, rank: int, reporting: bool) -> None:
        events = self._events
        self._engines.send(
            rank,
            (rank, self._action, self._payload, reporting),
            on_message=lambda message: events.put((rank, "message", message)),
            on_reply=lambda reply: events.put((rank, "reply", reply)),
            on_idle=lambda: events.put((rank, "idle", None)),
        )

    def _take(self, on_report: OnReport | None) -> None:
        """Take what has come, or wait a moment for something to come."""
        try:
            rank, kind, content = self._events.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        if kind == "message":
            self._take_message(rank, content, on_report)
        elif kind == "idle":
            self._silent.add(rank)
        else:
            self._take_reply(rank, content)

    def _take_message(self, rank: int, message: dict, on_report: OnReport | None) -> None:
        kind = message["header"]["msg_type"]
        if kind == "data_message":
            values = serialize.deserialize_object(message["buffers"])[0].get(KEY)
            if values is not None and on_report is not None:
                on_report(rank, values)
        else:
            self.outputs[rank].take(kind, message["content"])

    def _take_reply(self, rank: int, reply: object) -> None:
        self._done[rank] = time.monotonic()
        if (
            getattr(reply, "ename", None) == "EngineError"
        ):  # what the controller says of a rank on another host
            self._bury(rank, texts.UNKNOWN_EXIT)
            return
        if not isinstance(reply, Reply):  # interrupted outside the call, or never begun
            reply = Reply(failure=_failure_of(reply))
        self.replies[rank] = reply
        if reply.failure is not None:
            self.troubles.setdefault(rank, reply.failure)

    def _look(self) -> None:
        """See, now and then, which ranks are still there."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        self._looked_s = time.monotonic()
        self.controller = self._engines.controller_ended()
        for rank, how in self._engines.ended().items():
            self._bury(rank, how)

    def _bury(self, rank: int, how: str) -> None:
        if not isinstance(self.troubles.get(rank), failures.Death):
            self.troubles[rank] = failures.Death(how, time.time() - _NOTICED_LATE_S)

    # ---- what follows from it

    def _unfinished(self) -> list[int]:
        now_s = time.monotonic()
        return [rank for rank in self._ranks if not self._is_finished(rank, now_s)]

    def _is_finished(self, rank: int, now_s: float) -> bool:
        if isinstance(self.troubles.get(rank), failures.Death):
            return True
        replied_s = self._done.get(rank)
        return replied_s is not None and (rank in self._silent or now_s - replied_s > _LAST_WORDS_S)

    def _is_anyone_dead(self) -> bool:
        return any(isinstance(one, failures.Death) for one in self.troubles.values())

    def _is_sound(self) -> bool:
        """Whether no rank waits for, or has sent, what another one left out.

        Without an exception this is the program's affair. After one, the ranks must have taken
        part in equally many operations: those that were not called, in none.
        """
        if not self.troubles:
            return True
        counts = {self.replies[rank].collectives for rank in self._ranks}
        if len(self._ranks) < self._engines.n:
            counts.add(0)
        return counts != {None} and len(counts) == 1


def _failure_of(error: object) -> Failure:
    name = getattr(error, "ename", type(error).__name__)
    message = getattr(error, "evalue", str(error))
    return Failure(
        name=name,
        message=message,
        parts=(Part((), f"{name}: {message}"),),
        time_s=time.time(),
        lost_connection=False,
        interrupted=name == "KeyboardInterrupt",
    )


def ended_by(call: Call) -> str:
    """Why the ranks that a call used have ended, in one sentence."""
    if call.troubles:
        rank = failures.culprit(call.troubles)
        return failures.summary(rank, call.troubles[rank])
    return texts.CONTROLLER.format(how=call.controller)
