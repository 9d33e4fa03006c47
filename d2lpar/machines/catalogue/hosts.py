"""Processors of machines.

What Python, PyTorch and the driver need to queue work is fitted once, for a processor of 2019, and
scaled to each other by how fast one of its cores runs code of the kind: the compiler Clang in
Geekbench 6, which, like a network's Python, is long, branches, and waits for the caches.
"""

from __future__ import annotations

from ..hardware import GIGA, MICRO, Host
from .sources import AWS_INSTANCES, AZURE

_DISPATCH = (
    "dispatch assumed, among published ones: 4.3 to 10.4 µs an operation on a desktop "
    "(https://github.com/mli/transformers-benchmarks), 5 to 20 µs a launch in profiles "
    "(https://github.com/facebookresearch/HolisticTraceAnalysis)"
)

# Geekbench 6, one core, its part "Clang", by processor: medians over the servers of clouds that
# https://github.com/SpareCores/sc-inspector-data measured, read in November 2026. The name of the
# server says which of them was taken, where these have the GPUs of a machine here.
_CLANG = {
    "Broadwell": 1048,  # E5-2686 v4 of p2 and p3, up to 3.0 GHz
    "Broadwell, 3.6 GHz": 1258,  # the same core; E5-2667 v4 has 1386
    "Skylake": 1456,  # Platinum 8175M of p3dn
    "Skylake, 2.0 GHz": 1348,  # n1
    "Cascade Lake, 2.2 GHz": 1255,  # a2 and g2
    "Cascade Lake, 2.5 GHz": 1361,  # Platinum 8259CL of g4dn
    "Cascade Lake, 3.0 GHz": 1657,  # Platinum 8275CL of p4d
    "Rome": 1434,  # EPYC 7R32 of g5; 7542 has 1429, 7H12 1416
    "Ice Lake": 1756,  # Platinum 8370C
    "Milan": 1685,  # EPYC 7V13 of NC A100 v4
    "Milan, 3.6 GHz": 1808,  # EPYC 7R13 of g6 and g6e
    "Sapphire Rapids": 2110,  # Platinum 8481C of a3; 8473C has 2126
    "Genoa": 2118,  # EPYC 9V84 of NC H100 v5; 9554 has 2123
    "Emerald Rapids": 2214,  # Platinum 8581C of a3-ultra; 8570 of a server with B200 has 2229
    "Cascade Lake, 3.3 GHz": 1785,  # Xeon W-3235, of a server with Quadro RTX 5000
    "desktop of 2017": 1781,  # E3-1270 v6
    "desktop of 2019": 1856,  # E-2288G
    "desktop of 2021": 2321,  # E-2388G
    "desktop of 2023": 2806,  # between the two beside it: none was measured
    "desktop of 2025": 3392,  # EPYC 4345P, a Ryzen 9000
    # PassMark's figure for one core of Neoverse V2 is 0.91 of Rome's, at 2.8 GHz; Grace has 3.4.
    "Grace": 1585,
}
_FITTED_ON = "Rome"  # most servers with A100, whose figures the costs of a network are fitted on

# What a core of 2019 or later copies from memory to memory, between pageable memory and the
# driver's buffer: it waits for more lines of its cache at once than one of 2016. Fitted on an
# EPYC 7742 (10.0 GB/s to the device, 10.8 back: gengwg/gpu, DGX A100) and an EPYC 7543P (13.1:
# ALCF, Polaris). Older ones copy as the textbook's host does.
_COPY_BYTES_PER_S = 11.0 * GIGA


# A network's code, another at each line, waits for its caches; a loop over one operation does not.
# What its parts take is fitted on programs of one sample each, by sources that have nothing to do
# with each other, of which all but one are within a third.
_OF_NETWORKS = (
    "modules and convolutions fitted on ResNet-50 with 1 to 32 images and on ViT-B with one on "
    "A100, 7.0 to 7.7 and 4.95 ms (https://github.com/facebookincubator/AITemplate, examples, "
    "2022); kernels of a forward pass on these, on decoding with Qwen2.5 of 0.5 to 7 billion, 21 "
    "to 32 ms (https://github.com/QwenLM/Qwen3), with Llama 2, 32 and 40 ms "
    "(https://github.com/Lightning-AI/litgpt), on BERT, MiniLM and GPT-2, 5 to 10 ms "
    "(https://github.com/ELS-RD/transformer-deploy); those of a backward pass on T5-base, 100 and "
    "129 ms (https://github.com/huggingface/transformers/issues/15026), and on ResNet-50"
)
_MODULE_S, _CONVOLUTION_S = 16 * MICRO, 30 * MICRO
_LAYER_S, _NODE_S = 7 * MICRO, 28 * MICRO

# Measured by us in a loop, 16 µs for a call of torch.distributed with gloo and one rank, 96 µs for
# a checkpoint; twice to two and a half times that in a network, as a kernel takes 15 for 8 µs.
_COLLECTIVE_S, _CHECKPOINT_S = 40 * MICRO, 200 * MICRO


def _host(
    name: str,
    core: str,
    cores: int | None = None,
    source: str = "not told which",
    *,
    copy_bytes_per_s: float | None = _COPY_BYTES_PER_S,
    memory_bytes_per_s: float | None = None,
) -> Host:
    return Host(
        name,
        cores=cores,
        source=f"{source}; as fast as {core}; {_DISPATCH}; {_OF_NETWORKS}",
        copy_bytes_per_s=copy_bytes_per_s,
        memory_bytes_per_s=memory_bytes_per_s,
        convolution_s=_CONVOLUTION_S,
        module_s=_MODULE_S,
        layer_s=_LAYER_S,
        node_s=_NODE_S,
        collective_s=_COLLECTIVE_S,
        checkpoint_s=_CHECKPOINT_S,
    ).at_speed(_CLANG[core] / _CLANG[_FITTED_ON])


# The course's own machines, which stand for no real ones: the order of magnitude, in round numbers.
TEXTBOOK = Host("Xeon server", source=_DISPATCH)
# Servers whose processor is not told, by what was sold with their GPUs.
XEON_BROADWELL = _host("Xeon server", "Broadwell, 3.6 GHz", copy_bytes_per_s=None)
XEON_SKYLAKE = _host("Xeon server", "Skylake", copy_bytes_per_s=None)
XEON_ICE_LAKE = _host("Xeon server", "Ice Lake")
XEON = _host("Xeon server", "Sapphire Rapids")
XEON_EMERALD_RAPIDS = _host("Xeon server", "Emerald Rapids")
WORKSTATION_OF_2019 = _host("workstation", "Cascade Lake, 3.3 GHz")
EPYC_OF_2019 = _host("EPYC server", "Rome")
EPYC = _host("EPYC server", "Genoa")

_DESKTOP_YEARS = {"turing": 2019, "ampere": 2021, "ada": 2023, "blackwell": 2025}


def desktop(architecture: str) -> Host:
    """A desktop whose processor is not told: one of the year of its graphics card."""
    return _host(
        "desktop",
        f"desktop of {_DESKTOP_YEARS.get(architecture, 2017)}",
        source="the processor is not told: two channels of memory are assumed, 27.0 GB/s of "
        "STREAM's triad on a Ryzen 9 5900X (https://github.com/noonghunna/club-3090/issues/1095)",
        memory_bytes_per_s=27.0 * GIGA,
    )


XEON_E5_2698 = _host(
    "2 x Xeon E5-2698 v4",
    "Broadwell, 3.6 GHz",
    2 * 20,
    "DGX-1: dual Xeon, 20 cores each",
    copy_bytes_per_s=None,
)
EPYC_7742 = _host("2 x EPYC 7742", "Rome", 2 * 64, "DGX A100: two CPUs of 64 cores")
XEON_8480C = _host(
    "2 x Xeon Platinum 8480C",
    "Sapphire Rapids",
    2 * 56,
    "DGX H100 and H200: https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/"
    "closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json",
)
XEON_8570 = _host(
    "2 x Xeon Platinum 8570",
    "Emerald Rapids",
    2 * 56,
    "https://docs.nvidia.com/dgx/dgxb200-user-guide/introduction-to-dgxb200.html",
)
GRACE = _host(
    "Grace, 72 cores a module",
    "Grace",
    72,
    "https://raw.githubusercontent.com/mlcommons/inference_results_v6.1/main/closed/Crusoe/systems/"
    "GB200-NVL72_GB200-186GB_aarch64x16_Dynamo.json (144 cores for two)",
)
EPYC_9374F = _host(
    "2 x EPYC 9374F",
    "Genoa",
    2 * 32,
    "https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/AMD/systems/"
    "8xMI300X_2xEPYC-9374F.json",
)

EPYC_7352 = _host(
    "EPYC 7352",
    "Rome",
    24,
    "https://server-gear.com/blog/post/rtx3090-x8-exhaustive-tf-cnn-benchmarks",
)
EPYC_7542 = _host(
    "2 x EPYC 7542", "Rome", 2 * 32, "https://blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked"
)

# --- Clouds ---------------------------------------------------------------------------------------

EPYC_7V12_T4 = _host("EPYC 7V12", "Rome", 64, f"{AZURE}: NCasT4 v3")
EPYC_7V12 = _host("2 x EPYC 7V12", "Rome", 96, f"{AZURE}: ND A100 v4")
EPYC_7V13 = _host("2 x EPYC 7V13", "Milan", 96, f"{AZURE}: NC A100 v4")
EPYC_GENOA = _host("EPYC, 4th generation", "Genoa", 96, f"{AZURE}: NCads H100 v5")
XEON_ND_V5 = _host(
    "2 x Xeon, 4th generation", "Sapphire Rapids", 96, f"{AZURE}: ND H100 v5, ND MI300X v5"
)
XEON_E5_2686 = _host(
    "2 x Xeon E5-2686 v4",
    "Broadwell",
    32,
    "p3.16xlarge, 64 threads: https://infoq.cn/article/j629I8X512fg8tuKd6ke",
    copy_bytes_per_s=None,
)
XEON_P_8259L = _host(
    "Xeon Platinum 8259L",
    "Cascade Lake, 2.5 GHz",
    48,
    "g4dn: https://github.com/clearlinux/distribution/issues/1307",
)
EPYC_ROME = _host("EPYC, 2nd generation", "Rome", 96, f"g5.48xlarge, 192 threads: {AWS_INSTANCES}")
EPYC_MILAN = _host("EPYC, 3rd generation", "Milan, 3.6 GHz", 96, "g6.48xlarge, 192 threads")
XEON_CASCADE_LAKE = _host(
    "2 x Xeon, Cascade Lake",
    "Cascade Lake, 3.0 GHz",
    48,
    f"p4d.24xlarge, 96 threads: {AWS_INSTANCES}",
)
XEON_SAPPHIRE_RAPIDS = _host(
    "2 x Xeon, Sapphire Rapids",
    "Sapphire Rapids",
    96,
    "p5en.48xlarge, 192 threads: https://github.com/dstackai/dstack/pull/4110",
)
XEON_KAGGLE = _host("Xeon server", "Skylake, 2.0 GHz")
XEON_OF_GCP = _host("Xeon server", "Cascade Lake, 2.2 GHz", source="a2 and g2: 2.2 GHz")
