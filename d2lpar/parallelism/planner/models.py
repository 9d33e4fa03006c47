"""Transformers by name, with the sizes that their authors published."""

from __future__ import annotations

from functools import partial

from .transformer import Experts, Transformer

_NARAYANAN = "Narayanan et al. 2021, https://arxiv.org/abs/2104.04473"
_BROWN = "Brown et al. 2020, https://arxiv.org/abs/2005.14165, table 2.1"
_SHOEYBI = "Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, table 1"
_RADFORD = "Radford et al. 2019, https://github.com/openai/gpt-2; sizes of its hparams.json"
_MPT = "MosaicML 2023, https://github.com/mosaicml/llm-foundry, scripts/train/yamls/pretrain"
_LLAMA = "Touvron et al. 2023, https://arxiv.org/abs/2302.13971, table 2"
_LLAMA_2 = "Touvron et al. 2023, https://arxiv.org/abs/2307.09288, table 1 and section 2.2"
_LLAMA_3 = "Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, table 3"
_MIXTRAL = "Jiang et al. 2024, https://arxiv.org/abs/2401.04088, table 1"

_gpt_2 = partial(Transformer, sequence=1024, vocabulary=50_257, source=_RADFORD)
# ALiBi in place of learned positions, no bias, no dropout.
_mpt = partial(
    Transformer, vocabulary=50_368, dropout=0.0, positions="none", bias=False, source=_MPT
)
_llama = partial(
    Transformer,
    vocabulary=32_000,
    dropout=0.0,
    gated=True,
    tied=False,
    norm="rms",
    positions="rotary",
    bias=False,
)
_llama_2 = partial(_llama, sequence=4096, source=_LLAMA_2)
_llama_3 = partial(_llama, sequence=8192, vocabulary=128_256, kv_heads=8, source=_LLAMA_3)


def _weak_scaling(name: str, layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(name, layers, hidden, heads, source=f"{_NARAYANAN}, table 1")


MODELS = {
    model.name: model
    for model in (
        Transformer("megatron-1.2b", 40, 1536, 16, sequence=1024, source=_SHOEYBI),
        _weak_scaling("megatron-1.7b", 24, 2304, 24),
        _weak_scaling("megatron-3.6b", 30, 3072, 32),
        _weak_scaling("megatron-7.5b", 36, 4096, 32),
        # The table of its authors gives a width of 5140, which 40 heads of 128 do not have.
        Transformer("gpt-3-13b", 40, 5120, 40, source=f"{_BROWN}; 40 heads of 128"),
        _weak_scaling("megatron-18.4b", 40, 6144, 48),
        _weak_scaling("megatron-39.1b", 48, 8192, 64),
        _weak_scaling("megatron-76.1b", 60, 10240, 80),
        _weak_scaling("megatron-145.6b", 80, 12288, 96),
        Transformer("gpt-3-175b", 96, 12288, 96, source=_BROWN),
        _weak_scaling("megatron-310.1b", 96, 16384, 128),
        _weak_scaling("megatron-529.6b", 105, 20480, 128),
        _weak_scaling("megatron-1008b", 128, 25600, 160),
        _gpt_2("gpt-2-124m", 12, 768, 12),
        _gpt_2("gpt-2-1.5b", 48, 1600, 25),
        _mpt("mpt-125m", 12, 768, 12),
        _mpt("mpt-350m", 24, 1024, 16),
        _mpt("mpt-760m", 24, 1536, 12),
        _mpt("mpt-1b", 24, 2048, 16),
        _mpt("mpt-3b", 32, 2560, 20),
        _mpt("mpt-7b", 32, 4096, 32),
        _mpt("mpt-13b", 40, 5120, 40),
        _mpt("mpt-30b", 48, 7168, 56),
        _mpt("mpt-70b", 80, 8192, 64),
        _llama("llama-65b", 80, 8192, 64, ffn=22_016, source=_LLAMA),
        _llama_2("llama-2-7b", 32, 4096, 32, ffn=11_008),
        _llama_2("llama-2-13b", 40, 5120, 40, ffn=13_824),
        _llama_2("llama-2-70b", 80, 8192, 64, ffn=28_672, kv_heads=8),
        _llama_3("llama-3-8b", 32, 4096, 32, ffn=14_336),
        _llama_3("llama-3-70b", 80, 8192, 64, ffn=28_672),
        _llama_3("llama-3-405b", 126, 16_384, 128, ffn=53_248),
        _llama(
            *("mixtral-8x7b", 32, 4096, 32),
            sequence=32_768,
            kv_heads=8,
            ffn=14_336,
            experts=Experts(8, top_k=2),
            source=_MIXTRAL,
        ),
    )
}


def model(which: str | Transformer) -> Transformer:
    """A model by its name in `MODELS`, or the one given. Raises ValueError for an unknown name."""
    if isinstance(which, Transformer):
        return which
    if not isinstance(which, str) or which not in MODELS:
        raise ValueError(
            f"no model is called {which!r}; there is {', '.join(MODELS)}, or a Transformer(…)"
        )
    return MODELS[which]
