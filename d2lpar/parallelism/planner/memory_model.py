"""How much memory a GPU needs: parameters, gradients, the optimizer's state, activations.

Mixed precision with Adam: 2 bytes for a parameter, as many (or 4) for its gradient, 12 for an fp32
copy and two moments (Rajbhandari et al. 2020). What a layer keeps for its backward pass is counted
as Korthikanti et al. (2022, arXiv:2205.05198) do; with s tokens in each of b samples, a width of h,
n heads and t tensor ranks that is s b h (10 + 24 / t + 5 n s / (h t)) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from .layout import Layout
from .steps import HALF, activation_bytes
from .transformer import Transformer

OPTIMIZER_BYTES = 12


@dataclass(frozen=True)
class Memory:
    """Bytes of a GPU, by what they are for.

    `working_bytes` come and go: the scores of words and their gradients, or what the backward pass
    of a layer takes besides, computes again and, with ZeRO, gathers.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    working_bytes: float

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by the name of a part, "parameters" first."""
        return {part.name.removesuffix("_bytes"): getattr(self, part.name) for part in fields(self)}

    @property
    def total_bytes(self) -> float:
        """All parts together."""
        return sum(self.parts.values())


def memory(model: Transformer, layout: Layout) -> Memory:
    """What the fullest GPU needs: one of the first stage or of the last."""
    last = layout.mesh.pipeline - 1
    return max((of_stage(model, layout, stage) for stage in {0, last}), key=_total)


def of_stage(model: Transformer, layout: Layout, stage: int) -> Memory:
    """What a GPU of one stage needs, 0 being the first."""
    parameters = parameters_of_stage(model, layout, stage)
    states = state_bytes(
        parameters, layout.mesh.data, layout.zero, gradient_bytes=layout.gradient_bytes
    )
    kept = micro_batches_in_flight(layout, stage) * model.layers / layout.mesh.pipeline
    return Memory(
        *states,
        activations_bytes=kept * kept_bytes(model, layout),
        working_bytes=_working_bytes(model, layout, stage),
    )


def state_bytes(
    parameters: float, data: int, zero: int, *, gradient_bytes: int = 2
) -> tuple[float, float, float]:
    """Bytes of parameters, gradients, and optimizer on each of `data` replicas by ZeRO stage.

    Stage 1 divides the optimizer's state among them, 2 gradients as well, 3 parameters as well.
    """

    def held(bytes_each: int, *, shared: bool) -> float:
        return parameters * bytes_each / (data if shared else 1)

    return (
        held(HALF, shared=zero >= 3),
        held(gradient_bytes, shared=zero >= 2),
        held(OPTIMIZER_BYTES, shared=zero >= 1),
    )


def parameters_of_stage(model: Transformer, layout: Layout, stage: int) -> float:
    """Parameters that a stage's GPUs compute with; first and last have a copy of the words'."""
    mesh = layout.mesh
    parameters = model.layers / mesh.pipeline * model.layer_parameters(mesh.tensor)
    if stage in (0, mesh.pipeline - 1):
        parameters += model.word_parameters(mesh.tensor)
    return parameters + (model.sequence * model.hidden if stage == 0 else 0)


def micro_batches_in_flight(layout: Layout, stage: int) -> float:
    """Whose activations a stage keeps at most, in micro-batches through all its layers.

    1F1B: as many as there are stages from here on (PipeDream-Flush, Narayanan et al. 2021,
    arXiv:2006.09503). Interleaved: a stage warms up with 2 (p - 1 - stage) + (v - 1) p of its v
    chunks, and begins one more.
    """
    stages, chunks = layout.mesh.pipeline, layout.chunks
    if chunks == 1:
        return min(stages - stage, layout.micro_batches)
    begun = 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1
    return min(begun / chunks, layout.micro_batches)


def kept_bytes(model: Transformer, layout: Layout) -> float:
    """What one layer keeps of one micro-batch until its backward pass."""
    block = activation_bytes(model, layout)  # s b h numbers of two bytes
    split = layout.mesh.tensor if layout.sequence_parallel else 1
    if layout.recompute == "full":
        return block / split
    return _layer_bytes(model, layout, core=layout.recompute == "none")


def _layer_bytes(model: Transformer, layout: Layout, *, core: bool) -> float:
    """All that a layer's backward pass needs; `core`: the attention's scores included.

    Whole on each tensor rank: inputs of norms and of products, masks of dropout; split: queries,
    keys, values and the input of the next product (8), both sides of GELU (16).
    """
    numbers = activation_bytes(model, layout) / HALF
    tensor = layout.mesh.tensor
    masks = 2 if model.dropout else 0
    whole = (8 + masks) * numbers / (tensor if layout.sequence_parallel else 1)
    scores = 0.0
    if core and layout.attention == "scores":
        scores = (5 if model.dropout else 2) * _score_count(model, layout)
    return whole + 24 * numbers / tensor + scores


def _score_count(model: Transformer, layout: Layout) -> float:
    pairs = layout.micro_batch * model.sequence**2
    return pairs * model.heads / layout.mesh.tensor


def _working_bytes(model: Transformer, layout: Layout, stage: int) -> float:
    in_layer = _working_in_layer(model, layout) + _gathered_bytes(model, layout)
    if stage < layout.mesh.pipeline - 1:
        return in_layer
    return max(in_layer, _working_in_head(model, layout))


def _working_in_head(model: Transformer, layout: Layout) -> float:
    """A norm's result; scores' logarithms, their gradients, and gradients of the scores."""
    normed = activation_bytes(model, layout)
    words = model.words_per_rank(layout.mesh.tensor)
    return normed + 3 * HALF * layout.micro_batch * model.sequence * words


def _working_in_layer(model: Transformer, layout: Layout) -> float:
    """What a layer's backward pass takes besides; read off the program that `layers` simulates.

    In the perceptron gradients of s b (h + 4 h / t) numbers, one of the largest matrix, and half
    as much again of whole blocks; or in attention the gradients of all scores before dropout, once
    the perceptron's activations are gone.
    """
    numbers, tensor = activation_bytes(model, layout) / HALF, layout.mesh.tensor
    perceptron = (3 + 8 / tensor) * numbers + HALF * 4 * model.hidden**2 / tensor
    attention = 0.0
    if layout.attention == "scores":
        attention = 2 * _score_count(model, layout) - 16 * numbers / tensor
    again = 0.0
    if layout.recompute == "full":
        again = _layer_bytes(model, layout, core=True)
    elif layout.recompute == "selective":
        again = _layer_bytes(model, layout, core=True) - kept_bytes(model, layout)
    return max(perceptron, attention) + again


def _gathered_bytes(model: Transformer, layout: Layout) -> float:
    """With ZeRO a layer's gradients are whole until they are summed; in stage 3 parameters, too, of
    the layer at work and of the next one."""
    if layout.zero < 2 or layout.mesh.data == 1:
        return 0.0
    tensor = layout.mesh.tensor
    largest = max(model.layer_parameters(tensor), model.word_parameters(tensor))
    return largest * (layout.gradient_bytes + (2 * HALF if layout.zero == 3 else 0))


def _total(one: Memory) -> float:
    return one.total_bytes
