"""The machines of published figures, as machines of the catalogue.

A row names a machine the way its source does; here stands what is simulated for it. Names of the
catalogue itself need no entry.
"""

from __future__ import annotations

from .. import machines
from ..machines.hardware import Machine

# Eight GPUs a node; EFA v1 is 4 ports of 100 Gbit/s, EFA v2 together 3.2 Tbit/s (Bekman).
NAMES = {
    "8x-a100-dgx": "8x-a100-nvswitch",
    "8x-h100-dgx": "8x-h100-nvswitch",
    "8x-h200-dgx": "8x-h200-nvswitch",
    "16x-v100-dgx2": "16x-v100-nvswitch",
    "2x8-a100-p4de": "2x8x-a100-80gb-nvswitch-4x100gbe",
    "2x8-h100-p5": "2x8x-h100-nvswitch-8x400gbe",
    "8x8-h100-ib-ndr": "8x8x-h100-nvswitch-8xib-ndr",
    "4x8-h100-roce400": "4x8x-h100-nvswitch-8x400gbe",
    "4x8-v100-1xedr": "4x8x-v100-dgx1-ib-edr",
    "2x8-v100-dgx1": "2x8x-v100-dgx1-4xib-edr",
    "128x4-p100-25gbe": "128x4x-p100-pcie-25gbe",
    "32x8-p100-50gbe": "32x8x-p100-dgx1-50gbe",
    "4x4-p100-25gbe": "4x4x-p100-pcie-25gbe",
    "128x8-p100-2xfdr": "128x8x-p100-pcie-2xib-fdr",
    "256x8-p40-100gbe": "256x8x-p40-100gbe",
    "272x4-v100-2xedr": "272x4x-v100-dgx1-2xib-edr",
    "16x8-v100-dgx1": "16x8x-v100-dgx1-4xib-edr",
    "64x16-v100-dgx2h": "64x16x-v100-nvswitch-8xib-edr",
    "8x-k80-gce": "8x-k80",
    "8x-k80-p2": "8x-k80",
    "16x-k80-p2": "16x-k80",
    "8x8-k80-p2": "8x8x-k80-10gbe",
    "16x16-k80-p2": "16x16x-k80-2x10gbe",  # 20 Gbit/s
    "4x-p100-c4130": "4x-p100-nvlink-pairs",
    "4x-v100-c4130": "4x-v100-nvlink-pairs",
    "1x-p100": "1x-p100-pcie",  # the form is not stated; 8.76 TFLOP/s fit this card's peak
    "1x-p100-sxm2": "1x-p100-dgx1",
    "1x-v100": "1x-v100-textbook",  # the form is not stated
    "2x-v100": "2x-v100-textbook",
    "1x-v100-sxm2-16gb": "1x-v100-textbook",
    "1x-v100-sxm2-32gb": "1x-v100-nvswitch",
    "1x-v100-sxm3-32gb": "1x-v100-nvswitch",
    "2x-v100-sxm3-32gb": "2x-v100-nvswitch",
    "4x-v100-sxm3-32gb": "4x-v100-nvswitch",
    "8x-v100-sxm3-32gb": "8x-v100-nvswitch",
    "1x-v100-pcie-16gb": "1x-v100-pcie",
    "1x-a100-sxm4-40gb": "1x-a100-nvswitch",
    "1x-a100-sxm4-80gb": "1x-a100-80gb-nvswitch",
    "8x-a100-sxm4-80gb": "8x-a100-80gb-nvswitch",
    "16x-a100-sxm4-80gb": "2x8x-a100-80gb-nvswitch-8xib-hdr",
    "32x-a100-sxm4-80gb": "4x8x-a100-80gb-nvswitch-8xib-hdr",
    "128x-a100-sxm4-80gb": "16x8x-a100-80gb-nvswitch-8xib-hdr",
    "256x-a100-sxm4-80gb": "32x8x-a100-80gb-nvswitch-8xib-hdr",
    "512x-a100-sxm4-80gb": "64x8x-a100-80gb-nvswitch-8xib-hdr",
    "1x-a100-pcie-80gb": "1x-a100-80gb-pcie-nvlink",
    "1x-h100-sxm5": "1x-h100-nvswitch",
}


# Boxes whose GPUs are bridged in pairs: a pair, and what more than two of them have in common.
PAIRS = {"8x-a100-nvlink-pairs": ("2x-a100-80gb-pcie-nvlink", "8x-a100-pcie-40gb")}


def machine(name: str, gpus: int | None = None) -> Machine:
    """The machine of a row that uses so many GPUs of it, where that matters.

    Raises ValueError for one that is neither here nor in the catalogue.
    """
    if name in PAIRS:
        pair, more = PAIRS[name]
        return machines.machine(pair if gpus == 2 else more)
    return machines.machine(NAMES.get(name, name))
