"""Collectives that nobody has waited for: they hold their tensors until they are done, and longer.

As in c10d's ProcessGroupNCCL: a work keeps what it reads and writes on a shelf (`TensorShelf`).
Where nobody waits, a watchdog notices that the work is done, and the next collective of the process
clears the shelf (`workEnqueue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...torch_backend.machine.host_threads import HOST
from ...torch_backend.machine.runtime import Runtime
from ...torch_backend.tensors.tensor import VirtualTensor
from .exchange import Exchange


class UnwaitedCollectives:
    """Those of one rank, with their tensors."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._shelf: list[tuple[Exchange, Sequence[VirtualTensor]]] = []
        self._is_open = True

    def keep(self, exchange: Exchange, tensors: Sequence[VirtualTensor]) -> None:
        """Hold the tensors of a collective whose work the program has dropped."""
        if self._is_open:
            self._shelf.append((exchange, tensors))

    def let_go(self) -> None:
        """Drop what belongs to collectives that are done, as the host sees it now."""
        if self._shelf:
            ask = self._rt.host_threads.ask
            self._shelf = [kept for kept in self._shelf if not ask(kept[0].is_known_done)]

    def wait(self) -> None:
        """Let the host wait for those that all ranks have come to, and drop them."""
        for exchange, _ in self._shelf:
            if exchange.is_complete():
                self._rt.host_threads.submit(HOST, exchange.block, "wait for freed memory")
        self.let_go()

    def close(self) -> None:
        """Hold nothing from now on: the process is over."""
        self._is_open = False
        self._shelf.clear()
