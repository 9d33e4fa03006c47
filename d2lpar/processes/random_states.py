"""The random numbers of a process: where they are, and how to put them back there."""

from __future__ import annotations

import random

import numpy as np
import torch


def random_state() -> dict:
    """The states of this process's random numbers: torch's (also its GPU's), Python's, NumPy's."""
    numpy = np.random.get_state()  # noqa: NPY002 - what others draw from
    assert isinstance(numpy, tuple)  # of its own generator, MT19937
    algorithm, keys, *rest = numpy
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [algorithm, torch.from_numpy(keys.astype(np.int64)), *rest],
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Let random numbers go on from what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    algorithm, keys, *rest = state["numpy"]
    np.random.set_state((algorithm, keys.numpy(), *rest))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
