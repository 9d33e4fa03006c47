"""What torch's profiler and its history of memory ask of C++."""

from __future__ import annotations

import torch

PREPARE_PROFILER = (torch.autograd.profiler.profile, "_prepare_trace")
END_PROFILER = (torch.autograd.profiler.profile, "__exit__")


def stop_profiling() -> None:
    """Stop torch's profiler if this thread has started it."""
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
        torch.autograd.profiler._run_on_profiler_stop()


def is_profiling() -> bool:
    """Whether torch's profiler runs, in any thread."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


# What torch.cuda.memory asks of C++ about what allocators have done; not in builds for the CPU.
MEMORY_HISTORY = {
    "record": (torch._C, "_cuda_record_memory_history"),
    "record_legacy": (torch._C, "_cuda_record_memory_history_legacy"),
    "snapshot": (torch._C, "_cuda_memorySnapshot"),
    "observe_oom": (torch._C, "_cuda_attach_out_of_memory_observer"),
    "settings": (torch._C, "_accelerator_setAllocatorSettings"),
}
