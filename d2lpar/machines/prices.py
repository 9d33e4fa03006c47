"""What an hour of a GPU costs on demand, where a price is published: of clouds, with its date.

Prices change, and differ between clouds by a factor of four for the same GPU: each says whose it
is, when it was read and where. Machines that a cloud rents out have that cloud's price; of others
the price of their kind of GPU is taken. Without one there is none: nothing is estimated. Nor is
there one for a machine with the textbook's host, which stands for no processor: nobody rents it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..timeline.inputs import Positive, check_fields
from .catalogue import NETWORKS, hosts
from .hardware import Machine

# 8x-h100-p5, 1x-h100-p5 and 2x8x-h100-p5-8xefa-v2 are of one kind.
_NAME = re.compile(rf"(?:\d+x)?\d+x-(?P<kind>.+?)(?:-(?:\d+x)?(?:{'|'.join(NETWORKS)}))?")


@dataclass(frozen=True)
class Price:
    """Dollars of one GPU for one hour; what is rented, the day it was read, and where it stands."""

    usd_per_gpu_h: Positive
    offer: str
    date: str
    source: str

    def __post_init__(self) -> None:
        check_fields(self)


# Price lists of clouds change under their addresses: the day's figures are kept by who read them.
_RECEIPTS = "https://github.com/datareceipts/data-receipts, 109-gpu-pricing"
_RECEIPTS_DATE = "2026-11-09"
_LAMBDA = "https://lambda.ai/instances, kept by https://github.com/api-evangelist/lambda-labs"
_LAMBDA_DATE = "2026-09-20"
_RUNPOD = "https://www.runpod.io/pricing"
_RUNPOD_KEPT = f"{_RUNPOD}, kept by https://github.com/api-evangelist/runpod"
_RUNPOD_DATE = "2026-10-07"


def _amazon(usd_per_h: float, gpus: int, instance: str) -> Price:
    offer = f"AWS {instance}, us-east-1"
    return Price(usd_per_h / gpus, offer, _RECEIPTS_DATE, _RECEIPTS)


def _azure(usd_per_gpu_h: float, instance: str) -> Price:
    return Price(usd_per_gpu_h, f"Azure {instance}", _RECEIPTS_DATE, _RECEIPTS)


def _lambda(usd_per_gpu_h: float, what: str) -> Price:
    return Price(usd_per_gpu_h, f"Lambda, {what}", _LAMBDA_DATE, _LAMBDA)


def _runpod(usd_per_gpu_h: float, what: str, date: str, source: str) -> Price:
    return Price(usd_per_gpu_h, f"RunPod, {what}", date, source)


# By the name of a machine of the catalogue, without the number of its GPUs.
OF_MACHINES = {
    "a100-p4d": _amazon(21.957642, 8, "p4d.24xlarge"),
    "a100-80gb-p4de": _amazon(27.44705, 8, "p4de.24xlarge"),
    "h100-p5": _amazon(55.04, 8, "p5.48xlarge"),
    "h200-p5en": Price(
        63.296 / 8,
        "AWS p5en.48xlarge, us-east-1",
        "2026-08-06",
        "https://github.com/dstackai/dstack/pull/4110",
    ),
    "a100-80gb-nc-v4": _azure(4.777, "NC96ads_A100_v4, eastus"),
    "h100-nc-v5": _azure(8.82, "NC80adis_H100_v5, eastus"),
    "a100-nd-v4": _azure(3.3996, "ND96asr_A100_v4"),
    "h100-nd-v5": _azure(12.29, "ND96isr_H100_v5"),
    "h100-a3": Price(
        10.9791,
        "Google Cloud, list price of a3-highgpu-1g, us-central1",
        "2026-09-26",
        "https://github.com/tgarg01/silybench-data, derived/csv/gpu_prices.csv",
    ),
}
# By the name of an accelerator, for machines that no cloud above rents out.
OF_ACCELERATORS = {
    "V100-SXM2-16GB": _lambda(0.79, "8x V100"),
    "Quadro RTX 6000": _lambda(0.69, "1x Quadro RTX 6000"),
    "A10-PCIE-24GB": _lambda(1.29, "1x A10"),
    "RTX A6000": _lambda(1.09, "4x A6000"),
    "A100-SXM4-40GB": _lambda(1.99, "8x A100 SXM 40 GB"),
    "A100-SXM4-80GB": _lambda(2.79, "8x A100 SXM 80 GB"),
    "A100-PCIE-80GB": _runpod(1.79, "A100 PCIe", _RECEIPTS_DATE, _RECEIPTS),
    "H100-PCIE-80GB": _lambda(3.29, "1x H100 PCIe"),
    "H100-SXM5-80GB": _lambda(3.99, "8x H100 SXM"),
    "H100-NVL-94GB": _runpod(3.19, "H100 NVL", _RECEIPTS_DATE, _RECEIPTS),
    "H200-SXM-141GB": _runpod(4.59, "H200", _RUNPOD_DATE, _RUNPOD_KEPT),
    "GH200-96GB": _lambda(2.29, "1x GH200"),
    "B200-SXM-180GB": _lambda(6.69, "8x B200 SXM6"),
    "B300-SXM-288GB": _runpod(7.89, "B300", _RUNPOD_DATE, _RUNPOD_KEPT),
}


def price_of(machine: Machine) -> Price | None:
    """What a GPU of a machine costs an hour on demand, or None if no price is known.

    Clusters cost what their nodes do; networks and disks are left out.
    """
    if machine.host == hosts.TEXTBOOK:
        return None
    match = _NAME.fullmatch(machine.name)
    own = OF_MACHINES.get(match["kind"]) if match else None
    return own or OF_ACCELERATORS.get(machine.accelerators[0].name)
