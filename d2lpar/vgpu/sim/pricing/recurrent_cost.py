"""What a recurrent network costs a device: cuDNN computes a whole sequence in one call.

The products of a layer's inputs, and in the backward pass those of its weights' gradients, are one
product each for all time steps. From step to step there is a product of the state, and a kernel of
what is pointwise. Layers run one step behind each other, so several of these products at once
(Appleyard, Kočiský and Blunsom, "Optimizing performance of recurrent neural networks on GPUs",
2016). A persistent kernel keeps the weights in the multiprocessors, and needs no launch for a step
(Diamos et al., "Persistent RNNs", 2016). PyTorch chooses between the two in
aten/src/ATen/native/cudnn/RNN.cpp, the rules of which are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from ....machines.compute_capability import compute_capability
from ....machines.hardware import Accelerator
from .kernel_cost import FILLING_BYTES, Cost, Kernel
from .tiles import Product

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}  # of a number; 4 of others

# A step of a persistent kernel waits for what is read of its weights, a multiprocessor's filling at
# a time. Those that its registers do not hold are read again for each 8 samples. Beside figures of
# PyTorch 1.11 on a GPU without a name (https://github.com/xwang233/code-snippet,
# cudnn-rnn-bench-62143, forward in fp32; as a V100 or an A100, it makes no difference), 20 LSTMs
# take 0.72 of the time in the median (0.41 to 1.3), 40 plain networks 1.1 (0.43 to 2.1). Without
# persistent kernels it is 0.91 (0.53 to 1.4) and 0.95 (0.79 to 2.4).
_WORD = 4
_REGISTERS = 64 * 1024  # words of a multiprocessor
_SAMPLES = 8
_EXCHANGED = 2  # reads with which multiprocessors that share the weights learn the others' state


class Steps(NamedTuple):
    """A pass over `rows` inputs [rows, features] in `steps`: the first of them has `batch`.

    `outputs` is the size of the state that goes on, `hidden` if it is not projected. A backward
    pass computes the gradients of the weights, and of the inputs if `of_inputs`.
    """

    kind: str  # of GATES
    steps: int
    rows: int
    batch: int
    features: int
    hidden: int
    outputs: int
    layers: int
    directions: int
    packed: bool
    dtype: str
    backward: bool = False
    of_inputs: bool = True

    @property
    def gates(self) -> int:
        """Numbers that a step computes of a sample before they are combined."""
        return GATES[self.kind] * self.hidden


class RecurrentCost(Cost):
    """The cost of a sequence."""

    __slots__ = ("work",)

    def __init__(self, work: Steps) -> None:
        counted = [*_of_all_steps(work), *_step_by_step(work)]
        flops = sum(times * kernel.flops for times, kernel in counted)
        nbytes = sum(times * kernel.bytes for times, kernel in counted)
        super().__init__(Kernel(flops, nbytes), dtype=work.dtype)
        self.work = work

    def _kernels(self, accelerator: Accelerator) -> list[tuple[int, Kernel]]:
        """Kernels that run one after the other, and how often each does."""
        turns = _persistent_turns(self.work, accelerator)
        if turns is None:
            return [*_of_all_steps(self.work), *_step_by_step(self.work)]
        reads = self.work.steps * self.work.layers * turns
        return [*_of_all_steps(self.work), (1, Kernel(0, 0, serial_reads=reads))]

    def priced(self, accelerator: Accelerator) -> float:
        """How long it takes where the host launches fast enough, worked out now."""
        kernels = self._kernels(accelerator)
        return sum(times * Cost(k, dtype=self.dtype).priced(accelerator) for times, k in kernels)

    def engaged_s(self, accelerator: Accelerator, seconds: float) -> float:
        """For how long of its `seconds` the device has nothing left for other streams' kernels."""
        engaged_s = 0.0
        for times, kernel in self._kernels(accelerator):
            cost = Cost(kernel, dtype=self.dtype)
            engaged_s += times * cost.engaged_s(accelerator, cost.priced(accelerator))
        return min(engaged_s, seconds)

    def in_tf32(self) -> RecurrentCost:
        """The same work, its fp32 rounded to TF32."""
        return RecurrentCost(self.work._replace(dtype="tfloat32"))

    def launches(self, accelerator: Accelerator) -> int:
        """Kernels that the host launches while the first ones run."""
        work = self.work
        launched = sum(times for times, _ in _of_all_steps(work))
        if _persistent_turns(work, accelerator) is not None:
            return launched
        kernels = 3 if work.outputs != work.hidden else 2
        return launched + kernels * work.steps * work.layers * work.directions


# --- kernels --------------------------------------------------------------------------------------


def _product(work: Steps, rows: int, columns: int, depth: int, batch: int = 1) -> Kernel:
    size = _BYTES.get(work.dtype, 4)
    written = batch * rows * columns * size
    read = batch * depth * (rows + columns) * size
    product = Product(rows, columns, depth, batch)
    return Kernel(2 * batch * rows * columns * depth, read + written, product, written=written)


def _of_all_steps(work: Steps) -> Iterator[tuple[int, Kernel]]:
    """What needs no state: for each layer and direction a product, or three in a backward pass."""
    for layer in range(work.layers):
        features = work.directions * work.outputs if layer else work.features
        if not work.backward:
            yield work.directions, _product(work, work.rows, work.gates, features)
            continue
        if layer or work.of_inputs:
            yield work.directions, _product(work, work.rows, features, work.gates)
        yield work.directions, _product(work, work.gates, features, work.rows)
        yield work.directions, _product(work, work.gates, work.outputs, work.rows)


def _step_by_step(work: Steps) -> Iterator[tuple[int, Kernel]]:
    """What a step waits for: it has all layers that have begun and have not ended."""
    at_most = min(work.layers, work.steps)
    for layers in range(1, at_most + 1):
        times = 2 if layers < at_most else abs(work.layers - work.steps) + 1
        for kernel in _of_a_step(work, layers * work.directions):
            yield times, kernel


def _of_a_step(work: Steps, networks: int) -> Iterator[Kernel]:
    batch = ceil(work.rows / work.steps)
    if work.backward:
        yield _product(work, batch, work.outputs, work.gates, networks)
    else:
        yield _product(work, batch, work.gates, work.outputs, networks)
    if work.outputs != work.hidden:
        columns, depth = work.outputs, work.hidden
        columns, depth = (depth, columns) if work.backward else (columns, depth)
        yield _product(work, batch, columns, depth, networks)
    # Both parts of the gates are read and, for the backward pass, written; so are states.
    numbers = batch * (3 * work.gates + 4 * work.hidden)
    yield Kernel(0, networks * numbers * _BYTES.get(work.dtype, 4))


# --- persistent kernels ---------------------------------------------------------------------------


def _persistent_turns(work: Steps, accelerator: Accelerator) -> int | None:
    """Turns that a step takes to read weights, by a persistent kernel; None if there is none."""
    if work.packed or work.outputs != work.hidden or work.dtype == "float64":
        return None
    words = work.gates * work.hidden
    if _is_small(work, accelerator):
        again = ceil(work.batch / _SAMPLES) if words > _REGISTERS else 1
        return ceil(words * _WORD / FILLING_BYTES) * again
    if _is_shared(work, accelerator):
        share = words * _BYTES["float16"] / (accelerator.multiprocessors or 1)
        return ceil(share / FILLING_BYTES) + _EXCHANGED
    return None


def _is_small(work: Steps, accelerator: Accelerator) -> bool:
    """Whether PyTorch takes the algorithm for small states, each multiprocessor by itself."""
    most = 192 if GATES[work.kind] > 1 else 384
    if work.backward:
        most = most * 2 // 3
    return compute_capability(accelerator)[0] >= 6 and work.hidden <= most


def _is_shared(work: Steps, accelerator: Accelerator) -> bool:
    """Whether it takes the one that shares out the weights to all multiprocessors, in float16."""
    fits = work.hidden <= 1024 and work.hidden % 128 == 0 and work.features % 128 == 0
    if work.dtype != "float16" or work.layers * work.directions > 1 or not fits:
        return False
    major, minor = compute_capability(accelerator)
    batch, steps = work.batch, work.steps
    if (major, minor) == (7, 0):
        many = batch % 16 == 0 and batch not in (80, 112)
        return (many or batch == 8) and any(
            steps >= least and batch <= most for least, most in ((40, 128), (20, 96), (10, 32))
        )
    if major < 8 or minor == 6 or (accelerator.multiprocessors or 0) < 98 or work.kind == "gru":
        return False
    few = batch % 8 == 0 and batch <= 128
    return few and (work.kind == "lstm" or batch < 96 or work.hidden < 896)
