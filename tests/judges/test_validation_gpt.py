"""How rows on the training of transformers are read, and what they come to."""

from __future__ import annotations

import pytest

from d2lpar import machines
from d2lpar.parallelism import planner
from d2lpar.validation.parameters import Parameters, SimulatedRun
from d2lpar.validation.workloads.nets import gpt, transformers

MACHINE = machines.machine("8x-a100-80gb-nvswitch")
GPT_2 = {
    name: str(value)
    for name, value in {
        "layers": 12,
        "hidden": 768,
        "heads": 12,
        "vocabulary": 50_257,
        "sequence": 1024,
        "micro_batch": 8,
        "data": 8,
        "attention": "scores",
    }.items()
}
LLAMA = {
    "layers": "4",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "4",
    "ffn": "5632",
    "mlp": "swiglu",
    "vocabulary": "32000",
    "sequence": "1024",
    "attention": "math",
}


def read(**change: str) -> Parameters:
    return Parameters(GPT_2 | change)


def test_the_units_of_training():
    run = SimulatedRun(2.0, tokens=4096, flops=8e12, memory_bytes=2.0**31, gpus=4)
    assert run.in_unit("tokens/s") == 2048
    assert run.in_unit("tokens/s/gpu") == 512
    assert run.in_unit("TFLOP/s/gpu") == 1
    assert run.in_unit("GiB") == 2
    with pytest.raises(ValueError, match="no result in 'GiB'"):
        SimulatedRun(2.0).in_unit("GiB")


def test_a_row_without_more_is_a_gpt_2():
    p = read()
    model = gpt.transformer(p)
    assert model.parameters == planner.model("gpt-2-124m").parameters
    run = gpt.gpt_train(p, MACHINE)
    assert run.samples == 64
    assert run.tokens == 65_536
    assert run.flops == model.flops(64)
    assert run.gpus == 8
    assert p.unused() == []
    causal = gpt.gpt_train(read(counts="model-causal"), MACHINE)
    assert causal.flops == model.flops(64, causal=True) < run.flops


def test_a_gated_perceptron_comes_with_what_llama_has():
    model = gpt.transformer(Parameters(LLAMA))
    assert (model.norm, model.positions, model.bias, model.tied) == ("rms", "rotary", False, False)
    assert (model.key_heads, model.inner, model.dropout) == (4, 5632, 0.0)
    routed = gpt.transformer(Parameters(LLAMA | {"experts": "8", "experts_per_token": "1"}))
    assert routed.experts == planner.Experts(8, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"batch": "128", "micro_batch": "8"}, (8, 2)),
        ({"batch": "128", "accumulation": "4"}, (8, 4)),
        ({"micro_batch": "2", "accumulation": "3"}, (2, 3)),
    ],
)
def test_batches(change, expected):
    layout = gpt.chosen(read(**change), planner.model("gpt-2-124m"), MACHINE)
    assert (layout.micro_batch, layout.micro_batches) == expected


def test_settings_of_a_row():
    model = planner.model("gpt-2-124m")
    layout = gpt.chosen(
        read(
            sharding="hsdp", shard_group="4", precision="bf16-pure", recompute="selective_layer",
            compiled="true", attention="flash3", loss="chunked",
        ),
        *(model, MACHINE),
    )  # fmt: skip
    assert (layout.zero, layout.sharing, layout.recompute) == (3, 4, "alternate")
    assert (layout.optimizer, layout.gradient_bytes, layout.compiled) == ("adam-bf16", 2, True)
    assert (layout.attention, layout.loss_chunks) == ("fused", 8)
    piped = read(data="2", pipeline="4", sharding="zero3", schedule="interleaved_1f1b")
    staged = gpt.chosen(piped, model, MACHINE)
    assert (staged.zero, staged.chunks) == (1, 2)
    split = gpt.chosen(read(data="2", tensor="4"), model, MACHINE)
    assert split.sequence_parallel


def test_what_is_not_stated_is_planned():
    p = read(data="unstated", tensor="unstated", micro_batch="unstated", batch="64")
    layout = gpt.chosen(p, gpt.transformer(p), MACHINE)
    assert layout.samples == 64
    assert layout.mesh.size == 8
    assert p.unused() == []
    least = gpt.chosen(read(recompute="unstated"), planner.model("gpt-2-124m"), MACHINE)
    assert least.recompute == "none"


def test_a_compiled_program_is_faster_than_the_eager_one():
    run = gpt.gpt_train(Parameters(LLAMA | {"micro_batch": "8", "compiled": "true",
                                            "baseline": "eager"}), MACHINE)  # fmt: skip
    assert 1 < run.in_unit("speedup") < 2


def test_memory_is_less_the_more_replicas_share():
    need = [
        gpt.memory(read(sharding=sharding), MACHINE).in_unit("GiB")
        for sharding in ("none", "zero1", "zero3")
    ]
    assert need == sorted(need, reverse=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sharding": "zero4"}, "sharding must be none or zero1"),
        ({"attention": "linear"}, "attention must be fused or flash"),
        ({"micro_batch": "x"}, "micro_batch must be a number, not 'x'"),
        ({"heads": "7"}, "7 heads do not divide"),
        ({"data": "9"}, "takes 9 GPUs"),
        ({"precision": "fp8"}, "A100-SXM4-80GB has no rate for fp8"),
    ],
)
def test_wrong_rows_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        gpt.gpt_train(read(**change), MACHINE)


def test_zero_3_of_megatrons_paper_gathers_by_tensors():
    values = {
        "data": "8",
        "pipeline": "1",
        "tensor": "1",
        "layers": "24",
        "hidden": "2304",
        "heads": "24",
        "sequence": "2048",
        "batch": "8",
        "zero": "3",
        "micro_batch": "1",
    }
    _, (layout,) = transformers.model_and_layouts(Parameters(values))
    assert layout.gathers == "tensors"
    _, (fsdp,) = transformers.model_and_layouts(Parameters(values | {"gathers": "layers"}))
    assert fsdp.gathers == "layers"
