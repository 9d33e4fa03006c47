"""An answer that lays a network out on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..parallelism.planner.layout import Layout


def layout(answer: Callable, *args: object) -> object:
    """The fields of the layout that it returns; anything else as it is."""
    got = answer(*args)
    return {"layout": dataclasses.asdict(got)} if type(got) is Layout else got
