"""Accelerators of NVIDIA's Ampere (2020).

GeForce cards, and the A10G, sum products of fp16 in fp32 at half of the rate that is advertised.
"""

from __future__ import annotations

from .card import card
from .card import tensor_card_tflops as tflops
from .sources import AMPERE, AWS_INSTANCES, BEKMAN, GPU_DATABASE, TECHPOWERUP

_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture, https://images.nvidia.com/aem-dam/en-zz/Solutions/"
    "geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"
)
_FLOAT64 = 1 / 64  # of fp32: two lanes beside 128 in a multiprocessor of GA102, says the same
_CACHE = f"L2 cache and watts: {TECHPOWERUP}"
# A data centre's GA102 sums in fp32 at full rate: 4 times fp32 in fp16, twice in TF32.
_A40 = (
    "tensor cores, from fp32, as on the A40 of the same chip (37.4, 74.8 and 149.7 TFLOPS): "
    "https://hmc-tech.com/gpu/nvidia-l40-vs-nvidia-a40"
)

RTX_3060_LAPTOP = card(
    "GeForce RTX 3060 Laptop",
    "ampere",
    tflops=tflops(10.94, 2 * 10.94, tfloat32=10.94, float64=0.171),
    gb_per_s=336,
    multiprocessors=30,
    l2_mib=3,
    watts=80,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 3090: {_GA102}",
)
RTX_3060 = card(
    "GeForce RTX 3060",
    "ampere",
    tflops=tflops(12.74, 2 * 12.74, tfloat32=12.74, float64=0.199),
    gb_per_s=360,
    multiprocessors=28,
    l2_mib=3,
    watts=170,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 3090: {_GA102}",
)
RTX_3070 = card(
    "GeForce RTX 3070",
    "ampere",
    tflops=tflops(20.31, 2 * 20.31, tfloat32=20.31, float64=0.317),
    gb_per_s=448,
    multiprocessors=46,
    l2_mib=4,
    watts=220,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 3090: {_GA102}",
)
RTX_3080 = card(
    "GeForce RTX 3080",
    "ampere",
    tflops=tflops(29.77, 2 * 29.77, tfloat32=29.77, float64=0.465),
    gb_per_s=760.3,
    multiprocessors=68,
    l2_mib=5,
    watts=320,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 3090: {_GA102}",
)
RTX_3080_TI = card(
    "GeForce RTX 3080 Ti",
    "ampere",
    tflops=tflops(34.1, 2 * 34.1, tfloat32=34.1, float64=0.533),
    gb_per_s=912.4,
    multiprocessors=80,
    l2_mib=6,
    watts=350,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 3090: {_GA102}",
)
RTX_3090 = card(
    "GeForce RTX 3090",
    "ampere",
    tflops=tflops(35.6, 142 / 2, tfloat32=35.6, float64=35.6 * _FLOAT64),
    gb_per_s=936,
    multiprocessors=82,
    l2_mib=6,
    watts=350,
    memory_reached=838.5 / 936,
    source="https://holynerdvana.blogspot.com/2022/10/nvidia-geforce-rtx-3090-specifications.html "
    f"(2022); TF32 and the L2 cache: {_GA102}; watts: {TECHPOWERUP}; copies within it at 838.5 "
    "GB/s: https://github.com/NVIDIA/nccl/issues/1127",
)
RTX_3090_TI = card(
    "GeForce RTX 3090 Ti",
    "ampere",
    tflops=tflops(40, 160 / 2, tfloat32=40, float64=40 * _FLOAT64),
    gb_per_s=1008,
    multiprocessors=84,
    l2_mib=6,
    watts=450,
    source="rates and memory: https://github.com/mli/transformers-benchmarks, micro_bench.ipynb; "
    "multiprocessors: https://www.tweaktown.com/news/84164/nvidia-geforce-rtx-3090-ti-full-specs-"
    f"price-performance-details/index.html; TF32 as on the RTX 3090: {_GA102}; {_CACHE}",
)
RTX_A2000 = card(
    "RTX A2000",
    "ampere",
    tflops=tflops(7.987, 4 * 7.987, tfloat32=2 * 7.987, float64=0.125),
    gb_per_s=288,
    multiprocessors=26,
    l2_mib=3,
    watts=70,
    source=f"{TECHPOWERUP}; {_A40}",
)
RTX_A4000 = card(
    "RTX A4000",
    "ampere",
    tflops=tflops(19.17, 4 * 19.17, tfloat32=2 * 19.17, float64=0.2995),
    gb_per_s=448,
    multiprocessors=48,
    l2_mib=4,
    watts=140,
    source=f"{TECHPOWERUP}; {_A40}",
)
RTX_A5000 = card(
    "RTX A5000",
    "ampere",
    tflops=tflops(27.77, 4 * 27.77, tfloat32=2 * 27.77, float64=0.434),
    gb_per_s=768,
    multiprocessors=64,
    l2_mib=6,
    watts=230,
    source=f"{TECHPOWERUP}; {_A40}",
)
RTX_A6000 = card(
    "RTX A6000",
    "ampere",
    tflops=tflops(38.7, 154.8, tfloat32=2 * 38.7, float64=0.605),
    gb_per_s=768,
    multiprocessors=84,
    l2_mib=6,
    watts=300,
    source="154.8 TFLOPS: NVIDIA, Ampere GA102 GPU Architecture 2.0, https://www.nvidia.com/content/"
    "PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf; TF32 half of it; the rest: "
    "https://sysrqmts.com/pl/gpus/compare/nvidia-rtx-a6000-vs-nvidia-tesla-p40",
)
A40 = card(
    "A40-PCIE-48GB",
    "ampere",
    tflops=tflops(37.42, 149.7, tfloat32=74.8, float64=0.585),
    gb_per_s=695.8,
    multiprocessors=84,
    l2_mib=6,
    watts=300,
    source=f"{TECHPOWERUP}; {_A40}",
)
A10 = card(
    "A10-PCIE-24GB",
    "ampere",
    tflops=tflops(31.24, 4 * 31.24, tfloat32=2 * 31.24, float64=0.976),
    gb_per_s=600,
    multiprocessors=72,
    l2_mib=6,
    watts=150,
    source="https://sysrqmts.com/ru/gpus/compare/nvidia-a10-pcie-vs-nvidia-quadro-rtx-4000; watts: "
    f"{TECHPOWERUP}; {_A40}",
)
A10G = card(
    "A10G-PCIE-24GB",
    "ampere",
    # 80 multiprocessors x 128 lanes x 2 FLOP x 1.71 GHz.
    tflops=tflops(35, 2 * 35, tfloat32=35, float64=35 * _FLOAT64),
    gb_per_s=600,
    multiprocessors=80,
    l2_mib=6,
    watts=300,
    source="80 multiprocessors, fp32, TF32 and fp16: NVIDIA and AWS, A10G (2022), https://d1."
    "awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf, where "
    f"others ({TECHPOWERUP}) have 72; its clock of 1.71 GHz and L2 cache: there; memory: "
    "https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/; 300 W as nvidia-smi "
    f"says: {AWS_INSTANCES}",
)
_A100_TFLOPS = tflops(19.5, 312, tfloat32=156, float64=19.5)
_A100_CARDS = (
    "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide (2026); rates and cache, the "
    f"same on all cards: {AMPERE}"
)
A30 = card(
    "A30-PCIE-24GB",
    "ampere",
    tflops=tflops(10.32, 165, tfloat32=82, float64=5.161),
    gb_per_s=933.1,
    multiprocessors=56,
    l2_mib=24,
    watts=165,
    source=f"{TECHPOWERUP}; tensor cores: {GPU_DATABASE}",
)
A100 = card(
    "A100-SXM4-40GB",
    "ampere",
    tflops=_A100_TFLOPS,
    gb_per_s=1555,
    multiprocessors=108,
    l2_mib=40,
    watts=400,
    source=AMPERE,
)
A100_80GB = card(
    "A100-SXM4-80GB",
    "ampere",
    tflops=_A100_TFLOPS,
    gb_per_s=2039,
    multiprocessors=108,
    l2_mib=40,
    watts=400,
    source=f"{_A100_CARDS}; 400 W: {BEKMAN}",
)
A100_PCIE_40GB = card(
    "A100-PCIE-40GB",
    "ampere",
    tflops=_A100_TFLOPS,
    gb_per_s=1555,
    multiprocessors=108,
    l2_mib=40,
    watts=250,
    source=f"{_A100_CARDS}; 250 W: "
    "https://sysrqmts.com/tr/gpus/compare/nvidia-a100-pcie-vs-nvidia-jetson-tx1-gpu",
)
A100_PCIE_80GB = card(
    "A100-PCIE-80GB",
    "ampere",
    tflops=_A100_TFLOPS,
    gb_per_s=1935,
    multiprocessors=108,
    l2_mib=40,
    watts=300,
    source=f"{_A100_CARDS}; 300 W: {BEKMAN}",
)
