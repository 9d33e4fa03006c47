"""What programs set of torch in C++, for all threads of a process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # how to read it, and how to set it
# By the name of what reads one in C++, after "_get_" there: the name of what sets it, if that is
# another, after "_set_".
_SETTINGS = {
    "float32_matmul_precision": "",
    "deterministic_fill_uninitialized_memory": "",
    **dict.fromkeys(("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"), ""),
    **dict.fromkeys(("mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled"), ""),
    "flash_sdp_enabled": "sdp_use_flash",
    "mem_efficient_sdp_enabled": "sdp_use_mem_efficient",
    "math_sdp_enabled": "sdp_use_math",
    "cudnn_sdp_enabled": "sdp_use_cudnn",
    "overrideable_sdp_enabled": "sdp_use_overrideable",
    "math_sdp_allow_fp16_bf16_reduction": "",
    "sdp_priority_order": "",
    "cublas_allow_fp16_reduced_precision_reduction": "",
    "cublas_allow_bf16_reduced_precision_reduction": "",
    "cublas_allow_fp16_accumulation": "",
    "warnAlways": "",
}
_PRINT_OPTIONS = torch._tensor_str.PRINT_OPTS
_PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def settings() -> list[Setting]:
    """What programs set of torch in C++ for all threads of their process, in the order in which it
    can be set: some set others with them."""
    found: list[Setting] = [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (_anomaly, lambda value: torch.set_anomaly_enabled(*value)),
        (lambda: dict(vars(_PRINT_OPTIONS)), lambda value: vars(_PRINT_OPTIONS).update(value)),
    ]
    for name, other in _SETTINGS.items():
        get = getattr(torch._C, f"_get_{name}", None)
        put = getattr(torch._C, f"_set_{other or name}", None)
        if get is not None and put is not None:
            found.append((get, functools.partial(_put, put)))
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    bound = functools.partial
    return [*found, *((bound(read, *place), bound(write, *place)) for place in _PRECISIONS)]


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _put(put: Callable[..., object], value: object) -> None:
    if isinstance(value, tuple):
        put(*value)
    else:
        put(value)


def may_round_to_tf32(kind: str) -> bool:
    """What torch is set to for products of fp32 of a kind: by default those of cuDNN, "conv" and
    "rnn", may use TF32, others ("matmul") not."""
    backend = torch.backends.cuda if kind == "matmul" else torch.backends.cudnn
    return bool(getattr(backend, kind).fp32_precision == "tf32")
