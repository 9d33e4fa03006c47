"""Accelerators of AMD."""

from __future__ import annotations

from .card import card
from .card import tensor_card_tflops as tflops
from .sources import BEKMAN_2026

MI300X = card(
    "MI300X-192GB",
    "cdna3",
    tflops=tflops(163.4, 1307.4, tfloat32=653.7, float8=2610, float64=163.4),
    gb_per_s=5300,
    multiprocessors=304,
    l2_mib=256,  # Infinity Cache: the 4 MB of L2 belong to one of eight dies each
    watts=750,
    source=f"{BEKMAN_2026}; fp16 by its formula; 304 compute units: "
    "https://rocm.docs.amd.com/en/docs-6.2.2/conceptual/gpu-arch/mi300.html; 256 MB that all of "
    "them share: https://rocm.docs.amd.com/en/7.13.0-preview/reference/gpu-specs.html",
)
MI325X = card(
    "MI325X-256GB",
    "cdna3",
    tflops=tflops(163.4, 1307.4, tfloat32=653.7, float8=2614.9, float64=163.4),
    gb_per_s=6000,
    multiprocessors=304,
    l2_mib=256,
    watts=1000,
    source="https://awesomeagents.ai/hardware/amd-mi325x (2026); float64, the compute units and "
    "the cache are those of the MI300X, whose dies it has",
)
