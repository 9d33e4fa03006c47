"""Real accelerators, links and machines, with the figures that their sources print.

Peaks are dense. Matrices of float16 and bfloat16 are multiplied on tensor cores where there are
some, summed in fp32 as PyTorch has it; float64 uses them from the A100 on. A rate that is missing
is that of float32. Sources that are quoted often stand at the top.
"""

from __future__ import annotations

from .hardware import GIGA, MICRO, TERA, Accelerator, Host, Link, Machine

AMPERE = (
    "Krashinsky et al., NVIDIA Ampere Architecture In-Depth, table 3 (2020), "
    "https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/"
)
BEKMAN = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "b9e29720eebd4aa946fa9678975385efbc90a777/compute/accelerator/README.md"
)
BEKMAN_NETWORK = (
    "Bekman, Machine Learning Engineering, https://github.com/stas00/ml-engineering/blob/"
    "d28da7a404a51b8428bd77519ac9c3f9b1821b68/network/README.md"
)
VOLTA = (
    "NVIDIA V100 datasheet (2018), "
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
D2L_HARDWARE = (
    "Dive into Deep Learning, Hardware, https://github.com/d2l-ai/d2l-en/blob/"
    "00e04149028dae8ec69f7f31dc4b7b7ab1500eb6/chapter_computational-performance/hardware.md"
)
D2L_SERVERS = (
    "Dive into Deep Learning, Parameter Servers, https://github.com/d2l-ai/d2l-en/blob/"
    "0f4e57be684684d5619bce727690bea54269849d/chapter_computational-performance/parameterserver.md"
)
NCCL = (
    "NCCL 2.8, a ring's step in protocol Simple, https://github.com/NVIDIA/nccl/blob/"
    "01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc"
)
TOPO = (
    "payload as NCCL reckons with, https://github.com/NVIDIA/nccl/blob/"
    "069a3d4f95ca488dc63ba7ae659a2db77942a62e/src/graph/topo.h"
)
KERNEL_LATENCY = (
    "kernel latency: that of an empty kernel, about 3 µs, "
    "https://forums.developer.nvidia.com/t/too-much-time-for-kernel-launch-latency/233645"
)

# --- Accelerators ---------------------------------------------------------------------------------

I7_6700K = Accelerator(
    "Core i7-6700K",
    # 4 cores x 4.0 GHz x 2 units x 8 (fp64: 4) lanes x 2 FLOP of a fused multiply-add.
    {"float32": 4 * 4.0 * GIGA * 2 * 8 * 2, "float64": 4 * 4.0 * GIGA * 2 * 4 * 2},
    memory_bytes_per_s=2 * 8 * 2.133 * GIGA,  # 2 channels of 8 bytes, DDR4-2133
    memory_bytes=64 * 10**9,
    kernel_latency_s=1 * MICRO,
    source="4 cores at 4.0 GHz (silentpcreview.com/Intel_Core_i7-6700K, 2015); two channels of "
    "DDR4-2133, up to 64 GB (notebookinfo.de, Intel Core i7-6700K, 2015); rates follow from these; "
    + KERNEL_LATENCY,
)
TITAN_X = Accelerator(
    "GeForce GTX Titan X",
    {"float32": 7 * TERA, "float64": 0.2 * TERA},
    memory_bytes_per_s=336.5 * GIGA,
    memory_bytes=12 * 10**9,
    source="7 and 0.2 TFLOPS: https://ocaholic.ch/modules/news/article.php?storyid=12063 (2015); "
    "the rest: https://hothardware.com/reviews/nvidia-geforce-gtx-titan-x-review-efficient-powerful"
    " (2015); " + KERNEL_LATENCY,
    multiprocessors=24,
    architecture="maxwell",
)
TITAN_X_PASCAL = Accelerator(
    "Titan X (Pascal)",
    {"float32": 11 * TERA},
    memory_bytes_per_s=480 * GIGA,
    memory_bytes=12 * 10**9,
    source="https://gamersnexus.net/news-pc/2523-nvidia-gp102-titan-x-specs-announced (2016), "
    "which gives no fp64 and marks the 28 multiprocessors with '?'; " + KERNEL_LATENCY,
    multiprocessors=28,
    architecture="pascal",
)
K80 = Accelerator(
    "Tesla K80, one of its two GPUs",
    {"float32": 8.74 / 2 * TERA, "float64": 2.91 / 2 * TERA},
    memory_bytes_per_s=240 * GIGA,
    memory_bytes=12 * 10**9,
    source="half of the board's 8.74 and 2.91 TFLOPS at 875 MHz: AnandTech, NVIDIA Launches Tesla "
    "K80 (2014), http://www.foruma.anandtech.com/show/8729/nvidia-launches-tesla-k80-gk210-gpu; "
    "240 GB/s: https://cnews.cz/clanky/nvidia-uvadi-nove-gpu-generace-kepler-gk210-bezi-v-dualni-"
    "karte-tesla-k80/ (2014); 13 SMX: Jouppi et al. 2017, arXiv 1704.04760; " + KERNEL_LATENCY,
    multiprocessors=13,
    architecture="kepler",
)
# The 21.2 and 18.7 TFLOPS of the P100 in fp16 also sum in fp16, which PyTorch's products do not.
P100 = Accelerator(
    "P100-SXM2-16GB",
    {"float32": 10.6 * TERA, "float64": 5.3 * TERA},
    memory_bytes_per_s=720 * GIGA,
    memory_bytes=16 * 10**9,
    source=f"{AMPERE}; {KERNEL_LATENCY}",
    multiprocessors=56,
    architecture="pascal",
)
P100_PCIE = Accelerator(
    "P100-PCIE-16GB",
    {"float32": 9.3 * TERA, "float64": 4.7 * TERA},
    memory_bytes_per_s=720 * GIGA,
    memory_bytes=16 * 10**9,
    source="https://tech4gamers.com/nvidia-tesla-p100-will-be-available-in-two-variants-of-16gb-"
    "12gb-hbm2/ (2016); multiprocessors as of the SXM2 card; " + KERNEL_LATENCY,
    multiprocessors=56,
    architecture="pascal",
)
P40 = Accelerator(
    "Tesla P40",
    {"float32": 11.76 * TERA, "float64": 367.4 * GIGA},
    memory_bytes_per_s=346 * GIGA,
    memory_bytes=24 * 10**9,
    source="rates and 30 multiprocessors: https://sysrqmts.com/gpus/nvidia/tesla/p40; memory: "
    "https://omegaco.ae/shop/gpu-cards-edge-ai/nvidia-p40; " + KERNEL_LATENCY,
    multiprocessors=30,
    architecture="pascal",
)
V100 = Accelerator(
    "V100-SXM2-16GB",
    {"float32": 15.7 * TERA, "float16": 125 * TERA, "float64": 7.8 * TERA},
    memory_bytes_per_s=900 * GIGA,
    memory_bytes=16 * 10**9,
    source=f"{AMPERE}; {KERNEL_LATENCY}",
    multiprocessors=80,
    architecture="volta",
)
V100_32GB = Accelerator(
    "V100-SXM3-32GB",
    V100.flops_per_s,
    memory_bytes_per_s=V100.memory_bytes_per_s,
    memory_bytes=32 * 10**9,
    source=f"as the SXM2 card: {AMPERE}; {KERNEL_LATENCY}",
    multiprocessors=80,
    architecture="volta",
)
V100_PCIE = Accelerator(
    "V100-PCIE-16GB",
    {"float32": 14 * TERA, "float16": 112 * TERA, "float64": 7 * TERA},
    memory_bytes_per_s=900 * GIGA,
    memory_bytes=16 * 10**9,
    source=f"{VOLTA}; {KERNEL_LATENCY}",
    multiprocessors=80,
    architecture="volta",
)
# GeForce cards of this age sum products of fp16 in fp32 at half of the rate that is advertised.
RTX_3090 = Accelerator(
    "GeForce RTX 3090",
    {"float32": 35.6 * TERA, "float16": 142 / 2 * TERA, "bfloat16": 142 / 2 * TERA},
    memory_bytes_per_s=936 * GIGA,
    memory_bytes=24 * 10**9,
    source="https://holynerdvana.blogspot.com/2022/10/nvidia-geforce-rtx-3090-specifications.html "
    "(2022); " + KERNEL_LATENCY,
    multiprocessors=82,
    architecture="ampere",
)
RTX_3090_TI = Accelerator(
    "GeForce RTX 3090 Ti",
    {"float32": 40 * TERA, "float16": 160 / 2 * TERA, "bfloat16": 160 / 2 * TERA},
    memory_bytes_per_s=1008 * GIGA,
    memory_bytes=24 * 10**9,
    source="rates and memory: https://github.com/mli/transformers-benchmarks, micro_bench.ipynb; "
    "multiprocessors: https://www.tweaktown.com/news/84164/nvidia-geforce-rtx-3090-ti-full-specs-"
    "price-performance-details/index.html; " + KERNEL_LATENCY,
    multiprocessors=84,
    architecture="ampere",
)
RTX_4090 = Accelerator(
    "GeForce RTX 4090",
    {
        "float32": 82.6 * TERA,
        "tfloat32": 82.58 * TERA,
        "float16": 165.2 * TERA,
        "bfloat16": 165.2 * TERA,
        "float64": 1.29 * TERA,
    },
    memory_bytes_per_s=1008 * GIGA,
    memory_bytes=24 * 10**9,
    source="NVIDIA Ada GPU Architecture white paper 2.1, appendix A, table 2, https://images.nvidia"
    ".com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf; tf32, fp64 and 24 GB: "
    "https://waredb.com/processor/nvidia-geforce-rtx-4090; " + KERNEL_LATENCY,
    multiprocessors=128,
    architecture="ada",
)
_A100_RATES = {
    "float32": 19.5 * TERA,
    "tfloat32": 156 * TERA,
    "float16": 312 * TERA,
    "bfloat16": 312 * TERA,
    "float64": 19.5 * TERA,
}
_A100_CARDS = (
    "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide (2026); rates, the same on "
    f"all cards: {AMPERE}; {KERNEL_LATENCY}"
)
A100 = Accelerator(
    "A100-SXM4-40GB",
    _A100_RATES,
    memory_bytes_per_s=1555 * GIGA,
    memory_bytes=40 * 10**9,
    source=f"{AMPERE}; {KERNEL_LATENCY}",
    multiprocessors=108,
    architecture="ampere",
)
A100_80GB = Accelerator(
    "A100-SXM4-80GB",
    _A100_RATES,
    memory_bytes_per_s=2039 * GIGA,
    memory_bytes=80 * 10**9,
    source=_A100_CARDS,
    multiprocessors=108,
    architecture="ampere",
)
A100_PCIE_40GB = Accelerator(
    "A100-PCIE-40GB",
    _A100_RATES,
    memory_bytes_per_s=1555 * GIGA,
    memory_bytes=40 * 10**9,
    source=_A100_CARDS,
    multiprocessors=108,
    architecture="ampere",
)
A100_PCIE_80GB = Accelerator(
    "A100-PCIE-80GB",
    _A100_RATES,
    memory_bytes_per_s=1935 * GIGA,
    memory_bytes=80 * 10**9,
    source=_A100_CARDS,
    multiprocessors=108,
    architecture="ampere",
)
_H100_TABLE = "the datasheet's table, https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html"
H100 = Accelerator(
    "H100-SXM5-80GB",
    {
        "float32": 67 * TERA,
        "tfloat32": 494.7 * TERA,
        "float16": 989.4 * TERA,
        "bfloat16": 989.4 * TERA,
        "float64": 67 * TERA,
    },
    memory_bytes_per_s=3350 * GIGA,
    memory_bytes=80 * 10**9,
    source=f"{_H100_TABLE}; tf32, fp16 and bf16 without sparsity: "
    f"https://glennklockwood.com/garden/processors/h100; {KERNEL_LATENCY}",
    multiprocessors=132,
    architecture="hopper",
)
H100_PCIE = Accelerator(
    "H100-PCIE-80GB",
    {
        "float32": 51 * TERA,
        "tfloat32": 378 * TERA,
        "float16": 756 * TERA,
        "bfloat16": 756 * TERA,
        "float64": 51 * TERA,
    },
    memory_bytes_per_s=2000 * GIGA,
    memory_bytes=80 * 10**9,
    source=f"{_H100_TABLE}; tf32, fp16 and bf16 without sparsity: {BEKMAN}; {KERNEL_LATENCY}",
    multiprocessors=114,
    architecture="hopper",
)
H200 = Accelerator(
    "H200-SXM-141GB",
    {
        "float32": 67 * TERA,
        "tfloat32": 494.5 * TERA,
        "float16": 989 * TERA,
        "bfloat16": 989 * TERA,
        "float64": 67 * TERA,
    },
    memory_bytes_per_s=4800 * GIGA,
    memory_bytes=141 * 10**9,
    source=f"{BEKMAN} ('the same as H100 but has 141GB … @4.8TBps'), so with the H100's fp64 and "
    f"multiprocessors; {KERNEL_LATENCY}",
    multiprocessors=132,
    architecture="hopper",
)
ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        I7_6700K,
        TITAN_X,
        TITAN_X_PASCAL,
        K80,
        P100,
        P100_PCIE,
        P40,
        V100,
        V100_32GB,
        V100_PCIE,
        RTX_3090,
        RTX_3090_TI,
        RTX_4090,
        A100,
        A100_80GB,
        A100_PCIE_40GB,
        A100_PCIE_80GB,
        H100,
        H100_PCIE,
        H200,
    )
}

# --- Links: one direction -------------------------------------------------------------------------


def _pcie(generation: int, gigabytes_per_s: float) -> Link:
    return Link(
        f"PCIe {generation}.0 x16",
        5 * MICRO,
        gigabytes_per_s * GIGA,
        f"PCI Express base specification {generation}.0: 16 lanes; {TOPO}; latency: {D2L_HARDWARE}",
        payload_share=12.0 / 15.75,
    )


def _nvlink(name: str, gigabytes_per_s: float, payload_share: float) -> Link:
    return Link(
        name,
        3.4 * MICRO,
        gigabytes_per_s * GIGA,
        f"{BEKMAN_NETWORK}; {TOPO}; latency: {NCCL}, NVLINK",
        payload_share=payload_share,
    )


def _network(name: str, gigabits_per_s: float, source: str) -> Link:
    return Link(
        name,
        9.6 * MICRO,
        gigabits_per_s / 8 * GIGA,
        f"{source}: {gigabits_per_s:g} Gbit/s; {TOPO}; latency: {NCCL}, NET",
        payload_share=12.0 / 12.5,
    )


PCIE3_X16, PCIE4_X16, PCIE5_X16 = _pcie(3, 15.75), _pcie(4, 31.5), _pcie(5, 63)
NVLINK1_PAIR = _nvlink("NVLink 1, one link", 20, 18.0 / 20)
NVLINK1 = _nvlink("NVLink 1, four links", 80, 18.0 / 20)
NVLINK2_PAIR = _nvlink("NVLink 2, one link", 25, 20.0 / 25)
NVLINK2_TWO = _nvlink("NVLink 2, two links", 50, 20.0 / 25)
NVLINK2 = _nvlink("NVLink 2, six links", 150, 20.0 / 25)
NVSWITCH_V100 = _nvlink("NVLink 2 on NVSwitch", 150, 20.0 / 25)
NVLINK3_BRIDGE = _nvlink("NVLink 3, bridge", 300, 20.0 / 25)
NVSWITCH_A100 = _nvlink("NVLink 3 on NVSwitch", 300, 20.0 / 25)
NVSWITCH_H100 = _nvlink("NVLink 4 on NVSwitch", 450, 20.6 / 25)

_ETHERNET = "IEEE 802.3"
NETWORKS = {
    link.name: link
    for link in (
        *(_network(f"{rate}gbe", rate, _ETHERNET) for rate in (10, 25, 50, 100, 200, 400)),
        _network(
            "ib-fdr",
            56,
            "https://tech.preferred.jp/en/blog/mn-1-a-gpu-cluster-behind-15-min-imagenet",
        ),
        _network("ib-edr", 100, BEKMAN_NETWORK),
        _network("ib-hdr", 200, BEKMAN_NETWORK),
        _network("ib-ndr", 400, BEKMAN_NETWORK),
    )
}

# --- Hosts ----------------------------------------------------------------------------------------

_DISPATCH = (
    "dispatch assumed, among published ones: 4.3 to 10.4 µs an operation on a desktop "
    "(https://github.com/mli/transformers-benchmarks), 5 to 20 µs a launch in profiles "
    "(https://github.com/facebookresearch/HolisticTraceAnalysis)"
)
XEON = Host("Xeon server", source=_DISPATCH)
# Its cores are slower than what the defaults of a Host hold for, by the factor that brings a
# host-bound step to its published time.
_SLOWER = 1.4
XEON_E5_2698 = Host(
    "2 x Xeon E5-2698 v4",
    cores=2 * 20,
    source="DGX-1: dual Xeon, 20 cores each; dispatch fitted on a training step of ResNet-50 with "
    "one image on a V100, 29.7 ms (https://github.com/pytorch/benchmark/pull/706, 2022)",
    dispatch_s=_SLOWER * 8 * MICRO,
    view_s=_SLOWER * 2 * MICRO,
    autograd_s=_SLOWER * 0.8 * MICRO,
    module_s=_SLOWER * 1.2 * MICRO,
    attribute_s=_SLOWER * 0.8 * MICRO,
    parameter_s=_SLOWER * 1.0 * MICRO,
)
EPYC_7742 = Host(
    "2 x EPYC 7742", cores=2 * 64, source=f"DGX A100: two CPUs of 64 cores; {_DISPATCH}"
)

# --- Machines -------------------------------------------------------------------------------------

_MESH = (
    "hybrid cube mesh, taken as one port that has all links of a GPU: right for collectives, which "
    "use them all; two GPUs alone are joined by one or two links and copy more slowly"
)
DEFAULT = "2x-v100-textbook"
CATALOGUE = {
    machine.name: machine
    for machine in (
        Machine(
            DEFAULT,
            (V100,) * 2,
            XEON,
            PCIE3_X16,
            NVLINK2_PAIR,
            source="d2l.ai does not name its box; 13.9 TFLOP/s in fp32 is 89 % of this card's peak",
            notes="SXM2 is assumed: the cloud that the textbook is built on has no other",
        ),
        Machine(
            "4x-titan-x",
            (TITAN_X,) * 4,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source=f"{D2L_SERVERS}: four GPUs behind one switch; the card is assumed",
            uplink_shared_by=4,
        ),
        Machine(
            "4x-titan-x-pascal",
            (TITAN_X_PASCAL,) * 4,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source="assumed: 4x-titan-x with the newer card",
            uplink_shared_by=4,
        ),
        Machine(
            "4x-rtx-4090",
            (RTX_4090,) * 4,
            XEON,
            PCIE4_X16,
            peer=None,
            source="no peer-to-peer: https://github.com/NVIDIA/nccl/issues/1127",
        ),
        Machine(
            "16x-k80",
            (K80,) * 16,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source="p2.16xlarge, https://speakerdeck.com/porcaro33/gpu-fpga-briefing-plus-march-"
            "plus-2017: eight boards, peer to peer; two GPUs share a board's slot",
            uplink_shared_by=2,
        ),
        Machine(
            "8x-p100-dgx1",
            (P100,) * 8,
            XEON_E5_2698,
            PCIE3_X16,
            NVLINK1,
            source="DGX-1, https://www.datascienceassn.org/content/dgx-1-hyperscale-class-gpu-"
            "computing; one PCIe switch for two GPUs",
            notes=_MESH,
            uplink_shared_by=2,
        ),
        Machine(
            "4x-p100-nvlink-pairs",
            (P100,) * 4,
            XEON,
            PCIE3_X16,
            NVLINK1_PAIR,
            source="assumed: a copy between two P100 that one NVLink joins",
        ),
        Machine(
            "8x-p100-pcie",
            (P100_PCIE,) * 8,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source="assumed: no switch",
        ),
        Machine(
            "8x-v100-dgx1",
            (V100,) * 8,
            XEON_E5_2698,
            PCIE3_X16,
            NVLINK2,
            source="DGX-1 with V100, https://leslivresblancs.fr/livre/informatique-et-logiciels/"
            "intelligence-artificielle/nvidia-dgx-1-tesla-v100-system; one PCIe switch for two",
            notes=_MESH,
            uplink_shared_by=2,
        ),
        Machine(
            "4x-v100-nvlink-pairs",
            (V100,) * 4,
            XEON,
            PCIE3_X16,
            NVLINK2_TWO,
            source="assumed: a copy between two V100 that two NVLinks join",
        ),
        Machine(
            "8x-v100-pcie",
            (V100_PCIE,) * 8,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source="assumed: no switch",
        ),
        Machine(
            "16x-v100-nvswitch",
            (V100_32GB,) * 16,
            XEON,
            PCIE3_X16,
            NVSWITCH_V100,
            source="DGX-2, https://pcper.com/2018/03/nvidia-announces-dgx-2-with-16-gv100s-8-100gb-"
            "nics/",
        ),
        Machine(
            "8x-a100-nvswitch",
            (A100,) * 8,
            EPYC_7742,
            PCIE4_X16,
            NVSWITCH_A100,
            source="DGX A100, https://devblogs.nvidia.com/introducing-hgx-a100-most-powerful-"
            "accelerated-server-platform-for-ai-hpc/",
        ),
        Machine(
            "8x-a100-80gb-nvswitch",
            (A100_80GB,) * 8,
            EPYC_7742,
            PCIE4_X16,
            NVSWITCH_A100,
            source="as 8x-a100-nvswitch, with the larger card",
        ),
        Machine(
            "2x-a100-80gb-pcie-nvlink",
            (A100_PCIE_80GB,) * 2,
            XEON,
            PCIE4_X16,
            NVLINK3_BRIDGE,
            source="two cards and a bridge of 600 GB/s in both directions together: "
            "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide (2026)",
        ),
        Machine(
            "8x-p40",
            (P40,) * 8,
            XEON,
            PCIE3_X16,
            PCIE3_X16,
            source="assumed: peer to peer, no switch",
        ),
        Machine(
            "1x-rtx-3090",
            (RTX_3090,),
            XEON,
            PCIE4_X16,
            source="a desktop; a Xeon server's dispatch is assumed",
        ),
        Machine(
            "1x-rtx-3090-ti",
            (RTX_3090_TI,),
            XEON,
            PCIE4_X16,
            source="a desktop; a Xeon server's dispatch is assumed",
        ),
        Machine(
            "8x-a100-pcie-40gb",
            (A100_PCIE_40GB,) * 8,
            XEON,
            PCIE4_X16,
            PCIE4_X16,
            source="assumed: no switch, no bridge",
        ),
        Machine(
            "8x-h100-pcie",
            (H100_PCIE,) * 8,
            XEON,
            PCIE5_X16,
            PCIE5_X16,
            source="assumed: no switch",
        ),
        Machine(
            "8x-h100-nvswitch",
            (H100,) * 8,
            XEON,
            PCIE5_X16,
            NVSWITCH_H100,
            source=f"DGX H100: {BEKMAN_NETWORK}",
        ),
        Machine(
            "8x-h200-nvswitch",
            (H200,) * 8,
            XEON,
            PCIE5_X16,
            NVSWITCH_H100,
            source="https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/"
            "NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json",
        ),
    )
}
