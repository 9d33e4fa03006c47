"""Accelerators of NVIDIA's Blackwell (2024): two chips as one GPU, and GeForce cards."""

from __future__ import annotations

from dataclasses import replace

from .card import card
from .card import tensor_card_tflops as tflops
from .sources import BEKMAN_2026, DEVICE_PROPERTIES, GPU_DATABASE, TECHPOWERUP

# The data sheet's "2.2 PFLOPS in TF32" and twice the rest are sparse.
_HGX = (
    "NVIDIA's table of GB200 NVL72 and HGX B200, whose tensor cores' rates are sparse, "
    "https://zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html; dense: "
    f"{BEKMAN_2026}"
)
_CACHE = f"L2 cache: {DEVICE_PROPERTIES} (B200)"

B200 = card(
    "B200-SXM-180GB",
    "blackwell",
    tflops=tflops(75, 2250, tfloat32=1125, float8=4500, float64=37),
    gb_per_s=7700,
    multiprocessors=148,
    l2_mib=126,
    watts=1000,
    source=f"{_HGX}; multiprocessors and {_CACHE}",
)
B200_750W = replace(B200, name="B200-SXM-180GB, 750 W", power_w=750)  # capped so
GB200 = card(
    "GB200-186GB",
    "blackwell",
    tflops=tflops(80, 2500, tfloat32=1250, float8=5000, float64=40),
    gb_per_s=8000,
    multiprocessors=152,
    l2_mib=126,
    watts=1200,
    source=f"one of the two GPUs of a module: {_HGX}; 152 multiprocessors: tests of "
    f"https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel; {_CACHE}",
)
B300 = card(
    "B300-SXM-288GB",
    "blackwell",
    tflops=tflops(75, 2250, tfloat32=1125, float8=4500, float64=1.25),
    gb_per_s=8000,
    source=f"{GPU_DATABASE}; fp64: https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores"
    f".html; {_CACHE}, the same memory controllers",
    l2_mib=126,
)
GB300 = card(
    "GB300-288GB",
    "blackwell",
    tflops=tflops(80, 2500, tfloat32=1250, float8=5000, float64=1.25),
    gb_per_s=8000,
    l2_mib=126,
    watts=1400,
    source=f"{BEKMAN_2026}, memory and fp64 as of B300; {_CACHE}, the same memory controllers",
)
RTX_5070_TI_LAPTOP = card(
    "GeForce RTX 5070 Ti Laptop",
    "blackwell",
    # GeForce: 2, 1 and 4 times fp32 in fp16, TF32 and fp8, as on the RTX 5090.
    tflops=tflops(17.04, 2 * 17.04, tfloat32=17.04, float8=4 * 17.04, float64=0.266),
    gb_per_s=672,
    multiprocessors=46,
    l2_mib=48,
    watts=60,
    source=f"{TECHPOWERUP}, at the smallest of its power limits; tensor cores, from fp32, as on "
    f"the RTX 5090: {GPU_DATABASE}",
)
# Cards for workstations sum in fp32 at full rate: 4, 2 and 8 times fp32.
_RTX_PRO = (
    f"{TECHPOWERUP}; tensor cores, from fp32, as NVIDIA prints them of the server's card (500 "
    f"TFLOPS in fp16 and bf16, 1000 in fp8): {GPU_DATABASE}"
)
RTX_PRO_6000 = card(
    "RTX PRO 6000 Blackwell",
    "blackwell",
    tflops=tflops(126, 4 * 126, tfloat32=2 * 126, float8=8 * 126, float64=1.968),
    gb_per_s=1792,
    multiprocessors=188,
    l2_mib=128,
    watts=600,
    source=_RTX_PRO,
)
RTX_PRO_6000_MAX_Q = card(
    "RTX PRO 6000 Blackwell Max-Q",
    "blackwell",
    tflops=tflops(109.7, 4 * 109.7, tfloat32=2 * 109.7, float8=8 * 109.7, float64=1.715),
    gb_per_s=1792,
    multiprocessors=188,
    l2_mib=128,
    watts=300,
    source=_RTX_PRO,
)
RTX_5070 = card(
    "GeForce RTX 5070",
    "blackwell",
    tflops=tflops(30.87, 2 * 30.87, tfloat32=30.87, float8=4 * 30.87, float64=0.482),
    gb_per_s=672,
    multiprocessors=48,
    l2_mib=48,
    watts=250,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 5090: {GPU_DATABASE}",
)
RTX_5080 = card(
    "GeForce RTX 5080",
    "blackwell",
    tflops=tflops(56.28, 2 * 56.28, tfloat32=56.28, float8=4 * 56.28, float64=0.879),
    gb_per_s=960,
    multiprocessors=84,
    l2_mib=64,
    watts=360,
    source=f"{TECHPOWERUP}; tensor cores, from fp32, as on the RTX 5090: {GPU_DATABASE}",
)
RTX_5090 = card(
    "GeForce RTX 5090",
    "blackwell",
    tflops=tflops(104.8, 209.5, tfloat32=104.8, float8=419, float64=1.637),
    gb_per_s=1792,
    multiprocessors=170,
    l2_mib=96,
    watts=575,
    source=f"{GPU_DATABASE}, with sums in fp32; fp64 and the L2 cache: {TECHPOWERUP}",
)
