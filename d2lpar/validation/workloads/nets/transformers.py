"""Transformers as Megatron trains them: tensor, pipeline and data parallelism together.

The time of a step is the planner's (`d2lpar.parallelism.planner.costs.steps`); here rows are read.
Attention keeps its scores, as in those years, unless a row says otherwise, and ZeRO 3 gathers
parameter by parameter, as DeepSpeed of 2021 did (`gathers=layers`: PyTorch's FSDP).
"""

from __future__ import annotations

from dataclasses import replace

from ....machines.hardware import Machine
from ....parallelism.planner.choice import MICRO_BATCHES
from ....parallelism.planner.costs.steps import step
from ....parallelism.planner.layout import Layout
from ....parallelism.planner.mesh import Mesh
from ....parallelism.planner.transformer import Transformer
from ...parameters import Naive, Parameters, SimulatedRun


def megatron(p: Parameters, machine: Machine) -> SimulatedRun:
    """A step of a transformer in half precision over tensor × pipeline × data GPUs.

    Where the micro-batch is not given it is the fastest of 1 to 16, as its authors chose it. FLOP
    are counted as those of Megatron do, what is computed again included, unless `counts=model`.
    """
    model, layouts = model_and_layouts(p)
    again = p.choice("counts", {"computed": True, "model": False}, "computed")
    duration_s, layout = min(
        ((step(model, layout, machine).step_s, layout) for layout in layouts),
        key=lambda pair: pair[0],
    )
    recomputed = again and layout.recompute == "full"
    gpus = layout.mesh.size
    flops = model.flops(layout.samples, recompute=recomputed) / gpus
    naive = Naive(model.flops(layout.samples) / gpus / machine.accelerators[0].rate("float16"))
    return SimulatedRun(duration_s, samples=layout.samples, flops=flops, gpus=gpus, naive=naive)


def tensor_parallel(p: Parameters, machine: Machine) -> SimulatedRun:
    """How many times as fast as one GPU, the batch being the same."""
    p.choice("baseline", {"single": 1})
    model, (layout,) = model_and_layouts(p)
    alone = replace(layout, mesh=replace(layout.mesh, tensor=1))
    ratio = step(model, alone, machine).step_s / step(model, layout, machine).step_s
    return SimulatedRun(ratio=ratio, naive=Naive(ratio=float(layout.mesh.tensor)))


def model_and_layouts(p: Parameters) -> tuple[Transformer, list[Layout]]:
    """What a row trains, and how: one layout, or one for each size of a micro-batch."""
    dtypes = {"float16-amp": "fp16", "float16": "fp16", "bfloat16": "bf16"}
    precision = p.choice("dtype", dtypes, "float16-amp")
    schedule = p.choice("schedule", {"1f1b": 1, "interleaved": 2}, "1f1b")
    mesh = Mesh(*(p.integer(axis) for axis in ("data", "pipeline", "tensor")))
    layers, hidden, heads = (p.integer(name) for name in ("layers", "hidden", "heads"))
    padded = 128 * mesh.tensor  # Megatron's make-vocab-size-divisible-by
    model = Transformer(
        *("the row's model", layers, hidden, heads, p.integer("sequence")),
        vocabulary=-(-p.integer("vocabulary", 51_200) // padded) * padded,
        dropout=p.number("dropout", 0.1),
    )
    layout = Layout(
        mesh,
        chunks=p.integer("chunks", schedule),
        recompute="full" if p.flag("recompute", False) else "none",
        zero=p.integer("zero", 0),
        overlap=p.flag("overlap", False),
        gathers=p.choice("gathers", {"tensors": "tensors", "layers": "layers"}, "tensors"),
        attention=p.choice("attention", {"scores": "scores", "fused": "fused"}, "scores"),
        gradient_bytes=p.integer("gradient_bytes", 4),  # Megatron adds them up in fp32
        precision=precision,
        framework="megatron",
        fused_gradients=p.flag("gradient_fusion", False),  # Megatron-LM has it since late in 2021
    )
    return model, [
        replace(layout, micro_batch=size, micro_batches=count)
        for size, count in _micro_batches(p, mesh.data)
    ]


def _micro_batches(p: Parameters, data: int) -> list[tuple[int, int]]:
    """Size and number of the micro-batches that a row allows."""
    batch, size = p.integer("batch", None), p.integer("micro_batch", None)
    if batch is None:
        return [(p.integer("micro_batch"), p.integer("micro_batches"))]
    replica = batch // data
    wanted = MICRO_BATCHES if size is None else (size,)
    return [(b, replica // b) for b in wanted if replica % b == 0]
