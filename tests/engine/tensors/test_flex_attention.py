"""`flex_attention` on virtual devices: the attention that its functions say, in one kernel."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import d2lpar as par
from d2lpar import machines
from d2lpar.vgpu.torch_backend.compiling import flex_attention as ours
from d2lpar.vgpu.torch_backend.register import register_backend

flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

LENGTH = 48
BOX = machines.machine("8x-a100-80gb-p4de")


@pytest.fixture(params=[True, False], ids=["compiled", "eager"])
def attend(request):
    register_backend()  # what is compiled before there are virtual devices is torch's own
    return torch.compile(flex.flex_attention) if request.param else flex.flex_attention


@pytest.fixture
def gpu():
    with par.simulate(BOX, 1, with_values=True) as (device,):
        yield device


def causal(batch, head, query, key):
    return query >= key


def window(batch, head, query, key):
    return (query >= key) & (query - key < 64)


def tensors(device, heads=2, key_heads=2, length=LENGTH, **options):
    """Queries, keys and values that want gradients, the same for every device."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, length, 16), *[(2, key_heads, length, 16)] * 2]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [t.to(device, **options).requires_grad_() for t in made]


def expected(three, bias):
    """By the scores, on the processor: result, sums, and the gradients of both added up."""
    query, key, value = three
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def test_learns_what_its_function_of_scores_uses(attend):
    """A table of biases that learns, and documents that the mask tells apart."""
    table = torch.randn(2, 2 * LENGTH, generator=torch.Generator().manual_seed(1))
    document, at = torch.arange(LENGTH) // 20, torch.arange(LENGTH)

    def on(device, run):
        three, learnt = tensors(device), table.clone().to(device).requires_grad_()
        run(three, learnt).pow(2).sum().backward()
        return [t.grad.cpu() for t in (*three, learnt)]

    def with_flex(three, learnt):
        documents = document.to("cuda")
        mask = flex.create_block_mask(
            lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]), None, None, LENGTH, LENGTH
        )
        return attend(
            *three, score_mod=lambda s, b, h, i, j: s + learnt[h, i - j + LENGTH], block_mask=mask
        )

    def with_scores(three, learnt):
        kept = (at[:, None] >= at) & (document[:, None] == document)
        return expected(three, torch.where(kept, learnt[:, at[:, None] - at + LENGTH], -torch.inf))[
            0
        ]

    wanted = on("cpu", with_scores)
    with par.emulate_cuda(1, verbose=False):
        found = on("cuda", with_flex)
    torch.testing.assert_close(found, wanted)


def test_shares_keys_and_gives_the_sums_of_rows(gpu, attend):
    three, twins = tensors(gpu, heads=4), tensors("cpu", heads=4)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    on_gpu, at = slopes.to(gpu), torch.arange(LENGTH)
    out, more = attend(
        *three,
        score_mod=lambda s, b, h, i, j: s + on_gpu[h] * (j - i),
        enable_gqa=True,
        return_aux=flex.AuxRequest(lse=True),
    )
    wanted = expected(twins, slopes[:, None, None] * (at - at[:, None]))
    (out.sum() + more.lse.cos().sum()).backward()
    (wanted[0].sum() + wanted[1].cos().sum()).backward()
    torch.testing.assert_close([out.cpu(), more.lse.cpu()], [*wanted])
    torch.testing.assert_close([t.grad.cpu() for t in three], [t.grad for t in twins])


def test_some_queries_at_a_time_are_all_of_them(gpu, monkeypatch):
    """Few scores are in memory at a time, whatever the length."""
    attend, results = torch.compile(flex.flex_attention), []
    mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device=gpu)
    for most in (2**24, 7 * 2 * 2 * LENGTH):
        monkeypatch.setattr(ours, "_MOST_SCORES", most)
        three = tensors(gpu)
        out = attend(*three, block_mask=mask)
        out.square().sum().backward()
        results.append([out.cpu(), *(t.grad.cpu() for t in three)])
    torch.testing.assert_close(*results)


def test_compiled_it_keeps_no_scores_and_takes_one_kernel(gpu):
    def run(attend):
        three = tensors(gpu, length=512, dtype=torch.bfloat16)
        torch.vgpu.reset_peak_memory_stats(0)
        held = torch.vgpu.memory_allocated(0)
        with par.record() as timeline:
            attend(*three).sum().backward()
        names = [span.name for span in timeline.spans if span.kind == "compute"]
        return torch.vgpu.max_memory_allocated(0) - held, names

    scores = 2 * 2 * 512 * 512 * 4  # bytes
    most, names = run(torch.compile(flex.flex_attention))
    assert most < scores / 4
    assert [name for name in names if "flex" in name] == [
        "flex_attention",
        "flex_attention_backward",
    ]
    assert run(flex.flex_attention)[0] > scores


def test_a_mask_of_blocks_saves_time():
    attend, length, seconds = torch.compile(flex.flex_attention), 4096, {}
    with par.simulate(BOX, 1) as (gpu,):  # values would take a minute, and the same time
        query = torch.zeros(1, 8, length, 64, device=gpu, dtype=torch.bfloat16)
        for mask_mod in (None, causal, window):
            mask = mask_mod and flex.create_block_mask(mask_mod, None, None, length, length, gpu)
            with par.record() as timeline:
                attend(query, query, query, block_mask=mask)
            seconds[mask_mod] = timeline.spans[-1].end_s - timeline.spans[-1].start_s
    assert seconds[causal] == pytest.approx(seconds[None] / 2, rel=0.2)
    assert seconds[window] < seconds[causal] / 4


@pytest.mark.parametrize("mask_mod", [causal, window])
def test_takes_as_long_from_shapes_alone(mask_mod):
    """The mask has no values then: its function is asked for some blocks."""
    found = []
    for with_values in (True, False):
        with par.simulate(BOX, 1, with_values=with_values) as (device,):
            query = torch.zeros(1, 2, 1024, 64, device=device, requires_grad=True)
            mask = flex.create_block_mask(mask_mod, None, None, 1024, 1024, device=device)
            attend = torch.compile(flex.flex_attention)
            with par.record() as timeline:
                attend(query, query, query, block_mask=mask).sum().backward()
            kernels = [s for s in timeline.spans if s.kind == "compute" and "flex" in s.name]
            found.append([s.end_s - s.start_s for s in kernels])
    assert len(found[0]) == 2
    assert found[1] == pytest.approx(found[0])


def test_a_mask_of_unknown_values_leaves_what_is_sure_to_be_masked():
    """Of the documents of a text nothing is known, but later keys are masked; so it is said."""
    with par.simulate(BOX, 1) as (device,):
        document = torch.zeros(1024, dtype=torch.int64, device=device)
        width = torch.tensor(64, device=device)
        query = torch.zeros(1, 2, 1024, 64, device=device)
        attend, seconds = torch.compile(flex.flex_attention), []

        def unknown(batch, head, query, key):
            near = query - key < width
            return (query >= key) & near & (document[query] == document[key])

        for mask_mod, says in ((causal, nullcontext()), (unknown, pytest.warns(match="perhaps"))):
            mask = flex.create_block_mask(mask_mod, None, None, 1024, 1024, device)
            with par.record() as timeline, says:
                attend(query, query, query, block_mask=mask)
            seconds.append(timeline.spans[-1].end_s - timeline.spans[-1].start_s)
    assert seconds[1] == pytest.approx(seconds[0])


def test_autocast_and_inference(gpu, attend):
    three = tensors(gpu)
    with torch.autocast("vgpu", dtype=torch.bfloat16):
        half = attend(*three)
    with torch.inference_mode():
        whole = attend(*three)
    wanted = F.scaled_dot_product_attention(*tensors("cpu"))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(whole.cpu(), wanted.detach())
    torch.testing.assert_close(half.cpu().float(), wanted, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("default")
def test_only_who_does_not_compile_it_is_told_so(gpu):
    flex._WARNINGS_SHOWN.discard("flex_attention_performance")
    query = torch.zeros(1, 1, 16, 16, device=gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.compile(flex.flex_attention)(query, query, query)
    with pytest.warns(UserWarning, match="called without torch.compile"):
        flex.flex_attention(query, query, query)


def test_parameters_may_be_what_attends(gpus, attend):
    torch.manual_seed(0)
    three = torch.randn(3, 1, 2, LENGTH, 4)
    on_gpu = [nn.Parameter(x.to(gpus[0])) for x in three]
    found = attend(*on_gpu)
    assert_close(found.detach().cpu(), F.scaled_dot_product_attention(*three))
    found.sum().backward()
    assert all(p.grad is not None for p in on_gpu)
