"""How much memory a GPU needs: parameters, gradients, the optimizer's state, activations.

Mixed precision with Adam: 2 bytes for a parameter, as many (or 4) for its gradient, 12 for an fp32
copy and two moments (Rajbhandari et al. 2020). What a layer keeps for its backward pass is counted
as Korthikanti et al. (2022, arXiv:2205.05198) do; with s tokens in each of b samples, a width of h,
n heads and t tensor ranks that is s b h (10 + 24 / t + 5 n s / (h t)) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ....timeline.inputs import Count, NotNegative, checked
from ..layout import ALTERNATE, ZERO, Layout
from ..optimizers import MIXED
from ..transformer import Transformer
from .replicas import expert_parameters_per_gpu
from .share import activation_bytes


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


@checked
def memory(model: Transformer, layout: Layout, *, at_once: bool = False) -> Memory:
    """What the fullest GPU needs: one of the first stage or of the last.

    Parts are each at its largest; their sum is what to plan with. `at_once`: what is there at the
    fullest moment, as torch's allocator counts it, which can be less. torch's optimizers set
    gradients to None after an update. Without accumulation they then grow during the one backward
    pass while activations shrink, and the scores of words are gone before there are many: both
    never are there at once.
    """
    needs = [of_stage(model, layout, stage) for stage in {0, layout.mesh.pipeline - 1}]
    if at_once and layout.micro_batches == 1:
        beside_layers = _working_beside_layers(model, layout)
        needs = [max(_moments(need, beside_layers), key=_total) for need in needs]
    return max(needs, key=_total)


def _moments(need: Memory, beside_layers: float) -> tuple[Memory, Memory]:
    """The beginning of the backward pass, and its end."""
    return (
        replace(need, gradients_bytes=0.0),
        replace(need, activations_bytes=0.0, working_bytes=beside_layers),
    )


def of_stage(model: Transformer, layout: Layout, stage: int) -> Memory:
    """What a GPU of one stage needs, 0 being the first."""
    kept = micro_batches_in_flight(layout, stage) * model.layers / layout.mesh.pipeline
    cast = _cast_bytes(model, layout) * (1 - _forgotten(layout))
    return Memory(
        *_states(model, layout, stage),
        activations_bytes=kept * (kept_bytes(model, layout) + cast),
        working_bytes=_working_bytes(model, layout, stage),
    )


def _states(model: Transformer, layout: Layout, stage: int) -> tuple[float, float, float]:
    """Of FSDP the sharded parameters are the fp32 copy, and their gradients are of fp32, too: 4 + 4
    + 8 bytes, which are as many as 2 + 2 + 12."""
    fsdp = layout.zero == 3 and layout.gathers == "layers"
    each = layout.number_bytes
    experts = expert_parameters_per_gpu(model, layout)
    common = parameters_of_stage(model, layout, stage) - experts
    parts = [
        _held(
            parameters,
            shared_by,
            layout.zero,
            each,
            each if fsdp else layout.summed_bytes,
            layout.recipe.state_bytes,
        )
        for parameters, shared_by in (
            (common, layout.sharing),
            (experts, max(layout.sharing // layout.expert, 1)),
        )
    ]
    one, other = parts
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@checked
def state_bytes(parameters: NotNegative, data: Count, zero: int) -> tuple[float, float, float]:
    """Bytes of parameters, gradients, and optimizer on each of `data` replicas by ZeRO stage.

    Parameters and gradients take two bytes each, the optimizer is Adam with a copy in fp32. Stage 1
    divides the optimizer's state among replicas, 2 gradients as well, 3 parameters as well. Raises
    ValueError for another stage.
    """
    if zero not in ZERO:
        raise ValueError(f"zero is one of {', '.join(map(str, ZERO))}, not {zero!r}")
    return _held(parameters, data, zero, 2, 2, MIXED["adam"].state_bytes)


def _held(
    parameters: float, data: int, zero: int, *bytes_each: float
) -> tuple[float, float, float]:
    """Bytes of parameters, gradients, and optimizer, from the bytes of each for a parameter."""
    own, gradient, optimizer = (parameters * each for each in bytes_each)
    return (
        own / (data if zero >= 3 else 1),
        gradient / (data if zero >= 2 else 1),
        optimizer / (data if zero >= 1 else 1),
    )


def parameters_of_stage(model: Transformer, layout: Layout, stage: int) -> float:
    """Parameters that a stage's GPUs compute with; first and last have a copy of the words'."""
    mesh = layout.mesh
    layers = model.layers / mesh.pipeline
    parameters = layers * model.layer_parameters(mesh.tensor, layout.expert)
    if stage in (0, mesh.pipeline - 1):
        copies = 2 if mesh.pipeline == 1 and not model.tied else 1
        parameters += copies * model.word_parameters(mesh.tensor)
    return parameters + (model.position_parameters + model.extra if stage == 0 else 0)


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
    block = activation_bytes(model, layout)
    split = layout.mesh.tensor if layout.sequence_parallel else 1
    if layout.recompute == "full":
        return block / split
    if layout.recompute == ALTERNATE:
        return (block / split + _layer_bytes(model, layout, core=True)) / 2
    if layout.recompute == "selective" and layout.attention != "scores":
        return block / split + _every_second_product_bytes(model, layout)
    return _layer_bytes(model, layout, core=layout.recompute == "none")


def _tokens(model: Transformer, layout: Layout) -> int:
    return layout.micro_batch * -(-model.sequence // layout.mesh.context)


def _layer_bytes(model: Transformer, layout: Layout, *, core: bool) -> float:
    """All that a layer's backward pass needs; `core`: the attention's scores included.

    Whole on each tensor rank: inputs of norms and of products, masks of dropout; split: queries,
    keys, values and the input of the next product, and what the perceptron keeps.
    """
    h, tensor, each = model.hidden, layout.mesh.tensor, layout.product_bytes
    masks = 2 if model.dropout and not layout.compiled else 0
    in_fp32 = 4 if _norms_in_fp32(model, layout) else 0
    # Compiled, what the second norm reads is computed again from what attention has put out.
    second = each if layout.compiled else layout.number_bytes
    norms = layout.number_bytes + second + 2 * (each + in_fp32)
    whole = h * (norms + masks) / (tensor if layout.sequence_parallel else 1)
    split = each * (_attention_numbers(model, layout) + _perceptron_numbers(model, layout))
    scores = _score_bytes(model, layout) if core and layout.attention == "scores" else 0.0
    return _tokens(model, layout) * (whole + split) + scores


def _forgotten(layout: Layout) -> float:
    """The share of layers that are computed again, with their weights as autocast casts them: of
    the others products keep these, not the parameters, until the backward pass."""
    return {"full": 1.0, ALTERNATE: 0.5}.get(layout.recompute, 0.0)


def _cast_bytes(model: Transformer, layout: Layout) -> float:
    """A layer's weights as autocast has cast them."""
    attention, perceptron = _matrices(model, layout)
    return layout.cast_bytes * (sum(attention) + sum(perceptron))


def _matrices(model: Transformer, layout: Layout) -> tuple[list[int], list[int]]:
    """Parameters of attention's two matrices, and of the perceptron's, each of all its experts."""
    matrices = model.matrices(layout.mesh.tensor)
    experts = 1 if model.experts is None else model.experts.count // layout.expert
    return matrices[:2], [experts * matrix for matrix in matrices[2:]]


def _norms_in_fp32(model: Transformer, layout: Layout) -> bool:
    """Whether the norm keeps a copy of its input in fp32, and of its result: see `RmsNorm`."""
    return model.norm == "rms" and not layout.compiled


def _attention_numbers(model: Transformer, layout: Layout) -> float:
    """Of a token: queries, keys, values, and what attention makes of them."""
    tensor = layout.mesh.tensor
    keys = model.key_heads_per_rank(tensor) * model.head_size
    normed = 0.0
    if model.qk_norm:  # the norm's result, and eager what it reads and divides, in fp32
        normed = (1 if layout.compiled else 1 + 4 / layout.product_bytes) * (
            model.width / tensor + keys
        )
    if layout.attention == "scores":  # which copies them for each head
        keys = model.width // tensor
    return 2 * model.width / tensor + 2 * keys * layout.mesh.context + normed


def _perceptron_numbers(model: Transformer, layout: Layout) -> float:
    """Of a token: both sides of GELU; of SwiGLU its two inputs, the result, and eager its SiLU."""
    inner = model.inner / layout.mesh.tensor
    kept = (3 if layout.compiled else 4) * inner if model.gated else 2 * inner
    if model.experts is None:
        return kept
    # What is sent, and what comes back.
    return model.experts.top_k * (kept + 2 * model.hidden)


def _score_bytes(model: Transformer, layout: Layout) -> float:
    """The softmax of all scores, which autocast computes in fp32 (compiled, from what is kept of
    the product); with dropout a mask and the result, too."""
    each = layout.product_bytes
    softmax = each if layout.compiled else layout.number_bytes
    result = each if model.dropout or layout.cast_bytes else 0
    return (softmax + result + (1 if model.dropout else 0)) * _score_count(model, layout)


def _score_count(model: Transformer, layout: Layout) -> float:
    pairs = _tokens(model, layout) * model.sequence
    return pairs * model.heads / layout.mesh.tensor


def _every_second_product_bytes(model: Transformer, layout: Layout) -> float:
    """What fused attention makes, and of the products' results half."""
    tensor, h = layout.mesh.tensor, model.hidden
    keys = model.key_heads_per_rank(tensor) * model.head_size
    ups = model.inner / tensor * (2 if model.gated else 1)
    rows = 1 if model.experts is None else model.experts.top_k
    mixed = model.width / tensor
    products = mixed + 2 * keys + h + rows * (ups + h)
    return _tokens(model, layout) * layout.product_bytes * (mixed + products / 2)


# --- what comes and goes --------------------------------------------------------------------------


def _working_bytes(model: Transformer, layout: Layout, stage: int) -> float:
    in_layer = _working_beside_layers(model, layout)
    # What autocast has cast it remembers to the end of the forward pass.
    remembered = _cast_bytes(model, layout) * _forgotten(layout)
    remembered *= model.layers / layout.mesh.pipeline
    if stage < layout.mesh.pipeline - 1:
        return max(in_layer, remembered)
    forward, backward = _working_in_head(model, layout)
    return max(in_layer, remembered + forward, backward)


def _working_beside_layers(model: Transformer, layout: Layout) -> float:
    return _working_in_layer(model, layout) + _gathered_bytes(model, layout)


def _working_in_head(model: Transformer, layout: Layout) -> tuple[float, float]:
    """Forward and backward: a norm's result, and of the words what autocast has cast; scores and
    their logarithms, then the logarithms, their gradients, and gradients of the scores.

    They are of fp32; a compiled program has the scores and their gradients alone. In chunks they
    come and go, beside all scores and their gradients.
    """
    tensor, each = layout.mesh.tensor, layout.product_bytes
    normed = _tokens(model, layout) * model.hidden * each
    cast = layout.cast_bytes * model.word_parameters(tensor)
    scored = layout.micro_batch * -(-model.scored_tokens // layout.mesh.context)
    count = scored * model.words_per_rank(tensor)
    beside = normed + cast + (2 * each * count if layout.loss_chunks > 1 else 0)
    chunk = count / layout.loss_chunks
    forward, backward = (each, 2 * each) if layout.compiled else (2 * 4, 3 * 4)
    return beside + forward * chunk, beside + backward * chunk


def _working_in_layer(model: Transformer, layout: Layout) -> float:
    """What a layer's backward pass takes besides; read off the program that `layers` simulates.

    In the perceptron gradients of its width and of what it keeps inside, one of the largest matrix,
    and half as much again of whole blocks; or in attention the gradients of all scores before
    dropout, once the perceptron's activations are gone.
    """
    each, tokens = layout.product_bytes, _tokens(model, layout)
    inner = _perceptron_numbers(model, layout)
    matrix = max(_matrices(model, layout)[1])
    gradient = (layout.number_bytes if layout.cast_bytes else 0) + each
    perceptron = each * tokens * (1.5 * model.hidden + inner / 2) + gradient * matrix
    attention = 0.0
    if layout.attention == "scores":
        attention = each * (_score_count(model, layout) - tokens * inner)
    again = 0.0
    if layout.recompute != "none":
        again = _layer_bytes(model, layout, core=True)
        again += _cast_bytes(model, layout) if _forgotten(layout) else 0.0
    if layout.recompute == "selective":
        again = max(again - kept_bytes(model, layout), 0.0)
    return max(perceptron, attention) + again


def _gathered_bytes(model: Transformer, layout: Layout) -> float:
    """With ZeRO a layer's gradients are whole until they are summed; in stage 3 parameters, too, of
    the layer at work and of the next one."""
    if layout.zero < 2 or layout.sharing == 1:
        return 0.0
    tensor = layout.mesh.tensor
    largest = max(model.layer_parameters(tensor, layout.expert), model.word_parameters(tensor))
    parameters = 2 * layout.number_bytes if layout.zero == 3 else 0
    return largest * (layout.summed_bytes + parameters)


def _total(one: Memory) -> float:
    return one.total_bytes
