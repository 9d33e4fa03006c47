"""Single kernels: matrix products, and streams through memory."""

from __future__ import annotations

import torch

from ...machines.hardware import Machine
from ..parameters import Parameters, SimulatedRun
from .measuring import DTYPES, gpus, mean_s, seconds

Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _copy(arrays: Arrays) -> None:
    arrays[2].copy_(arrays[0])


def _scale(arrays: Arrays) -> None:
    torch.mul(arrays[0], 1.2, out=arrays[2])


def _triad(arrays: Arrays) -> None:
    torch.add(arrays[0], arrays[1], alpha=0.4, out=arrays[2])


# McCalpin's STREAM, as BabelStream and torch have it: the kernel, and how many arrays it moves.
STREAMS = {"copy": (_copy, 2), "scale": (_scale, 2), "triad": (_triad, 3)}


def matmul(p: Parameters, machine: Machine) -> SimulatedRun:
    """`count` products (m × k) (k × n) on each of `devices` GPUs, queued by one host."""
    m, n, k = (p.integer(name) for name in "mnk")
    count, devices = p.integer("count", 1), p.integer("devices", 1)
    dtype = p.choice("dtype", DTYPES)
    with gpus(machine, devices) as gs:
        factors = [
            (torch.empty(m, k, dtype=dtype, device=g), torch.empty(k, n, dtype=dtype, device=g))
            for g in gs
        ]

        def products() -> None:
            for a, b in factors:
                for _ in range(count):
                    torch.mm(a, b)

        flops = 2 * m * n * k * count * devices
        return SimulatedRun(
            (mean_s if count == 1 else seconds)(products), flops=flops, gpus=devices
        )


def stream(p: Parameters, machine: Machine) -> SimulatedRun:
    """One kernel over arrays of `bytes` each (or of so many `elements`)."""
    kernel, arrays = p.choice("kind", STREAMS)
    dtype = p.choice("dtype", DTYPES)
    elements = p.integer("elements", None)
    elements = p.integer("bytes") // dtype.itemsize if elements is None else elements
    with gpus(machine) as (gpu,):
        a, b, c = (torch.empty(elements, dtype=dtype, device=gpu) for _ in range(3))
        moved = arrays * elements * dtype.itemsize
        return SimulatedRun(mean_s(lambda: kernel((a, b, c))), bytes=moved)
