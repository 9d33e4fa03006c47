"""The networks of published figures, with shapes only unless they are on a real GPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from ....lesson import models as models_of_lessons
from ..measuring import INITIAL_SPREAD, filled
from . import amoebanet, bert, cifar, encoders, gpt2, vision_transformer

if TYPE_CHECKING:
    from torchvision.models import ResNet


PREDICT_FIELDS = ("nersc",)
# Networks that torchvision has not, or has in other words.
OWN: dict[str, Callable[[], nn.Module]] = {
    "timm_vit_b_16": partial(vision_transformer.VisionTransformer, layers=12, hidden=768, heads=12),
    "d2l_resnet18": models_of_lessons.resnet18,
    "amoebanet_d_18_256": partial(amoebanet.amoebanet_d, layers=18, filters=256),
    "cifar_resnet18": cifar.resnet18,
    "cifar_resnet18_without_norm": partial(cifar.resnet18, cifar.no_norm),
    "cifar_preact20": partial(cifar.preactivated, blocks=3, width=16),
    "cifar_wrn28_10": partial(cifar.preactivated, blocks=4, width=160),
    "cifar_resnet9": cifar.resnet9,
    "jeonsworld_vit_b_16_384": vision_transformer.WrittenVisionTransformer,
    "nersc_vit": partial(vision_transformer.WeatherTransformer, layers=12, hidden=384, heads=8),
    "nersc_vit_1024": partial(
        vision_transformer.WeatherTransformer, layers=12, hidden=1024, heads=8
    ),
    "bert_base_of_texts": partial(
        encoders.Encoder, layers=12, hidden=768, heads=12, pooled="first"
    ),
    "bert_base_of_words": partial(
        encoders.Encoder, layers=12, hidden=768, heads=12, pooled="words"
    ),
    "minilm_of_texts": partial(encoders.Encoder, layers=6, hidden=384, heads=12, pooled="first"),
    "distilbert_mean": partial(
        encoders.Encoder, layers=6, hidden=768, heads=12, pooled="mean", distilled=True
    ),
    "bert_large_of_texts": partial(
        encoders.Encoder, layers=24, hidden=1024, heads=16, pooled="first"
    ),
    "gpt2_transformers": partial(gpt2.Gpt2, gpt2.TRANSFORMERS),
    "gpt2_large_transformers": partial(
        gpt2.Gpt2, gpt2.TRANSFORMERS, layers=36, hidden=1280, heads=20
    ),
    # GPT-3's as the authors of NeuSight describe them to transformers: GPT-2 of these sizes.
    "gpt3_xl_transformers": partial(
        gpt2.Gpt2, gpt2.TRANSFORMERS, layers=24, hidden=3072, heads=24, positions=2048
    ),
    "gpt3_2.7b_transformers": partial(
        gpt2.Gpt2, gpt2.TRANSFORMERS, layers=32, hidden=2560, heads=32, positions=2048
    ),
    "opt_1.3b_transformers": partial(
        gpt2.Gpt2, gpt2.OPT, 50_272, layers=24, hidden=2048, heads=32, positions=2048
    ),
    "gpt2_from_scratch": partial(gpt2.Gpt2, gpt2.SCRATCH),
    "gpt2_with_modules": partial(gpt2.Gpt2, gpt2.MODULES),
    "gpt2_with_flash": partial(gpt2.Gpt2, gpt2.FLASH),
    "gpt2_with_flash_50304": partial(gpt2.Gpt2, gpt2.FLASH, 50_304),
    "gpt2_nanogpt": partial(gpt2.Gpt2, gpt2.NANOGPT),
    "gpt2_nanogpt_flash": partial(gpt2.Gpt2, gpt2.NANOGPT_FLASH),
    "gpt2_nanogpt_flash_50304": partial(gpt2.Gpt2, gpt2.NANOGPT_FLASH, 50_304),
}


def network(
    name: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    masked: int | None = None,
) -> nn.Module:
    """A network by torchvision's name or by one of `OWN`.

    Its parameters are of `dtype`, on `device`. BERT predicts the `masked` words of a text alone, if
    given.

    Raises ValueError for an unknown name, and ModuleNotFoundError without torchvision.
    """
    built = _built(name, masked)
    # `to_empty` asks `empty_like` of `meta` tensors, a decomposition in Python, and slow.
    own = {id(t): _empty(t, device, dtype) for t in (*built.parameters(), *built.buffers())}
    return copy.deepcopy(built, own)


def _empty(like: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the same shape on `device`, a parameter if the other is one; of `dtype`, if that
    is of floats."""
    kept = dtype if like.is_floating_point() else like.dtype
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=kept, device=device)
    tensor = filled(tensor, INITIAL_SPREAD)
    if not isinstance(like, nn.Parameter):
        return tensor
    return nn.Parameter(tensor, requires_grad=like.requires_grad)


@functools.cache
def _built(name: str, masked: int | None) -> nn.Module:
    """The network on `meta`: to build and to initialise it takes several times what a copy does."""
    with torch.device("meta"):
        return _made(name, masked)


def _made(name: str, masked: int | None) -> nn.Module:
    if name == "bert_large":
        return bert.Bert(layers=24, hidden=1024, heads=16, masked=masked)
    if name in OWN:
        return OWN[name]()
    models = torchvision_models()
    if name not in models.list_models():
        raise ValueError(
            f"torchvision has no network called {name!r}: torchvision.models.list_models() names "
            "them"
        )
    options = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    return models.get_model(name, weights=None, **options)


def resnet(name: str, device: torch.device) -> ResNet:
    """A network as `network` makes it. Raises ValueError if it is no ResNet."""
    net = network(name, device)
    if not isinstance(net, torchvision_models().ResNet):
        raise ValueError(f"{name} is no ResNet")
    return net


def torchvision_models() -> ModuleType:
    """torchvision's networks. Raises ModuleNotFoundError that says what to install."""
    try:
        from torchvision import models
    except ImportError as error:
        raise ModuleNotFoundError(
            "published figures are mostly of torchvision's networks: pip install torchvision"
        ) from error
    return models
