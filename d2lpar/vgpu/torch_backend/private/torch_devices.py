"""Devices: streams, generators, graphs, and what this build and this processor can do."""

from __future__ import annotations

from typing import Any

import torch

from .torch_modules import _parallel_functions

_DEVICE_OF_STREAM: Any = torch.Stream.device_index


def device_of_stream(stream: torch.Stream) -> int:
    """The number of the virtual device, whatever the program calls that."""
    found: int = _DEVICE_OF_STREAM.__get__(stream)
    return found


def cudnn_version() -> int | None:
    """The version of cuDNN in this build of torch, whatever devices there are."""
    return torch._C._cudnn.getVersionInt() if torch._C._has_cudnn else None


# Where torch asks whether cuDNN wants the weights of a recurrent network in one piece.
FLATTENS_WEIGHTS = (torch, "_use_cudnn_rnn_flatten_weight")


def address_of_generator(generator: torch.Generator) -> int:
    """What torch calls a generator by, however Python holds it."""
    address: int = generator._cdata  # type: ignore[attr-defined]  # torch's stub lacks it
    return address


AcceleratorError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
GET_ACCELERATOR = (torch._C, "_get_accelerator")
STREAM_OF_COPIES = (_parallel_functions, "_get_stream")
PARSE_TO = (torch._C._nn, "_parse_to")  # what Module.to is told


def has_instructions_for(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies numbers of a half precision on this machine's processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    operators = torch.ops.mkldnn
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return bool(operators._is_mkldnn_fp16_supported())


def runs_as_it_is(backend: object) -> bool:
    """Whether a backend of `torch.compile` runs what was traced one operation after the other."""
    if isinstance(backend, str):
        return backend == "eager" or backend.startswith("aot_eager")
    return getattr(backend, "__module__", None) == "torch._dynamo.backends.debugging"
