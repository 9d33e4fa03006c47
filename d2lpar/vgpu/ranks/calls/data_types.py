"""Which data types NCCL and gloo exchange, and which of them NCCL adds up.

NCCL's are those of torch's table `ncclDataType`, gloo's those of its collectives; its sends take
bytes of any type. Both take complex numbers as pairs of real ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ....machines.compute_capability import compute_capability
from ...torch_backend.machine.runtime import current_runtime
from ...torch_backend.tensors.tensor import VirtualTensor
from ...torch_backend.values.reduced_values import FLOAT8

_BOTH = {
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    *(torch.complex32, torch.complex64, torch.complex128),
}
_AS_BYTES = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)  # which NCCL sends, and adds up nowhere
_NCCL = {*_BOTH, *FLOAT8, *_AS_BYTES}
_C10 = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32"}  # as errors have them
_HOPPER = (9, 0)
SENDS = ("send", "recv")


def check_exchanged(name: str, tensor: torch.Tensor) -> None:
    """TypeError for a type that NCCL does not exchange, RuntimeError for one that gloo does not."""
    dtype = tensor.dtype
    if dtype in _BOTH:
        return
    remedy = f"{name} got {dtype}; send it as another type, such as tensor.view(torch.uint8)"
    if isinstance(tensor, VirtualTensor):
        if dtype not in _NCCL:
            named = _C10.get(dtype, str(dtype).removeprefix("torch."))
            words = "Input tensor data type is not supported for NCCL process group"
            raise TypeError(f"{words}: {named}: {remedy}")
    elif name not in SENDS:
        raise RuntimeError(f"Invalid scalar type: gloo exchanges none such: {remedy}")


def check_reduced(op: str, tensor: torch.Tensor) -> None:
    """Of a tensor on a device: RuntimeError for numbers of eight bits that NCCL does not reduce
    there, and TypeError for a mean of Booleans."""
    if not isinstance(tensor, VirtualTensor):
        return
    if tensor.dtype == torch.bool and op == "AVG":
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs: convert them, with .float()")
    if tensor.dtype in _AS_BYTES:
        raise RuntimeError(
            f"Unsupported Float8 type for NCCL reduction: {tensor.dtype}; convert it, with "
            ".bfloat16()"
        )
    gpu = current_runtime().machine.accelerators[tensor.vgpu_index]
    if tensor.dtype in FLOAT8 and compute_capability(gpu) < _HOPPER:
        raise dist.DistBackendError(
            "NCCL error: invalid argument: FP8 reduction support begins with sm90 capable devices, "
            f"and {tensor.device} is a {gpu.name}: convert {tensor.dtype} first, with .bfloat16()"
        )
