"""Trials of the museum: repaired programs, on virtual ranks and GPUs."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..vgpu import emulate_cuda, hazards, run_ranks
from .laboratory import laboratory, random
from .plain import seen

BOX, RATE = "8x-v100-pcie", 0.1
# How errors begin that are of the ranks together, and no slip of the answer's.
TOGETHER = ("no rank can go on", "collective ", "Expected to have finished reduction")
IGNORED = -100  # the label that cross-entropy leaves out


class TwoHeads(nn.Module):
    """A body and a head for each of two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"boxes": nn.Linear(4, 2), "masks": nn.Linear(4, 1)})

    def forward(self, X: torch.Tensor, task: str) -> torch.Tensor:
        """The output of one head."""
        return self.heads[task](self.body(X))


class Nested(nn.Module):
    """A network with a part that is itself called "module"."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)
        self.head = nn.Linear(2, 1)


def small_net(*layers: nn.Module) -> nn.Sequential:
    """Layers with the same parameters whenever they are made: normal numbers."""
    net = nn.Sequential(*layers)
    with_numbers(net)
    return net


def with_numbers(net: nn.Module) -> nn.Module:
    """The network, its parameters filled with numbers that are always the same."""
    with torch.no_grad():
        for seed, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * random(seed, *parameter.shape))
    return net


def classifier() -> nn.Sequential:
    """Three numbers in, two classes out, with batch normalisation."""
    return small_net(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def on_ranks(function: Callable[[torch.device], object], n: int = 2) -> dict[str, Any]:
    """What `function(device)` returns on each of n ranks as "ranks", or why they are "stuck"."""
    with laboratory(BOX, n) as lab:
        try:
            found = run_ranks(lambda: seen(function(lab.devices[dist.get_rank()])), lab.devices)
        except RuntimeError as error:
            if not str(error).startswith(TOGETHER):
                raise
            return {"stuck": str(error), "ranks": []}
    return {"stuck": "", "ranks": found}


def parameters_of(net: nn.Module) -> list[torch.Tensor]:
    """Copies, as they are now."""
    return [p.detach().clone() for p in net.parameters()]


def validated(answer: Callable, images: int) -> dict[str, Any]:
    """Between two training steps: each rank's own answer, and what its network was then."""
    X, y = random(1, images, 3), torch.arange(images) % 2

    def rank(device: torch.device) -> dict[str, Any]:
        net = DistributedDataParallel(classifier().to(device))
        own = random(10 + dist.get_rank(), 8, 3).to(device)
        net(own).square().mean().backward()
        net.eval()
        state = {name: t.clone() for name, t in net.module.state_dict().items()}
        got = answer(net, X.to(device), y.to(device))
        net.train()
        net(own).square().mean().backward()
        return {"got": got, "state": state}

    return on_ranks(rank) | {"X": seen(X), "y": seen(y)}


def summed_by_class(
    answer: Callable, samples: Sequence[Sequence[tuple[str, float]]], classes: Sequence[str]
) -> dict[str, Any]:
    """What each rank returns, for samples of its own."""
    return on_ranks(
        lambda device: answer(list(samples[dist.get_rank()]), list(classes), device), len(samples)
    )


def trained_on_all(answer: Callable, counts: Sequence[int]) -> dict[str, Any]:
    """Parameters before and after, for ranks with so many batches each, and how many forward passes
    of their network each made."""

    def rank(device: torch.device) -> dict[str, Any]:
        number, passes = dist.get_rank(), []
        net = DistributedDataParallel(small_net(nn.Linear(3, 2)).to(device))
        net.module.register_forward_hook(lambda *_: passes.append(1))
        before = parameters_of(net)
        batches = [random(10 * number + i, 4, 3).to(device) for i in range(counts[number])]
        answer(net, batches, torch.optim.SGD(net.parameters(), lr=RATE))
        return {"before": before, "after": parameters_of(net), "passes": len(passes)}

    return on_ranks(rank, len(counts))


def trained_heads(answer: Callable, tasks: Sequence[str]) -> dict[str, Any]:
    """Each rank's parameters after steps for these tasks, by their names."""

    def rank(device: torch.device) -> dict[str, torch.Tensor]:
        net = with_numbers(TwoHeads()).to(device)
        answer(net, random(10 + dist.get_rank(), 4, 3).to(device), list(tasks))
        return {name: p.detach().clone() for name, p in net.named_parameters()}

    return on_ranks(rank)


def restored(answer: Callable) -> dict[str, Any]:
    """The parameters of a new network after a checkpoint of a wrapped one, by their names."""
    with laboratory(BOX, 2) as lab:
        trained = with_numbers(Nested()).to(lab.devices[0])
        checkpoint = nn.DataParallel(trained, device_ids=lab.devices).state_dict()
        net = Nested().to(lab.devices[0])
        answer(net, dict(checkpoint))
        pairs = {"got": net, "saved": trained}
        return {key: seen(dict(each.named_parameters())) for key, each in pairs.items()}


def validation_loss(answer: Callable, batches: int) -> dict[str, Any]:
    """What it returns, and the most bytes that it took beside network and data."""
    with laboratory(BOX, 1) as lab:
        (device,) = lab.devices
        net = small_net(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 4)).to(device)
        data = [
            (random(i, 64, 8).to(device), (torch.arange(64) % 4).to(device)) for i in range(batches)
        ]
        vgpu = torch.get_device_module(device)
        vgpu.reset_peak_memory_stats(device)
        before = vgpu.memory_allocated(device)
        got = seen(answer(net, data))
        return {"got": got, "bytes": vgpu.max_memory_allocated(device) - before}


def resumed(answer: Callable) -> dict[str, Any]:
    """A rank on cuda:1 resumes what was saved on cuda:0: its parameters, and the bytes that this
    took on cuda:0."""
    with tempfile.TemporaryDirectory() as folder, emulate_cuda(2, BOX, verbose=False) as gpus:
        path = str(Path(folder) / "checkpoint.pt")
        torch.save(small_net(nn.Linear(64, 64)).to(gpus[0]).state_dict(), path)

        def rank() -> dict[str, Any]:
            net = nn.Sequential(nn.Linear(64, 64)).to(gpus[1])
            torch.cuda.reset_peak_memory_stats(0)
            before = torch.cuda.memory_allocated(0)
            answer(net, path)
            taken = torch.cuda.max_memory_allocated(0) - before
            return {"bytes": taken, "got": seen(parameters_of(net))}

        (found,) = run_ranks(rank, [torch.device("vgpu", 1)])
    return dict(found)  # type: ignore[call-overload]


def backward_over_tokens(answer: Callable, tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Each rank's gradients, for micro-batches with so many real tokens each."""

    def rank(device: torch.device) -> list[torch.Tensor | None]:
        net = DistributedDataParallel(small_net(nn.Linear(3, 4)).to(device))
        answer(net, [(X.to(device), y.to(device)) for X, y in pieces(tokens, dist.get_rank())])
        return [p.grad for p in net.parameters()]

    return on_ranks(rank, len(tokens))


def pieces(tokens: Sequence[Sequence[int]], rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The micro-batches of a rank: inputs and labels, those of padding being `IGNORED`."""
    found = []
    for i, real in enumerate(tokens[rank]):
        y = torch.arange(6) % 4
        y[real:] = IGNORED
        found.append((random(100 * rank + i, 6, 3), y))
    return found


def contrasted(answer: Callable, n: int) -> dict[str, Any]:
    """Each rank's gradients after `answer(features)` has been differentiated under DDP."""

    def rank(device: torch.device) -> list[torch.Tensor | None]:
        net = DistributedDataParallel(small_net(nn.Linear(3, 2)).to(device))
        answer(net(random(dist.get_rank(), 4, 3).to(device))).backward()
        return [p.grad for p in net.parameters()]

    return on_ranks(rank, n)


def orders_seen(answer: Callable, count: int, epochs: int) -> dict[str, Any]:
    """What each of two ranks returns, for `count` samples."""
    return on_ranks(lambda _: answer(range(count), epochs))


def read_back(answer: Callable, count: int) -> dict[str, Any]:
    """What it returns for scores that a GPU has computed, and the hazards that were found."""
    with laboratory(BOX, 1) as lab, hazards() as found:
        scores = 2.0 * torch.arange(count, device=lab.devices[0], dtype=torch.float32)
        return {"got": seen(answer(scores)), "hazards": [str(hazard) for hazard in found]}


def handed_on(answer: Callable, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What rank 1 has of two tensors of rank 0 afterwards."""

    def rank(device: torch.device) -> list[torch.Tensor]:
        own = 1 - dist.get_rank()
        tensors = [
            torch.full((n,), float(own * i), device=device) for i, n in enumerate(sizes.values(), 1)
        ]
        answer(*tensors)
        return tensors

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "NCCL ignores tag")  # the check says it
        return on_ranks(rank)
