"""Data parallelism on 1 to 100,000 devices: step time, efficiency, time to accuracy.

    profile = scaling.Profile.of({1: step_of_1, 32: step_of_32})    # or scaling.timed_step(...)
    network = scaling.Network.of(machine("8x-v100-dgx1"), NETWORKS["25gbe"])
    scaling.weak(profile, scaling.library(network), batch=32, devices=scaling.counts(512, node=8))

All but `timed_step` is plain arithmetic; devices are numbered, not built.
"""

from __future__ import annotations

from .convergence import Convergence, fit_convergence
from .exchange import (
    METHODS,
    Exchange,
    half_precision,
    hierarchical,
    hierarchical_bytes,
    key_value_store,
    library,
    ring,
    ring_bytes,
    store_bytes,
)
from .network import Level, Network
from .overhead import NO_OVERHEAD, Overhead
from .profile import Profile
from .speed import Speed, counts, strong, weak
from .steps import ONE_BUCKET, DeviceStep, Gradient, buckets, step_s
from .target import RunToTarget, runs
from .timed import timed_step

__all__ = [
    "METHODS",
    "NO_OVERHEAD",
    "ONE_BUCKET",
    "Convergence",
    "DeviceStep",
    "Exchange",
    "Gradient",
    "Level",
    "Network",
    "Overhead",
    "Profile",
    "RunToTarget",
    "Speed",
    "buckets",
    "counts",
    "fit_convergence",
    "half_precision",
    "hierarchical",
    "hierarchical_bytes",
    "key_value_store",
    "library",
    "ring",
    "ring_bytes",
    "runs",
    "step_s",
    "store_bytes",
    "strong",
    "timed_step",
    "weak",
]
