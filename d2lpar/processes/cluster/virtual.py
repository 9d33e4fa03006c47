"""Virtual ranks in place of processes: for a notebook the same, where it may start none."""

from __future__ import annotations

import ast
import linecache
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist

from ...vgpu import run_ranks
from ...vgpu.ranks.world.rank import here
from ...vgpu.ranks.world.rank_scheduler import Ended
from . import failures, messages, output, reports, started
from .cluster_ranks import ClusterRanks, OnReport
from .starting import worker

_cells = count()


class VirtualRanks(ClusterRanks):
    """`n` virtual ranks without GPUs, which take turns in this process.

    As with processes, functions, arguments and results are copies, each rank has variables of its
    own, and what one prints is headed by its number. Process groups last as long as one call.
    """

    backend = "gloo"

    def __init__(self, n: int, why: str) -> None:
        self.n, self._why, self._why_ended = n, why, ""
        self.restart()

    def restart(self) -> Self:
        """Forget all variables of the ranks."""
        started.stop_others(self)
        self.own = [_own_names(rank, self.n) for rank in range(self.n)]
        self.variables = [{"__name__": "__main__", **own} for own in self.own]
        self._why_ended = ""
        started.are(self)
        return self

    def stop(self) -> None:
        """Forget all variables, and take no more calls."""
        self._end(messages.STOPPED)

    @property
    def is_running(self) -> bool:
        """Whether the ranks can be used."""
        return not self._why_ended

    def is_like(self, n: int | None, profile: Path | None) -> bool:
        """Whether `cluster(n, profile=profile)` gives these; ended ones may be processes next."""
        return n == self.n and profile is None and self.is_running

    def __repr__(self) -> str:
        ranks = "rank" if self.n == 1 else "ranks"
        if self._why_ended:
            return messages.LINE_ENDED.format(n=self.n, ranks=ranks, why=self._why_ended)
        return messages.LINE_VIRTUAL.format(n=self.n, ranks=ranks, why=self._why)

    def _end(self, why: str) -> None:
        self._why_ended = why
        self.variables = []

    def _perform_packed(
        self,
        action: str,
        payload: bytes,
        ranks: Sequence[int] | None,
        on_report: OnReport | None,
    ) -> list:
        if self._why_ended:
            raise failures.RanksEndedError(messages.ENDED.format(why=self._why_ended))
        asked = range(self.n) if ranks is None else ranks
        call = _Call(self, asked, action, payload, on_report or self.on_report)
        try:
            with _printing_to(call.outputs), _ending_alone():
                results = run_ranks(call.on_rank, self.n)
        except BaseException:
            if not call.troubles:  # it was interrupted, or nobody could go on
                raise
        finally:
            output.show(call.outputs)
        for rank, trouble in call.troubles.items():
            raise failures.error(rank, trouble, after=self._what_now(rank, trouble)) from None
        return [results[rank] for rank in asked]

    def _what_now(self, rank: int, trouble: failures.Trouble) -> str:
        if not isinstance(trouble, failures.Death):
            return messages.FREE
        self._end(failures.summary(rank, trouble))
        return messages.SURVIVORS if self.n > 1 else messages.ALONE


def own_number() -> int | None:
    """The number of the virtual rank that asks; None if none does."""
    rank = getattr(here, "rank", None)
    return None if rank is None else rank.number


class _Died(BaseException):
    """A rank would have ended its process; the text says how."""


class _Call:
    """What ranks are to do once, and what goes wrong with it."""

    def __init__(
        self,
        ranks: VirtualRanks,
        asked: Sequence[int],
        action: str,
        payload: bytes,
        on_report: OnReport | None,
    ) -> None:
        self._ranks, self._asked, self._on_report = ranks, asked, on_report
        self._action, self._payload = _ACTIONS[action], payload
        self._failed_report: BaseException | None = None
        self.outputs = [output.Output(rank) for rank in range(ranks.n)]
        self.troubles: dict[int, failures.Trouble] = {}

    def on_rank(self) -> bytes | None:
        """What every rank runs; those that were not asked have nothing to do."""
        rank = dist.get_rank()
        if rank not in self._asked:
            return None
        reports.receiver.set(partial(self._tell, rank))
        try:
            values = pickle.loads(self._payload)  # each its own copy
            own, variables = self._ranks.own[rank], self._ranks.variables[rank]
            return worker.packed(self._action(own, variables, *values))
        except Ended:
            raise
        except _Died as end:
            self.troubles[rank] = failures.Death(str(end), time.time())
            raise
        except BaseException as error:
            if error is not self._failed_report:  # that is the notebook's
                self.troubles[rank] = worker.describe(error)
            raise

    def _tell(self, rank: int, values: dict) -> None:
        if self._on_report is not None:
            try:
                self._on_report(rank, values)
            except BaseException as error:
                self._failed_report = error
                raise


# --- what ranks do --------------------------------------------------------------------------------


def _own_names(rank: int, n: int) -> dict[str, Any]:
    import d2lpar

    return {
        "torch": torch,
        "dist": dist,
        "par": d2lpar,
        "rank": rank,
        "world_size": n,
        "local_rank": rank,
        "device": torch.device("cpu"),
    }


def _call(own: dict, variables: dict, function: Callable, args: tuple, kwargs: dict) -> object:
    worker.give_names(function, variables, own)
    return function(*args, **kwargs)


def _run_cell(_: dict, variables: dict, source: str) -> None:
    """Run a cell, and print what its last line gives."""
    file = f"<ipython-input-ranks-{next(_cells)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), variables)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), file, "eval"), variables)
        if value is not None and not source.rstrip().endswith(";"):
            sys.stdout.write(f"{value!r}\n")


def _push(_: dict, variables: dict, values: dict) -> None:
    variables.update(values)


def _pull(_: dict, variables: dict, name: str) -> object:
    return worker.value_of(name, variables)


_ACTIONS: dict[str, Callable[..., object]] = {
    "call": _call,
    "cell": _run_cell,
    "push": _push,
    "pull": _pull,
}


# --- what is the process's and would be a rank's --------------------------------------------------


class _ByRank:
    """A stream that keeps what ranks print, each for itself. All else is the stream's own."""

    def __init__(self, stream: Any, name: str, outputs: Sequence[output.Output]) -> None:
        self._stream, self._name, self._outputs = stream, name, outputs

    def write(self, text: str) -> int:
        rank = own_number()
        if rank is None:
            return self._stream.write(text)
        self._outputs[rank].take("stream", {"name": self._name, "text": text})
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _printing_to(outputs: Sequence[output.Output]) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout = _ByRank(sys.stdout, "stdout", outputs)
    sys.stderr = _ByRank(sys.stderr, "stderr", outputs)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_DEADLY = {"SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV", "SIGBUS"}


@contextmanager
def _ending_alone() -> Iterator[None]:
    """A rank that ends its process ends itself: the process is the notebook's."""
    kill, leave = os.kill, os._exit
    os.kill = partial(_kill, kill)
    os._exit = partial(_leave, leave)
    try:
        yield
    finally:
        os.kill, os._exit = kill, leave


def _kill(theirs: Callable[[int, int], None], pid: int, number: int) -> None:
    name = signal.Signals(number).name if number else ""
    if own_number() is None or pid != os.getpid() or name not in _DEADLY:
        theirs(pid, number)
        return
    how = messages.SIGNAL.format(number=int(number), name=name)
    raise _Died(messages.DIED.format(how=how))


def _leave(theirs: Callable[[int], NoReturn], status: int) -> NoReturn:
    if own_number() is None:
        theirs(status)
    raise _Died(messages.DIED.format(how=messages.EXIT_CODE.format(code=status)))
