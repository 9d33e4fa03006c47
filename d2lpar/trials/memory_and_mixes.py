"""Trials of lesson 09: parameters and the optimizer's state in shards, one on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from ..timeline import Timeline
from ..vgpu import record, run_ranks, simulate
from .evidence import memory_of
from .plain import seen

BOX, PICTURED = "8x-v100-dgx1", 4  # 16 GB each
SHAPES = ((4, 6), (6, 2))  # of a network with 36 parameters
ROWS, STEPS = 8, 3  # of the whole batch
LARGE, LARGE_ROWS = 31_744, 1024  # a layer of 4 GB: with gradient and Adam, 16 GB
OUTPUTS = 2048  # so many that W is seen beside what memory is rounded to
LAYER, LAYER_ROWS, LAYERS = 24_576, 2048, 4  # layers of 2.4 GB

Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD with momentum": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9),
    "Adam": lambda tensors: torch.optim.Adam(tensors, lr=0.1, eps=1e-3),
}


def random(*shape: int, seed: int) -> torch.Tensor:
    """The same in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def start() -> torch.Tensor:
    """All parameters of the network, one after the other."""
    return torch.cat([random(a * b, seed=a) for a, b in SHAPES]) / 2


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks."""
    return random(ROWS, SHAPES[0][0], seed=1), random(ROWS, SHAPES[1][1], seed=2)


def loss_of(whole: torch.Tensor, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean loss of some of the batch."""
    sizes = [a * b for a, b in SHAPES]
    A, B = (part.view(shape) for part, shape in zip(whole.split(sizes), SHAPES, strict=True))
    return F.mse_loss(torch.tanh(X @ A) @ B, y)


def zero_1(answer: Callable, n: int, optimizer: str) -> dict[str, Any]:
    """The parameters that each rank has at the end; what its optimizer got, and its exchanges."""
    ends: dict[int, Any] = {}
    given: list[int] = []
    make = OPTIMIZERS[optimizer]

    def counted(tensors: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        own = list(tensors)
        given.append(sum(tensor.numel() for tensor in own))
        return make(own)

    with simulate(BOX, n, with_values=True) as gpus, record() as timeline:

        def on_rank() -> None:
            rank = dist.get_rank()
            whole = start().to(gpus[rank]).requires_grad_()
            own = [part.chunk(n)[rank].to(gpus[rank]) for part in batch()]
            answer(whole, lambda whole: loss_of(whole, *own), counted, STEPS)
            ends[rank] = seen(whole)

        run_ranks(on_rank, gpus)
    return {
        "ends": [ends[rank] for rank in range(n)],
        "given": given,
        "exchanges": _exchanges(timeline),
    } | _zero_1_picture(answer)


def _exchanges(timeline: Timeline) -> list[str]:
    return [span.name for span in timeline.on("vgpu:0", "collective")]


def _zero_1_picture(answer: Callable) -> dict[str, Any]:
    """Two steps of a layer that leaves no room for Adam's state of all parameters."""
    with simulate(BOX, PICTURED) as gpus, record() as timeline:

        def on_rank() -> None:
            gpu = gpus[dist.get_rank()]
            whole = torch.empty(LARGE * LARGE, device=gpu, requires_grad=True)
            X = torch.empty(LARGE_ROWS, LARGE, device=gpu)
            make = OPTIMIZERS["Adam"]
            answer(whole, lambda whole: (X @ whole.view(LARGE, LARGE)).sum(), make, 2)

        return _in_memory(on_rank, gpus, timeline)


def _in_memory(
    on_rank: Callable[[], None], gpus: Sequence[torch.device], timeline: Timeline
) -> dict[str, Any]:
    full = ""
    try:
        run_ranks(on_rank, gpus)
    except torch.OutOfMemoryError as error:
        full = str(error)
    device = gpus[0]
    limit_bytes = torch.get_device_module(device).get_device_properties(device).total_memory
    return {"full": full, "picture": memory_of(timeline, limit_bytes, device=str(device))}


def layer(n: int) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """W [4 n, outputs]; inputs X of each rank, and gradients of each rank's outputs."""
    Xs = [random(5, 4 * n, seed=10 + rank) for rank in range(n)]
    dYs = [random(5, OUTPUTS, seed=20 + rank) for rank in range(n)]
    return random(4 * n, OUTPUTS, seed=3), Xs, dYs


def fsdp_forward(answer: Callable, n: int) -> dict[str, Any]:
    """Each rank's output, and the bytes that it leaves on its GPU besides."""
    return _layer_run(answer, n, backward=False)


def fsdp_backward(answer: Callable, n: int) -> dict[str, Any]:
    """Each rank's two gradients, and the bytes that it leaves on its GPU besides."""
    return _layer_run(answer, n, backward=True)


def _layer_run(answer: Callable, n: int, *, backward: bool) -> dict[str, Any]:
    returned: dict[int, Any] = {}
    left: dict[int, int] = {}
    with simulate(BOX, n, with_values=True) as gpus, record() as timeline:

        def on_rank() -> None:
            rank = dist.get_rank()
            gpu, (W, Xs, dYs) = gpus[rank], layer(n)
            own = [Xs[rank], W.chunk(n)[rank], dYs[rank]][: 3 if backward else 2]
            given = [tensor.clone().to(gpu) for tensor in own]
            held = torch.get_device_module(gpu).memory_allocated
            before = held(gpu)
            with torch.no_grad():
                result = answer(*given)
            left[rank] = held(gpu) - before - _bytes_of(result)
            returned[rank] = seen(result)

        run_ranks(on_rank, gpus)
    return {
        "returned": [returned[rank] for rank in range(n)],
        "left_bytes": max(left.values()),
        "exchanges": _exchanges(timeline),
    } | _layer_picture(answer, backward=backward)


def _bytes_of(result: object) -> int:
    if isinstance(result, torch.Tensor):
        return result.nbytes
    return sum(map(_bytes_of, result)) if isinstance(result, list | tuple) else 0


def _layer_picture(answer: Callable, *, backward: bool) -> dict[str, Any]:
    """Layers of 2.4 GB, one after the other, of which each rank has a quarter."""
    with simulate(BOX, PICTURED) as gpus, record() as timeline:

        def on_rank() -> None:
            gpu = gpus[dist.get_rank()]
            shape = (LAYER // PICTURED, LAYER)
            shards = [torch.zeros(shape, device=gpu) for _ in range(LAYERS)]
            X = torch.zeros(LAYER_ROWS, LAYER, device=gpu)
            with torch.no_grad():
                for shard in shards:
                    result = answer(X, shard, X) if backward else answer(X, shard)
                    del result
                    torch.zeros(1, device=gpu)  # memory is looked at whenever something is made

        return _in_memory(on_rank, gpus, timeline)
