"""Workloads of whole programs: their networks, what a script does in a step, and decoding."""

from __future__ import annotations

import pytest
import torch

from d2lpar.validation import boxes, groups, read_rows
from d2lpar.validation.parameters import Naive, Parameters, SimulatedRun
from d2lpar.validation.workloads import decoding, training
from d2lpar.validation.workloads.nets import gpt2, networks

ROWS = {row.id: row for row in read_rows()}
CIFAR = {"model": "cifar_preact20", "batch": "64", "image": "32", "dtype": "float32"}


def count(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("cifar_resnet18", 11.17),  # kuangliu/pytorch-cifar
        ("cifar_preact20", 0.27),  # He et al. 2016
        ("cifar_wrn28_10", 36.48),  # Zagoruyko and Komodakis 2016: 36.5
        ("cifar_resnet9", 6.57),  # DAWNBench: 6.57
        ("gpt2_transformers", 124.44),  # Radford et al. 2019, the head being tied
        ("bert_base_of_words", 108.89),  # Devlin et al. 2018: 110 with the pooler and all words
        ("jeonsworld_vit_b_16_384", 86.86),  # torchvision's with 224 has 86.57
    ],
)
def test_networks_have_the_published_number_of_parameters(name, millions):
    with torch.device("meta"):
        assert count(networks.OWN[name]()) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize(
    ("row", "billions"),
    [("qwen25-7b-a100-1", 7.62), ("litgpt-7b-a100", 6.74), ("qwen25-0.5b-a100-1", 0.63)],
)
def test_models_that_decode_have_the_published_number_of_parameters(row, billions):
    # Qwen2.5-0.5B has 0.49 billion: its head is its table of words, which is counted twice here.
    net = decoding.Llama(decoding.Shape.of(Parameters(ROWS[row].parameters)))
    assert count(net) / 1e9 == pytest.approx(billions, abs=0.006)


def run_of(**more: str) -> SimulatedRun:
    return training.train(Parameters({**CIFAR, **more}), boxes.machine("1x-gtx-1080-ti"))


def test_a_script_that_copies_and_reads_takes_longer():
    plain, copied = run_of(), run_of(batches="pageable")
    assert plain.seconds < copied.seconds
    assert copied.seconds < run_of(batches="pageable", reads_loss="true").seconds
    twice = run_of(batches="pageable", accumulate="2")
    assert 1.5 * copied.seconds < twice.seconds
    assert twice.samples == 128


def test_epochs_are_so_many_steps_and_passes_that_validate():
    step, epoch = run_of().seconds, run_of(epoch="1000").seconds
    assert epoch == pytest.approx(16 * step)  # the last batch is taken as full
    validated = run_of(epoch="1000", validated="640", epochs="2").seconds
    assert 2 * epoch < validated < 2 * (epoch + 10 * step)


def test_a_run_is_repeated_with_all_that_it_did():
    run = SimulatedRun(2.0, samples=3, flops=5.0, naive=Naive(1.0)).repeated(4, beside_s=0.5)
    assert (run.seconds, run.samples, run.flops, run.bytes) == (8.5, 12, 20.0, None)
    assert run.in_naive_unit("s") == 4.0


@pytest.mark.parametrize("cache", ["cat", "index_copy", "assign", "none"])
def test_what_decoding_attends_to_is_all_that_was_written(cache):
    """On the CPU, with numbers: each way to keep keys and values has them where they belong."""
    text = {"layers": "1", "hidden": "8", "heads": "2", "ffn": "16", "vocabulary": "11"}
    shape = decoding.Shape.of(Parameters({**text, "cache": cache, "dtype": "float32"}))
    attention = decoding.Attention(shape)
    k, v = torch.randn(2, 1, 2, 1, 4)
    past = 0 if cache == "none" else 3
    state = decoding.State(k, k, past, torch.tensor([past]), None)
    attention._with_past(k, v, state)
    keys, values = attention._with_past(k, v, state)
    assert keys.shape == values.shape == (1, 2, past + 1, 4)
    assert torch.equal(keys[:, :, -1:], k)
    assert torch.equal(values[:, :, -1:], v)


def test_the_written_norm_and_activation_are_those_of_torch():
    x = torch.randn(3, 16)
    norm = gpt2.WrittenNorm(16)
    torch.nn.init.ones_(norm.scale)
    torch.nn.init.zeros_(norm.shift)
    torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (16,)))
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(gpt2.WrittenGelu()(x), expected)


def test_programs_and_inference_are_groups():
    machine = boxes.machine("1x-gtx-1080-ti")
    for row, group in (
        ("hysts-rn20-1080ti-b8", groups.PROGRAMS),
        ("qwen25-7b-a100-1", groups.INFERENCE),
        ("td-gpt2-3090-fp32", groups.INFERENCE),
        ("td-minilm384-t4-fp32", groups.TRANSFORMERS_A100),
    ):
        assert groups.group_of(ROWS[row], machine) == group


def test_a_wider_box_has_the_cards_of_its_kind():
    few, many = boxes.machine("2x-quadro-rtx-6000"), boxes.machine("4x-quadro-rtx8000")
    assert [*many.accelerators] == [few.accelerators[0]] * 4
