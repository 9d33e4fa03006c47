"""The exercises of lesson 01."""

from __future__ import annotations

import math

from .. import machines
from ..machines.hardware import Accelerator
from ..trials import hardware as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number


@exercise
def linear_intensity(answer: Called) -> str:
    """`linear_intensity(n, inputs, outputs, bytes_each)`: FLOP a byte of a linear layer."""
    for n, inputs, outputs, bytes_each in ((1, 800, 128, 4), (256, 800, 128, 4), (64, 512, 10, 2)):
        expected = _intensity(n, inputs, outputs, bytes_each)
        got = answer(n, inputs, outputs, bytes_each)
        call = f"linear_intensity({n}, {inputs}, {outputs}, {bytes_each})"
        if not is_number(got):
            raise Wrong(f"{call}: expected the number {expected:.4g}, got {got!r}")
        if math.isclose(2 * got, expected, rel_tol=1e-6):
            raise Wrong(f"{call}: expected {expected:.4g}, got half: a multiply-and-add is 2 FLOP")
        if not math.isclose(got, expected, rel_tol=1e-6):
            raise Wrong(
                f"{call}: expected {expected:.4g}, got {got:.4g}. Bytes: the input, the output, "
                "the weight and the bias, each once"
            )
    return "FLOP and bytes of a linear layer"


@exercise
def batch_at_ridge(answer: Called) -> str:
    """`batch_at_ridge(accelerator, inputs, outputs)`: the least batch that arithmetic limits."""
    for name in ("2x-v100-textbook", "8x-a100-nvswitch"):
        accelerator = machines.machine(name).accelerators[0]
        for inputs, outputs in ((1024, 1024), (800, 128), (4096, 10)):
            expected = _batch_at_ridge(accelerator, inputs, outputs)
            got = answer.tried(trials.batch_at_ridge, name, inputs, outputs)
            if not (got is None or is_number(got)) or got != expected:
                raise Wrong(
                    f"{accelerator.name}, {inputs} inputs, {outputs} outputs: expected {expected}, "
                    f"got {got!r}. The ridge is at {accelerator.ridge_point('float32'):.1f} FLOP a "
                    "byte; with ever more rows the intensity goes to 2 · inputs · outputs / "
                    "(4 · (inputs + outputs)), which may be less than that"
                )
    return "the batch from which on arithmetic limits, where there is one"


def _intensity(n: int, inputs: int, outputs: int, bytes_each: int) -> float:
    floats = n * inputs + n * outputs + inputs * outputs + outputs
    return 2 * n * inputs * outputs / (bytes_each * floats)


def _batch_at_ridge(accelerator: Accelerator, inputs: int, outputs: int) -> int | None:
    """Solve intensity(n) >= ridge for n: the intensity grows with n towards a limit."""
    ridge = accelerator.ridge_point("float32")
    gain = 2 * inputs * outputs - 4 * ridge * (inputs + outputs)
    if gain <= 0:
        return None
    n = math.ceil(4 * ridge * (inputs * outputs + outputs) / gain)
    return next(k for k in (n - 1, n, n + 1) if _intensity(max(k, 1), inputs, outputs, 4) >= ridge)
