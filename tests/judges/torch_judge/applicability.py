"""Which tests cannot apply to virtual GPUs, told by what their source text uses.

No test is named here. A test is not applicable if its own text, or that of a helper method which it
calls, uses something that only the hardware, its driver
or NVIDIA's libraries have. Such tests run all the same, and must not crash or hang.
"""

from __future__ import annotations

import inspect
import re
import unittest
from collections.abc import Callable, Iterator

# Reason: what is looked for in the source text.
REASONS = {
    "counts segments of CUDA's allocator, or what graphs of one pool overwrite: here are none": (
        r"graph_pool_handle|\.pool\(\)|cudagraphify|[\"']segment\."
    ),
    "compiles with Triton, Inductor or NVRTC": (
        r"torch\.compile\b|torch\._inductor(?!\.config\b)|(?<!config\.)triton|nvrtc|jiterator"
        r"|_dynamo\.optimize|@compile|run_and_get_triton_code|run_and_get_code|compiled_autograd"
        r"|torch\._dynamo\.testing|\.compile\("
    ),
    "asks the driver, NVML or CUDA's runtime library": (
        r"nvml|cudart|ctypes|_cuda_getDriverVersion|cudaHostRegister|cudaDeviceSetLimit"
        r"|cudaMallocManaged|nvidia-smi|jetson|_raw_device|_get_power|_temperature"
        r"|cuda\._utils import (?!_get_device_index)"
        r"|clock_rate|_cuda_getArchFlags|get_arch_list|gencode|cuda\.utilization|cuda\.memory_usage\("
    ),
    "tunes or measures cuBLAS, cuDNN or MAGMA, or looks for their own nodes in a graph": (
        r"ClearCublas|clearCublas|cublasLt|CUBLASLT|CUBLAS_WORKSPACE|tunable|preferred_linalg"
        r"|preferred_blas|cudnn\.(benchmark|version)|magma|CudnnRnnBackward"
    ),
    "replaces CUDA's allocator": (
        r"CUDAPluggableAllocator|MemPool|cudaMallocAsync|expandable_segments"
        r"|use_mem_pool|_cuda_(begin|end)Allocate|roundup_power2_divisions"
        r"|_cuda_getAllocator|getCheckpointState|setCheckpointPoolState"
    ),
    "looks for lines of C++ or TorchScript in the stacks of allocations": (
        r"::rand\b|torch\.jit\.script[\s\S]*\"frames\""
    ),
    "compiles an extension": r"load_inline|cpp_extension|CUDAExtension",
    "starts an interpreter of its own": (
        r"subprocess\.|sys\.executable|run_process_no_exception|assertRunAndPass|spawn_main"
    ),
    "looks into NCCL's communicators and watchdog": (
        r"_dump_nccl_trace|_reset_fr_recording|ncclComm|comm_split|_verify_work_timeout|watchdog"
        r"|_abort_process_group|(group|pg|backend)\.abort\(|_set_sequence_number|WorkNCCL|nccl_trace|TORCH_FR_"
        r"|_set_default_timeout|_get_backend\(torch\.device\(\W*cuda"
        r"|ncclConfig|perform_nocolor_split|register_mem_pool|ProcessGroupNCCL\.|_start_coalescing"
    ),
    "makes groups of NCCL, gloo, MPI or UCC by their own classes": (
        r"ProcessGroup(Gloo|MPI|UCC|Wrapper|NCCL\()"
    ),
    "reads the tree of events, or the execution trace, that Kineto has in C++": (
        r"experimental_event_tree|_memory_profile|profile_plot|kineto|ExecutionTrace"
    ),
    "tells processes apart by their numbers, or sends them signals": (
        r"os\.getpid|os\.kill|os\.fork|signal\.SIG"
    ),
    "uses symmetric memory or CUDA IPC": r"symm_mem|SymmetricMemory|_share_cuda_|IpcMem|nvshmem",
    "remote procedure calls (RPC)": r"\brpc\.|rpc_async|rpc_sync|dist_autograd",
}
# Of a test of an older checkout; it shows when the test runs.
GONE = "uses what the installed torch does not have any more"
_PATTERNS = {reason: re.compile(pattern) for reason, pattern in REASONS.items()}


def why_not_applicable(test: unittest.TestCase) -> str | None:
    """The first reason whose words the test's source text has; None if it applies."""
    text = "\n".join(_sources(test))
    return next((reason for reason, words in _PATTERNS.items() if words.search(text)), None)


def _sources(test: unittest.TestCase) -> Iterator[str]:
    """The text of a test (decorators included), and of the helpers that it calls by name."""
    name = test._testMethodName
    function = inspect.unwrap(getattr(type(test), name))
    text = _text_of(function)
    yield text
    for helper in sorted(set(re.findall(r"\bself\.(\w+)\(", text))):
        found = getattr(type(test), helper, None)
        if callable(found) and not helper.startswith("assert") and _is_own(found, function):
            yield _text_of(inspect.unwrap(found))


def _is_own(helper: Callable, test: Callable) -> bool:
    """Whether both are of the same module: what torch's test bases do counts for no test."""
    return getattr(helper, "__module__", None) == getattr(test, "__module__", "")


def _text_of(function: object) -> str:
    """Its code without comments and docstrings, where it can be found."""
    try:
        text = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    text = re.sub(r'"""[\s\S]*?"""', '""', text)
    return re.sub(r"#.*", "", text)
