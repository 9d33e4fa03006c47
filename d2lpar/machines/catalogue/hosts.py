"""Processors of machines.

What they need to queue work is assumed, the same for all servers and for all others: no source
measures it for each.
"""

from __future__ import annotations

from ..hardware import GIGA, MICRO, Host
from .sources import AWS_INSTANCES, AZURE

_DISPATCH = (
    "dispatch assumed, among published ones: 4.3 to 10.4 µs an operation on a desktop "
    "(https://github.com/mli/transformers-benchmarks), 5 to 20 µs a launch in profiles "
    "(https://github.com/facebookresearch/HolisticTraceAnalysis)"
)


# What a core of 2019 or later copies from memory to memory, between pageable memory and the
# driver's buffer: it waits for more lines of its cache at once than one of 2016. Fitted on an
# EPYC 7742 (10.0 GB/s to the device, 10.8 back: gengwg/gpu, DGX A100) and an EPYC 7543P (13.1:
# ALCF, Polaris). Older ones copy as the textbook's host does.
_COPY_BYTES_PER_S = 11.0 * GIGA


# A network's code, another at each line, waits for its caches; a loop over one operation does not.
# What its parts take is fitted on programs of one sample each, by sources that have nothing to do
# with each other, of which all but one are within a third; they do not tell their processors
# apart, so that all have the same.
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
    cores: int | None = None,
    source: str = "not told which",
    *,
    copy_bytes_per_s: float | None = _COPY_BYTES_PER_S,
    memory_bytes_per_s: float | None = None,
) -> Host:
    return Host(
        name,
        cores=cores,
        source=f"{source}; {_DISPATCH}; {_OF_NETWORKS}",
        copy_bytes_per_s=copy_bytes_per_s,
        memory_bytes_per_s=memory_bytes_per_s,
        convolution_s=_CONVOLUTION_S,
        module_s=_MODULE_S,
        layer_s=_LAYER_S,
        node_s=_NODE_S,
        collective_s=_COLLECTIVE_S,
        checkpoint_s=_CHECKPOINT_S,
    )


# The course's own machines, which stand for no real ones: the order of magnitude, in round numbers.
TEXTBOOK = Host("Xeon server", source=_DISPATCH)
XEON = _host("Xeon server")
OLD_XEON = _host("Xeon server", copy_bytes_per_s=None)  # of 2018 or before
EPYC = _host("EPYC server")
DESKTOP = _host(
    "desktop",
    source="the processor is not told: two channels of memory are assumed, 27.0 GB/s of STREAM's "
    "triad on a Ryzen 9 5900X (https://github.com/noonghunna/club-3090/issues/1095)",
    memory_bytes_per_s=27.0 * GIGA,
)

# Cores of 2016 (Broadwell) are slower still, by the factor that brings a host-bound step to its
# published time.
_SLOWER = 1.05
_OF_2016 = (
    f"{_OF_NETWORKS}; dispatch fitted on a training step of ResNet-50 with one image on a V100, "
    "29.7 ms (https://github.com/pytorch/benchmark/pull/706, 2022)"
)


def _broadwell(name: str, cores: int, source: str) -> Host:
    return Host(
        name,
        cores=cores,
        source=f"{source}; {_OF_2016}",
        dispatch_s=_SLOWER * 8 * MICRO,
        view_s=_SLOWER * 2 * MICRO,
        layer_s=_SLOWER * _LAYER_S,
        autograd_s=_SLOWER * 0.8 * MICRO,
        node_s=_SLOWER * _NODE_S,
        collective_s=_SLOWER * _COLLECTIVE_S,
        checkpoint_s=_SLOWER * _CHECKPOINT_S,
        convolution_s=_CONVOLUTION_S,
        module_s=_MODULE_S,
        attribute_s=_SLOWER * 0.8 * MICRO,
        parameter_s=_SLOWER * 1.0 * MICRO,
    )


XEON_E5_2698 = _broadwell("2 x Xeon E5-2698 v4", 2 * 20, "DGX-1: dual Xeon, 20 cores each")
EPYC_7742 = _host("2 x EPYC 7742", 2 * 64, "DGX A100: two CPUs of 64 cores")
XEON_8480C = _host(
    "2 x Xeon Platinum 8480C",
    2 * 56,
    "DGX H100 and H200: https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/"
    "closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json",
)
XEON_8570 = _host(
    "2 x Xeon Platinum 8570",
    2 * 56,
    "https://docs.nvidia.com/dgx/dgxb200-user-guide/introduction-to-dgxb200.html",
)
GRACE = _host(
    "Grace, 72 cores a module",
    72,
    "https://raw.githubusercontent.com/mlcommons/inference_results_v6.1/main/closed/Crusoe/systems/"
    "GB200-NVL72_GB200-186GB_aarch64x16_Dynamo.json (144 cores for two)",
)
EPYC_9374F = _host(
    "2 x EPYC 9374F",
    2 * 32,
    "https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/AMD/systems/"
    "8xMI300X_2xEPYC-9374F.json",
)

EPYC_7352 = _host(
    "EPYC 7352", 24, "https://server-gear.com/blog/post/rtx3090-x8-exhaustive-tf-cnn-benchmarks"
)
EPYC_7542 = _host("2 x EPYC 7542", 2 * 32, "https://blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked")

# --- Clouds ---------------------------------------------------------------------------------------

EPYC_7V12_T4 = _host("EPYC 7V12", 64, f"{AZURE}: NCasT4 v3")
EPYC_7V12 = _host("2 x EPYC 7V12", 96, f"{AZURE}: ND A100 v4")
EPYC_7V13 = _host("2 x EPYC 7V13", 96, f"{AZURE}: NC A100 v4")
EPYC_GENOA = _host("EPYC, 4th generation", 96, f"{AZURE}: NCads H100 v5")
XEON_ND_V5 = _host("2 x Xeon, 4th generation", 96, f"{AZURE}: ND H100 v5, ND MI300X v5")
XEON_E5_2686 = _broadwell(
    "2 x Xeon E5-2686 v4",
    32,
    "p3.16xlarge, 64 threads: https://infoq.cn/article/j629I8X512fg8tuKd6ke",
)
XEON_P_8259L = _host(
    "Xeon Platinum 8259L", 48, "g4dn: https://github.com/clearlinux/distribution/issues/1307"
)
EPYC_ROME = _host("EPYC, 2nd generation", 96, f"g5.48xlarge, 192 threads: {AWS_INSTANCES}")
XEON_CASCADE_LAKE = _host(
    "2 x Xeon, Cascade Lake", 48, f"p4d.24xlarge, 96 threads: {AWS_INSTANCES}"
)
XEON_SAPPHIRE_RAPIDS = _host(
    "2 x Xeon, Sapphire Rapids",
    96,
    "p5en.48xlarge, 192 threads: https://github.com/dstackai/dstack/pull/4110",
)
