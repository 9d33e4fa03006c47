"""The exercises of lesson 02."""

from __future__ import annotations

import math

from ..trials import gpus_and_links as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number, is_whole, shortened

BATCHES = (3, 40)
READ_AND_STEP_S = ((0.875, 0.25), (0.2, 0.1), (0.01, 0.1), (0.1, 0.016), (3.0, 0.25))

PARTS = ("computing", "memory", "host", "links", "loader")
RATES = (10e12, 4e-6, 500e9, 10e-6, 20e-6, 10e9)
STEPS: dict[str, tuple] = {  # kernels (FLOP, bytes), copies (bytes), seconds of the loader
    "one kernel": ([(4e9, 2e8)], [], 0.0),
    "many kernels": ([(1e3, 8e3)] * 50, [], 0.0),
    "two copies": ([(1e6, 1e6)], [1e6, 3e6], 0.0),
    "a batch": ([(4e9, 1e8), (1e9, 3e8)], [2e7], 0.002),
}


@exercise
def could_wait_for(answer: Called) -> str:
    """`could_wait_for(kernels, copies, load_s, rates)`: {part: seconds} of a step."""
    found = answer.tried(trials.could_wait_for, STEPS, RATES)["got"]
    for name, step in STEPS.items():
        got, expected = found[name], _parts(*step)
        if not isinstance(got, dict) or list(got) != list(PARTS):
            raise Wrong(
                f"expected a dict with the keys {', '.join(PARTS)}, in this order, got "
                f"{shortened(repr(got))}"
            )
        for part, seconds in expected.items():
            if not is_number(got[part]):
                raise Wrong(f"{name}, {part!r}: expected a number, got {got[part]!r}")
            if not math.isclose(got[part], seconds, rel_tol=1e-6, abs_tol=1e-15):
                raise Wrong(
                    f"{name}, {part!r}: expected {1e6 * seconds:.6g} µs, got "
                    f"{1e6 * got[part]:.6g} µs{_why(part, step, got[part])}"
                )
    return "five parts, of which a step takes at least the largest and at most the sum"


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


def _parts(kernels: list, copies: list, load_s: float) -> dict[str, float]:
    """Kernel by kernel and copy by copy, as the machine does it."""
    flops_per_s, kernel_alpha_s, bytes_per_s, dispatch_s, copy_alpha_s, link_bytes_per_s = RATES
    parts = dict.fromkeys(PARTS, 0.0)
    for flops, nbytes in kernels:
        parts["host"] += dispatch_s
        parts["computing"] += flops / flops_per_s
        parts["memory"] += kernel_alpha_s + nbytes / bytes_per_s
    for nbytes in copies:
        parts["host"] += dispatch_s
        parts["links"] += copy_alpha_s + nbytes / link_bytes_per_s
    parts["loader"] += load_s
    return parts


def _why(part: str, step: tuple, got: float) -> str:
    """What may be missing, or be too much, in a part."""
    kernels, copies, _ = step
    flops_per_s, kernel_alpha_s, bytes_per_s, dispatch_s, copy_alpha_s, link_bytes_per_s = RATES
    moved_s = sum(nbytes for _, nbytes in kernels) / bytes_per_s
    sent_s = sum(copies) / link_bytes_per_s
    if part == "computing" and math.isclose(got, sum(n for _, n in kernels) / flops_per_s):
        return ": the first of each pair is the FLOP, the second the bytes"
    if part == "host" and math.isclose(got, len(kernels) * dispatch_s):
        return ": the host dispatches each copy, too"
    if part == "memory" and math.isclose(got, moved_s):
        return f": each of {len(kernels)} kernels takes kernel_alpha_s besides, to start"
    if part == "memory" and math.isclose(got, kernel_alpha_s + moved_s):
        return f": each of {len(kernels)} kernels takes kernel_alpha_s, not only the first"
    if part == "links" and math.isclose(got, sent_s):
        return f": each of {len(copies)} copies takes copy_alpha_s besides, its latency"
    if part == "links" and math.isclose(got, copy_alpha_s + sent_s):
        return f": each of {len(copies)} copies pays the latency copy_alpha_s"
    return f": the step has {len(kernels)} kernels and {len(copies)} copies"
