"""Words and experts over ranks, as lesson 09's deeper half splits them: equal to one device."""

import cells
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

import d2lpar as par

LESSON = cells.functions("09", torch=torch, dist=dist, F=F, par=par)
MACHINE = "8x-a100-nvswitch"


def on_ranks(n, function, *given):
    with par.simulate(MACHINE, n, with_values=True) as gpus:
        told = par.run_ranks(function, gpus, *given)
        return [(Y.cpu(), *rest) for Y, *rest in told]


def attended(*qkv):
    return (LESSON.context_parallel(*qkv),)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_words_of_a_text_over_ranks_attend_as_on_one_device(ranks):
    qkv = torch.randn(3, 3, 8, 5)
    parts = [part for (part,) in on_ranks(ranks, attended, *qkv)]
    expected = F.scaled_dot_product_attention(*qkv, is_causal=True)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)


def through_experts(words, router, experts):
    """One word after another, on one device."""
    return torch.stack([torch.tanh(x @ experts[(x @ router).argmax()]) for x in words])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_experts_on_ranks_give_each_word_what_its_expert_would(ranks):
    words, router = torch.randn(8 * ranks, 6), torch.randn(6, ranks)
    experts = torch.randn(ranks, 6, 6)
    told = on_ranks(ranks, LESSON.expert_parallel, words, router, experts)
    found = torch.cat([Y for Y, _ in told])
    torch.testing.assert_close(found, through_experts(words, router, experts))
    assert sum(count for _, count in told) == len(words)


def test_an_expert_that_nobody_chose_has_nothing_to_do():
    words, router = torch.rand(8, 6), torch.zeros(6, 2)
    router[:, 1] = 1.0  # of positive words, all go to expert 1
    experts = torch.randn(2, 6, 6)
    told = on_ranks(2, LESSON.expert_parallel, words, router, experts)
    assert [count for _, count in told] == [0, 8]
    found = torch.cat([Y for Y, _ in told])
    torch.testing.assert_close(found, through_experts(words, router, experts))
