"""The families of models whose `config.json` is understood, and what their fields mean.

Each reader turns fields into the sizes of a `planner.Transformer`, so that its `parameters` are
those of the published model, to the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .config import IMAGES, NUMBERS, Fields, ModelConfig

Reader = Callable[[Fields, str], ModelConfig]


def of_fields(fields: Fields, name: str | None = None) -> ModelConfig:
    """The model that the fields describe.

    Raises ValueError for a family that is not known, and for fields that are missing or absurd.
    """
    family = fields.values.get("model_type")
    known = ", ".join(FAMILIES)
    if family is None:
        raise ValueError(
            f"{fields.where} has no 'model_type': is it the config.json of a model? Known are "
            f"{known}; of another give its numbers ({NUMBERS})"
        )
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(
            f"{fields.where}: model_type {str(family)[:60]!r} is not among those known, which are "
            f"{known}; if it is built as one of them, give its numbers ({NUMBERS})"
        )
    if "quantization_config" in fields.values:
        fields.notes.append("its weights are quantised, which is left out: see the precision")
    return FAMILIES[family](fields, name or fields.where)


def of_numbers(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocabulary: int,
    kv_heads: int | None = None,
    tied: bool = False,
    experts: int | None = None,
    top_k: int | None = None,
) -> ModelConfig:
    """A decoder built as Llama (with `experts` as Mixtral), by its numbers.

    Raises ValueError as for a file.
    """
    values = {
        "model_type": "llama" if experts is None else "mixtral",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "max_position_embeddings": 10**9,
    }
    return of_fields(Fields("these numbers", values), "a model of these numbers")


# --- decoders of Llama's kind ---------------------------------------------------------------------


def _decoder(
    fields: Fields,
    name: str,
    *,
    kv_heads: int | None = None,
    positions: int,
    head: int | None = None,
    **differences: Any,
) -> ModelConfig:
    """RMS norms, rotary positions, a SwiGLU; `differences` are sizes of the family."""
    sizes = _common(fields)
    heads, layers, hidden = sizes["heads"], sizes["layers"], sizes["hidden"]
    sizes |= {
        "kv_heads": fields.count("num_key_value_heads", "heads", kv_heads or heads),
        "ffn": fields.count("intermediate_size", "width"),
        "head": fields.optional("head_dim", "width") or head,
        "dropout": fields.share("attention_dropout", 0.0),
        "gated": True,
        "tied": fields.flag("tie_word_embeddings", False),
        "norm": "rms",
        "positions": "rotary",
        "bias": False,
    }
    sizes |= differences
    if sizes.get("qkv_bias") and fields.values.get("model_type") != "qwen2":
        sizes["extra"] = layers * hidden  # the bias of the product after attention
    if fields.flag("mlp_bias", False):
        sizes["extra"] = sizes.get("extra", 0) + layers * (2 * sizes["ffn"] + hidden)
    _check_heads(fields, sizes)
    longest = fields.count("max_position_embeddings", "positions", positions)
    _note_window(fields)
    return ModelConfig(
        name, str(fields.values["model_type"]), sizes, longest, notes=tuple(fields.notes)
    )


def _common(fields: Fields) -> dict[str, Any]:
    return {
        "layers": fields.count("num_hidden_layers", "layers"),
        "hidden": fields.count("hidden_size", "width"),
        "heads": fields.count("num_attention_heads", "heads"),
        "vocabulary": fields.count("vocab_size", "words"),
    }


def _check_heads(fields: Fields, sizes: dict[str, Any]) -> None:
    """Whether heads share what they have evenly."""
    heads, kv_heads = sizes["heads"], sizes.get("kv_heads") or sizes["heads"]
    if sizes.get("head") is None and sizes["hidden"] % heads:
        raise ValueError(
            f"{fields.where}: {heads} heads do not divide a width of {sizes['hidden']}; give "
            "'head_dim', or heads that do"
        )
    if heads % kv_heads:
        raise ValueError(
            f"{fields.where}: 'num_key_value_heads' {kv_heads} does not divide the {heads} heads"
        )


def _note_window(fields: Fields) -> None:
    window = fields.optional("sliding_window", "positions")
    by_default = fields.values.get("model_type") in ("mistral", "mixtral")
    used = fields.flag("use_sliding_window", by_default)
    if window is not None and used:
        fields.notes.append(
            f"beyond {window:,} tokens attention is taken to see all of them (sliding_window)"
        )


def _llama(fields: Fields, name: str) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return _decoder(fields, name, positions=2048, qkv_bias=bias)


def _mistral(fields: Fields, name: str) -> ModelConfig:
    return _decoder(fields, name, kv_heads=8, positions=131_072)


def _mixtral(fields: Fields, name: str) -> ModelConfig:
    experts = _experts(fields, "num_local_experts", 8, 2)
    return _decoder(fields, name, kv_heads=8, positions=131_072, experts=experts)


def _qwen2(fields: Fields, name: str) -> ModelConfig:
    return _decoder(fields, name, kv_heads=32, positions=32_768, qkv_bias=True)


def _qwen3(fields: Fields, name: str, **differences: Any) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return _decoder(
        *(fields, name),
        kv_heads=differences.pop("kv_heads", 32),
        positions=32_768,
        head=128,
        qkv_bias=bias,
        qk_norm=True,
        **differences,
    )


def _qwen3_moe(fields: Fields, name: str) -> ModelConfig:
    dense = fields.values.get("mlp_only_layers") or []
    if dense or fields.count("decoder_sparse_step", "layers", 1) != 1:
        raise ValueError(
            f"{fields.where}: some layers have experts and others none ('mlp_only_layers', "
            "'decoder_sparse_step'), which is not planned: all layers must be alike"
        )
    ffn = fields.count("moe_intermediate_size", "width", 768)
    experts = _experts(fields, "num_experts", 128, 8)
    return _qwen3(fields, name, kv_heads=4, ffn=ffn, experts=experts)


def _experts(fields: Fields, count: str, default: int, top_k: int) -> tuple[int, int]:
    number = fields.count(count, "experts", default)
    chosen = fields.count("num_experts_per_tok", "experts", top_k)
    if number < 2 or chosen > number:
        raise ValueError(
            f"{fields.where}: a token cannot choose {chosen} of {number} experts; {count!r} is two "
            "or more, 'num_experts_per_tok' as many at most"
        )
    return number, chosen


# --- others ---------------------------------------------------------------------------------------


def _gpt2(fields: Fields, name: str) -> ModelConfig:
    longest = fields.count("n_positions", "positions", 1024)
    sizes = {
        "layers": fields.count("n_layer", "layers"),
        "hidden": fields.count("n_embd", "width"),
        "heads": fields.count("n_head", "heads"),
        "vocabulary": fields.count("vocab_size", "words"),
        "ffn": fields.optional("n_inner", "width"),
        "dropout": fields.share("resid_pdrop", 0.1),
        "tied": fields.flag("tie_word_embeddings", True),
        "positions": "learned",
        "places": longest,
    }
    _check_heads(fields, sizes)
    return ModelConfig(name, "gpt2", sizes, longest, notes=tuple(fields.notes))


def _bert(fields: Fields, name: str) -> ModelConfig:
    """`BertModel` with its pooler; its norm of embeddings takes the place of a last one."""
    longest = fields.count("max_position_embeddings", "positions", 512)
    sizes = _common(fields)
    hidden = sizes["hidden"]
    kinds = fields.count("type_vocab_size", "words", 2)
    sizes |= {
        "ffn": fields.count("intermediate_size", "width"),
        "dropout": fields.share("hidden_dropout_prob", 0.1),
        "causal": False,
        "positions": "learned",
        "places": longest,
        "extra": kinds * hidden + hidden * hidden + hidden,
    }
    _check_heads(fields, sizes)
    note = "counted with its pooler and without a head; in training all tokens score all words"
    return ModelConfig(name, "bert", sizes, longest, encoder=True, notes=(note, *fields.notes))


def _vit(fields: Fields, name: str) -> ModelConfig:
    """`ViTForImageClassification`: patches and one token more, whose result is scored."""
    side = fields.count("image_size", "pixels", 224)
    patch = fields.count("patch_size", "pixels", 16)
    channels = fields.count("num_channels", "pixels", 3)
    if side % patch:
        raise ValueError(
            f"{fields.where}: patches of {patch} pixels do not divide a picture of {side}"
        )
    hidden, classes = fields.count("hidden_size", "width"), _classes(fields)
    bias = fields.flag("qkv_bias", True)
    tokens = (side // patch) ** 2 + 1
    sizes = {
        "layers": fields.count("num_hidden_layers", "layers"),
        "hidden": hidden,
        "heads": fields.count("num_attention_heads", "heads"),
        "vocabulary": classes,
        "ffn": fields.count("intermediate_size", "width"),
        "dropout": fields.share("hidden_dropout_prob", 0.0),
        "sequence": tokens,
        "positions": "learned",
        "places": tokens,
        "causal": False,
        "qkv_bias": bias,
        "scored": 1,
        # The product with patches, the first token, the bias of the classes.
        "extra": channels * patch**2 * hidden + hidden + hidden + classes,
    }
    _check_heads(fields, sizes)
    note = "± is the error of transformers that read words; of pictures few were compared"
    return ModelConfig(
        name, "vit", sizes, tokens, encoder=True, unit=IMAGES, notes=(note, *fields.notes)
    )


def _classes(fields: Fields) -> int:
    labels = fields.values.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    if fields.values.get("num_labels") is None:
        fields.notes.append("it names no classes: 2, as transformers takes it")
    return fields.count("num_labels", "words", 2)


FAMILIES: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
}
