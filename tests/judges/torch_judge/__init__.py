"""PyTorch's own tests as the judge of virtual GPUs: `make torch-tests`.

Tests that ship with torch, and with `PYTORCH=path` those of a checkout of PyTorch, run as they are
inside `d2lpar.emulate_cuda`; those that start processes run on virtual ranks instead. Each runs in
a process of its own, with limits of time and memory, so that one that crashes or never ends counts
as failed and the others go on.
"""
