"""What is read of a config.json: parameters to the last one, and refusals that name the field."""

import json

import pytest
import torch
from torch import nn

from d2lpar.parallelism import planner
from d2lpar.parallelism.model_plan.families import of_numbers
from d2lpar.parallelism.model_plan.naming import config_of, transformer_of
from d2lpar.parallelism.model_plan.published import PUBLISHED

# Counts that the authors, or the pages of the weights on Hugging Face, print.
PUBLISHED_COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "bert-base-uncased": 109_482_240,  # with its pooler
    "bert-large-uncased": 335_141_888,
    "vit-base-patch16-224": 86_567_656,
    "vit-large-patch16-224": 304_326_632,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def model_of(config, tokens=128):
    found = config_of(config)
    return transformer_of(found, found.sequence(None, tokens))


@pytest.mark.parametrize(("name", "count"), PUBLISHED_COUNTS.items())
def test_published_models_have_the_parameters_that_were_published(name, count):
    assert model_of(name).parameters == count


def test_every_model_that_is_known_is_counted():
    assert PUBLISHED.keys() == PUBLISHED_COUNTS.keys()


def test_of_experts_the_chosen_ones_are_active():
    """12.9 billion, as Mistral says (Jiang et al. 2024)."""
    assert model_of("mixtral-8x7b-v0.1").active_parameters == pytest.approx(12.9e9, rel=0.002)
    assert model_of("llama-3.1-8b").active_parameters == 8_030_261_248


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mlp_bias", [False, True])
@pytest.mark.parametrize("head", [None, 32])
def test_parameters_are_those_of_plain_modules(tied, bias, mlp_bias, head):
    size = head or 16
    with torch.device("meta"):
        layer = [
            nn.Linear(64, 4 * size, bias=bias),
            *(nn.Linear(64, 2 * size, bias=bias) for _ in range(2)),
            nn.Linear(4 * size, 64, bias=bias),
            *(nn.Linear(64, 96, bias=mlp_bias) for _ in range(2)),
            nn.Linear(96, 64, bias=mlp_bias),
            *(nn.RMSNorm(64) for _ in range(2)),
        ]
        words = [nn.Linear(64, 100, bias=False)] * (1 if tied else 2)
        count = lambda nets: sum(p.numel() for net in nets for p in net.parameters())  # noqa: E731
        expected = 2 * count(layer) + count(words) + 64
    fields = {
        "tie_word_embeddings": tied,
        "attention_bias": bias,
        "mlp_bias": mlp_bias,
        "head_dim": head,
    }
    assert model_of({**LLAMA, **fields}).parameters == expected


def test_numbers_stand_for_a_config():
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocabulary": 100}
    assert model_of(of_numbers(**sizes)).parameters == model_of(LLAMA).parameters
    experts = model_of(of_numbers(**sizes, experts=4, top_k=1))
    assert experts.experts == planner.Experts(4, top_k=1)


def test_a_file_is_read_and_called_by_its_folder(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert config_of(str(path)).name == config_of(path).name == "my-llama"
    assert model_of(path).parameters == model_of(LLAMA).parameters


def test_the_owner_may_stand_before_a_name():
    assert config_of("Qwen/Qwen2.5-7B").sizes == config_of("qwen2.5-7b").sizes
    assert config_of("Qwen/Qwen2.5-7B").source.startswith("https://huggingface.co/Qwen/")


def test_learned_positions_stay_what_samples_are_long():
    config = config_of("gpt2")
    counts = {transformer_of(config, tokens).parameters for tokens in (16, 512, 1024)}
    assert counts == {124_439_808}
    with pytest.raises(ValueError, match=r"1,024 positions.*take 1,024 at most"):
        config.sequence(1025, 4096)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mamba"}, "mamba.*known.*llama.*--layers"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"hidden_size": 0}, "'hidden_size'.*not 0"),
        ({"hidden_size": 64.5}, "'hidden_size'.*64.5"),
        ({"hidden_size": True}, "'hidden_size'.*True"),
        ({"hidden_size": 10**12}, "'hidden_size'.*1000000000000"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers'.*-1"),
        ({"vocab_size": "many"}, "'vocab_size'.*many"),
        ({"num_attention_heads": 5}, "5 heads do not divide"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' 3"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings'.*yes"),
        ({"attention_dropout": 1.5}, "'attention_dropout'.*1.5"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "1 experts"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "9 of 8"),
    ],
)
def test_fields_that_are_missing_or_absurd_are_refused_by_name(changed, said):
    with pytest.raises(ValueError, match=said):
        config_of({**LLAMA, **changed})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "binary"),
        (b"# a page", "no JSON.*line 1"),
        (b"", "no JSON"),
        (b"[1, 2]", "no fields"),
        (b"{}", "model_type"),
        (b"[" * 100_000, "no JSON"),
        (b" " * (10**7 + 1), "larger than 10 MB"),
    ],
)
def test_what_is_no_config_is_refused_with_the_remedy(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        config_of(path)
    assert "config.json" in str(refused.value)


def test_folders_devices_and_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder: name the config.json in it"):
        config_of(str(tmp_path))
    with pytest.raises(ValueError, match="nothing is downloaded"):
        config_of(str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match="no regular file"):
        config_of("/dev/zero")
    with pytest.raises(ValueError, match=r"llama-3\.1-8b"):
        config_of("lama-3.1-8b")


def test_patches_must_divide_a_picture():
    fields = {
        "model_type": "vit",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "image_size": 30,
        "patch_size": 16,
    }
    with pytest.raises(ValueError, match="16 pixels do not divide a picture of 30"):
        config_of(fields)
