"""Code written for CUDA, run as it stands on virtual GPUs: `with emulate_cuda(2):`."""

from .block import emulate_cuda

__all__ = ["emulate_cuda"]
