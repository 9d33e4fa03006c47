"""An answer that lays a network out on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..parallelism.planner.layout import Layout
from ..parallelism.planner.transformer import Transformer


def layout(answer: Callable, model: str | dict[str, Any], *args: object) -> object:
    """The fields of the layout that it returns; anything else as it is.

    `model` is a name, or the fields of a network.
    """
    got = answer(Transformer(**model) if isinstance(model, dict) else model, *args)
    return {"layout": dataclasses.asdict(got)} if type(got) is Layout else got
