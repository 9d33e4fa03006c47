"""One call on ranks: sends it, passes on what comes meanwhile, and fails fast."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence

from ipyparallel import serialize

from . import failures, messages
from .cluster_ranks import OnReport
from .output import Output
from .reports import KEY
from .starting.engines import Engines
from .wire import COUNTED, Failure, Part, Reply

_LOOK_S = 0.05  # how often the processes of the ranks are looked at
_NOTICED_LATE_S = 0.25  # a death may be this old when it is seen, and its victims' errors younger
_SURVIVORS_S = 1.0  # how long ranks may take to finish when one has raised
_AGAIN_S = 0.3
_DEAD_S = 0.3  # the same when one has died, and how long nothing may come of what it sent
_LAST_WORDS_S = 10.0  # how long nothing may come of what was sent before a reply


class RemoteCall:
    """A request to some of the ranks, and what came of it."""

    def __init__(self, engines: Engines, ranks: Sequence[int], action: str, payload: bytes) -> None:
        self.engines, self._ranks = engines, list(ranks)
        self._action, self._payload = action, payload
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._silent: set[int] = set()  # ranks of which all that they sent has come
        self._cut: set[int] = set()  # ranks that are heard no more, as they do not answer
        self._heard_s = time.monotonic()  # when one that is not silent was last heard
        self._looked_s = 0.0
        self._came = dict.fromkeys(self._ranks, 0)  # messages
        self.outputs = {rank: Output(rank) for rank in self._ranks}
        self.replies: dict[int, Reply] = {}
        self.troubles: dict[int, failures.Trouble] = {}
        self.controller: str | None = None  # how it ended, if it did

    def wait(self, on_report: OnReport | None) -> bool:
        """Let the ranks work until all are done, or one went wrong and others stay blocked.

        Reports are given to `on_report` in this thread, all of them, however long it takes.
        Returns whether the ranks can be used further; if not, they must be ended.
        """
        for rank in self._ranks:
            self._send(rank, on_report is not None)
        self.engines.flush()
        limit_s = self.engines.deadline_s
        while self._unfinished():
            self._take(on_report)
            self._look()
            if self.troubles:
                patience_s = _DEAD_S if self._is_anyone_dead() else _SURVIVORS_S
                limit_s = min(limit_s, time.monotonic() + patience_s)
            if time.monotonic() > limit_s:
                # Who has not answered before this in the queue is heard no more.
                self._events.put((None, "limit", None))
                limit_s = float("inf")
        self._tell_what_is_missing()
        return self._is_usable()

    def interrupt(self) -> bool:
        """Stop the ranks where they run Python. Returns whether they can be used further."""
        limit_s, asked_s = time.monotonic() + _SURVIVORS_S, 0.0
        while self._unfinished() and time.monotonic() < limit_s:
            if time.monotonic() - asked_s > _AGAIN_S:
                # Again and again: a rank that has not begun yet does not hear it.
                self.engines.interrupt(self._unanswered())
                asked_s = time.monotonic()
            self._take(None)
            self._look()
        return self._is_usable()

    # ---- what comes from the ranks

    def _send(self, rank: int, reporting: bool) -> None:
        events = self._events
        self.engines.send(
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
        if kind == "limit":
            self._cut.update(self._unanswered())
        elif rank not in self._cut:
            self._take_from(rank, kind, content, on_report)
            self._heard_s = time.monotonic()

    def _take_from(self, rank: int, kind: str, content: object, on_report: OnReport | None) -> None:
        if kind == "message":
            assert isinstance(content, dict)  # as Jupyter's protocol has it
            self._take_message(rank, content, on_report)
        elif kind == "idle":
            self._silent.add(rank)
        else:
            self._take_reply(rank, content)

    def _take_message(self, rank: int, message: dict, on_report: OnReport | None) -> None:
        kind = message["header"]["msg_type"]
        if kind == "data_message":
            values = serialize.deserialize_object(message["buffers"])[0].get(KEY)
            self._came[rank] += values is not None
            if values is not None and on_report is not None:
                on_report(rank, values)
        else:
            self._came[rank] += kind in COUNTED
            self.outputs[rank].take(kind, message["content"])

    def _take_reply(self, rank: int, reply: object) -> None:
        if getattr(reply, "ename", None) == "EngineError":
            self._looked_s = 0.0  # the controller has given it up: look why
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
        if self.controller is None:
            self.controller = self.engines.controller_ended()
        for rank, how in self.engines.ended().items():
            self._bury(rank, how)

    def _bury(self, rank: int, how: str) -> None:
        if not self._is_dead(rank):
            self.troubles[rank] = failures.Death(how, time.time() - _NOTICED_LATE_S)
            self._heard_s = time.monotonic()  # it may have spoken until now

    # ---- what follows from it

    def _unfinished(self) -> list[int]:
        quiet_s = time.monotonic() - self._heard_s
        return [rank for rank in self._ranks if not self._is_finished(rank, quiet_s)]

    def _is_finished(self, rank: int, quiet_s: float) -> bool:
        """Whether a rank is done and all that it sent is here, or nothing more will come."""
        if self.controller or self._is_dead(rank):
            return quiet_s > _DEAD_S
        if rank in self._cut:
            return True
        return rank in self.replies and (rank in self._silent or quiet_s > _LAST_WORDS_S)

    def _unanswered(self) -> list[int]:
        return [r for r in self._ranks if r not in self.replies and not self._is_dead(r)]

    def _is_dead(self, rank: int) -> bool:
        return isinstance(self.troubles.get(rank), failures.Death)

    def _tell_what_is_missing(self) -> None:
        for rank, reply in self.replies.items():
            if rank not in self._cut and self._came[rank] < reply.sent:
                missing = messages.MISSING.format(
                    missing=reply.sent - self._came[rank], sent=reply.sent, seconds=_LAST_WORDS_S
                )
                self.outputs[rank].warned.append(missing)

    @property
    def is_late(self) -> bool:
        """Whether ranks were cut off because of the time alone."""
        return bool(self._cut) and not self.troubles

    def _is_usable(self) -> bool:
        if self.controller or self._cut or self._is_anyone_dead() or self._unanswered():
            return False
        return self._is_sound()

    def _is_anyone_dead(self) -> bool:
        return any(map(self._is_dead, self._ranks))

    def _is_sound(self) -> bool:
        """Whether no rank waits for, or has sent, what another one left out.

        Without an exception this is the program's affair. After one, the ranks must have taken
        part in equally many operations: those that were not called, in none.
        """
        if not self.troubles:
            return True
        counts = {self.replies[rank].collectives for rank in self._ranks}
        if len(self._ranks) < self.engines.n:
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


def ended_by(call: RemoteCall) -> str:
    """Why the ranks that a call used have ended, in one sentence."""
    if call.troubles:
        rank = failures.culprit(call.troubles)
        return failures.summary(rank, call.troubles[rank])
    return messages.CONTROLLER.format(how=call.controller)
