"""Controls that answer while a cell runs.

JupyterLab sends what a control says to a thread of its own in the kernel, a subshell. ipykernel
7.4 hands it on to the thread that has last spoken to the control: for a control that a cell has
just made that is the cell's thread, which is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipywidgets import Widget

ROUTE = "_reply_subshell_for"  # of a comm: (data, the subshell it was sent to) -> subshell


def answer_while_busy(control: Widget) -> None:
    """Let what the control says go where JupyterLab sends it."""
    comm = control.comm
    if hasattr(comm, ROUTE):
        setattr(comm, ROUTE, _as_sent)


def _as_sent(_: object, sent_to: str | None) -> str | None:
    return sent_to
