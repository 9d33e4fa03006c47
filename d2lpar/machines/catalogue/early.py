"""A processor, and accelerators from Kepler to Turing (2014 to 2018).

The 21.2 and 18.7 TFLOPS of the P100 in fp16 sum in fp16, which PyTorch's products do not: without
tensor cores fp16 has the rate of fp32 here. L2 caches and watts are TechPowerUp's, but for those
of P100 and V100 on SXM2, which are in the table of NVIDIA's.
"""

from __future__ import annotations

from ..hardware import GIGA, MICRO, Accelerator
from .capacities import GIBI
from .card import card
from .sources import AMPERE, KERNEL_LATENCY, TECHPOWERUP, VOLTA

_CACHE = f"L2 cache and watts: {TECHPOWERUP}"
# Medians of 130 to 260 elementwise kernels of 3 ms and more in fp32 (NeuSight, 2024).
_ELEMENTWISE = "https://github.com/sitar-lab/NeuSight, scripts/asplos/data/dataset/test/elem.csv"

I7_6700K = Accelerator(
    "Core i7-6700K",
    # 4 cores x 4.0 GHz x 2 units x 8 (fp64: 4) lanes x 2 FLOP of a fused multiply-add.
    {"float32": 4 * 4.0 * GIGA * 2 * 8 * 2, "float64": 4 * 4.0 * GIGA * 2 * 4 * 2},
    memory_bytes_per_s=2 * 8 * 2.133 * GIGA,  # 2 channels of 8 bytes, DDR4-2133
    memory_bytes=64 * GIBI,
    kernel_latency_s=1 * MICRO,
    source="4 cores at 4.0 GHz (silentpcreview.com/Intel_Core_i7-6700K, 2015); two channels of "
    "DDR4-2133, up to 64 GiB (notebookinfo.de, Intel Core i7-6700K, 2015); rates follow from them; "
    + KERNEL_LATENCY,
)
TITAN_X = card(
    "GeForce GTX Titan X",
    "maxwell",
    tflops={"float32": 7, "float64": 0.2},
    gb_per_s=336.5,
    multiprocessors=24,
    l2_mib=3,
    watts=250,
    source="7 and 0.2 TFLOPS: https://ocaholic.ch/modules/news/article.php?storyid=12063 (2015); "
    "the rest: https://hothardware.com/reviews/nvidia-geforce-gtx-titan-x-review-efficient-powerful"
    f" (2015); {_CACHE}",
)
TITAN_X_PASCAL = card(
    "Titan X (Pascal)",
    "pascal",
    # Of 128 lanes 4 have fp64: CUDA C++ Programming Guide, arithmetic instructions, 6.1.
    tflops={"float32": 11, "float64": 11 / 32},
    gb_per_s=480,
    multiprocessors=28,
    l2_mib=3,
    watts=250,
    source="https://gamersnexus.net/news-pc/2523-nvidia-gp102-titan-x-specs-announced (2016), "
    f"which marks the 28 multiprocessors with '?'; {_CACHE}",
)
GTX_1080 = card(
    "GeForce GTX 1080",
    "pascal",
    tflops={"float32": 8.873, "float64": 0.277},
    gb_per_s=320.3,
    multiprocessors=20,
    l2_mib=2,
    watts=180,
    source=TECHPOWERUP,
)
GTX_1080_TI = card(
    "GeForce GTX 1080 Ti",
    "pascal",
    tflops={"float32": 11.34, "float64": 0.354},
    gb_per_s=484.4,
    multiprocessors=28,
    l2_mib=2.75,
    watts=250,
    source=TECHPOWERUP,
)
K80 = card(
    "Tesla K80, one of its two GPUs",
    "kepler",
    tflops={"float32": 8.74 / 2, "float64": 2.91 / 2},
    gb_per_s=240,
    multiprocessors=13,
    l2_mib=1.5,
    watts=300 / 2,
    source="half of the board's 8.74 and 2.91 TFLOPS at 875 MHz: AnandTech, NVIDIA Launches Tesla "
    "K80 (2014), http://www.foruma.anandtech.com/show/8729/nvidia-launches-tesla-k80-gk210-gpu; "
    "240 GB/s: https://cnews.cz/clanky/nvidia-uvadi-nove-gpu-generace-kepler-gk210-bezi-v-dualni-"
    f"karte-tesla-k80/ (2014); 13 SMX: Jouppi et al. 2017, arXiv 1704.04760; {_CACHE}",
)
K40 = card(
    "Tesla K40",
    "kepler",
    tflops={"float32": 5.046, "float64": 1.682},
    gb_per_s=288.4,
    multiprocessors=15,
    l2_mib=1.5,
    watts=245,
    source=f"{TECHPOWERUP}; 15 SMX: 2,880 lanes of 192 each",
)
P100 = card(
    "P100-SXM2-16GB",
    "pascal",
    tflops={"float32": 10.6, "float64": 5.3},
    gb_per_s=720,
    multiprocessors=56,
    l2_mib=4,
    watts=300,
    memory_reached=549 / 720,
    source=f"{AMPERE}; what the memory reaches as on the PCIe card",
)
P100_PCIE = card(
    "P100-PCIE-16GB",
    "pascal",
    tflops={"float32": 9.3, "float64": 4.7},
    gb_per_s=720,
    multiprocessors=56,
    l2_mib=4,
    watts=250,
    memory_reached=549 / 720,
    source="https://tech4gamers.com/nvidia-tesla-p100-will-be-available-in-two-variants-of-16gb-"
    f"12gb-hbm2/ (2016); multiprocessors as of the SXM2 card; {_CACHE}; elementwise kernels at 549 "
    f"GB/s: {_ELEMENTWISE}",
)
P40 = card(
    "Tesla P40",
    "pascal",
    tflops={"float32": 11.76, "float64": 0.3674},
    gb_per_s=346,
    multiprocessors=30,
    l2_mib=3,
    watts=250,
    source="rates and 30 multiprocessors: https://sysrqmts.com/gpus/nvidia/tesla/p40; memory: "
    f"https://omegaco.ae/shop/gpu-cards-edge-ai/nvidia-p40; {_CACHE}",
)
_V100_TFLOPS = {"float32": 15.7, "float16": 125, "float64": 7.8}
V100 = card(
    "V100-SXM2-16GB",
    "volta",
    tflops=_V100_TFLOPS,
    gb_per_s=900,
    multiprocessors=80,
    l2_mib=6,
    watts=300,
    source=AMPERE,
)
V100_SXM2_32GB = card(
    "V100-SXM2-32GB",
    "volta",
    tflops=_V100_TFLOPS,
    gb_per_s=900,
    multiprocessors=80,
    l2_mib=6,
    watts=300,
    source=f"{VOLTA}; multiprocessors and cache: {AMPERE}",
)
V100_32GB = card(
    "V100-SXM3-32GB",
    "volta",
    tflops=_V100_TFLOPS,
    gb_per_s=900,
    multiprocessors=80,
    l2_mib=6,
    watts=350,
    source=f"as the SXM2 card: {AMPERE}; 350 W: "
    "https://pcper.com/2018/03/nvidia-announces-dgx-2-with-16-gv100s-8-100gb-nics/",
)
V100_PCIE = card(
    "V100-PCIE-16GB",
    "volta",
    tflops={"float32": 14, "float16": 112, "float64": 7},
    gb_per_s=900,
    multiprocessors=80,
    l2_mib=6,
    watts=250,
    memory_reached=824 / 900,
    source=f"{VOLTA}; L2 cache as of the SXM2 card: {AMPERE}; elementwise kernels at 824 GB/s: "
    f"{_ELEMENTWISE}",
)
TITAN_V = card(
    "Titan V",
    "volta",
    # Eight times fp32: 640 tensor cores as on the V100, at this card's clock.
    tflops={"float32": 14.9, "float16": 8 * 14.9, "float64": 7.45},
    gb_per_s=651.3,
    multiprocessors=80,
    l2_mib=4.5,
    watts=250,
    source=f"{TECHPOWERUP}; fp16 from fp32, as on the V100 ({AMPERE})",
)
QUADRO_GV100 = card(
    "Quadro GV100",
    "volta",
    # Eight times fp32: 640 tensor cores as on the V100, at this card's clock.
    tflops={"float32": 16.66, "float16": 8 * 16.66, "float64": 8.33},
    gb_per_s=868.4,
    multiprocessors=80,
    l2_mib=6,
    watts=250,
    source=f"{TECHPOWERUP}; fp16 from fp32, as on the V100 ({AMPERE})",
)
_TURING = (
    "NVIDIA Turing GPU Architecture, https://images.nvidia.com/aem-dam/en-zz/Solutions/"
    "design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
RTX_2070_SUPER = card(
    "GeForce RTX 2070 SUPER",
    "turing",
    # With sums in fp32 four times the rate of fp32, as on the RTX 2080 Ti.
    tflops={"float32": 9.062, "float16": 4 * 9.062, "float64": 0.283},
    gb_per_s=448,
    multiprocessors=40,
    l2_mib=4,
    watts=215,
    source=f"{TECHPOWERUP}; fp16: {_TURING}",
)
RTX_2080 = card(
    "GeForce RTX 2080",
    "turing",
    tflops={"float32": 10.07, "float16": 4 * 10.07, "float64": 0.315},
    gb_per_s=448,
    multiprocessors=46,
    l2_mib=4,
    watts=215,
    source=f"{TECHPOWERUP}; fp16, as on the RTX 2080 Ti: {_TURING}",
)
RTX_2080_TI = card(
    "GeForce RTX 2080 Ti",
    "turing",
    # The reference card: with sums in fp32 at half of the rate that is advertised.
    tflops={"float32": 13.4, "float16": 53.8, "float64": 0.42},
    gb_per_s=616,
    multiprocessors=68,
    l2_mib=5.5,
    watts=250,
    source=f"{_TURING}; multiprocessors, fp64, {_CACHE}",
)
QUADRO_RTX_6000 = card(
    "Quadro RTX 6000",
    "turing",
    tflops={"float32": 16.3, "float16": 130.5, "float64": 0.51},
    gb_per_s=672,
    multiprocessors=72,
    l2_mib=6,
    watts=260,
    source=f"{_TURING}; multiprocessors, fp64, {_CACHE}",
)
TITAN_RTX = card(
    "Titan RTX",
    "turing",
    tflops={"float32": 16.3, "float16": 130.5, "float64": 0.51},
    gb_per_s=672,
    multiprocessors=72,
    l2_mib=6,
    watts=280,
    source="130.5 TFLOPS in fp16 summed in fp32: NVIDIA Ampere GA102 GPU Architecture, https://"
    "images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-"
    f"Architecture-Whitepaper-V1.pdf; the rest: {TECHPOWERUP}",
)
T4 = card(
    "T4-PCIE-16GB",
    "turing",
    tflops={"float32": 8.1, "float16": 65.13, "float64": 0.254},
    gb_per_s=320,
    multiprocessors=40,
    l2_mib=4,
    watts=70,
    memory_reached=240 / 320,
    source="https://sysrqmts.com/gpus/compare/nvidia-a100-sxm4-40-gb-vs-nvidia-tesla-t4; 65.13 "
    "TFLOPS in fp16 summed in fp32: https://hmc-tech.com/gpu/nvidia-a800-40gb-vs-nvidia-t4; "
    f"elementwise kernels at 240 GB/s: {_ELEMENTWISE}",
)
GTX_1660_TI = card(
    "GeForce GTX 1660 Ti",
    "turing",  # without tensor cores
    tflops={"float32": 5.437, "float64": 0.1699},
    gb_per_s=288,
    multiprocessors=24,
    l2_mib=1.5,
    watts=120,
    source=TECHPOWERUP,
)
