"""Which group a row belongs to: errors differ between groups, and lessons use one or the other."""

from __future__ import annotations

from ..machines.hardware import Machine
from ..parallelism.planner.uncertainty import FROM_HOPPER_ON
from .rows import PublishedFigure

READ_WORDS = ("bert", "minilm", "distilbert", "gpt", "opt")  # models whose names begin so
KERNELS, COPIES, COLLECTIVES, VISION = "kernels", "copies", "collectives", "vision"
TRANSFORMERS_A100 = "transformers, up to A100"
TRANSFORMERS_H100 = "transformers, from H100"
PIPELINES, SCALING = "pipelines", "scaling"
PROGRAMS, INFERENCE = "programs", "inference"
GROUPS = (
    *(KERNELS, COPIES, COLLECTIVES, VISION),
    *(TRANSFORMERS_A100, TRANSFORMERS_H100, PIPELINES, SCALING, PROGRAMS, INFERENCE),
)

_BY_WORKLOAD = {
    **dict.fromkeys(
        (
            *("matmul", "stream", "attention", "convolution"),
            *("rows", "batch_norm", "launch", "recurrent"),
        ),
        KERNELS,
    ),
    **dict.fromkeys(("copy", "send", "matmul_and_copy"), COPIES),
    **dict.fromkeys(
        (
            *("all_reduce", "all_gather", "reduce_scatter"),
            *("broadcast", "reduce", "all_to_all", "send_recv"),
        ),
        COLLECTIVES,
    ),
    **dict.fromkeys(("model_parallel", "pipeline", "pipeline_bubble"), PIPELINES),
    "decode": INFERENCE,
    "optimizer_step": PROGRAMS,
    **dict.fromkeys(
        ("data_parallel", "data_parallel_module", "replicate", "tensor_parallel"), SCALING
    ),
}


def group_of(row: PublishedFigure, machine: Machine) -> str:
    """The group, one of `GROUPS`, of a row that ran on `machine`.

    Programs are scripts that feed and validate a network besides training it, inference is what
    answers one request at a time: decoding, and forward passes of one image or text.
    """
    if "batches" in row.parameters or row.parameters.get("model", "").startswith("cifar_"):
        return PROGRAMS
    if row.workload == "infer" and row.parameters.get("batch") == "1":
        return INFERENCE
    if row.workload in _BY_WORKLOAD:
        return _BY_WORKLOAD[row.workload]
    model = row.parameters.get("model", "")
    if row.workload in ("train", "infer", "peak_memory") and not model.startswith(READ_WORDS):
        return VISION
    new = machine.accelerators[0].architecture in FROM_HOPPER_ON
    return TRANSFORMERS_H100 if new else TRANSFORMERS_A100
