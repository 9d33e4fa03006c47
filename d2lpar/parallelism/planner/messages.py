"""What the planner says, kept together for translations."""

from __future__ import annotations

FIRST = (
    "{model} ({parameters} parameters) on {gpus} of {machine}: {mesh}, {how}. A step of "
    "{samples} samples takes {step} (± {uncertainty:.0%}): {samples_per_s:.3g} samples/s; a GPU "
    "does {tokens:,.0f} tokens/s and {tflops:.0f} TFLOP/s, {utilisation:.0%} of its peak, with "
    "{memory} of {capacity} in use."
)
ONE_GPU, GPUS = "1 GPU", "{count} GPUs"
MICRO_BATCHES = "micro-batches {count} × {size}"
SCHEDULES = {"1F1B": "1F1B", "interleaved": "interleaved ({chunks} chunks a stage)"}
RECOMPUTE = {
    "none": "nothing computed again",
    "selective": "attention computed again",
    "alternate": "every second layer computed again",
    "full": "layers computed again",
}
ZERO = "ZeRO stage {stage}"

TENSOR_ONE = "tensor 1: no layer is split, nothing is summed within layers."
TENSOR_WITHIN = (
    "tensor {tensor} stays within a node of {node}: its sums take {share:.0%} of the step."
)
TENSOR_BEYOND = (
    "tensor {tensor} reaches beyond a node of {node}, over the network: its sums take {share:.0%} "
    "of the step."
)
PIPELINE_ONE = "pipeline 1: no stages, no bubble."
PIPELINE = (
    "pipeline {pipeline}: {layers} layers a stage; the bubble takes {share:.0%} of the step, "
    "sending {sending:.0%}."
)
DATA_ONE = "data 1: one replica, no gradients are exchanged."
DATA = (
    "data {data}: replicas share the batch; what computing does not hide of their exchange takes "
    "{share:.0%} of the step."
)
SLOWER = "With {axis} {value} instead, the best mix ({mesh}) would be {percent} slower{why}."
NO_ROOM = (
    "With {axis} {value} instead, a GPU would need {memory} of {capacity} at least ({mesh}), "
    "{most_bytes} of it for {most}."
)
WHY = ": {part} would take {seconds} longer{how}"
HOW = ", with {recompute}"
TIES = (
    "Steps like these are typically off by {uncertainty:.0%}, which is more than lies between the "
    "first and {count} of the others: call them ties ({meshes}), and measure."
)
AND_MORE = "{meshes} and {count} more"
RUNNER_UP = "The runner-up, {mesh}, would be {percent} slower{why}."
NO_RUNNER_UP = "No other mix fits."
PARTS = {
    "compute": "computing", "tensor": "sums within layers", "bubble": "bubble",
    "context": "exchange of keys and values", "experts": "tokens on their way to experts",
    "sending": "sending between stages", "gradients": "exchange of gradients",
    "parameters": "exchange of parameters", "optimizer": "the update",
}  # fmt: skip
MEMORY_PARTS = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "the optimizer",
    "activations": "activations", "working": "work in progress",
}  # fmt: skip

PLAN = (
    "{mesh}, {how}: {step} a step (± {uncertainty:.0%}), {tflops:.0f} TFLOP/s a GPU, "
    "{memory}{verdict}"
)
DOES_NOT_FIT = " (does not fit)"

ERROR_GPUS = (
    "{machine} has {count} GPUs, not {gpus}: name a cluster, such as {example!r}, or leave gpus out"
)
ERROR_NO_PLANS = "there are no plans: take those that par.planner.plans(…) returns"
ERROR_FEW = "gpus is a whole number from 1 on{beyond}, not {gpus!r}"
ERROR_BATCH = "batch is a whole number of samples from 1 on{beyond}, not {batch!r}"
ERROR_NO_MIX = (
    "no mix spreads {model} over {gpus} with a batch of {batch}: tensor must divide the "
    "{heads} heads, pipeline times chunks the {layers} layers, data times micro-batch the "
    "batch; leave micro_batch and chunks open{other}"
)
NO_MIX_OTHER = ", or try a batch that is a multiple of {count}, or {fewer}"
ERROR_NONE_FITS = (
    "{model} does not fit {gpus} of {machine}: the least that a GPU would need is {memory} of "
    "{capacity} ({mesh}, {how}), {most_bytes} of it for {most}. {remedy}"
)
REMEDY_GPUS = "{gpus} of them would do{zero}."
REMEDY_NONE = (
    "No number of them up to {most} would do{zero}: take a smaller model, or GPUs with more memory."
)
REMEDY_ZERO = "; so would zero={stage} on these"
