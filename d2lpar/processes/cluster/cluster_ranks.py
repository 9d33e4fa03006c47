"""What a notebook does with ranks: calls functions, runs cells, sets and reads variables."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from .. import pickling
from . import messages, sending

OnReport = Callable[[int, dict], None]


class ClusterRanks(ABC):
    """`n` ranks, as `d2lpar.cluster` starts them: `run` functions on them, or cells by `%%px`.

    A context manager, at whose end they stop. `on_report(rank, values)` is called for what
    `d2lpar.report` sends in calls that bring no callable of their own.
    """

    n: int
    on_report: OnReport | None = None

    # ---- what kinds of ranks differ in

    @abstractmethod
    def restart(self) -> Self:
        """Start them anew: all their variables are lost."""

    @abstractmethod
    def stop(self) -> None:
        """End them; stopping twice does no harm."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether the ranks can be used."""

    @abstractmethod
    def is_like(self, n: int | None, profile: Path | None) -> bool:
        """Whether these are the ranks that `cluster(n, profile=profile)` would start."""

    @abstractmethod
    def _perform_packed(
        self,
        action: str,
        payload: bytes,
        ranks: Sequence[int] | None,
        on_report: OnReport | None,
    ) -> list:
        """Let ranks (None: all) do one of `worker.ACTIONS`; returns the packed results by rank."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # ---- working

    def run(
        self,
        function: Callable,
        *args: object,
        on_report: OnReport | None = None,
        **kwargs: object,
    ) -> list:
        """Call `function(*args, **kwargs)` on every rank; returns the results by rank.

        A function of the notebook is sent with all that it refers to there, except that `rank`,
        `world_size`, `local_rank`, `device`, `dist`, `torch` and `par` are the rank's own; names
        that the notebook does not have may be variables of the rank. What it prints appears when
        all are done, by rank. `on_report(rank, values)` is called in this thread, while they
        work, for each `d2lpar.report(**values)`.

        Raises TypeError naming what cannot be sent; RankError with the traceback of the rank
        that failed first. If others are then not done within a second, all ranks have ended.
        """
        payload = sending.packed_call(function, args, kwargs)
        return self._unpacked(self._perform_packed("call", payload, None, on_report))

    def run_cell(
        self,
        source: str,
        *,
        ranks: Sequence[int] | None = None,
        on_report: OnReport | None = None,
    ) -> None:
        """Run the text of a cell on all or some ranks: what `%%px` does.

        Raises ValueError for a rank that there is not.
        """
        if ranks is not None and not (ranks and all(rank in range(self.n) for rank in ranks)):
            raise ValueError(messages.ERROR_RANKS.format(last=self.n - 1, ranks=ranks))
        asked = None if ranks is None else sorted(set(ranks))
        self._perform_packed("cell", pickling.dumps((source,)), asked, on_report)

    def push(self, variables: Mapping[str, object]) -> None:
        """Set variables on every rank."""
        self._perform_packed("push", sending.packed_variables(variables), None, None)

    def __getitem__(self, name: str) -> list:
        """The values of a variable, by rank."""
        if not isinstance(name, str):
            raise ValueError(messages.ERROR_NAME.format(name=name))
        return self._unpacked(self._perform("pull", (name,)))

    def __len__(self) -> int:
        return self.n

    def _perform(self, action: str, values: tuple, ranks: Sequence[int] | None = None) -> list:
        return self._perform_packed(action, pickling.dumps(values), ranks, None)

    @staticmethod
    def _unpacked(values: list) -> list:
        return [pickle.loads(value) for value in values]
