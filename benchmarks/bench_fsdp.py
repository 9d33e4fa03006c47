"""What it takes to run FSDP2 on virtual ranks: a step of a small GPT on 8 ranks, against the same
work on one virtual device and on the plain CPU.

The same work is the batches of all ranks, one after the other, with one update. What the ranks have
besides are gathered parameters and exchanged gradients, which are copied here, and hooks: so goals
say how much more a step may take. All ways take turns in one process; medians are compared.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import this_machine
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import d2lpar as par

RANKS, LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH = 8, 4, 128, 4, 64, 256, 4
VALUES_GOAL = 2.0  # times the step of one virtual device
SHAPES_GOAL = 3.0  # times that step, shapes only: hooks and collectives cost what they cost


class GPT(nn.Module):
    """A decoder: embeddings, blocks with causal attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        options = {"norm_first": True, "batch_first": True, "dropout": 0.0}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **options) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits for each place of texts (batch, tokens)."""
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def texts(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(WORDS, (BATCH, TOKENS), generator=generator)


def backward(model: nn.Module, text: torch.Tensor) -> None:
    F.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()


def alone(device: torch.device | str, steps: int) -> list[float]:
    """Seconds of each step of one device that has the batches of all ranks."""
    torch.manual_seed(0)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    mine = [texts(rank).to(device) for rank in range(RANKS)]

    def step() -> None:
        for text in mine:
            backward(model, text)
        optimizer.step()
        optimizer.zero_grad()

    return [seconds(step) for _ in range(steps)]


def sharded(devices: list[torch.device], steps: int) -> list[float]:
    """Seconds of each step of all ranks, as the last one sees them: they take turns."""

    def train() -> list[float]:
        rank = torch.distributed.get_rank()
        torch.manual_seed(0)
        model = GPT().to(devices[rank])
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        text = texts(rank).to(devices[rank])

        def step() -> None:
            torch.distributed.barrier()
            backward(model, text)
            optimizer.step()
            optimizer.zero_grad()

        return [seconds(step) for _ in range(steps)]

    return par.run_ranks(train, devices)[-1]


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def medians(ways: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, float]:
    """Median seconds of each way; the first step of each round does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name] += way()[1:]
    return {name: statistics.median(times) for name, times in found.items()}


def tell(title: str, times: dict[str, float], base: str, goal: float) -> bool:
    print(title)
    for name, median_s in times.items():
        print(f"  {name:<36}{1e3 * median_s:>9.1f} ms{median_s / times[base]:>8.2f}x")
    ratio = times["8 ranks"] / times[base]
    met = ratio <= goal
    verdict = "met" if met else "MISSED"
    print(f"  8 ranks against {base}: {ratio:.2f}x, target: at most {goal}: {verdict}")
    return met


def main() -> None:
    """Print the ratios; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = options.steps
    print(f"FSDP2 step of a GPT of {LAYERS} layers of {WIDTH}, on {this_machine()}")
    with par.simulate("8x-h100-nvswitch", RANKS, with_values=True) as gpus:
        ways = {
            "plain CPU": lambda: alone("cpu", steps),
            "one virtual device": lambda: alone(gpus[0], steps),
            "8 ranks": lambda: sharded(gpus, steps),
        }
        times = medians(ways, options.rounds)
    met = tell("with values", times, "one virtual device", VALUES_GOAL)
    with par.simulate("8x-h100-nvswitch", RANKS) as gpus:
        ways = {
            "one virtual device": lambda: alone(gpus[0], steps),
            "8 ranks": lambda: sharded(gpus, steps),
        }
        times = medians(ways, options.rounds)
    met &= tell("shapes only", times, "one virtual device", SHAPES_GOAL)
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
