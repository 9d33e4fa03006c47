"""Links within a machine and networks between machines, in one direction."""

from __future__ import annotations

from ..hardware import GIGA, MICRO, Link
from .sources import BEKMAN_NETWORK, BEKMAN_NETWORK_2026, CLUSTER_TOOLKIT, D2L_HARDWARE, NCCL, TOPO


def _pcie(generation: int, gigabytes_per_s: float) -> Link:
    return Link(
        f"PCIe {generation}.0 x16",
        5 * MICRO,
        gigabytes_per_s * GIGA,
        f"PCI Express base specification {generation}.0: 16 lanes; {TOPO}; latency: {D2L_HARDWARE}",
        payload_share=12.0 / 15.75,
    )


def _nvlink(
    name: str, gigabytes_per_s: float, payload_share: float, source: str = BEKMAN_NETWORK
) -> Link:
    return Link(
        name,
        3.4 * MICRO,
        gigabytes_per_s * GIGA,
        f"{source}; {TOPO}; latency: {NCCL}, NVLINK",
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


# Whether GPUs read each other's memory over it ("peer-to-peer") is the machine's: `Machine.peer`.
PCIE3_X16, PCIE4_X16, PCIE5_X16 = _pcie(3, 15.75), _pcie(4, 31.5), _pcie(5, 63)
# What one GPU sends to another below the other EPYC of the second generation while it receives as
# much: half of 41.1 GB/s both ways, the mean of all pairs. One way alone it is 21.9, and within a
# socket 50.1 and 25.8. Up to four such links join two of these processors.
XGMI2 = Link(
    "xGMI 2",
    5 * MICRO,
    41.11 / 2 * GIGA,
    "p2pBandwidthLatencyTest on two EPYC 7542: https://blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked;"
    f" latency as of PCIe: {D2L_HARDWARE}",
    measured=True,
)

NVLINK1_PAIR = _nvlink("NVLink 1, one link", 20, 18.0 / 20)
NVLINK1 = _nvlink("NVLink 1, four links", 80, 18.0 / 20)
NVLINK2_PAIR = _nvlink("NVLink 2, one link", 25, 20.0 / 25)
NVLINK2_TWO = _nvlink("NVLink 2, two links", 50, 20.0 / 25)
# NCCL reckons with 20 of each 25. It reaches 22.4: 134.6 GB/s on 8 V100 (Panlichen, nccl-tests).
NVLINK2 = _nvlink("NVLink 2, six links", 150, 22.4 / 25)
NVSWITCH_V100 = _nvlink("NVLink 2 on NVSwitch", 150, 22.4 / 25)
NVLINK3_FOUR = _nvlink("NVLink 3, four links", 100, 20.0 / 25)
NVLINK3_BRIDGE = _nvlink("NVLink 3, bridge", 300, 20.0 / 25)
# GeForce and RTX cards have four links of 14.0625 GB/s; NCCL takes 12 of each ("SM86").
NVLINK3_RTX_BRIDGE = _nvlink(
    "NVLink 3, bridge of RTX cards",
    4 * 14.0625,
    12.0 / 14.0625,
    "56.25 GB/s: https://github.com/tinygrad/open-gpu-kernel-modules/issues/3",
)
NVSWITCH_A100 = _nvlink("NVLink 3 on NVSwitch", 300, 20.0 / 25)
# Three bridges on each pair of cards: 12 links of the 18.
NVLINK4_BRIDGE = _nvlink(
    "NVLink 4, bridge",
    300,
    20.6 / 25,
    "600 GB/s in both directions: https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html",
)
NVLINK4_NVL_BRIDGE = _nvlink(
    "NVLink 4, bridge of H200 NVL",
    450,
    20.6 / 25,
    "900 GB/s in both directions: https://github.com/everfir/gpu-database",
)
# Four GPUs without switches: a third of a GPU's links goes to each of the others.
NVLINK2_FULL = _nvlink("NVLink 2, fully joined", 150, 22.4 / 25)
NVLINK3_FULL = _nvlink("NVLink 3, fully joined", 300, 20.0 / 25)
NVLINK4_FULL = _nvlink("NVLink 4, fully joined", 450, 20.6 / 25)
NVSWITCH_H100 = _nvlink("NVLink 4 on NVSwitch", 450, 20.6 / 25)
NVSWITCH_H800 = _nvlink(
    "NVLink 4 on NVSwitch, as H800 has it",
    200,
    20.6 / 25,
    "400 GB/s in both directions: https://www.tumgag.com/tag/nvidia%20h100",
)
NVSWITCH_B200 = _nvlink("NVLink 5 on NVSwitch", 900, 40.1 / 50, BEKMAN_NETWORK_2026)
# To the processor of the same module, in place of PCIe; no source for its payload: all of it.
NVLINK_C2C = Link(
    "NVLink-C2C",
    5 * MICRO,
    450 * GIGA,
    f"{BEKMAN_NETWORK_2026}; latency as of PCIe: {D2L_HARDWARE}",
)
# Seven links of 64 GB/s, one to each other GPU; RCCL takes 48 of each.
INFINITY_FABRIC = Link(
    "Infinity Fabric, seven links",
    3.4 * MICRO,
    7 * 64 * GIGA,
    f"{BEKMAN_NETWORK_2026}; 48 GB/s a link as RCCL reckons with, https://github.com/ROCm/rccl, "
    f"src/graph/topo.h; latency as of NVLink: {NCCL}",
    payload_share=48.0 / 64,
)

_ETHERNET = "IEEE 802.3"
NETWORKS = {
    link.name: link
    for link in (
        *(_network(f"{rate}gbe", rate, _ETHERNET) for rate in (10, 25, 50, 100, 200, 400, 800)),
        _network(
            "ib-fdr",
            56,
            "https://tech.preferred.jp/en/blog/mn-1-a-gpu-cluster-behind-15-min-imagenet",
        ),
        _network("ib-edr", 100, BEKMAN_NETWORK),
        _network("ib-hdr", 200, BEKMAN_NETWORK),
        _network("ib-ndr", 400, BEKMAN_NETWORK),
        _network("ib-xdr", 800, BEKMAN_NETWORK_2026),
        # Amazon's Elastic Fabric Adapter, as many adapters as one GPU or one port of p4 has:
        # v1 one of 100 Gbit/s for two GPUs, v2 four of 100, v3 two of 200, v4 one of 400.
        _network("efa-v1", 100, BEKMAN_NETWORK_2026),
        _network("efa-v2", 400, f"{BEKMAN_NETWORK_2026}, four adapters of 100"),
        _network("efa-v3", 400, f"{BEKMAN_NETWORK_2026}, two adapters of 200"),
        _network("efa-v4", 400, BEKMAN_NETWORK_2026),
        # Google's GPUDirect over TCP, and its successor.
        _network("tcpx", 200, BEKMAN_NETWORK_2026),
        _network("tcpxo", 200, BEKMAN_NETWORK_2026),
        _network("gib", 400, f"{CLUSTER_TOOLKIT}, RoCE with Google's plugin"),
        _network("slingshot-11", 200, BEKMAN_NETWORK_2026),
    )
}
