"""Inference: what is extrapolated is what all layers take; memory, bounds, and degrees."""

import pytest
import torch

import d2lpar as par
from d2lpar import machines
from d2lpar.parallelism.model_plan import decoding, inference
from d2lpar.parallelism.model_plan.naming import config_of, transformer_of
from d2lpar.parallelism.planner import Experts
from d2lpar.parallelism.planner.costs.layers import GpuAndHost
from d2lpar.parallelism.planner.costs.share import Share
from d2lpar.validation import groups, recording

H100 = machines.machine("1x-h100-nvswitch")
GPU = GpuAndHost.of(H100.accelerators[0], H100.host)


def share_of(name, tokens, texts, **changes):
    model = transformer_of(config_of(name), tokens)
    return Share(model, texts, attention="fused", precision="bf16", **changes)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "gpt2"])
def test_few_layers_tell_what_all_take(name, graph):
    share = share_of(name, 256, 4, compiled=graph)
    layers = share.model.layers
    few = decoding.writing(GPU, share, layers, 300, graph=graph)
    one = decoding.Share(
        transformer_of(config_of(name), 1), 4, attention="fused", precision="bf16", compiled=graph
    )
    all_of_them = decoding._simulated(
        *(GPU, one, layers, lambda: decoding.WritingLayer(one, 300)), writes=True, graph=graph
    )
    assert few.seconds == pytest.approx(all_of_them.seconds, rel=0.01)
    # A block may be larger than its tensor, by up to 1 MiB.
    assert few.working_bytes == pytest.approx(all_of_them.working_bytes, rel=0.01, abs=2**20)


def test_prompts_too():
    share = share_of("gpt2", 512, 4)
    few = decoding.reading(GPU, share, 12, writes=True, graph=False)
    everything = decoding._simulated(
        *(GPU, share, 12, lambda: decoding.Layer(share)), writes=True, graph=False
    )
    assert few.seconds == pytest.approx(everything.seconds, rel=0.01)


def test_memory_is_that_of_the_weights_and_of_all_keys_and_values():
    plan = par.plan_model("llama-3.1-8b", H100, batch=16, inference=True, sequence=1000, new=24)
    assert plan.memory["weights"] == pytest.approx(2 * plan.parameters, rel=1e-4)
    # 2 numbers of 2 bytes, for 32 layers, 8 heads of 128, 16 texts of 1024 tokens.
    assert plan.memory["KV cache"] == 2 * 2 * 32 * 8 * 128 * 16 * 1024
    assert plan.fits
    with torch.device("meta"):
        share = share_of("llama-3.1-8b", 1, 16)
        layer = decoding.WritingLayer(share, 1023)
    cache = sum(buffer.numel() for buffer in layer.buffers()) * 2 * 32
    assert plan.memory["KV cache"] == cache


def test_a_token_takes_no_less_than_reading_the_weights():
    plan = par.plan_model("llama-3.1-8b", H100, batch=1, inference=True, sequence=128)
    least_s = 2 * 7.5e9 / H100.accelerators[0].memory_bytes_per_s  # without the words' embedding
    assert least_s < plan.serving.token_s < 2 * least_s
    assert "memory" in plan.bound
    eager = par.plan_model("llama-3.1-8b", H100, batch=1, inference=True, sequence=128, eager=True)
    assert eager.serving.token_s > 1.5 * plan.serving.token_s
    assert "host" in eager.bound


def test_a_published_rate_of_decoding():
    """PyTorch, Accelerating Generative AI with PyTorch II (2023): 104.9 tokens a second of Llama 2
    7B in bf16 on one A100 with 80 GB, compiled. Nothing was fitted to it."""
    plan = par.plan_model(
        "llama-2-7b", "1x-a100-80gb-nvswitch", batch=1, inference=True, sequence=5, new=200
    )
    assert 1 / plan.serving.token_s == pytest.approx(104.9, rel=inference.UNCERTAINTY)


def test_the_error_that_is_said_is_that_of_its_group():
    errors = sorted(
        abs(p.predicted / p.row.published - 1)
        for p in recording.recorded().predictions
        if p.group == groups.INFERENCE
    )
    assert errors[len(errors) // 2] == pytest.approx(inference.UNCERTAINTY, abs=0.015)


def test_experts_that_nobody_chooses_are_not_read():
    assert decoding.met_experts(Experts(8, top_k=2), 1) == 2
    assert decoding.met_experts(Experts(8, top_k=2), 64) == 8
    one = par.plan_model("mixtral-8x7b-v0.1", "2x-h100-nvswitch", batch=1, inference=True)
    many = par.plan_model("mixtral-8x7b-v0.1", "2x-h100-nvswitch", batch=16, inference=True)
    assert many.serving.token_s > 2 * one.serving.token_s


def test_encoders_read_and_write_nothing():
    plan = par.plan_model("bert-base-uncased", "1x-a10", batch=32, inference=True)
    assert plan.memory["KV cache"] == 0
    assert plan.serving.token_s == 0
    assert plan.units_per_s == pytest.approx(32 * 512 / plan.step_s)


def test_tensor_ranks_make_room_and_replicas_share_texts():
    big = par.plan_model("llama-3.1-70b", "4x-h100-nvswitch", batch=4, inference=True)
    assert big.serving.tensor > 1
    assert big.fits
    pinned = par.plan_model("llama-3.1-70b", "4x-h100-nvswitch", batch=4, inference=True, tensor=1)
    assert not pinned.fits
    assert any("without --tensor" in remedy for remedy in pinned.remedies)
    alone = par.plan_model("llama-3.1-70b", H100, batch=8, inference=True)
    machine = next(r for r in alone.remedies if r.startswith("--machine")).split()[1].rstrip(":")
    assert machines.machine(machine).accelerators[0] == H100.accelerators[0]
    assert par.plan_model("llama-3.1-70b", machine, batch=8, inference=True).fits
    with pytest.raises(ValueError, match="multiple of 4"):
        par.plan_model("llama-3.1-70b", "4x-h100-nvswitch", batch=3, inference=True, data=4)


def test_what_does_not_fit_says_what_would():
    plan = par.plan_model("llama-3.1-8b", H100, batch=1024, inference=True, sequence=4096)
    assert not plan.fits
    smaller = next(remedy for remedy in plan.remedies if remedy.startswith("--batch"))
    batch = int(smaller.split()[1].rstrip(":"))
    fits = [
        par.plan_model("llama-3.1-8b", H100, batch=n, inference=True, sequence=4096).fits
        for n in (batch, 2 * batch)
    ]
    assert fits == [True, False]


@pytest.mark.parametrize("size", [{"batch": 10**9}, {"new": 10**12}])
def test_what_nobody_has_room_for_is_planned_and_not_timed(size):
    asked = {"batch": 1, "inference": True, **size}
    assert not par.plan_model("llama-3.1-8b", H100, **asked).fits
    with pytest.raises(ValueError, match="more than any GPU holds"):
        par.plan_model("llama-3.1-8b", H100, batch=1, inference=True, sequence=10**9)


def test_what_inference_is_not_planned_with_is_refused():
    with pytest.raises(ValueError, match="fp8"):
        par.plan_model("gpt2", H100, batch=1, inference=True, precision="fp8")
    with pytest.raises(ValueError, match="pipeline 2"):
        par.plan_model("gpt2", H100, batch=1, inference=True, pipeline=2)
    with pytest.raises(ValueError, match=r"1,024 positions.*1,156.*--sequence 768"):
        par.plan_model("gpt2", H100, batch=1, inference=True, sequence=900)
