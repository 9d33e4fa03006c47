"""Accelerators of NVIDIA's Ada Lovelace (2022).

GeForce cards and the L40 sum in fp32 at half of the rate at which they sum in fp16.
"""

from __future__ import annotations

from .card import card
from .card import tensor_card_tflops as tflops
from .sources import BEKMAN_2026, GPU_DATABASE, TECHPOWERUP

_AD102_CACHE = (
    "L2 cache: Ernst, gpu-benches, which sees the 96 MB of the L40, https://github.com/te42kyfo/"
    "gpu-benches/blob/1c36d509ee717dca9215c27135fa1e611bb03ed1/gpu-l2-cache"
)

RTX_4060_TI = card(
    "GeForce RTX 4060 Ti",
    "ada",
    # GeForce: 2, 1 and 4 times fp32 in fp16, TF32 and fp8, as on the RTX 4090.
    tflops=tflops(22.06, 2 * 22.06, tfloat32=22.06, float8=4 * 22.06, float64=0.345),
    gb_per_s=288,
    multiprocessors=34,
    l2_mib=32,
    watts=160,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 4090: {GPU_DATABASE}",
)
RTX_4070 = card(
    "GeForce RTX 4070",
    "ada",
    tflops=tflops(29.15, 2 * 29.15, tfloat32=29.15, float8=4 * 29.15, float64=0.455),
    gb_per_s=504.2,
    multiprocessors=46,
    l2_mib=36,
    watts=200,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 4090: {GPU_DATABASE}",
)
RTX_4070_SUPER = card(
    "GeForce RTX 4070 SUPER",
    "ada",
    tflops=tflops(35.48, 2 * 35.48, tfloat32=35.48, float8=4 * 35.48, float64=0.554),
    gb_per_s=504.2,
    multiprocessors=56,
    l2_mib=48,
    watts=220,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 4090: {GPU_DATABASE}",
)
RTX_4070_TI_SUPER = card(
    "GeForce RTX 4070 Ti SUPER",
    "ada",
    tflops=tflops(44.1, 88.25, tfloat32=44.13, float8=353 / 2, float64=0.689),
    gb_per_s=672,
    multiprocessors=66,
    l2_mib=48,
    watts=285,
    source=f"{GPU_DATABASE}, fp8 halved as on the RTX 4090; the L2 cache: {TECHPOWERUP}",
)
RTX_4080 = card(
    "GeForce RTX 4080",
    "ada",
    tflops=tflops(48.74, 2 * 48.74, tfloat32=48.74, float8=4 * 48.74, float64=0.761),
    gb_per_s=716.8,
    multiprocessors=76,
    l2_mib=64,
    watts=320,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 4090: {GPU_DATABASE}",
)
RTX_4090 = card(
    "GeForce RTX 4090",
    "ada",
    tflops=tflops(82.6, 165.2, tfloat32=82.6, float8=330.3, float64=1.29),
    gb_per_s=1008,
    multiprocessors=128,
    l2_mib=72,
    watts=450,
    memory_reached=921 / 1008,
    source="NVIDIA Ada GPU Architecture white paper 2.1, appendix A, table 2, https://images.nvidia"
    ".com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf; fp64 and 24 GB: "
    f"https://waredb.com/processor/nvidia-geforce-rtx-4090; tf32 and 450 W: {GPU_DATABASE}; copies "
    "within it at 918 to 924 GB/s: https://github.com/tinygrad/open-gpu-kernel-modules/issues/6",
)
RTX_6000_ADA = card(
    "RTX 6000 Ada",
    "ada",
    tflops=tflops(91.06, 4 * 91.06, tfloat32=2 * 91.06, float8=8 * 91.06, float64=1.423),
    gb_per_s=960,
    multiprocessors=142,
    l2_mib=96,
    watts=300,
    source=f"{TECHPOWERUP}; tensor cores at full rate, from fp32, as on the L40S: {GPU_DATABASE}",
)
L4 = card(
    "L4-PCIE-24GB",
    "ada",
    tflops=tflops(30.3, 121, tfloat32=60, float8=242, float64=0.49),
    gb_per_s=300,
    multiprocessors=58,
    l2_mib=48,
    watts=72,
    source=f"{GPU_DATABASE}; fp64: https://hmc-tech.com/gpu/nvidia-l4-vs-nvidia-l40; the L2 cache: "
    f"{TECHPOWERUP}",
)
L20 = card(
    "L20-PCIE-48GB",
    "ada",
    tflops=tflops(59.8, 119.5, tfloat32=59.8, float8=239, float64=0.927),
    gb_per_s=864,
    multiprocessors=92,
    l2_mib=96,
    watts=275,
    source=f"{TECHPOWERUP}; rates, those of fp16 and fp8 being 2 and 4 times that of fp32: "
    "119.5 TFLOPS in fp16, https://github.com/DefTruth/CUDA-Learn-Notes, hgemm/README.md",
)
L40 = card(
    "L40-PCIE-48GB",
    "ada",
    tflops=tflops(90.5, 181, tfloat32=90.5, float8=362, float64=1.41),
    gb_per_s=864,
    multiprocessors=142,
    l2_mib=96,
    watts=300,
    source=f"{GPU_DATABASE}, where others have twice the tensor cores' rates; fp64: https://"
    f"hmc-tech.com/gpu/nvidia-l4-vs-nvidia-l40; {_AD102_CACHE}",
)
L40S = card(
    "L40S-PCIE-48GB",
    "ada",
    tflops=tflops(91.6, 362.05, tfloat32=183, float8=733, float64=1.43),
    gb_per_s=864,
    multiprocessors=142,
    l2_mib=96,
    watts=350,
    source=f"{GPU_DATABASE}; 350 W: {BEKMAN_2026}; fp64: "
    f"https://hmc-tech.com/gpu/nvidia-l40s-vs-nvidia-t40; {_AD102_CACHE}, an AD102, too",
)
