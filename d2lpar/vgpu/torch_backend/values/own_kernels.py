"""Operations whose values are computed here, as torch has none for the CPU, or not for all data
types, or slow ones: by operation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import (
    attention_values,
    batch_norm_values,
    half_products,
    mixed_batch_norm,
    recurrent_values,
    rms_norm_values,
)

KERNELS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    **attention_values.KERNELS,
    **batch_norm_values.KERNELS,
    **half_products.KERNELS,
    **mixed_batch_norm.KERNELS,
    **recurrent_values.KERNELS,
    **rms_norm_values.KERNELS,
}
