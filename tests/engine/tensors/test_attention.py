"""Attention on virtual GPUs: the kernel that CUDA would choose, its values, cost and memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import d2lpar as par
from d2lpar import machines
from d2lpar.machines import ACCELERATORS
from d2lpar.machines.compute_capability import compute_capability
from d2lpar.vgpu.api import timing
from d2lpar.vgpu.sim.pricing.attention_cost import (
    CUDNN,
    EFFICIENT,
    FLASH,
    Attention,
    AttentionCost,
    seconds,
)
from d2lpar.vgpu.sim.pricing.kernel_cost import traffic
from d2lpar.vgpu.torch_backend.attention import choice as choice

V100, A100 = ACCELERATORS["V100-SXM2-16GB"], ACCELERATORS["A100-SXM4-80GB"]
H100 = ACCELERATORS["H100-SXM5-80GB"]
MACHINES = {"V100": "8x-v100-dgx1", "A100": "1x-a100-80gb-nvswitch", "H100": "8x-h100-dgx"}
HALF, BRAIN, FULL, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def one(accelerator, *, with_values=False):
    """A machine of one such accelerator, in use."""
    host = machines.machine("2x-v100-textbook")
    machine = replace(host, name="one", accelerators=(accelerator,), peer=None)
    return par.simulate(machine, 1, with_values=with_values)


def three(device, *shape, dtype=HALF, keys=None, **options):
    """Queries, and keys and values of their own shape or that of `keys`."""
    shapes = (shape, keys or shape, keys or shape)
    return [torch.randn(s, dtype=FULL).to(device, dtype, **options) for s in shapes]


def fused_in(timeline):
    return [span.name for span in timeline.spans if "attention" in span.name and span.flops]


# --- which kernel ---------------------------------------------------------------------------------

CHOICES = [
    (V100, HALF, {}, "EFFICIENT"),
    (V100, FULL, {}, "EFFICIENT"),
    (V100, BRAIN, {}, "MATH"),
    (V100, FULL, {"size": 50}, "EFFICIENT"),
    (V100, HALF, {"size": 50}, "MATH"),
    (A100, HALF, {}, "FLASH"),
    (A100, BRAIN, {"causal": True}, "FLASH"),
    (A100, HALF, {"size": 50}, "FLASH"),
    (A100, HALF, {"size": 256}, "FLASH"),
    (A100, HALF, {"size": 264}, "EFFICIENT"),
    (A100, HALF, {"dropout": 0.1}, "FLASH"),
    (A100, HALF, {"mask": (1, 1, 128, 128)}, "EFFICIENT"),
    (A100, HALF, {"causal": True, "keys": 64}, "EFFICIENT"),
    (A100, HALF, {"key_heads": 2}, "MATH"),
    (A100, HALF, {"key_heads": 2, "grouped": True}, "FLASH"),
    (A100, HALF, {"key_heads": 3, "grouped": True}, "MATH"),
    (A100, HALF, {"key_heads": 1}, "FLASH"),
    (A100, FULL, {}, "EFFICIENT"),
    (A100, FULL, {"size": 50}, "MATH"),
    (A100, DOUBLE, {}, "MATH"),
    (A100, HALF, {"value_size": 32}, "EFFICIENT"),
    (A100, HALF, {"last_stride": 2}, "MATH"),
    (A100, HALF, {"offset": 3, "mask": (128, 128)}, "MATH"),
    (A100, HALF, {"keys": 0}, "MATH"),
    (A100, HALF, {"dimensions": 3}, "MATH"),
    (H100, HALF, {}, "CUDNN"),
    (H100, HALF, {"size": 256}, "FLASH"),
    (H100, HALF, {"dropout": 0.1}, "FLASH"),
    (H100, HALF, {"dropout": 0.125}, "CUDNN"),
    (H100, HALF, {"mask": (1, 1, 128, 128)}, "CUDNN"),
    (H100, HALF, {"mask": (128, 128), "mask_learns": True}, "EFFICIENT"),
    (H100, FULL, {}, "EFFICIENT"),
    (ACCELERATORS["GeForce RTX 4090"], HALF, {"size": 208, "learns": True}, "EFFICIENT"),
    (ACCELERATORS["GeForce RTX 4090"], HALF, {"size": 208}, "FLASH"),
    (ACCELERATORS["Tesla K80, one of its two GPUs"], FULL, {}, "MATH"),
    (ACCELERATORS["P100-SXM2-16GB"], HALF, {}, "EFFICIENT"),
]


def call(accelerator, dtype, options):
    """What the rules ask of a call with 4 heads of 64 and 128 queries, but for `options`."""
    o = SimpleNamespace(**{"size": 64, "keys": 128, "key_heads": 4, **options})
    get = lambda name, default=None: getattr(o, name, default)  # noqa: E731
    shapes = [(2, 4, 128, o.size), (2, o.key_heads, o.keys, o.size)]
    shapes.append((2, o.key_heads, o.keys, get("value_size", o.size)))
    mask = get("mask")
    return choice.Inputs(
        shapes=tuple(torch.Size(shape[-get("dimensions", 4) :]) for shape in shapes),
        last_strides=(get("last_stride", 1), 1, 1),
        offsets=(get("offset", 0), 0, 0),
        dtypes=(dtype,) * 3,
        mask=None if mask is None else torch.Size(mask),
        mask_stride=1,
        mask_learns=get("mask_learns", False),
        dropout=get("dropout", 0.0),
        causal=get("causal", False),
        grouped=get("grouped", False),
        learns=get("learns", False),
        capability=compute_capability(accelerator),
    )


@pytest.mark.parametrize(("accelerator", "dtype", "options", "expected"), CHOICES)
def test_the_kernel_is_that_of_cuda(accelerator, dtype, options, expected):
    found = choice.choose(call(accelerator, dtype, options))
    assert SDPBackend(found).name.removesuffix("_ATTENTION") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GeForce RTX 3090", (8, 6)),
        ("A100-PCIE-40GB", (8, 0)),
        *((name, (6, 1)) for name in ACCELERATORS if "1080" in name or "P40" in name),
        *((name, (10, 3)) for name in ACCELERATORS if "B300" in name),
        *((name, (3, 5)) for name in ACCELERATORS if "K40" in name),
    ],
)
def test_capabilities_are_nvidia_s(name, expected):
    assert compute_capability(ACCELERATORS[name]) == expected


def test_a_program_may_choose():
    plain = call(A100, HALF, {})
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert choice.choose(plain) == choice.EFFICIENT
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert choice.choose(plain) == choice.MATH
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION], set_priority=True):
        assert choice.choose(call(H100, HALF, {})) == choice.FLASH
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert choice.choose(plain) == choice.EFFICIENT
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert choice.choose(plain) == choice.FLASH


def test_cudnn_may_be_put_last(monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    choice._choose.cache_clear()
    assert choice.choose(call(H100, HALF, {})) == choice.FLASH
    monkeypatch.undo()
    choice._choose.cache_clear()
    assert choice.choose(call(H100, HALF, {})) == choice.CUDNN


def test_what_cannot_be_raises_torchs_error_with_the_reasons(gpus):
    q, k, v = three(gpus[0], 1, 2, 16, 8)  # on a V100
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError) as caught:
        F.scaled_dot_product_attention(q, k, v)
    text = str(caught.value)
    assert text.startswith("No available kernel. Aborting execution.")
    assert "flash: it needs compute capability 8.0 to 12.1, not 7.0" in text
    assert "memory-efficient: it has been disabled" in text
    with sdpa_kernel([]), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: (q, q.cpu(), q), "to have the same device type, but got query.device: vgpu:0 "),
        (lambda q: (q, q, q, q.float()[0, 0]), "invalid dtype for bias - should match query's"),
    ],
)
def test_bad_arguments_are_named(gpus, change, message):
    q = torch.ones(1, 2, 8, 8, dtype=HALF, device=gpus[0])
    with pytest.raises(RuntimeError, match=message):
        F.scaled_dot_product_attention(*change(q))


@pytest.mark.parametrize(
    "change",
    [
        lambda q: (q, q.float(), q),
        lambda q: (q, q[0, 0, 0], q),
        lambda q: (q, q, q, q.double()[0, 0]),
        lambda q: (q, q, q, q.long()[0, 0]),
    ],
)
def test_bad_arguments_are_refused_in_torchs_words(gpus, change):
    q = torch.ones(1, 2, 8, 8, dtype=HALF)
    with pytest.raises(RuntimeError) as on_host:
        F.scaled_dot_product_attention(*change(q))
    with pytest.raises(RuntimeError) as on_gpu:
        F.scaled_dot_product_attention(*change(q.to(gpus[0])))
    assert str(on_gpu.value).splitlines()[0] == str(on_host.value).splitlines()[0]


# --- values ---------------------------------------------------------------------------------------

B, H, S, D = 2, 4, 24, 16
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "mask": {"attn_mask": torch.linspace(-2, 2, S * S).view(S, S)},
    "boolean mask": {"attn_mask": torch.ones(B, 1, S, S, dtype=torch.bool).tril(3)},
    "row without keys": {"attn_mask": torch.ones(S, S, dtype=torch.bool).tril(-1)},
    "groups": {"enable_gqa": True, "keys": (B, 2, S, D)},
    "one key head": {"enable_gqa": True, "keys": (B, 1, S, D)},
    "other length": {"keys": (B, H, 10, D)},
    "head of 10": {"shape": (B, H, S, 10)},
}


def attended(device, case, dtype, kernel=None):
    """Result and gradients, on the CPU in fp64 if no kernel is given."""
    torch.manual_seed(0)
    options = dict(CASES[case])
    qkv = three("cpu", *options.pop("shape", (B, H, S, D)), keys=options.pop("keys", None))
    dtype = dtype if kernel else DOUBLE
    qkv = [t.to(device, dtype, copy=True).requires_grad_() for t in qkv]
    mask = options.pop("attn_mask", None)
    if mask is not None:
        mask = mask.to(device, mask.dtype if mask.dtype == torch.bool else dtype)
    with sdpa_kernel(kernel or SDPBackend.MATH):
        y = F.scaled_dot_product_attention(*qkv, mask, **options)
    y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).to(y))
    assert y.dtype == qkv[0].dtype
    assert {t.grad.dtype for t in qkv} == {y.dtype}
    return [t.detach().cpu().double() for t in (y, *(t.grad for t in qkv))]


@pytest.mark.parametrize(
    ("kernel", "case", "dtype"),
    [
        (kernel, case, dtype)
        for kernel, case, dtype in itertools.product(KERNELS, CASES, (HALF, BRAIN, FULL))
        if not (kernel != "efficient" and dtype == FULL)
        and not (kernel == "flash" and ("mask" in case or "row" in case))
        and not (kernel != "flash" and case == "head of 10")
    ],
)
def test_values_and_gradients_are_those_of_the_processor(kernel, case, dtype):
    with one(A100, with_values=True) as (device,):
        found = attended(device, case, dtype, KERNELS[kernel])
    expected = attended("cpu", case, dtype)
    close = {HALF: 4e-3, BRAIN: 3e-2, FULL: 1e-5}[dtype]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=close, atol=close)


def test_other_size_of_values_and_a_mask_that_learns():
    def program(device, kernel):
        torch.manual_seed(0)
        q, k = torch.randn(2, 1, 2, 5, 8).to(device).requires_grad_().unbind()
        v, mask = torch.randn(1, 2, 5, 4).to(device), torch.randn(5, 5).to(device)
        mask = mask.detach().requires_grad_()
        with sdpa_kernel(kernel):
            y = F.scaled_dot_product_attention(q, k, v, mask)
        y.square().sum().backward()
        return [y.detach().cpu(), mask.grad.cpu()]

    with one(A100, with_values=True) as (device,):
        found = program(device, SDPBackend.EFFICIENT_ATTENTION)
    for a, b in zip(found, program("cpu", SDPBackend.MATH), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("share", [1.5, -0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("kernel", [*KERNELS.values(), SDPBackend.MATH])
def test_dropout_is_a_share_in_the_words_of_torch(kernel, share):
    with one(H100) as (device,), sdpa_kernel(kernel):
        q = torch.ones(1, 2, 16, 64, dtype=HALF, device=device)
        words = r"dropout probability has to be between 0 and 1, but got|Expected p_dropout < 1\.f"
        choosable = share * 16 == share * 16 // 1 or kernel != SDPBackend.CUDNN_ATTENTION
        with pytest.raises(RuntimeError, match=words if choosable else "No available kernel"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=share)


def test_only_flash_attention_cannot_drop_everything():
    """set_params_fprop of flash_api.cpp checks that p_dropout is below 1."""
    with one(A100) as (device,):
        q = torch.ones(1, 2, 16, 64, dtype=HALF, device=device)
        with pytest.raises(RuntimeError, match=r"Expected p_dropout < 1\.f .* dropout_p is 1.0"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=1.0)
        with sdpa_kernel(SDPBackend.MATH):
            assert F.scaled_dot_product_attention(q, q, q, dropout_p=1.0).shape == q.shape


def _added_to_scores(mask):
    return torch.zeros(1, 2, 16, 16, dtype=mask.dtype).add_(mask)


@pytest.mark.parametrize("shape", [(7, 16), (16, 17), (3, 16, 16), (2, 1, 16, 16), (1, 1, 2, 9, 9)])
@pytest.mark.parametrize(("dtype", "kernel"), [(FULL, "efficient"), (DOUBLE, "plain")])
def test_masks_of_wrong_shapes_are_refused_in_the_words_of_torch(shape, dtype, kernel):
    """CUDA expands a mask for the memory-efficient kernel, and adds it to scores otherwise."""
    mask, q = torch.zeros(shape, dtype=dtype), torch.ones(1, 2, 16, 64, dtype=dtype)
    on_scores = {"efficient": lambda m: m.expand(1, 2, 16, 16), "plain": _added_to_scores}
    with pytest.raises(RuntimeError) as told:
        on_scores[kernel](mask)
    with one(A100, with_values=True) as (device,), pytest.raises(RuntimeError) as found:
        F.scaled_dot_product_attention(*[q.to(device)] * 3, attn_mask=mask.to(device))
    assert str(found.value).partition("\n")[0] == str(told.value).partition("\n")[0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_drops_the_same_scores_forward_and_backward(kernel):
    dtype = FULL if kernel == "efficient" else HALF
    with one(A100, with_values=True) as (device,), sdpa_kernel(KERNELS[kernel]):
        torch.manual_seed(0)
        q, k, v = (t.requires_grad_() for t in three(device, 2, 2, 64, 64, dtype=dtype))
        eye = torch.eye(64, device=device, dtype=dtype).expand(2, 2, 64, 64)

        def dropped(value):
            torch.manual_seed(7)
            return F.scaled_dot_product_attention(q, k, value, dropout_p=0.25)

        kept = dropped(eye).detach()  # the probabilities themselves
        y = dropped(v)
        torch.testing.assert_close(y, kept @ v, rtol=1e-2, atol=1e-2)
        g = torch.randn_like(y)
        y.backward(g)
        torch.testing.assert_close(v.grad, kept.transpose(-2, -1) @ g, rtol=1e-2, atol=2e-2)
        assert (kept == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
        plain = F.scaled_dot_product_attention(q, k, eye)
        where = kept != 0
        torch.testing.assert_close(kept[where], plain[where] / 0.75, rtol=1e-2, atol=1e-3)
        assert not torch.equal(F.scaled_dot_product_attention(q, k, eye, dropout_p=0.25), kept)


def test_gradients_through_dropout_are_those_of_finite_differences():
    with one(A100, with_values=True) as (device,):
        torch.manual_seed(0)
        q, k, v = three(device, 1, 2, 6, 8, dtype=FULL)
        q.requires_grad_()

        def loss():
            torch.manual_seed(3)
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).square().sum()

        loss().backward()
        way = torch.randn_like(q)
        with torch.no_grad():
            slope = (q.grad * way).sum().item()
            q += 1e-2 * way
            after = loss().item()
            q -= 2e-2 * way
            assert (after - loss().item()) / 2e-2 == pytest.approx(slope, rel=1e-2)


def test_checkpoints_drop_the_same_again():
    with one(A100, with_values=True) as (device,):
        grads = []
        for again in (False, True):
            torch.manual_seed(0)
            q = torch.randn(1, 2, 16, 8).to(device).requires_grad_()

            def attend(x):
                return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

            y = checkpoint(attend, q, use_reentrant=False) if again else attend(q)
            y.square().sum().backward()
            grads.append(q.grad.cpu())
        assert torch.equal(*grads)


def test_autocast_and_inference_fuse():
    with one(A100, with_values=True) as (device,):
        x = torch.randn(1, 2, 16, 8).to(device)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context, par.record() as timeline, torch.autocast("vgpu", dtype=BRAIN):
                y = F.scaled_dot_product_attention(x, x, x)
            assert y.dtype == BRAIN
            assert fused_in(timeline) == ["_scaled_dot_product_flash_attention"]


# --- modules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fast_path_of_an_encoder_layer_is_its_kernels(norm_first):
    torch.manual_seed(0)
    options = {"activation": "gelu", "batch_first": True, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(32, 4, 64, **options).eval()
    x = torch.randn(2, 10, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(10)
    padding = (
        (torch.arange(20) > 16)
        .view(2, 10)
        .float()
        .masked_fill_(torch.arange(20).view(2, 10) > 16, -torch.inf)
    )
    ways = [{}, {"src_mask": mask}, {"src_key_padding_mask": padding}]
    ways.append({"src_mask": mask, "src_key_padding_mask": padding})
    with torch.no_grad():
        expected = [layer(x, **way) for way in ways]
        with one(A100, with_values=True) as (device,):
            there = layer.to(device)
            with par.record() as timeline:
                found = [there(x.to(device), **{k: v.to(device) for k, v in ways[0].items()})]
            assert fused_in(timeline) == ["_scaled_dot_product_efficient_attention"]
            flops = sum(span.flops for span in timeline.spans)
            assert flops == 2 * 20 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 2 * 10 * 10 * 32
            found += [
                there(x.to(device), **{k: v.to(device) for k, v in way.items()}) for way in ways[1:]
            ]
            found = [y.cpu() for y in found]
    torch.testing.assert_close(found, expected)


def test_multi_head_attention_gives_weights():
    torch.manual_seed(0)
    net = nn.MultiheadAttention(32, 4, batch_first=True)
    x, other = torch.randn(2, 10, 32), torch.randn(2, 5, 32)

    def program(net, x, other):
        results = []
        for training in (True, False):
            net.train(training)
            results += [*net(x, x, x), *net(x, x, x, average_attn_weights=False)]
            results += [net(x, x, x, need_weights=False)[0], *net(x, other, other)]
        return [y.detach().cpu() for y in results]

    with torch.no_grad():
        expected = program(net, x, other)
        with one(A100, with_values=True) as (device,):
            found = program(net.to(device), x.to(device), other.to(device))
    torch.testing.assert_close(found, expected)


# --- shapes alone, memory -------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", ["causal", "groups", "mask"])
def test_shapes_alone_give_the_same_layout_memory_and_time(kernel, case):
    if kernel == "flash" and case == "mask":
        return
    found = []
    for with_values in (True, False):
        with one(A100, with_values=with_values) as (device,), sdpa_kernel(KERNELS[kernel]):
            options = dict(CASES[case])
            q, k, v = (
                torch.empty(shape, device=device, dtype=HALF).transpose(1, 2).requires_grad_()
                for shape in ((B, S, H, D), *[(B, S, options.pop("keys", (B, H))[1], D)] * 2)
            )
            mask = options.pop("attn_mask", None)
            mask = None if mask is None else mask.to(device, HALF)
            y = F.scaled_dot_product_attention(q, k, v, mask, **options)
            held = torch.vgpu.memory_allocated(device)
            y.backward(torch.empty_like(y))
            torch.vgpu.synchronize()
            strides = [t.stride() for t in (y, q.grad, k.grad, v.grad)]
            found.append(
                (strides, held, torch.vgpu.max_memory_allocated(device), timing.now_s(device))
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_scores_are_kept_or_moved(kernel):
    length = 8192
    with one(A100) as (device,), sdpa_kernel(KERNELS[kernel]):
        q, k, v = (
            torch.empty(1, 16, length, 64, device=device, dtype=HALF, requires_grad=True)
            for _ in range(3)
        )
        before = torch.vgpu.memory_allocated(device)
        with par.record() as timeline:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            kept = torch.vgpu.memory_allocated(device) - before
            y.backward(torch.empty_like(y))
        size = q.numel() * 2
        assert kept == pytest.approx(size + 4 * 16 * length, abs=4096)
        # A gradient of each, that of the result, and sums in fp32.
        peak = torch.vgpu.max_memory_allocated(device) - before
        assert peak == pytest.approx(kept + 4 * size + 2 * size, abs=8192)
        forward, backward = (s for s in timeline.spans if "attention" in s.name and s.flops)
        assert forward.bytes == 4 * size + 4 * 16 * length
        assert backward.bytes < 20 * size
        assert backward.flops == 2.5 * forward.flops


# --- cost -----------------------------------------------------------------------------------------


def work(kind, batch, heads, length, size, dtype="float16", **options):
    return Attention(kind, batch, heads, heads, length, length, size, size, dtype, **options)


def test_flops_are_counted():
    plain = work(FLASH, 2, 16, 8192, 64)
    assert plain.flops == 4 * 2 * 16 * 8192**2 * 64
    assert plain._replace(backward=True).flops == 2.5 * plain.flops
    # Tiles of 128 x 128: of 64 rows of them row i has i + 1.
    assert plain._replace(causal=True).flops == plain.flops * (64 * 65 / 2) / 64**2
    assert work(FLASH, 1, 1, 100, 64, causal=True).flops == work(FLASH, 1, 1, 100, 64).flops


A5000 = replace(
    A100,
    name="RTX A5000",
    flops_per_s={"float32": 27.8e12, "float16": 111.1e12},
    memory_bytes_per_s=768e9,
    multiprocessors=64,
)
# Published TFLOP/s: of FlashAttention 2, Azure's AI-benchmarking-guide (2024) and
# gpu-mode/ring-attention, issue 10 (2024); of memory-efficient kernels, xformers' pull request 439
# and issue 712. Forward, backward or both.
PUBLISHED = [
    (A100, FLASH, (2, 32, 8192, 64), "both", 179.5),
    (H100, FLASH, (2, 16, 8192, 128), "both", 327.9),
    (A5000, FLASH, (32, 32, 512, 64), "forward", 84.08),
    (A5000, FLASH, (2, 32, 8192, 64), "forward", 81.86),
    (A5000, FLASH, (32, 32, 512, 64), "backward", 52.88),
    (A5000, FLASH, (8, 32, 2048, 64), "backward", 70.07),
    (A5000, FLASH, (2, 32, 8192, 64), "backward", 77.42),
    (V100, EFFICIENT, (1024, 1, 1024, 64), "forward", 32.6),
    (V100, EFFICIENT, (1024, 1, 1024, 128), "forward", 36.1),
    (V100, EFFICIENT, (1024, 1, 1024, 64, "float32"), "forward", 10.9),
    (A100, EFFICIENT, (2, 8, 8192, 128), "forward", 101.2),
    (A100, EFFICIENT, (1, 4, 8192, 128, "float32"), "forward", 23.1),
    (A100, EFFICIENT, (8, 20, 2048, 128), "backward", 48.9),
]


@pytest.mark.parametrize(("accelerator", "kind", "shape", "which", "published"), PUBLISHED)
def test_published_rates_are_met_that_the_constants_were_fitted_to(
    accelerator, kind, shape, which, published
):
    forward = work(kind, *shape)
    passes = [forward] if which != "backward" else []
    passes += [forward._replace(backward=True)] if which != "forward" else []
    rate = sum(p.flops for p in passes) / sum(seconds(p, accelerator) for p in passes)
    assert rate / 1e12 == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize("kind", [FLASH, EFFICIENT, CUDNN])
@pytest.mark.parametrize("backward", [False, True])
def test_long_causal_attention_costs_half(kind, backward):
    plain = work(kind, 2, 16, 16384, 128, backward=backward)
    share = seconds(plain._replace(causal=True), A100) / seconds(plain, A100)
    assert 0.5 <= share < 0.53


def test_efficiency_grows_with_the_sequence_and_the_head():
    def rate(length, size, **options):
        found = work(FLASH, 16384 // length, 2048 // size, length, size, **options)
        return found.flops / seconds(found, A100)

    for options in ({}, {"backward": True}):
        rates = [rate(length, 64, **options) for length in (512, 1024, 2048, 4096, 8192)]
        assert rates == sorted(rates)
        assert rate(4096, 64, **options) < rate(4096, 128, **options) < 312e12
        # A kernel for heads of 128 computes one of 100, and takes as long.
        one, other = (work(FLASH, 4, 16, 4096, size, **options) for size in (100, 128))
        assert seconds(one, A100) == pytest.approx(seconds(other, A100), rel=0.03)


def test_few_blocks_leave_multiprocessors_idle():
    # 12 blocks of queries, or 108, each on a multiprocessor of its own, take the same time.
    def lasts(heads, length=1536, **options):
        return seconds(work(FLASH, 1, heads, length, 128, dropout=True, **options), A100)

    assert lasts(1) == pytest.approx(lasts(9))
    assert lasts(18) == pytest.approx(2 * lasts(9), rel=0.1)
    # Without dropout the keys of few blocks are cut in slices.
    few = work(FLASH, 1, 1, 1536, 128)
    assert seconds(few, A100) < lasts(1) / 3


def test_other_streams_get_the_multiprocessors_that_attention_leaves():
    cost = AttentionCost(work(FLASH, 1, 9, 768, 128, dropout=True))  # 54 blocks for 108
    assert cost.engaged_s(A100, cost.seconds(A100)) == pytest.approx(cost.seconds(A100) / 2)
    full = AttentionCost(work(FLASH, 4, 16, 4096, 128))
    assert full.engaged_s(A100, full.seconds(A100)) == full.seconds(A100)


def test_one_query_takes_what_reading_the_keys_takes():
    step = Attention(FLASH, 32, 32, 8, 1, 8192, 128, 128, "float16")
    keys = 2 * 32 * 8 * 8192 * 128 * 2
    assert seconds(step, A100) == pytest.approx(traffic(keys).seconds(A100), rel=0.01)


def test_kernels_and_architectures_rank_as_they_should():
    flash, efficient, cudnn = (work(kind, 4, 16, 4096, 128) for kind in (FLASH, EFFICIENT, CUDNN))
    assert seconds(flash, A100) < seconds(efficient, A100)
    assert seconds(cudnn, H100) < seconds(flash, H100) < seconds(flash, A100)
    assert seconds(efficient, H100) < seconds(efficient, A100) < seconds(efficient, V100)
    for found in (flash, efficient, cudnn):
        dropping = found._replace(dropout=True)
        assert seconds(found, A100) < seconds(dropping, A100) < 2 * seconds(found, A100)
        assert found.flops / seconds(found, H100) < 989.4e12
    b200 = replace(H100, name="B200", architecture="blackwell", multiprocessors=148)
    b200 = replace(b200, flops_per_s={"float32": 75e12, "float16": 2250e12})
    assert compute_capability(b200) == (10, 0)
    assert seconds(cudnn, b200) < 0.6 * seconds(cudnn, H100)
    assert seconds(flash, b200) > 0.8 * seconds(flash, H100)
    measured = replace(A100, measured=True)
    assert seconds(flash, measured) < seconds(flash, A100)


def test_a_cost_is_worked_out_for_each_accelerator():
    cost = AttentionCost(work(FLASH, 4, 16, 4096, 128))
    assert cost.seconds(A100) == seconds(cost.work, A100) == cost.seconds(A100)
    assert cost.seconds(H100) == seconds(cost.work, H100)


def test_sharing_keys_saves_memory_traffic_not_work():
    alone = work(FLASH, 4, 32, 2048, 64)
    shared = alone._replace(key_heads=4)
    assert shared.flops == alone.flops
    assert shared.bytes < alone.bytes


# --- emulated CUDA --------------------------------------------------------------------------------


def test_emulated_cuda_answers_and_chooses_alike():
    with par.emulate_cuda(1, machine=MACHINES["A100"], verbose=False):
        q, k, v = (torch.ones(1, 2, 16, 8, device="cuda", dtype=HALF) for _ in range(3))
        backends = torch.backends.cuda
        assert backends.is_flash_attention_available()

        def answers(*three, mask=None, debug=False):
            params = backends.SDPAParams(*three, mask, 0.0, False, False)
            names = ("flash", "efficient", "cudnn")
            return [getattr(backends, f"can_use_{n}_attention")(params, debug) for n in names]

        assert answers(q, k, v) == [True, True, True]
        assert answers(q, k, v, mask=torch.ones(16, 16, device="cuda", dtype=HALF)) == [
            False,
            True,
            True,
        ]
        with pytest.warns(UserWarning, match="one type of torch.float16, torch.bfloat16"):
            assert answers(q.float(), k.float(), v.float(), debug=True) == [False, True, False]
        assert answers(q.cpu(), k.cpu(), v.cpu()) == [False, False, False]
        assert torch._fused_sdp_choice(q, k, v) == choice.FLASH
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            assert answers(q, k, v) == [False, True, False]
            assert torch._fused_sdp_choice(q, k, v) == choice.EFFICIENT
    assert not backends.can_use_flash_attention(
        backends.SDPAParams(*[torch.ones(1, 2, 16, 8)] * 3, None, 0.0, False, False)
    )
