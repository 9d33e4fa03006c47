"""Which virtual devices the ranks of a run have: one each, or several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...torch_backend.tensors.tensor import VirtualTensor

RankDevices = torch.device | Sequence[torch.device]


def numbers_of(devices: Sequence[RankDevices]) -> list[tuple[int, ...]]:
    """The numbers of the devices of each rank. ValueError for others than virtual ones, or one that
    two have."""
    of_ranks = [each if isinstance(each, (list, tuple)) else (each,) for each in devices]
    numbers = iter(_all_numbers([device for each in of_ranks for device in each]))
    return [tuple(next(numbers) for _ in each) for each in of_ranks]


def _all_numbers(devices: Sequence[torch.device]) -> list[int]:
    found = [torch.empty(0, device=device) for device in devices]  # also "cuda:1", if emulated
    names = ", ".join(str(tensor.device) for tensor in found)
    numbers = [tensor.vgpu_index for tensor in found if isinstance(tensor, VirtualTensor)]
    if not found or len(numbers) < len(found):
        raise ValueError(
            f"virtual ranks need virtual devices, not {names or 'none'}: ask for them with "
            'd2lpar.devices(n, kind="virtual") or a simulate() block'
        )
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"every rank has a device of its own, but got {', '.join(map(str, found))}: name each "
            "once"
        )
    return numbers
