"""Machines that clouds rent out, with the names of their series.

Each is the series' largest; smaller ones are parts of it. In Amazon's machines of T4, A10G and L4
no GPU may read another's memory, so none is taken to in those of other clouds and of the L40S.
A port of `NETWORKS` comes with a cluster: "2x8x-h100-p5-8xefa-v2".
"""

from __future__ import annotations

from ..hardware import Accelerator, Host, Link, Machine
from . import ada, amd, ampere, blackwell, early, hopper, hosts, links
from .sources import (
    AWS_INSTANCES,
    AWS_NUMBERS,
    AZURE,
    BEKMAN_NETWORK_2026,
    CLUSTER_TOOLKIT,
    GOOGLE,
)

_NO_PEERS_G5 = "no peer-to-peer: https://github.com/NVIDIA/TensorRT-LLM/issues/1034"
_NO_PEERS_G6 = "no peer-to-peer: https://github.com/llm-d-incubation/llm-d-infra/pull/181"
_NO_PEERS_T4 = "no peer-to-peer on T4: https://github.com/ray-project/ray/pull/64109"
_P5 = f"{BEKMAN_NETWORK_2026}, {AWS_NUMBERS}"


def _box(
    name: str,
    gpu: Accelerator,
    host: Host,
    host_link: Link,
    peer: Link | None,
    source: str,
    notes: str = "",
) -> Machine:
    """As many GPUs as the name begins with."""
    count = int(name.split("x-")[0])
    return Machine(name, (gpu,) * count, host, host_link, peer, source=source, notes=notes)


AMAZON = (
    Machine(
        "8x-v100-p3",
        (early.V100,) * 8,
        hosts.XEON_E5_2686,
        links.PCIE3_X16,
        links.NVLINK2,
        source="p3.16xlarge: https://infoq.cn/article/j629I8X512fg8tuKd6ke",
        notes="a hybrid cube mesh, as in 8x-v100-dgx1; the PCIe switches are taken from there, too",
        uplink_shared_by=2,
    ),
    Machine(
        "8x-v100-p3dn",
        (early.V100_SXM2_32GB,) * 8,
        hosts.XEON_SKYLAKE,
        links.PCIE3_X16,
        links.NVLINK2,
        source="p3dn.24xlarge, 100 Gbit/s: https://github.com/awsdocs/amazon-ec2-user-guide, "
        f"doc_source/accelerated-computing-instances.md; {AWS_NUMBERS}",
        notes="a hybrid cube mesh, as in 8x-v100-dgx1; the PCIe switches are taken from there, too",
        uplink_shared_by=2,
    ),
    _box(
        "8x-t4-g4dn",
        early.T4,
        hosts.XEON_P_8259L,
        links.PCIE3_X16,
        None,
        f"g4dn.metal; g4dn.12xlarge has 4: {AWS_NUMBERS}; {_NO_PEERS_T4}",
    ),
    _box(
        "8x-a10g-g5",
        ampere.A10G,
        hosts.EPYC_ROME,
        links.PCIE4_X16,
        None,
        f"g5.48xlarge; g5.12xlarge has 4: {AWS_INSTANCES}; {_NO_PEERS_G5}",
    ),
    _box(
        "8x-l4-g6",
        ada.L4,
        hosts.EPYC_MILAN,
        links.PCIE4_X16,
        None,
        f"g6.48xlarge: {AWS_NUMBERS}; {_NO_PEERS_G6}",
    ),
    _box(
        "8x-l40s-g6e",
        ada.L40S,
        hosts.EPYC_MILAN,
        links.PCIE4_X16,
        None,
        "g6e.48xlarge: https://github.com/openshift/openshift-docs/pull/98009; eight GPUs are "
        f"assumed, as in g6; {_NO_PEERS_G6}",
    ),
    _box(
        "8x-a100-p4d",
        ampere.A100,
        hosts.XEON_CASCADE_LAKE,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"p4d.24xlarge, 4 ports of efa-v1: {AWS_INSTANCES}; {BEKMAN_NETWORK_2026}",
    ),
    _box(
        "8x-a100-80gb-p4de",
        ampere.A100_80GB,
        hosts.XEON_CASCADE_LAKE,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"p4de.24xlarge, 4 ports of efa-v1: {BEKMAN_NETWORK_2026}; the rest as of p4d",
    ),
    _box(
        "8x-h100-p5",
        hopper.H100,
        hosts.EPYC_MILAN,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"p5.48xlarge, 8 ports of efa-v2: {_P5}; an EPYC is assumed",
    ),
    _box(
        "8x-h200-p5en",
        hopper.H200,
        hosts.XEON_SAPPHIRE_RAPIDS,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"p5en.48xlarge, 8 ports of efa-v3: {BEKMAN_NETWORK_2026}",
    ),
    _box(
        "8x-b200-p6",
        blackwell.B200,
        hosts.XEON_EMERALD_RAPIDS,
        links.PCIE5_X16,
        links.NVSWITCH_B200,
        f"p6-b200.48xlarge, 8 ports of efa-v4: {BEKMAN_NETWORK_2026}",
    ),
)

MICROSOFT = (
    _box(
        "4x-t4-nc-v3",
        early.T4,
        hosts.EPYC_7V12_T4,
        links.PCIE3_X16,
        None,
        f"NC64as T4 v3: {AZURE}; {_NO_PEERS_T4}",
    ),
    _box(
        "4x-a100-80gb-nc-v4",
        ampere.A100_PCIE_80GB,
        hosts.EPYC_7V13,
        links.PCIE4_X16,
        links.PCIE4_X16,
        f"NC96ads A100 v4: {AZURE}",
        "bridges of NVLink join pairs; four exchange at the rate of PCIe between the pairs, two as "
        "2x-a100-80gb-pcie-nvlink",
    ),
    _box(
        "2x-h100-nc-v5",
        hopper.H100_NVL,
        hosts.EPYC_GENOA,
        links.PCIE5_X16,
        links.NVLINK4_BRIDGE,
        f"NC80adis H100 v5: {AZURE}; the bridge is assumed, as in 2x-h100-nvl",
    ),
    _box(
        "8x-a100-nd-v4",
        ampere.A100,
        hosts.EPYC_7V12,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"ND96asr v4, 8 ports of ib-hdr: {AZURE}",
    ),
    _box(
        "8x-a100-80gb-ndm-v4",
        ampere.A100_80GB,
        hosts.EPYC_7V12,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"ND96amsr A100 v4, 8 ports of ib-hdr: {AZURE}",
    ),
    _box(
        "8x-h100-nd-v5",
        hopper.H100,
        hosts.XEON_ND_V5,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"ND96isr H100 v5, 8 ports of ib-ndr: {AZURE}",
    ),
    _box(
        "8x-h200-nd-v5",
        hopper.H200,
        hosts.XEON_ND_V5,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        "ND H200 v5, 8 ports of ib-ndr: https://github.com/Azure/AI-benchmarking-guide; the rest "
        "as of ND H100 v5",
    ),
    _box(
        "8x-mi300x-nd-v5",
        amd.MI300X,
        hosts.XEON_ND_V5,
        links.PCIE5_X16,
        links.INFINITY_FABRIC,
        f"ND96isr MI300X v5, 8 ports of ib-ndr: {AZURE}",
        "as 8x-mi300x-infinity-fabric: two GPUs alone are joined by a seventh of a GPU's links",
    ),
)

GOOGLES = (
    _box(
        "2x-t4-kaggle",
        early.T4,
        hosts.XEON_KAGGLE,
        links.PCIE3_X16,
        None,
        "T4 x2, on Xeons: https://huggingface.co/datasets/John6666/knowledge_base_md_for_rag_1, "
        f"kaggle_20251121.md; {_NO_PEERS_T4}",
    ),
    _box(
        "8x-l4-g2",
        ada.L4,
        hosts.XEON_OF_GCP,
        links.PCIE4_X16,
        None,
        f"g2-standard-96, L4 without NVLink: {GOOGLE}; {_NO_PEERS_G6} (of Amazon's)",
    ),
    _box(
        "16x-a100-a2",
        ampere.A100,
        hosts.XEON_OF_GCP,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"a2-megagpu-16g, '96 vCPUs … 16 GPUs': https://news.ycombinator.com/item?id=23760966; "
        f"NVLink to all: {GOOGLE}",
    ),
    _box(
        "8x-a100-80gb-a2-ultra",
        ampere.A100_80GB,
        hosts.XEON_OF_GCP,
        links.PCIE4_X16,
        links.NVSWITCH_A100,
        f"a2-ultragpu-8g: {GOOGLE}",
    ),
    _box(
        "8x-h100-a3",
        hopper.H100,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"a3-highgpu-8g, 4 ports of tcpx: {BEKMAN_NETWORK_2026}; a Xeon of the 4th generation: "
        "https://www.computernetworktopology.com/google-lanca-vms-de-supercomputador-a3",
    ),
    _box(
        "8x-h100-a3-mega",
        hopper.H100,
        hosts.XEON,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"a3-megagpu-8g, 8 ports of tcpxo: {BEKMAN_NETWORK_2026}",
    ),
    _box(
        "8x-h200-a3-ultra",
        hopper.H200,
        hosts.XEON_EMERALD_RAPIDS,
        links.PCIE5_X16,
        links.NVSWITCH_H100,
        f"a3-ultragpu-8g, 8 ports of gib: {CLUSTER_TOOLKIT}",
    ),
    _box(
        "8x-b200-a4",
        blackwell.B200,
        hosts.XEON_EMERALD_RAPIDS,
        links.PCIE5_X16,
        links.NVSWITCH_B200,
        "a4-highgpu-8g, 8 ports of gib: https://github.com/dstackai/dstack/pull/3152",
    ),
)
MACHINES = (*AMAZON, *MICROSOFT, *GOOGLES)
