"""Servers: the textbook's, those of makers (DGX, HGX), and some that are assumed."""

from __future__ import annotations

from ..hardware import Machine
from . import ada, amd, ampere, blackwell, early, hopper, hosts, links
from .sources import BEKMAN_NETWORK, BEKMAN_NETWORK_2026, D2L_SERVERS

_MESH = (
    "hybrid cube mesh, taken as one port that has all links of a GPU: right for collectives, which "
    "use them all; two GPUs alone are joined by one or two links and copy more slowly"
)
_FULL = (
    "each GPU has links to each of the others, taken as one port that has them all: right for "
    "collectives, which use them all; two GPUs alone are joined by a third of them"
)
_SEVEN = _FULL.replace("a third", "a seventh")
DEFAULT = "2x-v100-textbook"

TEXTBOOK = Machine(
    DEFAULT,
    (early.V100,) * 2,
    hosts.TEXTBOOK,
    links.PCIE3_X16,
    links.NVLINK2_PAIR,
    source="d2l.ai does not name its box; 13.9 TFLOP/s in fp32 is 89 % of this card's peak",
    notes="SXM2 is assumed: the cloud that the textbook is built on has no other",
)
MACHINES = (
    TEXTBOOK,
    Machine(
        "4x-titan-x",
        (early.TITAN_X,) * 4,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source=f"{D2L_SERVERS}: four GPUs behind one switch; the card is assumed",
        uplink_shared_by=4,
    ),
    Machine(
        "4x-titan-x-pascal",
        (early.TITAN_X_PASCAL,) * 4,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source="assumed: 4x-titan-x with the newer card",
        uplink_shared_by=4,
    ),
    Machine(
        "16x-k80",
        (early.K80,) * 16,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source="p2.16xlarge, https://speakerdeck.com/porcaro33/gpu-fpga-briefing-plus-march-"
        "plus-2017: eight boards, peer to peer; two GPUs share a board's slot",
        uplink_shared_by=2,
    ),
    Machine(
        "8x-p100-dgx1",
        (early.P100,) * 8,
        hosts.XEON_E5_2698,
        links.PCIE3_X16,
        links.NVLINK1,
        source="DGX-1, https://www.datascienceassn.org/content/dgx-1-hyperscale-class-gpu-"
        "computing; one PCIe switch for two GPUs",
        notes=_MESH,
        uplink_shared_by=2,
    ),
    Machine(
        "4x-p100-nvlink-pairs",
        (early.P100,) * 4,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.NVLINK1_PAIR,
        source="assumed: a copy between two P100 that one NVLink joins",
    ),
    Machine(
        "8x-p100-pcie",
        (early.P100_PCIE,) * 8,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source="assumed: no switch",
    ),
    Machine(
        "8x-v100-dgx1",
        (early.V100,) * 8,
        hosts.XEON_E5_2698,
        links.PCIE3_X16,
        links.NVLINK2,
        source="DGX-1 with V100, https://leslivresblancs.fr/livre/informatique-et-logiciels/"
        "intelligence-artificielle/nvidia-dgx-1-tesla-v100-system; one PCIe switch for two",
        notes=_MESH,
        uplink_shared_by=2,
    ),
    Machine(
        "4x-v100-nvlink-pairs",
        (early.V100,) * 4,
        hosts.XEON_SKYLAKE,
        links.PCIE3_X16,
        links.NVLINK2_TWO,
        source="assumed: a copy between two V100 that two NVLinks join",
    ),
    Machine(
        "8x-v100-pcie",
        (early.V100_PCIE,) * 8,
        hosts.TEXTBOOK,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source="assumed: no switch",
    ),
    Machine(
        "16x-v100-nvswitch",
        (early.V100_32GB,) * 16,
        hosts.XEON_SKYLAKE,
        links.PCIE3_X16,
        links.NVSWITCH_V100,
        source="DGX-2, https://pcper.com/2018/03/nvidia-announces-dgx-2-with-16-gv100s-8-100gb-"
        "nics/",
    ),
    Machine(
        "8x-a100-nvswitch",
        (ampere.A100,) * 8,
        hosts.EPYC_7742,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        source="DGX A100, https://devblogs.nvidia.com/introducing-hgx-a100-most-powerful-"
        "accelerated-server-platform-for-ai-hpc/",
    ),
    Machine(
        "8x-a100-80gb-nvswitch",
        (ampere.A100_80GB,) * 8,
        hosts.EPYC_7742,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        source="as 8x-a100-nvswitch, with the larger card",
    ),
    Machine(
        "2x-a100-80gb-pcie-nvlink",
        (ampere.A100_PCIE_80GB,) * 2,
        hosts.XEON_ICE_LAKE,
        links.PCIE4_X16,
        links.NVLINK3_BRIDGE,
        source="two cards and a bridge of 600 GB/s in both directions together: "
        "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide (2026)",
    ),
    Machine(
        "8x-p40",
        (early.P40,) * 8,
        hosts.XEON_BROADWELL,
        links.PCIE3_X16,
        links.PCIE3_X16,
        source="assumed: peer to peer, no switch",
    ),
    Machine(
        "8x-a100-pcie-40gb",
        (ampere.A100_PCIE_40GB,) * 8,
        hosts.XEON_ICE_LAKE,
        links.PCIE4_X16,
        links.PCIE4_X16,
        source="assumed: no switch, no bridge",
    ),
    Machine(
        "8x-h100-pcie",
        (hopper.H100_PCIE,) * 8,
        hosts.XEON,
        links.PCIE5_X16,
        links.PCIE5_X16,
        source="assumed: no switch",
    ),
    Machine(
        "8x-h100-nvswitch",
        (hopper.H100,) * 8,
        hosts.XEON_8480C,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        source=f"DGX H100: {BEKMAN_NETWORK}",
    ),
    Machine(
        "8x-h200-nvswitch",
        (hopper.H200,) * 8,
        hosts.XEON_8480C,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        source="https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/"
        "NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json",
    ),
    Machine(
        "4x-v100-nvlink",
        (early.V100_SXM2_32GB,) * 4,
        hosts.XEON_SKYLAKE,
        links.PCIE3_X16,
        links.NVLINK2_FULL,
        source="assumed: four V100 on SXM2, two NVLinks between any two",
        notes=_FULL,
    ),
    Machine(
        "4x-a100-nvlink",
        (ampere.A100,) * 4,
        hosts.EPYC_OF_2019,
        links.PCIE4_X16,
        links.NVLINK3_FULL,
        source=f"HGX A100 of four GPUs, four NVLinks between any two: {BEKMAN_NETWORK}",
        notes=_FULL,
    ),
    Machine(
        "4x-h200-nvlink",
        (hopper.H200,) * 4,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVLINK4_FULL,
        source="HGX H200 of four GPUs, six NVLinks between any two: "
        "https://github.com/KempnerInstitute/KempnerForge",
        notes=_FULL,
    ),
    Machine(
        "8x-l40-pcie",
        (ada.L40,) * 8,
        hosts.XEON,
        links.PCIE4_X16,
        links.PCIE4_X16,
        source="assumed: peer to peer, no switch",
    ),
    Machine(
        "8x-l40s-pcie",
        (ada.L40S,) * 8,
        hosts.XEON,
        links.PCIE4_X16,
        links.PCIE4_X16,
        source="assumed: peer to peer, no switch",
    ),
    Machine(
        "8x-h100-500w-nvswitch",
        (hopper.H100_500W,) * 8,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        source="Grand Teton: https://github.com/pytorch/torchtitan, benchmarks/"
        "llama3_h100_202412_torchtitan.md",
    ),
    Machine(
        "2x-h100-pcie-nvlink",
        (hopper.H100_PCIE,) * 2,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVLINK4_BRIDGE,
        source="two cards and three bridges: https://github.com/NVIDIA/nccl-tests/issues/194",
    ),
    Machine(
        "2x-h100-nvl",
        (hopper.H100_NVL,) * 2,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVLINK4_BRIDGE,
        source="two cards with NVLink: https://itctshop.com/nvidia-h100-nvl-94gb-complete-guide; "
        "the bridges taken as those of H100 PCIe",
    ),
    Machine(
        "4x-h200-nvl",
        (hopper.H200_NVL,) * 4,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVLINK4_NVL_BRIDGE,
        source="four cards under one bridge: https://github.com/everfir/gpu-database",
        notes=_FULL,
    ),
    Machine(
        "8x-h800-nvswitch",
        (hopper.H800,) * 8,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVSWITCH_H800,
        source="https://github.com/deepseek-ai/DeepEP: eight GPUs, a network adapter for each",
    ),
    Machine(
        "8x-h20-nvswitch",
        (hopper.H20,) * 8,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        source="https://github.com/NVIDIA/nccl/issues/1244; NVLink: "
        "https://github.com/everfir/gpu-database",
    ),
    Machine(
        "1x-gh200",
        (hopper.GH200,),
        hosts.GRACE,
        links.NVLINK_C2C,
        source=f"one module: {BEKMAN_NETWORK_2026}",
    ),
    Machine(
        "1x-gh200-hbm3e",
        (hopper.GH200_HBM3E,),
        hosts.GRACE,
        links.NVLINK_C2C,
        source=f"one module: {BEKMAN_NETWORK_2026}",
    ),
    Machine(
        "8x-b200-nvswitch",
        (blackwell.B200,) * 8,
        hosts.XEON_8570,
        links.PCIE5_X16,
        links.NVSWITCH_B200,
        source="DGX B200: "
        "https://docs.nvidia.com/dgx/dgxb200-user-guide/introduction-to-dgxb200.html",
    ),
    Machine(
        "1x-b200-750w",
        (blackwell.B200_750W,),
        hosts.XEON_8570,
        links.PCIE5_X16,
        source="8x-b200-nvswitch, its power capped: "
        "https://github.com/facebookexperimental/triton/pull/854",
    ),
    Machine(
        "72x-gb200-nvl72",
        (blackwell.GB200,) * 72,
        hosts.GRACE,
        links.NVLINK_C2C,
        links.NVSWITCH_B200,
        source=f"18 trays of four GPUs, all on one NVSwitch: {BEKMAN_NETWORK_2026}",
        notes="one node here: its 36 processors are taken as one",
        uplink_shared_by=2,
    ),
    Machine(
        "8x-b300-nvswitch",
        (blackwell.B300,) * 8,
        hosts.XEON_EMERALD_RAPIDS,
        links.PCIE5_X16,
        links.NVSWITCH_B200,
        source=f"DGX B300: {BEKMAN_NETWORK_2026}; PCIe as of DGX B200",
    ),
    Machine(
        "72x-gb300-nvl72",
        (blackwell.GB300,) * 72,
        hosts.GRACE,
        links.NVLINK_C2C,
        links.NVSWITCH_B200,
        source=f"as 72x-gb200-nvl72: {BEKMAN_NETWORK_2026}",
        notes="one node here: its 36 processors are taken as one",
        uplink_shared_by=2,
    ),
    Machine(
        "8x-mi300x-infinity-fabric",
        (amd.MI300X,) * 8,
        hosts.EPYC_9374F,
        links.PCIE5_X16,
        links.INFINITY_FABRIC,
        source="https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/AMD/"
        f"systems/8xMI300X_2xEPYC-9374F.json; {BEKMAN_NETWORK_2026}",
        notes=_SEVEN,
    ),
    Machine(
        "8x-mi325x-infinity-fabric",
        (amd.MI325X,) * 8,
        hosts.EPYC_9374F,
        links.PCIE5_X16,
        links.INFINITY_FABRIC,
        source="it replaces the MI300X: https://wiaix.com/amd-instincttm-mi325x-accelerators; its "
        "host is assumed, that of 8x-mi300x-infinity-fabric",
        notes=_SEVEN,
    ),
)
