"""Training of GPT-like networks by their sizes, degrees of parallelism and settings.

Rows do not say what their authors took for granted, so this does: a gated perceptron (SwiGLU) comes
with RMS norms, rotary embeddings and no bias, as in Llama; any other with layer norms, learned
positions and a bias, as in GPT-2. Nothing is dropped, gradients are summed in fp32, exchanges
between replicas go on beside the computing. What a row calls "unstated" the planner chooses: the
fastest that fits.
"""

from __future__ import annotations

from dataclasses import replace

from ....machines.hardware import Machine
from ....parallelism.planner.choice import USABLE, best, plans
from ....parallelism.planner.costs.memory_model import memory as needed
from ....parallelism.planner.costs.steps import step
from ....parallelism.planner.layout import Layout
from ....parallelism.planner.mesh import Mesh
from ....parallelism.planner.precision import PRECISIONS, product_rate
from ....parallelism.planner.transformer import Experts, Transformer
from ...parameters import Naive, Parameters, SimulatedRun

UNSTATED = "unstated"
_GATED = {"swiglu": True, "gelu": False, "relu": False, "relu2": False}
_SHARDING = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3, UNSTATED: None}
_ATTENTION = {
    **dict.fromkeys(("fused", "flash3", "flash4", "cudnn", "memory_efficient"), "fused"),
    **dict.fromkeys(("flash", "flash1", "flash2"), "flash"),
    **dict.fromkeys(("scores", "math"), "scores"),
}
_RECOMPUTE = {
    "none": "none",
    "selective": "selective",  # of operations
    "selective_layer": "alternate",  # of layers
    "full": "full",
    UNSTATED: None,
}
# torchtune computes the loss in so many pieces if it is chunked.
_LOSS_CHUNKS = {"whole": 1, "chunked": 8}
_PRECISION = {
    "float16": "fp16", "bfloat16": "bf16", "float8": "fp8", "tfloat32": "tf32", "float32": "fp32",
    "bf16-pure": "bf16",
} | {name: name for name in PRECISIONS}  # fmt: skip
_OPTIMIZERS = {name: name for name in ("adam", "adam-bf16", "sgd", "none")}
_COUNTS = {name: name for name in ("model", "model-full-attention", "model-causal", "computed")}


def gpt_train(p: Parameters, machine: Machine) -> SimulatedRun:
    """A step of training; FLOP are the model's, all of attention included unless `counts` says so,
    and what is computed again with counts=computed.

    `baseline=eager` asks how many times as fast as the same program, not compiled.
    """
    model = transformer(p)
    layout = chosen(p, model, machine)
    counted = p.choice("counts", _COUNTS, "model")
    eager = p.choice("baseline", {"none": False, "eager": True}, "none")
    seconds = step(model, layout, machine).step_s
    if eager:
        slower = step(model, replace(layout, compiled=False), machine).step_s
        return SimulatedRun(ratio=slower / seconds)
    again = counted == "computed" and layout.recompute == "full"
    flops = model.flops(layout.samples, causal=counted == "model-causal", recompute=again)
    gpus = layout.mesh.size
    peak = product_rate(machine.accelerators[0], layout.precision)
    return SimulatedRun(
        seconds,
        samples=layout.samples,
        tokens=layout.samples * model.sequence,
        flops=flops,
        gpus=gpus,
        naive=Naive(flops / gpus / peak),
    )


def memory(p: Parameters, machine: Machine) -> SimulatedRun:
    """What the fullest GPU needs for such a step, as torch's allocator counts it."""
    model = transformer(p)
    need = needed(model, chosen(p, model, machine), at_once=True)
    return SimulatedRun(memory_bytes=need.total_bytes)


def transformer(p: Parameters) -> Transformer:
    """The network of a row."""
    gated = p.choice("mlp", _GATED, "swiglu" if p.flag("gated", False) else "gelu")
    p.flag("packed", False)  # samples without padding, which no other row has either
    layers, hidden, heads = (p.integer(name) for name in ("layers", "hidden", "heads"))
    return Transformer(
        *("the row's model", layers, hidden, heads, p.integer("sequence")),
        vocabulary=p.integer("vocabulary"),
        dropout=p.number("dropout", 0.0),
        kv_heads=p.integer("kv_heads", None),
        ffn=p.integer("ffn", None),
        gated=gated,
        tied=p.flag("tied", not gated),
        norm=p.choice("norm", {"layer": "layer", "rms": "rms"}, "rms" if gated else "layer"),
        positions="rotary" if p.flag("rotary", gated) else "learned",
        bias=p.flag("bias", not gated),
        causal=p.flag("causal", True),
        experts=_experts(p),
    )


def _experts(p: Parameters) -> Experts | None:
    count = p.integer("experts", None)
    if count is None:
        return None
    return Experts(count, p.integer("experts_per_token", 2) + p.integer("shared_experts", 0))


def chosen(p: Parameters, model: Transformer, machine: Machine) -> Layout:
    """The layout that a row describes; the planner's best of those that it leaves open."""
    degrees = ("data", "tensor", "pipeline", "micro_batch", "sharding")
    batch = p.integer("batch", None)
    if batch is not None and any(p.text(name, None) == UNSTATED for name in degrees):
        _read(p, degrees)
        return _planned(p, model, machine, batch)
    layout = _stated(p)
    if p.text("recompute", "none") != UNSTATED:
        return layout
    found = (replace(layout, recompute=again) for again in ("none", "selective", "full"))
    room = USABLE * machine.accelerators[0].memory_bytes
    return next((one for one in found if needed(model, one).total_bytes <= room), layout)


def _read(p: Parameters, names: tuple[str, ...]) -> None:
    for name in (*names, "accumulation", "context", "schedule", "gradient_fusion"):
        p.text(name, None)


def _planned(p: Parameters, model: Transformer, machine: Machine, batch: int) -> Layout:
    recompute, compiled = p.choice("recompute", _RECOMPUTE, "none"), _compiled(p)
    return best(
        plans(
            model,
            machine,
            batch=batch,
            zero=None,
            recompute=recompute,
            sequence_parallel=p.flag("sequence_parallel", True),
            attention=p.choice("attention", _ATTENTION, "fused"),
            gradient_bytes=_gradient_bytes(p),
            precision=p.choice("precision", _PRECISION, "bf16"),
            compiled=compiled,
            optimizer=_optimizer(p),
        )
    ).layout


def _stated(p: Parameters) -> Layout:
    mesh = Mesh(*(p.integer(name, 1) for name in ("data", "pipeline", "tensor", "context")))
    micro_batch, micro_batches = _micro_batches(p, mesh.data)
    zero, compiled = _zero(p, mesh), _compiled(p)
    return Layout(
        mesh,
        micro_batch,
        micro_batches,
        chunks=_chunks(p),
        recompute=p.choice("recompute", _RECOMPUTE, "none") or "none",
        sequence_parallel=_or_unstated(p, "sequence_parallel", default=mesh.tensor > 1),
        zero=zero,
        overlap=p.flag("overlap", True),
        attention=p.choice("attention", _ATTENTION, "fused"),
        gradient_bytes=_gradient_bytes(p),
        precision=p.choice("precision", _PRECISION, "bf16"),
        compiled=compiled,
        optimizer=_optimizer(p),
        expert=p.integer("expert", 1),
        shard=p.integer("shard_group", None),
        gathers=p.choice("gathers", {"layers": "layers", "tensors": "tensors"}, "layers"),
        loss_chunks=p.choice("loss", _LOSS_CHUNKS, "whole"),
        # FSDP and torch.compile are torch's own; Megatron has neither, and puts tokens first.
        batch_first=compiled or zero > 1,
        tensor_overlap=p.flag("tp_overlap", p.flag("async_tp", False)),
        fused_gradients=p.flag("gradient_fusion", zero < 2),
    )


def _micro_batches(p: Parameters, data: int) -> tuple[int, int]:
    """Size and number: of both and the batch two are enough."""
    batch, size, count = (p.integer(n, None) for n in ("batch", "micro_batch", "accumulation"))
    if size is None and batch is not None:
        size = batch // data // (count or 1)
    if size is None:
        raise ValueError("it needs the parameter micro_batch, or batch")
    if count is None:
        count = 1 if batch is None else batch // data // size
    return size, count


def _chunks(p: Parameters) -> int:
    """Of an interleaved schedule two pieces a stage, if it is not said how many."""
    schedules = {"1f1b": 1, "interleaved": 2, "interleaved_1f1b": 2}
    default = p.choice("schedule", schedules, "1f1b")
    return p.integer("virtual", p.integer("chunks", default))


def _zero(p: Parameters, mesh: Mesh) -> int:
    """The stage. Where stages of a pipeline are sharded, too, parameters stay gathered through a
    step (torchtitan's `reshard_after_forward`), which exchanges what ZeRO 1 does."""
    zero = p.choice("sharding", _SHARDING, "none") or 0
    return min(zero, 1) if mesh.pipeline > 1 else zero


def _compiled(p: Parameters) -> bool:
    return _or_unstated(p, "compiled", default=False)


def _or_unstated(p: Parameters, name: str, *, default: bool) -> bool:
    choices = {"true": True, "false": False, UNSTATED: default}
    return p.choice(name, choices, UNSTATED)


def _optimizer(p: Parameters) -> str:
    named = p.choice("optimizer", _OPTIMIZERS | {"adamw": "adam", "muon": "sgd"}, "adam")
    return "adam-bf16" if _is_pure(p) and named == "adam" else named


def _gradient_bytes(p: Parameters) -> int:
    return p.integer("gradient_bytes", 2 if _is_pure(p) else 4)


def _is_pure(p: Parameters) -> bool:
    """Whether nothing is kept in fp32, parameters, gradients and moments included."""
    return p.text("precision", "bf16") == "bf16-pure"
