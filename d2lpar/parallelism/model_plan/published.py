"""Models that are known by name: the fields of the `config.json` that their authors published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HUB = "https://huggingface.co/{repository}/blob/main/config.json"


def _decoder(family: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """Sizes are layers, width, heads, heads of keys, inner width, words."""
    names = (
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size"),
    )
    return {"model_type": family, **dict(zip(names, sizes, strict=True)), **more}


def _gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": 50_257,
    }


def _encoder(family: str, layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **more,
    }


_BERT = {"vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2}
_VIT = {"image_size": 224, "patch_size": 16, "num_channels": 3, "num_labels": 1000}
_LLAMA_2: dict[str, Any] = {"max_position_embeddings": 4096}
_LONG: dict[str, Any] = {"max_position_embeddings": 131_072}

# By name: where the config.json stands, and its fields.
PUBLISHED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("openai-community/gpt2", _gpt2(12, 768, 12)),
    "gpt2-xl": ("openai-community/gpt2-xl", _gpt2(48, 1600, 25)),
    "bert-base-uncased": (
        "google-bert/bert-base-uncased",
        _encoder("bert", 12, 768, 12, **_BERT),
    ),
    "bert-large-uncased": (
        "google-bert/bert-large-uncased",
        _encoder("bert", 24, 1024, 16, **_BERT),
    ),
    "vit-base-patch16-224": (
        "google/vit-base-patch16-224",
        _encoder("vit", 12, 768, 12, **_VIT),
    ),
    "vit-large-patch16-224": (
        "google/vit-large-patch16-224",
        _encoder("vit", 24, 1024, 16, **_VIT),
    ),
    "llama-2-7b": (
        "meta-llama/Llama-2-7b-hf",
        _decoder("llama", 32, 4096, 32, 32, 11_008, 32_000, **_LLAMA_2),
    ),
    "llama-2-13b": (
        "meta-llama/Llama-2-13b-hf",
        _decoder("llama", 40, 5120, 40, 40, 13_824, 32_000, **_LLAMA_2),
    ),
    "llama-2-70b": (
        "meta-llama/Llama-2-70b-hf",
        _decoder("llama", 80, 8192, 64, 8, 28_672, 32_000, **_LLAMA_2),
    ),
    "llama-3-8b": (
        "meta-llama/Meta-Llama-3-8B",
        _decoder("llama", 32, 4096, 32, 8, 14_336, 128_256, max_position_embeddings=8192),
    ),
    "llama-3.2-1b": (
        "meta-llama/Llama-3.2-1B",
        _decoder(
            *("llama", 16, 2048, 32, 8, 8192, 128_256),
            head_dim=64,
            tie_word_embeddings=True,
            **_LONG,
        ),
    ),
    "llama-3.1-8b": (
        "meta-llama/Llama-3.1-8B",
        _decoder("llama", 32, 4096, 32, 8, 14_336, 128_256, **_LONG),
    ),
    "llama-3.1-70b": (
        "meta-llama/Llama-3.1-70B",
        _decoder("llama", 80, 8192, 64, 8, 28_672, 128_256, **_LONG),
    ),
    "llama-3.1-405b": (
        "meta-llama/Llama-3.1-405B",
        _decoder("llama", 126, 16_384, 128, 8, 53_248, 128_256, **_LONG),
    ),
    "mistral-7b-v0.1": (
        "mistralai/Mistral-7B-v0.1",
        _decoder(
            *("mistral", 32, 4096, 32, 8, 14_336, 32_000),
            max_position_embeddings=32_768,
            sliding_window=4096,
        ),
    ),
    "mixtral-8x7b-v0.1": (
        "mistralai/Mixtral-8x7B-v0.1",
        _decoder(
            *("mixtral", 32, 4096, 32, 8, 14_336, 32_000),
            max_position_embeddings=32_768,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
    ),
    "qwen2.5-0.5b": (
        "Qwen/Qwen2.5-0.5B",
        _decoder(
            *("qwen2", 24, 896, 14, 2, 4864, 151_936),
            max_position_embeddings=32_768,
            tie_word_embeddings=True,
        ),
    ),
    "qwen2.5-7b": (
        "Qwen/Qwen2.5-7B",
        _decoder("qwen2", 28, 3584, 28, 4, 18_944, 152_064, **_LONG),
    ),
    "qwen2.5-72b": (
        "Qwen/Qwen2.5-72B",
        _decoder("qwen2", 80, 8192, 64, 8, 29_568, 152_064, **_LONG),
    ),
    "qwen3-0.6b": (
        "Qwen/Qwen3-0.6B",
        _decoder(
            *("qwen3", 28, 1024, 16, 8, 3072, 151_936),
            head_dim=128,
            max_position_embeddings=40_960,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3-8b": (
        "Qwen/Qwen3-8B",
        _decoder(
            *("qwen3", 36, 4096, 32, 8, 12_288, 151_936),
            head_dim=128,
            max_position_embeddings=40_960,
        ),
    ),
    "qwen3-30b-a3b": (
        "Qwen/Qwen3-30B-A3B",
        _decoder(
            *("qwen3_moe", 48, 2048, 32, 4, 6144, 151_936),
            head_dim=128,
            max_position_embeddings=40_960,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
        ),
    ),
}
