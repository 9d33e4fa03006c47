"""Accelerators of NVIDIA's Hopper (2022).

The chip has 5 MB of L2 cache for each of twelve memory controllers, two to a stack of memory:
cards of five stacks (80 GB) have 50 MB, those of six 60 MB.
"""

from __future__ import annotations

from .card import card
from .card import tensor_card_tflops as tflops
from .sources import BEKMAN, BEKMAN_2026, DEVICE_PROPERTIES, GPU_DATABASE

_H100_TABLE = "the datasheet's table, https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html"
_DENSE = "tf32, fp16, bf16 and fp8 without sparsity"
_SIX_STACKS = (
    f"60 MB of L2 cache as all cards of six stacks: {DEVICE_PROPERTIES} (H200), and Chips and "
    "Cheese, https://chipsandcheese.com/2023/07/02/nvidias-h100-funny-l2-and-tons-of-bandwidth/"
)
_SXM_TFLOPS = tflops(67, 989.4, tfloat32=494.7, float8=1978.9, float64=67)
_NVL_TFLOPS = tflops(60, 835.5, tfloat32=417.5, float8=1670.5, float64=60)

H100 = card(
    "H100-SXM5-80GB",
    "hopper",
    tflops=_SXM_TFLOPS,
    gb_per_s=3350,
    multiprocessors=132,
    l2_mib=50,
    watts=700,
    source=f"{_H100_TABLE}; {_DENSE}: https://glennklockwood.com/garden/processors/h100",
)
H100_500W = card(
    "H100-SXM5-96GB, 500 W",
    "hopper",
    tflops=_SXM_TFLOPS,
    gb_per_s=2400,
    multiprocessors=132,
    l2_mib=60,
    watts=500,
    source="memory and power limit: torchtitan, Llama 3 on H100 (2024), https://github.com/pytorch/"
    "torchtitan/blob/31a17bfdb70bab6f62a13d21816a5339b911d6e3/benchmarks/llama3_h100_202412_"
    "torchtitan.md, which says that its peak is between those of SXM and NVL and not known: taken "
    f"as that of H100-SXM5-80GB, {_H100_TABLE}; {_SIX_STACKS}",
)
H100_PCIE = card(
    "H100-PCIE-80GB",
    "hopper",
    tflops=tflops(51, 756, tfloat32=378, float8=1513, float64=51),
    gb_per_s=2000,
    multiprocessors=114,
    l2_mib=50,
    watts=350,
    source=f"{_H100_TABLE}; {_DENSE}: {BEKMAN}",
)
H100_NVL = card(
    "H100-NVL-94GB",
    "hopper",
    tflops=_NVL_TFLOPS,
    gb_per_s=3900,
    multiprocessors=132,
    l2_mib=60,
    watts=400,
    source=f"one of the two cards: {GPU_DATABASE}; 132 multiprocessors: "
    f"https://gpu.blog/gpus/nvidia-h100-nvl; {_SIX_STACKS}",
)
H200 = card(
    "H200-SXM-141GB",
    "hopper",
    tflops=tflops(67, 989, tfloat32=494.5, float8=1979, float64=67),
    gb_per_s=4800,
    multiprocessors=132,
    l2_mib=60,
    watts=700,
    source=f"{BEKMAN} ('the same as H100 but has 141GB … @4.8TBps'), so with the H100's fp64; "
    f"multiprocessors and L2 cache: {DEVICE_PROPERTIES}",
)
H200_NVL = card(
    "H200-NVL-141GB",
    "hopper",
    tflops=_NVL_TFLOPS,
    gb_per_s=4800,
    multiprocessors=132,
    l2_mib=60,
    watts=600,
    source=f"{GPU_DATABASE}; multiprocessors as of the H200 on SXM; {_SIX_STACKS}",
)
H800 = card(
    "H800-SXM5-80GB",
    "hopper",
    tflops=_SXM_TFLOPS | {"float64": 1},
    gb_per_s=3350,
    multiprocessors=132,
    l2_mib=50,
    watts=700,
    source="an H100 with less NVLink and 1 TFLOPS in fp64: https://www.tumgag.com/tag/nvidia%20h100"
    f"; the rest: {_H100_TABLE}",
)
H20 = card(
    "H20-SXM-96GB",
    "hopper",
    tflops=tflops(44, 148, tfloat32=74, float8=296, float64=1),
    gb_per_s=4000,
    multiprocessors=78,
    l2_mib=60,
    watts=400,
    source=f"{GPU_DATABASE}; 78 multiprocessors: https://zangshuxian.com/new/674733024499207168; "
    f"{_SIX_STACKS}",
)
GH200 = card(
    "GH200-96GB",
    "hopper",
    tflops=_SXM_TFLOPS,
    gb_per_s=4000,
    multiprocessors=132,
    l2_mib=60,
    source=f"{BEKMAN_2026}; {_SIX_STACKS}; it shares its watts with the processor",
)
GH200_HBM3E = card(
    "GH200-141GB",
    "hopper",
    tflops=_SXM_TFLOPS,
    gb_per_s=4800,
    multiprocessors=132,
    l2_mib=60,
    watts=900,
    source=f"{BEKMAN_2026}, '900W 141GiB HBM3e version', the processor's watts among them; "
    f"{_SIX_STACKS}",
)
