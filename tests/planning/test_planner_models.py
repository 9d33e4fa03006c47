"""Newer transformers in the planner: published sizes, their program, exchanges, memory."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from d2lpar import machines, planner
from d2lpar.machines.collective_cost import all_gather_s, all_to_all_s, reduce_scatter_s
from d2lpar.machines.variability import slowest_of
from d2lpar.parallelism.planner import Experts, Layout, Mesh, Transformer, Wiring
from d2lpar.parallelism.planner.costs import layers
from d2lpar.parallelism.planner.costs.fp8 import LINEAR
from d2lpar.parallelism.planner.costs.memory_model import kept_bytes
from d2lpar.parallelism.planner.costs.modules import Head, Layer
from d2lpar.parallelism.planner.costs.replicas import list_exchange_s
from d2lpar.parallelism.planner.costs.share import share_of
from d2lpar.parallelism.planner.optimizers import recipe
from d2lpar.parallelism.planner.precision import PRECISIONS, product_rate
from d2lpar.vgpu.api import simulation
from d2lpar.vgpu.sim.pricing.kernel_cost import traffic

A100 = machines.machine("8x-a100-80gb-nvswitch")
H100 = machines.machine("8x-h100-nvswitch")
SELENE = "{}x8x-a100-80gb-nvswitch-8xib-hdr"
# Numbers of parameters as the released weights have them (their model cards count the tensors).
RELEASED = {
    "gpt-2-124m": 124_439_808,
    "gpt-2-1.5b": 1_557_611_200,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}
GPT = Transformer("small GPT", 4, 2048, 16, 1024, 25_600)
LLAMA = Transformer(
    *("small llama", 4, 2048, 16, 1024, 25_600, 0.0),
    kv_heads=4,
    ffn=5632,
    gated=True,
    tied=False,
    norm="rms",
    positions="rotary",
    bias=False,
)
ROUTED = dataclasses.replace(LLAMA, norm="layer", positions="none", experts=Experts(8))


def scaled(**change) -> Layout:
    return Layout(**({"mesh": Mesh(), "micro_batch": 2, "precision": "bf16"} | change))


@pytest.mark.parametrize("name", RELEASED)
def test_models_have_the_parameters_that_were_released(name):
    assert planner.model(name).parameters == RELEASED[name]


def test_experts_count_for_flops_only_where_they_are_chosen():
    # Jiang et al. 2024: 47 billion parameters, of which a token uses 13 billion.
    mixtral = planner.model("mixtral-8x7b")
    tokens = mixtral.sequence
    attention = 12 * tokens * mixtral.hidden * mixtral.layers
    used = (mixtral.flops(1) / tokens - attention) / 6 + mixtral.word_parameters()
    assert round(used / 1e9) == 13


@pytest.mark.parametrize("model", [GPT, LLAMA, ROUTED], ids=["gpt", "llama", "experts"])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_parameters_and_flops_are_those_of_the_program(model, tensor):
    share = share_of(model, scaled(mesh=Mesh(tensor=tensor)))
    with torch.device("meta"):
        layer, head = Layer(share), Head(share)
        x = torch.empty(2, 1024, 2048, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            layer(x).sum().backward()
            head(x).backward()
    assert sum(p.numel() for p in layer.parameters()) == model.layer_parameters(tensor)
    assert head.words.weight.numel() == model.word_parameters(tensor)
    one = dataclasses.replace(model, layers=1)
    router = 6 * 2 * 1024 * 2048 * 8 * (tensor - 1) if model.experts else 0  # each rank has it
    assert counter.get_total_flops() * tensor == pytest.approx(one.flops(2) + router, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_heads": 3}, "3 heads of keys do not divide 16 heads"),
        ({"ffn": 0}, "whole numbers from 1 on, not {'ffn': 0}"),
        ({"kv_heads": 2.0}, "whole numbers from 1 on, not {'kv_heads': 2.0}"),
        ({"gated": None, "bias": 0}, "True or False, not {'gated': None, 'bias': 0}"),
        ({"experts": 8}, r"experts are par.planner.Experts\(count, top_k\) or None, not 8"),
        ({"norm": "batch"}, "norm is one of layer, rms, not 'batch'"),
        ({"positions": "sine"}, "positions is one of learned, rotary, none, not 'sine'"),
    ],
)
def test_wrong_models_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(LLAMA, **change)


def test_wrong_experts_are_refused():
    with pytest.raises(ValueError, match="experts are two or more, not 1"):
        Experts(1)
    with pytest.raises(ValueError, match="top_k is a number from 1 to 4 experts, not 5"):
        Experts(4, 5)
    with pytest.raises(ValueError, match="expert 3 does not divide the 8 experts"):
        planner.step(ROUTED, scaled(mesh=Mesh(3), expert=3), A100)
    with pytest.raises(ValueError, match="expert 3 does not divide the 8 replicas"):
        scaled(mesh=Mesh(8), expert=3)
    with pytest.raises(ValueError, match="shard 3 does not divide the 8 replicas"):
        scaled(mesh=Mesh(8), zero=3, shard=3)


# --- memory ---------------------------------------------------------------------------------------

CASES = {
    "experts": (ROUTED, scaled()),
    "gated, split": (ROUTED, scaled(mesh=Mesh(tensor=4))),
    "compiled": (LLAMA, scaled(compiled=True)),
    "autocast": (LLAMA, scaled(precision="bf16-autocast")),
    "autocast, compiled": (LLAMA, scaled(precision="bf16-autocast", compiled=True)),
    "autocast, layer norms": (
        dataclasses.replace(GPT, tied=False),
        scaled(precision="fp16-autocast"),
    ),
    "autocast, experts": (ROUTED, scaled(precision="bf16-autocast")),
    "autocast, again": (LLAMA, scaled(precision="bf16-autocast", recompute="full")),
    "fp32": (dataclasses.replace(LLAMA, norm="layer"), scaled(precision="fp32")),
    "rms": (LLAMA, scaled()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_net_peaks_where_the_formula_says(case):
    model, layout = CASES[case]
    share, precision = share_of(model, layout), PRECISIONS[layout.precision]
    gpu = layers.GpuAndHost.of(A100.accelerators[0], A100.host)
    with simulation.simulate(gpu.machine) as (device,):
        parts = [Layer] * model.layers + [Head]
        net = [layers.on_gpu(device, partial(part, share), share) for part in parts]
        x = layers._input(device, share)
        for parameter in itertools.chain(*(part.parameters() for part in net)):
            parameter.grad = torch.empty_like(parameter)
        torch.vgpu.reset_peak_memory_stats(device)
        with precision.forward_context():
            for part in net:
                again = layout.recompute == "full" and part is not net[-1]
                x = checkpoint(part, x, use_reentrant=False) if again else part(x)
        x.backward()
        peak = torch.vgpu.max_memory_allocated(device)
    expected = planner.memory(model, layout)
    # Only one of the two embeddings was built.
    words = 2 * layout.number_bytes * model.word_parameters(layout.mesh.tensor)
    assert peak == pytest.approx(expected.total_bytes - expected.optimizer_bytes - words, rel=0.03)


def test_what_is_kept_is_less_the_more_is_computed_again():
    kept = [
        kept_bytes(LLAMA, scaled(attention="fused", recompute=again))
        for again in ("none", "alternate", "selective", "full")
    ]
    assert kept[3] < kept[2] < kept[0]
    assert kept[1] == (kept[0] + kept[3]) / 2
    assert kept[3] == 2 * 2 * 1024 * 2048  # the input of the layer


def test_optimizers_keep_what_their_papers_say():
    # Rajbhandari et al. 2020.
    assert recipe("adam", 2).state_bytes == 12
    assert recipe("adam", 4).state_bytes == 8
    assert recipe("adam", 2).moved_bytes == 30
    with pytest.raises(ValueError, match="optimizer is one of adam, sgd, none for"):
        recipe("adam-bf16", 4)


def test_gradients_and_activations_meet_only_if_gradients_are_accumulated():
    once, twice = scaled(), scaled(micro_batches=2)
    need = planner.memory(LLAMA, once)
    assert planner.memory(LLAMA, twice, at_once=True) == planner.memory(LLAMA, twice)
    assert planner.memory(LLAMA, twice).total_bytes == need.total_bytes
    # Activations and the scores of words are more than all gradients.
    at_once = planner.memory(LLAMA, once, at_once=True)
    assert at_once.total_bytes == need.total_bytes - need.gradients_bytes


# --- time -----------------------------------------------------------------------------------------


def test_a_compiled_program_is_faster_and_precision_is_paid_for():
    times = [
        planner.step(LLAMA, scaled(micro_batch=8, precision=precision), A100).compute_s
        for precision in ("fp32", "tf32", "bf16-autocast", "bf16")
    ]
    assert times == sorted(times, reverse=True)
    compiled = planner.step(LLAMA, scaled(micro_batch=8, compiled=True), A100).compute_s
    assert compiled < times[-1]


def test_gradients_of_parameters_in_fp32_are_summed_in_fp32():
    layout = scaled(mesh=Mesh(data=8), overlap=False, gradient_bytes=2)
    sums = {
        precision: planner.step(LLAMA, dataclasses.replace(layout, precision=precision), A100)
        for precision in ("bf16", "bf16-autocast", "fp32")
    }
    in_fp32 = planner.step(LLAMA, dataclasses.replace(layout, gradient_bytes=4), A100)
    assert sums["bf16"].gradients_s < in_fp32.gradients_s
    assert sums["bf16-autocast"].gradients_s == sums["fp32"].gradients_s == in_fp32.gradients_s


def test_sequences_that_are_split_are_copied_where_samples_come_first():
    split = scaled(mesh=Mesh(tensor=4), sequence_parallel=True)
    first = dataclasses.replace(split, batch_first=True)
    tokens, samples = (planner.step(LLAMA, layout, A100) for layout in (split, first))
    nbytes = 2 * 1024 * 2048 * 2
    once_s = traffic(2 * nbytes).seconds(A100.accelerators[0])
    halves = 2 * 2 * 2 * LLAMA.layers  # of two sums a layer, in two passes
    assert samples.tensor_s == pytest.approx(tokens.tensor_s + halves * once_s)
    fused = dataclasses.replace(split, attention="fused", recompute="selective")
    again = planner.step(LLAMA, fused, A100)
    assert again.tensor_s == pytest.approx(1.25 * tokens.tensor_s)


def test_fsdp_copies_what_it_exchanges():
    alone = planner.step(LLAMA, scaled(), A100).compute_s
    shared = planner.step(LLAMA, scaled(mesh=Mesh(8), zero=3), A100).compute_s
    words = 2 * LLAMA.word_parameters()
    nbytes = (4 * LLAMA.layer_parameters() + words) * (2 * 4 + 2 + 2)
    copied_s = traffic(nbytes).seconds(A100.accelerators[0])
    assert shared == pytest.approx(slowest_of(8) * alone + copied_s)


def test_fp8_takes_a_card_that_has_it():
    with pytest.raises(ValueError, match="A100-SXM4-80GB has no rate for fp8: take precision='bf1"):
        planner.step(LLAMA, scaled(precision="fp8"), A100)
    card = H100.accelerators[0]
    rates = card.flops_per_s | {"float8": 2 * card.rate("bfloat16")}
    card = dataclasses.replace(card, flops_per_s=rates)
    machine = dataclasses.replace(H100, accelerators=(card,))
    assert product_rate(card, "fp8") == pytest.approx(2 * product_rate(card, "bf16"), rel=1e-3)
    wide = dataclasses.replace(LLAMA, hidden=8192, heads=64, ffn=28_672, layers=1)
    slow, fast = (
        planner.step(wide, scaled(micro_batch=8, precision=precision), machine).compute_s
        for precision in ("bf16", "fp8")
    )
    # Products take most of such a layer; attention, norms and the head stay as they were.
    assert 0.5 * slow < fast < 0.85 * slow


@pytest.mark.parametrize(("precision", "casts", "readings"), [("fp8", 6, 3), ("fp8-delayed", 2, 0)])
def test_delayed_scaling_casts_each_matrix_once_and_reads_none_for_its_largest(
    precision, casts, readings
):
    with simulation.simulate(H100) as devices, torch.device(devices[0]):
        linear = LINEAR[precision](512, 1024, bias=False, dtype=torch.bfloat16)
        x = torch.empty(2, 256, 512, dtype=torch.bfloat16, requires_grad=True)
        dy = torch.empty(2, 256, 1024, dtype=torch.bfloat16)
        with simulation.record() as timeline:
            torch.autograd.grad(linear(x), (x, linear.weight), dy)
            torch.vgpu.synchronize()
    kernels = [span for span in timeline if span.kind == "compute"]
    assert sum(span.flops > 0 for span in kernels) == 3
    assert sum(span.name == "amax" for span in kernels) == readings
    copies = [span for span in kernels if "copy" in span.name and span.bytes > 100]
    assert len(copies) == casts
    if precision == "fp8-delayed":  # 16 bits read, 8 written twice
        assert [span.bytes for span in copies] == [4 * x.numel(), 4 * dy.numel()]


def test_what_tensor_ranks_gather_in_fp8_is_half_as_long():
    tokens = 2 * 1024 * LLAMA.hidden
    fabric = Wiring.of(H100).fabric(Mesh(tensor=2), "tensor")
    times = []
    for precision, gathered in (("bf16", 2 * tokens), ("fp8", tokens)):
        layout = scaled(mesh=Mesh(tensor=2), sequence_parallel=True, precision=precision)
        once_s = reduce_scatter_s(2 * tokens, fabric) + all_gather_s(gathered, fabric)
        times.append(planner.step(LLAMA, layout, H100).tensor_s)
        assert times[-1] == pytest.approx(2 * 2 * LLAMA.layers * once_s)
    assert times[1] < times[0]


def test_sums_beside_products_take_what_products_do_not_hide():
    wide = dataclasses.replace(LLAMA, hidden=8192, heads=64, ffn=28_672, sequence=8192)
    layout = scaled(mesh=Mesh(tensor=8), sequence_parallel=True)
    beside = dataclasses.replace(layout, tensor_overlap=True)
    plain, hidden = (planner.step(wide, one, H100) for one in (layout, beside))
    assert hidden.compute_s == plain.compute_s
    half_a_piece = plain.tensor_s / 8 / 2  # of eight, which nothing can hide
    assert half_a_piece < hidden.tensor_s < plain.tensor_s / 2
    slow = dataclasses.replace(H100.peer, bytes_per_s=H100.peer.bytes_per_s / 50)
    plain, hidden = (planner.step(wide, one, H100.with_peer(slow)) for one in (layout, beside))
    assert plain.tensor_s - plain.compute_s < hidden.tensor_s < plain.tensor_s
    alone = planner.step(wide, scaled(tensor_overlap=True), H100)
    assert alone == planner.step(wide, scaled(), H100)


def test_a_context_halves_the_work_and_brings_keys_and_values():
    long = dataclasses.replace(LLAMA, sequence=16_384)
    one = planner.step(long, scaled(micro_batch=1), A100)
    two = planner.step(long, scaled(micro_batch=1, mesh=Mesh(context=2)), A100)
    assert two.compute_s == pytest.approx(one.compute_s / 2, rel=0.1)  # the L2 cache holds more
    fabric = Wiring.of(A100).fabric(Mesh(context=2), "context")
    brought = 2 * 4 * 128 * 16_384 * 2  # keys and values of 4 heads of 128, 2 bytes each
    assert two.context_s == pytest.approx(3 * 4 * all_gather_s(brought, fabric))
    assert one.context_s == 0


def test_the_grid_with_a_context():
    mesh = Mesh(data=2, pipeline=2, tensor=2, context=2)
    assert mesh.size == 16
    assert mesh.grid().shape == (2, 2, 2, 2)
    assert mesh.groups("context")[:2] == [[0, 2], [1, 3]]
    assert mesh.groups("pipeline")[0] == [0, 4]
    assert mesh.groups("data")[0] == [0, 8]
    assert str(mesh) == "data 2 × pipeline 2 × context 2 × tensor 2"


def test_experts_that_are_spread_are_sent_their_tokens():
    alone = planner.step(ROUTED, scaled(mesh=Mesh(8)), A100)
    spread = planner.step(ROUTED, scaled(mesh=Mesh(8), expert=8), A100)
    assert alone.experts_s == 0
    fabric = Wiring.of(A100).replicas(Mesh(8), 8)
    sent = 2 * 1024 * 2 * 2048 * 2  # tokens, each to two experts, numbers of two bytes
    assert spread.experts_s == pytest.approx(4 * 4 * all_to_all_s(sent, fabric))
    assert spread.compute_s == pytest.approx(alone.compute_s, rel=0.1)  # as many rows, other shapes
    held = [planner.memory(ROUTED, scaled(mesh=Mesh(8), expert=n)) for n in (1, 8)]
    gone = 4 * ROUTED.expert_parameters() * 7 / 8
    assert held[0].parameters_bytes - held[1].parameters_bytes == pytest.approx(2 * gone)


def test_gradients_that_are_accumulated_hide_behind_the_last_micro_batch_only():
    machine = machines.machine("4x8x-a100-80gb-nvswitch-10gbe")
    model = planner.model("megatron-1.7b")
    one, four = (
        planner.step(model, Layout(Mesh(32), micro_batches=count), machine) for count in (1, 4)
    )
    assert one.gradients_s > 0
    assert four.gradients_s == one.gradients_s
    sharded = planner.step(model, Layout(Mesh(32), micro_batches=4, zero=3), machine)
    assert sharded.gradients_s > 2 * four.gradients_s  # after each micro-batch


# --- replicas that share --------------------------------------------------------------------------


def test_hsdp_gathers_within_a_node_and_sums_between_nodes():
    model, machine = planner.model("llama-2-7b"), machines.machine("8x8x-h100-nvswitch-ib-ndr")
    layout = scaled(mesh=Mesh(64), zero=3, attention="scores", overlap=False)
    whole = planner.step(model, layout, machine)
    same = planner.step(model, dataclasses.replace(layout, shard=64), machine)
    groups = planner.step(model, dataclasses.replace(layout, shard=8), machine)
    assert whole == same
    assert groups.parameters_s < 0.3 * whole.parameters_s  # NVLink in place of one port
    single = planner.step(model, dataclasses.replace(layout, shard=1), machine)
    plain = planner.step(model, dataclasses.replace(layout, zero=0), machine)
    assert (single.gradients_s, single.parameters_s) == (plain.gradients_s, 0.0)
    held = [
        planner.memory(model, dataclasses.replace(layout, shard=n)).optimizer_bytes for n in (8, 64)
    ]
    assert held[0] == 8 * held[1]


def test_a_gather_into_a_list_costs_a_copy_a_rank():
    fabric = Wiring.of(machines.machine(SELENE.format(192))).replicas(Mesh(1536), 1536)
    host = A100.host
    ring_s = all_gather_s(10**9, fabric)
    found = list_exchange_s(10**9, fabric, host, 3e-6)
    queueing_s = 1536 * (host.dispatch_s + host.view_s)
    assert found == pytest.approx(max(ring_s, queueing_s) + 1536 * (host.view_s + 3e-6))


def test_zero_3_of_2021_loses_with_ranks_what_was_published():
    # Narayanan et al. 2021, table 2: 144 TFLOP/s on 384 GPUs, 88 on 768 and 44 on 1,536.
    model = planner.model("gpt-3-175b")
    found = {}
    for gpus, size in ((384, 4), (768, 2), (1536, 1)):
        layout = Layout(
            Mesh(gpus), size, recompute="full", zero=3, gathers="tensors", attention="scores"
        )
        step_s = planner.step(model, layout, machines.machine(SELENE.format(gpus // 8))).step_s
        found[gpus] = model.flops(1536, recompute=True) / gpus / step_s / 1e12
    assert found[384] / found[768] == pytest.approx(144 / 88, rel=0.2)
    assert found[768] / found[1536] == pytest.approx(88 / 44, rel=0.2)
    ahead = dataclasses.replace(layout, gathers="layers")
    hidden = planner.step(model, ahead, machines.machine(SELENE.format(192)))
    assert hidden.parameters_s < 0.5 * hidden.compute_s  # FSDP's way would have hidden most


# --- ties -----------------------------------------------------------------------------------------


def test_plans_within_the_uncertainty_are_ties():
    found = planner.plans("megatron-1.7b", "8x-a100-80gb-nvswitch", batch=64)
    first = found[0]
    share = planner.relative_uncertainty(A100.accelerators[0])
    assert first.uncertainty == share > 0.05
    tied = planner.ties(found)
    assert tied[0] is first
    assert all(plan.fits and plan.step_s <= (1 + share) * first.step_s for plan in tied)
    assert all(plan in tied for plan in found if plan.fits and plan.step_s < first.step_s * 1.01)
    text = planner.explain(found)
    assert f"(± {share:.0%})" in text.splitlines()[0]
    assert f"between the first and {len(tied) - 1} of the others: call them ties" in text
    assert str(tied[1].mesh) in text
    assert planner.ties([plan for plan in found if not plan.fits] or found[:1])[1:] == []


def test_throughput_and_utilisation():
    plan = planner.plans("llama-2-7b", "8x-h200-nvswitch", batch=64, precision="bf16", zero=None)[0]
    tokens = plan.samples_per_s * 4096
    assert plan.tokens_per_s == tokens
    assert plan.tokens_per_s_per_gpu == tokens / 8
    peak = machines.machine("8x-h200-nvswitch").accelerators[0].rate("bfloat16")
    assert plan.model_flops_utilisation == plan.flops_per_s / peak < 1
