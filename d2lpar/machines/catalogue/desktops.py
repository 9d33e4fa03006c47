"""Desktops and servers with cards for graphics.

The driver lets no two GeForce cards read each other's memory over PCIe; a modified one does
("p2p"). Those whose processor is not told have one of their card's year.
"""

from __future__ import annotations

from ..hardware import Accelerator, Host, Link, Machine
from . import ada, ampere, blackwell, early, hosts, links

_NO_PEERS = "https://github.com/NVIDIA/nccl/issues/1127"
_CHLC = "two EPYC 7542, each GPU on a root of its own: https://blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked"
_FOURFOLD = "https://github.com/NVIDIA/nccl-tests/issues/332"
_MODIFIED = "with the driver of https://github.com/tinygrad/open-gpu-kernel-modules"


def _box(
    name: str,
    gpu: Accelerator,
    host_link: Link,
    source: str,
    peer: Link | None = None,
    host: Host | None = None,
    sockets: Link | None = None,
) -> Machine:
    """As many GPUs as the name begins with, each with a slot of its own; `sockets` joins the two
    processors, four times, and each has half of the GPUs."""
    count = int(name.split("x-")[0])
    return Machine(
        name,
        (gpu,) * count,
        host or hosts.desktop(gpu.architecture),
        host_link,
        peer,
        source=source,
        socket_size=count // 2 if sockets else None,
        socket_link=sockets,
        socket_links=4 if sockets else 1,
    )


MACHINES = (
    *(
        _box(f"1x-{name}", gpu, link, "assumed: a desktop or workstation")
        for name, gpu, link in (
            ("gtx-titan-x", early.TITAN_X, links.PCIE3_X16),
            ("gtx-1080", early.GTX_1080, links.PCIE3_X16),
            ("gtx-1080-ti", early.GTX_1080_TI, links.PCIE3_X16),
            ("titan-v", early.TITAN_V, links.PCIE3_X16),
            ("rtx-2080", early.RTX_2080, links.PCIE3_X16),
            ("rtx-2070-super", early.RTX_2070_SUPER, links.PCIE3_X16),
            ("rtx-3060", ampere.RTX_3060, links.PCIE4_X16),
            ("rtx-3070", ampere.RTX_3070, links.PCIE4_X16),
            ("rtx-3080", ampere.RTX_3080, links.PCIE4_X16),
            ("rtx-a2000", ampere.RTX_A2000, links.PCIE4_X16),
            ("rtx-a4000", ampere.RTX_A4000, links.PCIE4_X16),
            ("rtx-4060-ti", ada.RTX_4060_TI, links.PCIE4_X16),
            ("rtx-4070", ada.RTX_4070, links.PCIE4_X16),
            ("rtx-4070-super", ada.RTX_4070_SUPER, links.PCIE4_X16),
            ("rtx-4080", ada.RTX_4080, links.PCIE4_X16),
            ("rtx-6000-ada", ada.RTX_6000_ADA, links.PCIE4_X16),
            ("rtx-5070", blackwell.RTX_5070, links.PCIE5_X16),
            ("rtx-5080", blackwell.RTX_5080, links.PCIE5_X16),
        )
    ),
    *(
        _box(f"1x-{name}", gpu, link, "assumed: a server", host=host)
        for name, gpu, link, host in (
            ("k40", early.K40, links.PCIE3_X16, hosts.XEON_BROADWELL),
            ("a10", ampere.A10, links.PCIE4_X16, hosts.XEON_ICE_LAKE),
            ("a30", ampere.A30, links.PCIE4_X16, hosts.XEON_ICE_LAKE),
            ("a40", ampere.A40, links.PCIE4_X16, hosts.XEON_ICE_LAKE),
            ("l20", ada.L20, links.PCIE4_X16, hosts.XEON),
        )
    ),
    _box("1x-gtx-1660-ti", early.GTX_1660_TI, links.PCIE3_X16, "assumed: a desktop"),
    _box("1x-quadro-gv100", early.QUADRO_GV100, links.PCIE3_X16, "assumed: a workstation"),
    _box(
        "2x-rtx-2080-ti",
        early.RTX_2080_TI,
        links.PCIE3_X16,
        "no peer-to-peer without a bridge: https://github.com/tensorflow/tensorflow/issues/24677",
    ),
    _box(
        "2x-quadro-rtx-6000",
        early.QUADRO_RTX_6000,
        links.PCIE3_X16,
        "assumed: peer to peer, no bridge",
        links.PCIE3_X16,
        hosts.WORKSTATION_OF_2019,
    ),
    _box(
        "2x-titan-rtx-nvlink",
        early.TITAN_RTX,
        links.PCIE3_X16,
        "two cards that two NVLinks join ('NV2'): https://huggingface.co/docs/transformers/"
        "perf_train_gpu_many",
        links.NVLINK2_TWO,
    ),
    _box("1x-rtx-3060-laptop", ampere.RTX_3060_LAPTOP, links.PCIE4_X16, "assumed: a laptop"),
    _box("1x-rtx-3080-ti", ampere.RTX_3080_TI, links.PCIE4_X16, "assumed: a desktop"),
    _box(
        "4x-rtx-3090",
        ampere.RTX_3090,
        links.PCIE4_X16,
        "no peer-to-peer: https://github.com/efeslab/Nanoflow/issues/22",
    ),
    _box(
        "2x-rtx-3090-nvlink",
        ampere.RTX_3090,
        links.PCIE4_X16,
        "https://github.com/tinygrad/open-gpu-kernel-modules/issues/3",
        links.NVLINK3_RTX_BRIDGE,
    ),
    _box(
        "4x-rtx-3090-p2p",
        ampere.RTX_3090,
        links.PCIE4_X16,
        "with the driver of https://github.com/aikitoria/open-gpu-kernel-modules, issue 3",
        links.PCIE4_X16,
    ),
    _box(
        "8x-rtx-3090-epyc",
        ampere.RTX_3090,
        links.PCIE4_X16,
        "https://server-gear.com/blog/post/rtx3090-x8-exhaustive-tf-cnn-benchmarks",
        host=hosts.EPYC_7352,
    ),
    _box("1x-rtx-3090-ti", ampere.RTX_3090_TI, links.PCIE4_X16, "a desktop"),
    _box(
        "8x-rtx-a5000",
        ampere.RTX_A5000,
        links.PCIE4_X16,
        "assumed: peer to peer, no switch",
        links.PCIE4_X16,
        hosts.EPYC_OF_2019,
    ),
    _box(
        "8x-rtx-a6000",
        ampere.RTX_A6000,
        links.PCIE4_X16,
        "assumed: peer to peer (https://github.com/NVIDIA/nvbandwidth/issues/50), no switch",
        links.PCIE4_X16,
        hosts.EPYC_OF_2019,
    ),
    _box(
        "2x-rtx-4070-ti-super",
        ada.RTX_4070_TI_SUPER,
        links.PCIE4_X16,
        f"no peer-to-peer, as RTX 4090: {_NO_PEERS}",
    ),
    _box("4x-rtx-4090", ada.RTX_4090, links.PCIE4_X16, f"no peer-to-peer: {_NO_PEERS}"),
    _box("4x-rtx-4090-p2p", ada.RTX_4090, links.PCIE4_X16, _MODIFIED, links.PCIE4_X16),
    _box(
        "8x-rtx-4090-server",
        ada.RTX_4090,
        links.PCIE4_X16,
        f"https://github.com/NVIDIA/nvbandwidth/issues/15; no peer-to-peer: {_NO_PEERS}",
        host=hosts.XEON,
    ),
    _box(
        "6x-rtx-4090-tinybox",
        ada.RTX_4090,
        links.PCIE4_X16,
        f"{_MODIFIED}, README; an EPYC is assumed",
        links.PCIE4_X16,
        hosts.EPYC_OF_2019,
    ),
    _box(
        "8x-rtx-4090-epyc",
        ada.RTX_4090,
        links.PCIE4_X16,
        _CHLC,
        host=hosts.EPYC_7542,
        sockets=links.XGMI2,
    ),
    _box(
        "8x-rtx-4090-epyc-p2p",
        ada.RTX_4090,
        links.PCIE4_X16,
        f"{_CHLC}, {_MODIFIED}",
        links.PCIE4_X16,
        hosts.EPYC_7542,
        links.XGMI2,
    ),
    _box(
        "1x-rtx-5070-ti-laptop", blackwell.RTX_5070_TI_LAPTOP, links.PCIE5_X16, "assumed: a laptop"
    ),
    _box(
        "4x-rtx-5090",
        blackwell.RTX_5090,
        links.PCIE5_X16,
        "no peer-to-peer: https://github.com/tinygrad/open-gpu-kernel-modules/issues/29; in a "
        "server with two Xeon: https://github.com/NVIDIA/nccl/issues/1639",
        host=hosts.XEON,
    ),
    _box(
        "4x-rtx-5090-p2p",
        blackwell.RTX_5090,
        links.PCIE5_X16,
        f"{_MODIFIED}, issue 29",
        links.PCIE5_X16,
    ),
    _box(
        "8x-rtx-5090-server",
        blackwell.RTX_5090,
        links.PCIE5_X16,
        "https://github.com/NVIDIA/nccl/issues/1639, two Xeon 8480+; no peer-to-peer",
        host=hosts.XEON,
    ),
    _box(
        "8x-rtx-5090-epyc",
        blackwell.RTX_5090,
        links.PCIE5_X16,
        f"{_FOURFOLD}, two EPYC 9554; no peer-to-peer",
        host=hosts.EPYC,
    ),
    _box(
        "8x-rtx-5090-xeon",
        blackwell.RTX_5090,
        links.PCIE5_X16,
        f"{_FOURFOLD}, two Xeon 6530; no peer-to-peer",
        host=hosts.XEON_EMERALD_RAPIDS,
    ),
    _box(
        "8x-rtx-pro-6000",
        blackwell.RTX_PRO_6000,
        links.PCIE5_X16,
        "two EPYC, each GPU on a slot of its own, peer to peer: https://github.com/voipmonitor/"
        "rtx6kpro/blob/070506ff96a20039f71a067adcb250e8fe3414f8/hardware/pcie-bandwidth.md",
        links.PCIE5_X16,
        hosts.EPYC,
    ),
    _box(
        "1x-rtx-pro-6000-maxq",
        blackwell.RTX_PRO_6000_MAX_Q,
        links.PCIE5_X16,
        "assumed: a workstation",
    ),
)
