"""`torch.backends.cuda` answers which kernels of attention could be used, and why not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.backends.cuda
import torch.nn.attention

from ...patching import Patches
from ...torch_backend.attention import choice as attention_choice
from ...torch_backend.tensors.tensor import VirtualTensor

_QUESTIONS = {
    "can_use_flash_attention": attention_choice.FLASH,
    "can_use_efficient_attention": attention_choice.EFFICIENT,
    "can_use_cudnn_attention": attention_choice.CUDNN,
}


def install(patches: Patches) -> None:
    """Replace the questions, also where torch has them under another module's name."""
    for name, kernel in _QUESTIONS.items():
        for module in (torch.backends.cuda, torch.nn.attention):
            if hasattr(module, name):
                patches.replace(module, name, _answer(kernel))
    patches.replace(torch.backends.cuda, "is_flash_attention_available", lambda: True)


def _answer(kernel: int) -> Callable[..., bool]:
    def can_use(params: torch.backends.cuda.SDPAParams, debug: bool = False) -> bool:
        reason = _why_not(kernel, params)
        if reason is not None and debug:
            warnings.warn(reason, stacklevel=3)
        return reason is None

    return can_use


def _why_not(kernel: int, params: torch.backends.cuda.SDPAParams) -> str | None:
    three = (params.query, params.key, params.value)
    if not all(isinstance(tensor, VirtualTensor) for tensor in three):
        devices = ", ".join(str(tensor.device) for tensor in three)
        return f"query, key and value must be on a cuda device, not on {devices}"
    inputs = attention_choice.inputs_of(
        *three, params.attn_mask, params.dropout, params.is_causal, params.enable_gqa
    )
    return attention_choice.why_not(kernel, inputs)
