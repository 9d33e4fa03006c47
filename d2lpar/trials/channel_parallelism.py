"""Trials of lesson 08: layers split by their input channels, or by columns and then by rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..vgpu import record, run_ranks, simulate
from .evidence import gantt_of
from .plain import seen

IMAGES, HEIGHT, WIDTH = 4, 10, 12
BLOCK_BOX, BLOCK = "8x-a100-nvswitch", (2048, 4096)  # samples, numbers: large enough to be seen


@torch.no_grad()
def layer(channels: int, outputs: int, stride: int) -> nn.Conv2d:
    """With small whole numbers, whose sums are the same in any order."""
    conv = nn.utils.skip_init(nn.Conv2d, channels, outputs, 3, stride=stride, padding=1)
    conv.weight.copy_(whole_numbers(conv.weight.shape, -3, seed=1))
    conv.bias.copy_(whole_numbers(conv.bias.shape, 1, seed=2))  # none is zero: it would not count
    return conv


def whole_numbers(shape: Sequence[int], low: int, *, seed: int) -> torch.Tensor:
    """From `low` to 3."""
    return torch.randint(low, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def images(conv: nn.Conv2d) -> torch.Tensor:
    """What the layer gets."""
    return whole_numbers((IMAGES, conv.in_channels, HEIGHT, WIDTH), -3, seed=3)


class _Convolutions(TorchDispatchMode):
    """Notes the shapes of inputs and filters of all convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[list[int]]] = []

    def __torch_dispatch__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func is torch.ops.aten.convolution.default:
            self.shapes.append([[*args[0].shape], [*args[1].shape]])
        return func(*args, **(kwargs or {}))


def by_input_channels(
    answer: Callable, n: int, channels: int, outputs: int, stride: int
) -> dict[str, Any]:
    """Outputs, gradients if there are any, convolutions, and each device's FLOP and copies."""
    with simulate("8x-v100-pcie", n, with_values=True) as devices:
        conv = layer(channels, outputs, stride)
        gradient = whole_numbers(conv(images(conv)).shape, -3, seed=4)
        X = images(conv).to(devices[0]).requires_grad_()
        conv = conv.to(devices[0])
        with record() as timeline, _Convolutions() as convolutions:
            Y = answer(conv, X, list(devices))
        found = {
            "outputs": seen(Y),
            "shapes": convolutions.shapes,
            "devices": [str(device) for device in devices],
            "flops": [sum(s.flops for s in timeline.on(device, "compute")) for device in devices],
            "copied_bytes": sum(span.bytes for span in timeline if span.kind == "copy"),
        }
        gradients = None
        if torch.is_tensor(Y) and Y.requires_grad and Y.shape == gradient.shape:
            Y.backward(gradient.to(Y.device))
            gradients = [None if t.grad is None else seen(t.grad) for t in (X, *conv.parameters())]
        return found | {"gradients": gradients}


def columns_then_rows(answer: Callable, n: int, samples: int, width: int) -> dict[str, Any]:
    """What each rank returns, and what it computes and exchanges; a picture of a larger run."""
    found: dict[int, Any] = {}
    with simulate(BLOCK_BOX, n, with_values=True) as gpus, record() as timeline:
        whole = block(samples, width)
        run_ranks(lambda: found.update({dist.get_rank(): _on_rank(answer, whole, gpus)}), gpus)
        names = [str(gpu) for gpu in gpus]
    return {
        "devices": names,
        "outputs": [found[rank] for rank in range(n)],
        "exchanges": [span.name for span in timeline.on(names[0], "collective")],
        "flops": [sum(s.flops for s in timeline.on(name, "compute")) for name in names],
        "picture": _block_picture(answer, n),
    }


def block(samples: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """X, A and B, of small whole numbers."""
    shapes = ((samples, width), (width, 4 * width), (4 * width, width))
    X, A, B = (whole_numbers(shape, -3, seed=seed) for seed, shape in enumerate(shapes, 5))
    return X, A, B


def _on_rank(
    answer: Callable, whole: Sequence[torch.Tensor], gpus: Sequence[torch.device]
) -> object:
    gpu = gpus[dist.get_rank()]
    return seen(answer(*(tensor.to(gpu) for tensor in whole)))


def _block_picture(answer: Callable, n: int) -> dict[str, Any]:
    """A run of a block of usual size, with shapes only."""
    samples, width = BLOCK
    shapes = ((samples, width), (width, 4 * width), (4 * width, width))
    with simulate(BLOCK_BOX, n) as gpus, record() as timeline:

        def on_rank() -> None:
            gpu = gpus[dist.get_rank()]
            own = [torch.empty(shape, dtype=torch.float16, device=gpu) for shape in shapes]
            answer(*own)

        run_ranks(on_rank, gpus)
    return gantt_of(timeline)
