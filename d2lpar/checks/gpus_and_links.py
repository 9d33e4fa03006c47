"""The exercises of lesson 02."""

from __future__ import annotations

import math

from ..trials import gpus_and_links as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number, is_whole

BATCHES = (3, 40)
READ_AND_STEP_S = ((0.2, 0.1), (0.35, 0.1), (0.01, 0.1), (0.1, 0.016), (3.0, 0.25))


@exercise(on_clock=True)
def mean_loss(answer: Called) -> str:
    """`mean_loss(step, batches)`: the mean of the losses, with one wait of the host."""
    for count in BATCHES:
        found = answer.tried(trials.mean_loss, count)
        got, waits = found["got"], found["waits"]
        if found["calls"] != [[i, -i] for i in range(count)]:
            raise Wrong(f"expected step(X, y) once for each of {count} batches, in order")
        expected = sum(i * i for i in range(count)) / count
        if not isinstance(got, float):
            raise Wrong(f"expected a Python float, got {got!r}: call .item() once, at the end")
        if not math.isclose(got, expected, rel_tol=1e-5):
            raise Wrong(f"losses 0, 1, 4, … of {count} batches: expected {expected:g}, got {got!r}")
        if not waits:
            raise Wrong(
                f"expected the mean of what step returned, but {got!r} was never read from the "
                "GPU: the losses are there, and to read their sum the host waits once"
            )
        if len(waits) > 1:
            raise Wrong(
                f"the mean is right, but the host waited {len(waits)} times for {count} batches, "
                f"first at {waits[0]}. Add up on the device, and read the sum once"
            )
    return "the right mean, and the host waited once"


@exercise
def fewest_workers(answer: Called) -> str:
    """`fewest_workers(read_s, step_s)`: with fewer workers, the GPU would wait for its batches."""
    for read_s, step_s in READ_AND_STEP_S:
        expected = max(1, math.ceil(read_s / step_s))
        got = answer(read_s, step_s)
        call = f"fewest_workers({read_s}, {step_s})"
        if not is_number(got):
            raise Wrong(f"{call}: expected the whole number {expected}, got {got!r}")
        if got < expected:
            raise Wrong(
                f"{call}: expected {expected}, got {got!r}, with which a batch arrives every "
                f"{read_s / max(got, 1):.3g} s, and the GPU needs one every {step_s} s"
            )
        if got > expected:
            raise Wrong(f"{call}: expected {expected}, got {got!r}: fewer are quick enough")
        if not is_whole(got):
            raise Wrong(f"{call}: expected the int {expected}, got {got!r}: workers are counted")
    return "as many workers as the GPU needs, and no more"
