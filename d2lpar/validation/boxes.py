"""The machines of published figures, as machines of the catalogue.

A row names a machine the way its source does; here stands what is simulated for it. Names of the
catalogue itself need no entry.
"""

from __future__ import annotations

from dataclasses import replace

from .. import machines
from ..machines.catalogue.links import NVLINK3_FOUR
from ..machines.hardware import Machine

# How many ports a source does not print is assumed: one for each GPU.
_DGX = {
    "8x-a100-dgx": "8x-a100-nvswitch",
    "8x-h100-dgx": "8x-h100-nvswitch",
    "4x-h100-dgx": "4x-h100-nvswitch",
    "2x2-h100-dgx": "2x2x-h100-nvswitch-2xib-ndr",
    "4x8-a100-dgx-ib": "4x8x-a100-nvswitch-8xib-hdr",
    "4x8-h100-dgx-ib": "4x8x-h100-nvswitch-8xib-ndr",
    "8x8-h100-dgx-ib": "8x8x-h100-nvswitch-8xib-ndr",
    "16x8-h100-dgx-ib": "16x8x-h100-nvswitch-8xib-ndr",
    "64x8-h100-dgx-ib": "64x8x-h100-nvswitch-8xib-ndr",
    "128x8-h100-dgx-ib": "128x8x-h100-nvswitch-8xib-ndr",
    "8x-h200-dgx": "8x-h200-nvswitch",
    "8x-b200-dgx": "8x-b200-nvswitch",
    "8x8-b200-dgx-ib": "8x8x-b200-nvswitch-8xib-ndr",
    "16x8-b200-dgx-ib": "16x8x-b200-nvswitch-8xib-ndr",
    "16x-v100-dgx2": "16x-v100-nvswitch",
    "2x8-v100-dgx1": "2x8x-v100-dgx1-4xib-edr",
    "16x8-v100-dgx1": "16x8x-v100-dgx1-4xib-edr",
    "16x16-v100-dgx2": "16x16x-v100-nvswitch-8xib-edr",
    "64x16-v100-dgx2h": "64x16x-v100-nvswitch-8xib-edr",
}
_CLOUDS = {
    "8x-k80-gce": "8x-k80",
    "8x-k80-p2": "8x-k80",
    "4x-k80-azure": "4x-k80",
    "2x-v100-pcie-azure": "2x-v100-pcie",
    "16x-k80-p2": "16x-k80",
    "8x8-k80-p2": "8x8x-k80-10gbe",
    "16x16-k80-p2": "16x16x-k80-2x10gbe",  # 20 Gbit/s
    "2x8-v100-p3dn-efa": "2x8x-v100-p3dn-efa-v1",
    "4x8-v100-p3dn-efa": "4x8x-v100-p3dn-efa-v1",
    "8x8-v100-p3dn-efa": "8x8x-v100-p3dn-efa-v1",
    "2x1-t4-efa": "2x1x-t4-g4dn-50gbe",  # g4dn.8xlarge, that has one GPU and EFA
    "2x8-a100-p4de": "2x8x-a100-80gb-p4de-4xefa-v1",
    "2x8-a100-p4d-efa": "2x8x-a100-p4d-4xefa-v1",
    "2x1-t4-tcp": "2x1x-t4-g4dn-50gbe",
    "2x8-h100-p5": "2x8x-h100-p5-8xefa-v2",
    "4x8-h100-p5": "4x8x-h100-p5-8xefa-v2",
    "8x8-h100-p5": "8x8x-h100-p5-8xefa-v2",
    "16x8-h100-p5": "16x8x-h100-p5-8xefa-v2",
    "32x8-h100-p5": "32x8x-h100-p5-8xefa-v2",
    "16x8-h200-p5en": "16x8x-h200-p5en-8xefa-v3",
    "4x8-b200-p6": "4x8x-b200-p6-8xefa-v4",
    "4x-a100-80gb-pcie-azure-nc96": "4x-a100-80gb-nc-v4",
    "8x-a100-80gb-azure-nd-v4": "8x-a100-80gb-ndm-v4",
    "8x-a100-azure-ndm": "8x-a100-80gb-ndm-v4",
    "2x8-a100-azure-ndm": "2x8x-a100-80gb-ndm-v4-8xib-hdr",
    "8x-h100-azure-nd-v5": "8x-h100-nd-v5",
    "8x-h100-azure-ndm": "8x-h100-nd-v5",
    "2x8-h100-azure-ndm": "2x8x-h100-nd-v5-8xib-ndr",
    "2x8-h200-azure-ndm": "2x8x-h200-nd-v5-8xib-ndr",
    "8x-h200-azure-nd-v5": "8x-h200-nd-v5",
    "16x8-h100-a3": "16x8x-h100-a3-4xtcpx",
    "2x8-h100-gcp-a3high-tcpx": "2x8x-h100-a3-4xtcpx",
    "2x8-h100-gcp-a3high-tcp": "2x8x-h100-a3-4x200gbe",  # without GPUDirect
    "2x8-h200-gcp-a3u": "2x8x-h200-a3-ultra-8xgib",
    "2x8-h100-gcp-a3mega": "2x8x-h100-a3-mega-8xtcpxo",
    "2x8-b200-gcp-a4": "2x8x-b200-a4-8xgib",
    "8x-a100-40gb-oci": "8x-a100-nvswitch",
    "2x8-a100-40gb-oci-roce": "2x8x-a100-nvswitch-8x200gbe",  # 16 ports of 100
    "2x8-h100-oci-roce": "2x8x-h100-nvswitch-8x400gbe",  # 16 ports of 200
    "8-b300-oci-roce": "8x-b300-nvswitch",
    "2x8-b300-oci-roce": "2x8x-b300-nvswitch-8x800gbe",
    # 16 trays of four GPUs are used of each rack, each GPU with 400 or 800 Gbit/s of RoCE.
    "gb200-nvl72-oci": "3x64x-gb200-nvl72-64x400gbe",
    "gb300-nvl72-oci": "2x64x-gb300-nvl72-64x800gbe",
    "2x8-a100-80gb-crusoe-ib": "2x8x-a100-80gb-nvswitch-8xib-hdr",  # the rate is not printed
    "2x8-b200-lambda-ib": "2x8x-b200-nvswitch-8xib-ndr",
    "2x8-h100-nebius-ib": "2x8x-h100-nvswitch-8xib-ndr",
    "1-rack-gb200-nvl72": "72x-gb200-nvl72",
    "1-rack-gb300-nvl72": "72x-gb300-nvl72",
    "64x4-gb200-nvl72": "4x64x-gb200-nvl72-64xib-ndr",  # 16 trays of a rack
    "2-racks-gb200-nvl72-ib": "2x72x-gb200-nvl72-72xib-ndr",
    "20-racks-gb200-nvl72-ib": "20x72x-gb200-nvl72-72xib-ndr",
}
_CLUSTERS = {
    "128x4-p100-25gbe": "128x4x-p100-pcie-25gbe",
    "32x8-p100-50gbe": "32x8x-p100-dgx1-50gbe",
    "4x4-p100-25gbe": "4x4x-p100-pcie-25gbe",
    "128x8-p100-2xfdr": "128x8x-p100-pcie-2xib-fdr",
    "256x8-p40-100gbe": "256x8x-p40-100gbe",
    "4x8-v100-1xedr": "4x8x-v100-dgx1-ib-edr",
    "272x4-v100-2xedr": "272x4x-v100-dgx1-2xib-edr",
    "2x1-v100-tcp": "2x1x-v100-dgx1-10gbe",  # 10 Gbit/s fit what it reaches
    "2x1-v100-dtest": "2x1x-v100-pcie-10gbe",  # neither form nor network is printed
    "4x1-v100-dtest": "4x1x-v100-pcie-10gbe",
    "2x2-v100-nig": "2x2x-v100-dgx1-ib-edr",  # InfiniBand, the rate is not printed
    "2x4-v100-puhti": "2x4x-v100-nvlink-ib-hdr",  # InfiniBand, the rate is not printed
    "2x4-a100-40gb-mahti": "2x4x-a100-nvlink-ib-hdr",  # InfiniBand, the rate is not printed
    "2x4-a100-polaris": "2x4x-a100-nvlink-2xslingshot-11",
    "8x4-a100-polaris": "8x4x-a100-nvlink-2xslingshot-11",
    "32x4-v100-abci": "32x4x-v100-nvlink-2xib-edr",
    "16x8-a100-abci": "16x8x-a100-nvswitch-4xib-hdr",
    "4x4-a100-polaris": "4x4x-a100-nvlink-2xslingshot-11",
    "2x8-a100-sxm4-40gb": "2x8x-a100-nvswitch-8xib-hdr",
    "16x8-a100-sxm4-40gb": "16x8x-a100-nvswitch-8xib-hdr",
    "3x8-a100-40gb-hdr": "3x8x-a100-nvswitch-4xib-hdr",
    "2x8-a100-cx6": "2x8x-a100-nvswitch-8xib-hdr",
    "2x8-a100-80gb-fair": "2x8x-a100-80gb-ndm-v4-8xib-hdr",  # Azure, by its hosts' names
    "2x8-a100-hgx-4x200g": "2x8x-a100-nvswitch-4xib-hdr",
    "16x-a100-sxm4-80gb": "2x8x-a100-80gb-nvswitch-8xib-hdr",
    "32x-a100-sxm4-80gb": "4x8x-a100-80gb-nvswitch-8xib-hdr",
    "8x8-a100-sxm4-80gb": "8x8x-a100-80gb-nvswitch-8xib-hdr",
    "128x-a100-sxm4-80gb": "16x8x-a100-80gb-nvswitch-8xib-hdr",
    "256x-a100-sxm4-80gb": "32x8x-a100-80gb-nvswitch-8xib-hdr",
    "512x-a100-sxm4-80gb": "64x8x-a100-80gb-nvswitch-8xib-hdr",
    "8x8-a100-sxm4-80gb-ib": "8x8x-a100-80gb-nvswitch-8xib-hdr",
    "48x8-a100-80gb-opa": "48x8x-a100-80gb-nvswitch-4x100gbe",  # Omni-Path, as Ethernet
    "32x8-a100-sxm4-80gb-ib": "32x8x-a100-80gb-nvswitch-8xib-hdr",
    "256x8-a100-sxm4-80gb-ib": "256x8x-a100-80gb-nvswitch-8xib-hdr",
    "16x8-a100-sxm4-80gb-400gbps": "16x8x-a100-80gb-nvswitch-4x100gbe",
    "64x8-a100-sxm4-80gb-400gbps": "64x8x-a100-80gb-nvswitch-4x100gbe",
    "128x8-a100-sxm4-80gb-400gbps": "128x8x-a100-80gb-nvswitch-4x100gbe",
    "2x1-l40s-tcp": "2x1x-l40s-pcie-100gbe",  # TCP, the rate is not printed
    "2x2-l40s-rdma": "2x2x-l40s-pcie-100gbe",  # RoCE, the rate is not printed
    "2x4-l40s": "2x4x-l40s-pcie-100gbe",  # the network is not printed
    "2x1-gh200-slingshot": "2x1x-gh200-slingshot-11",
    "2x1-h100-4x400g": "2x1x-h100-nvswitch-ib-ndr",  # one GPU's bus feeds one of the four ports
    "8x8-h100-ib-ndr": "8x8x-h100-nvswitch-8xib-ndr",
    "2x8-h100-ib-ndr": "2x8x-h100-nvswitch-8xib-ndr",
    "2x8-h100-ndr-degraded": "2x8x-h100-nvswitch-8xib-ndr",  # as it should be
    "4x8-h100-ib-ndr": "4x8x-h100-nvswitch-8xib-ndr",
    "8x8-h100-unnamed-net": "8x8x-h100-nvswitch-8xib-ndr",
    "128x8-h100-roce": "128x8x-h100-nvswitch-8x400gbe",
    "64x8-h100-sxm5-80gb": "64x8x-h100-nvswitch-8xib-ndr",
    "4x8-h100-roce400": "4x8x-h100-nvswitch-8x400gbe",
    "12x8-h100-800gbps": "12x8x-h100-nvswitch-2x400gbe",
    "8x-h100-96gb-500w": "8x-h100-500w-nvswitch",
    "8x8-h100-96gb-500w-ib": "8x8x-h100-500w-nvswitch-8x400gbe",
    "16x8-h100-96gb-500w-ib": "16x8x-h100-500w-nvswitch-8x400gbe",
    "16x8-h100-94gb-500w-ib": "16x8x-h100-500w-nvswitch-8x400gbe",
    "32x8-h100-96gb-500w-ib": "32x8x-h100-500w-nvswitch-8x400gbe",
    "64x8-h100-96gb-500w-ib": "64x8x-h100-500w-nvswitch-8x400gbe",
    "8x-h800-nvlink": "8x-h800-nvswitch",
    "2x8-h800-ib-ndr": "2x8x-h800-nvswitch-8xib-ndr",
    "4x8-h800-ib-ndr": "4x8x-h800-nvswitch-8xib-ndr",
    "8x8-h800-ib-ndr": "8x8x-h800-nvswitch-8xib-ndr",
    "16x8-h800-ib-ndr": "16x8x-h800-nvswitch-8xib-ndr",
    "2x8-h20": "2x8x-h20-nvswitch-8xib-ndr",
    "2x2-h20-roce": "2x2x-h20-nvswitch-2x200gbe",  # the rate is not printed
    "2x8-h200-dell-roce": "2x8x-h200-nvswitch-8x400gbe",
    "4x8-h200-ib": "4x8x-h200-nvswitch-8xib-ndr",
    "8x8-h200-ib": "8x8x-h200-nvswitch-8xib-ndr",
    "2x4-h200-ib": "2x4x-h200-nvlink-4xib-ndr",
    "8x4-h200-ib": "8x4x-h200-nvlink-4xib-ndr",
    "64x-gb200-nvl": "64x-gb200-nvl72",
    "32x8-b200-ib": "32x8x-b200-nvswitch-8xib-ndr",
    # RTX 6000D: only exchanges are published, and PCIe is that of RTX PRO 6000.
    "2x8-rtx6000d-spectrumx": "2x8x-rtx-pro-6000-8x400gbe",
    "2x8-rtx6000d-cx8": "2x8x-rtx-pro-6000-8x400gbe",
}
_NODES = {
    "4x-p100-c4130": "4x-p100-nvlink-pairs",
    "4x-v100-c4130": "4x-v100-nvlink-pairs",
    "1x-p100": "1x-p100-pcie",  # the form is not stated; 8.76 TFLOP/s fit this card's peak
    "1x-p100-sxm2": "1x-p100-dgx1",
    "8x-p100": "8x-p100-dgx1",
    "1x-v100": "1x-v100-textbook",  # the form is not stated
    "2x-v100": "2x-v100-textbook",
    "1x-v100-dtest": "1x-v100-pcie",  # the form is not stated
    "2x-v100-dtest": "2x-v100-pcie",
    "4x-v100-dtest": "4x-v100-pcie",
    "1x-v100-sxm2": "1x-v100-dgx1",  # the memory is not stated
    "1x-v100-sxm2-16gb": "1x-v100-dgx1",  # p3 and DGX-1: hosts of one generation
    "1x-v100-sxm2-32gb": "1x-v100-p3dn",
    "8x-v100-sxm2-16gb": "8x-v100-dgx1",
    "4x-v100-sxm2-pcie-path": "4x-v100-pcie",  # SXM2, but the rate shows that NVLink rests
    "1x-v100-puhti": "1x-v100-nvlink",
    "4x-v100-puhti": "4x-v100-nvlink",
    "1x-v100-sxm3-32gb": "1x-v100-nvswitch",
    "2x-v100-sxm3-32gb": "2x-v100-nvswitch",
    "4x-v100-sxm3-32gb": "4x-v100-nvswitch",
    "8x-v100-sxm3-32gb": "8x-v100-nvswitch",
    "1x-v100-pcie-16gb": "1x-v100-pcie",
    "1x-v100-pcie-32gb": "1x-v100-pcie",  # but for the memory's size
    "2x-titan-rtx-nv2": "2x-titan-rtx-nvlink",
    "1x-t4": "1x-t4-g4dn",
    "1x-a10g": "1x-a10g-g5",
    "1x-a100-sxm4-40gb": "1x-a100-nvswitch",
    "1x-a100-sxm4": "1x-a100-nvswitch",  # the memory is not stated
    "8x-a100": "8x-a100-nvswitch",  # the memory is not stated
    "8x-a100-nvlink": "8x-a100-80gb-nvswitch",  # the memory is not stated
    "8x-a100-sxm4-40gb": "8x-a100-nvswitch",
    "8x-a100-40gb-superbench": "8x-a100-nvswitch",
    "8x-a100-40gb-hfai": "8x-a100-pcie-40gb",
    "8x-a100-80gb-fair": "8x-a100-80gb-nvswitch",
    "4x-a100-80gb-sxm": "4x-a100-80gb-nvswitch",
    "1x-a100-sxm4-80gb": "1x-a100-80gb-nvswitch",
    "8x-a100-sxm4-80gb": "8x-a100-80gb-nvswitch",
    "2x-a100-80gb-sxm": "2x-a100-80gb-nvswitch",
    "1x-a100-40gb-mahti": "1x-a100-nvlink",
    "4x-a100-40gb-mahti": "4x-a100-nvlink",
    "1x-a100-pcie-80gb": "1x-a100-80gb-pcie-nvlink",  # A800, too: they differ in NVLink alone
    "1x-l4": "1x-l4-g2",
    "1x-l40": "1x-l40-pcie",
    "1x-h100-sxm5": "1x-h100-nvswitch",
    "2x-h100-sxm5": "2x-h100-nvswitch",
    "4x-h100-sxm5": "4x-h100-nvswitch",
    "6x-h100-sxm5": "6x-h100-nvswitch",
    "8x-h100-sxm5": "8x-h100-nvswitch",
    "8x-h100-xe9680": "8x-h100-nvswitch",
    "8x-h100-sxm5-80gb": "8x-h100-nvswitch",
    "2x-h100-pcie-nvlink-bridge": "2x-h100-pcie-nvlink",
    "1x-h800-sxm5": "1x-h800-nvswitch",
    "1x-h20": "1x-h20-nvswitch",
    "1x-gh200": "1x-gh200-hbm3e",  # 900 W, 141 GiB
    "1x-h200": "1x-h200-nvswitch",
    "4x-h200": "4x-h200-nvlink",
    "8x-h200": "8x-h200-nvswitch",
    "1x-b200": "1x-b200-nvswitch",
    "4x-b200": "4x-b200-nvswitch",
    "8x-b200": "8x-b200-nvswitch",
    "8x-gb200": "8x-gb200-nvl72",
}
_DESKTOPS = {
    "2x-rtx2080ti-no-p2p": "2x-rtx-2080-ti",
    "2x-quadro-rtx6000": "2x-quadro-rtx-6000",
    "2x-a5000-pcie": "2x-rtx-a5000",
    "8x-rtx-3090-pcie4": "8x-rtx-3090-epyc",
    "1x-rtx-3090-server": "1x-rtx-3090-epyc",  # 32 threads of 3 GHz
    "4x-rtx-3090-server": "4x-rtx-3090-epyc",
    "2x-rtx4070tis-no-p2p": "2x-rtx-4070-ti-super",
    "2x-rtx4090-no-p2p": "2x-rtx-4090",
    "2x-rtx4090-runpod": "2x-rtx-4090",
    "2x-rtx4090-no-p2p-other-buses": "2x-rtx-4090",
    "3x-rtx4090": "3x-rtx-4090",
    "4x-rtx4090-no-p2p": "4x-rtx-4090",
    "4x-rtx-4090-nop2p": "4x-rtx-4090",
    "4x-rtx4090-no-p2p-kalavai": "4x-rtx-4090",
    "3x-rtx-4090": "3x-rtx-4090-p2p",  # with the modified driver
    "4x-rtx4090-p2p": "4x-rtx-4090-p2p",
    "8x-rtx-4090": "8x-rtx-4090-server",
    "6x-rtx4090-p2p-tinybox": "6x-rtx-4090-tinybox",
    "8x-rtx4090-epyc7542-no-p2p": "8x-rtx-4090-epyc",
    "2x-rtx4090-epyc-no-p2p": "2x-rtx-4090-epyc",
    "8x-rtx4090-epyc7542-p2p": "8x-rtx-4090-epyc-p2p",
    "4x-rtx5090-pcie5": "4x-rtx-5090",
    "8x-rtx5090-pcie5": "8x-rtx-5090-server",
    "8x-rtx5090-xeon6530": "8x-rtx-5090-xeon",
    "8x-rtx5090-epyc9554": "8x-rtx-5090-epyc",
    "8x-rtx5090-epyc9355": "8x-rtx-5090-epyc",
    "2x-rtxpro6000-pcie5": "2x-rtx-pro-6000",
    "8x-rtxpro6000-dual-turin": "8x-rtx-pro-6000",
    "8x-rtxpro6000-pcie5-switches": "8x-rtx-pro-6000",  # three switches: not modelled
}
# Rows whose source names no GPU: good for ratios alone, on any.
_UNNAMED = {
    "1x-cpu": "1x-v100-textbook",  # an operation on the CPU: the host matters alone
    "4x-unnamed-gpu": "4x-v100-pcie",
    "1x-gpu-unnamed": "1x-v100-pcie",
    "8x-unnamed-gpu": "8x-v100-pcie",
}
NAMES = {**_DGX, **_CLOUDS, **_CLUSTERS, **_NODES, **_DESKTOPS, **_UNNAMED}


# Boxes whose GPUs are bridged in pairs: a pair, and what more than two of them have in common.
PAIRS = {"8x-a100-nvlink-pairs": ("2x-a100-80gb-pcie-nvlink", "8x-a100-pcie-40gb")}
# Boxes of more cards than the catalogue's of their kind: all of them in one, each with a slot.
WIDER = {"4x-quadro-rtx8000": ("2x-quadro-rtx-6000", 4)}  # the 6000 with twice the memory
# Boxes whose GPUs could reach each other, and were told not to.
WITHOUT_PEERS = {"2x-titan-rtx-no-p2p": "2x-titan-rtx-nvlink"}
# Two of a box whose GPUs share out their links: only some of them join the two.
JOINED = {"2x-a100-4-nvlinks": ("2x-a100-nvlink", NVLINK3_FOUR)}


def machine(name: str, gpus: int | None = None) -> Machine:
    """The machine of a row that uses so many GPUs of it, where that matters.

    Raises ValueError for one that is neither here nor in the catalogue.
    """
    if name in JOINED:
        box, peer = JOINED[name]
        return machines.machine(box).with_peer(peer)
    if name in WITHOUT_PEERS:
        return machines.machine(WITHOUT_PEERS[name]).with_peer(None)
    if name in WIDER:
        box, count = WIDER[name]
        few = machines.machine(box)
        return replace(few, name=name, accelerators=few.accelerators[:1] * count)
    if name in PAIRS:
        pair, more = PAIRS[name]
        return machines.machine(pair if gpus == 2 else more)
    return machines.machine(NAMES.get(name, name))
