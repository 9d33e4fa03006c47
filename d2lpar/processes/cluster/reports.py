"""Values that a rank sends to the notebook while it works."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from . import messages
from .starting import worker

KEY = "d2lpar report"

# For a virtual rank: takes what it reports.
receiver: ContextVar[Callable[[dict], object] | None] = ContextVar("receiver", default=None)


def report(**values: object) -> None:
    """Send `values`, such as `loss=0.3, epoch=2`, from this rank to the notebook.

    There they are given to the `on_report(rank, values)` of `ranks.run` or `%%px --live`, in
    order, while the ranks go on working; without one they go nowhere. Tensors and arrays of one
    value arrive as numbers. Raises RuntimeError where this process is no rank.
    """
    receive = receiver.get()
    if receive is not None:
        receive(_all_plain(values))
        return
    if worker.this.number is None:
        raise RuntimeError(messages.ERROR_REPORT)
    if worker.this.reporting:
        from ipyparallel.engine.datapub import publish_data

        publish_data({KEY: _all_plain(values)})
        worker.this.sent.append(worker.request())


def _all_plain(values: dict[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> object:
    """A number in place of a tensor or array of one value, which need not be sent as such."""
    count = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
    return value.item() if count == 1 and hasattr(value, "item") else value
