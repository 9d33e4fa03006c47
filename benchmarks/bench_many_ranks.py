"""What it takes to simulate one training step of a GPT on many virtual ranks, shapes only.

GPT-2 (124 million parameters), 2 sequences of 1,024 tokens a rank, DDP and AdamW. 64 ranks run one
by one; of 512 ranks each distinct one is run, which the first run shows to give the same time.
"""

import argparse
import os
import time

import torch
from machine import this_machine
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import d2lpar as par
from d2lpar import machines

LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH = 12, 768, 12, 1024, 50304, 2
GOAL_S = 20.0  # of this machine, for a step of 64 ranks


class Block(nn.Module):
    """Causal attention and a perceptron, each beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, width)."""
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        parts = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Embeddings, blocks, a norm and a head without a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits for each place of texts (batch, tokens)."""
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.last(self.blocks(x)) @ self.words.weight.T


def train(steps: int) -> tuple[float, float]:
    """Simulated seconds, and seconds of this machine, for the last of so many steps."""
    device = torch.device("vgpu", int(os.environ["LOCAL_RANK"]))
    with device:  # on the host, 64 models at once would take 32 GB
        model = GPT()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.zeros(BATCH, TOKENS, dtype=torch.long, device=device)
    for _ in range(steps):
        torch.distributed.barrier()
        timer, real_s = par.Timer(), time.perf_counter()
        F.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        simulated_s = timer.stop()
    torch.distributed.barrier()
    return simulated_s, time.perf_counter() - real_s


def boxes(nodes: int) -> machines.Machine:
    """So many machines of eight A100, each GPU with a port of 200 Gbit/s."""
    link = machines.Link("InfiniBand HDR", 5e-6, 25e9)
    return machines.machine("8x-a100-nvswitch").cluster(nodes, link, network_shared_by=1)


def main() -> None:
    """Print the times; exit with 1 if the goal is missed or both ways differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2, help="of which the last is measured")
    steps = parser.parse_args().steps
    print(f"a step of GPT-2 under DDP, shapes only, on {this_machine()}")
    with par.simulate(boxes(8)) as gpus, par.shape_only():
        found = par.run_ranks(train, gpus, steps)
    simulated_s, real_s = max(s for s, _ in found), max(s for _, s in found)
    met = real_s <= GOAL_S
    goal = f"target: at most {GOAL_S:.0f} s: {'met' if met else 'MISSED'}"
    print(f"  64 ranks, one by one         {simulated_s * 1e3:8.3f} ms in {real_s:6.1f} s; {goal}")
    for nodes in (8, 64):
        begin_s = time.perf_counter()
        kinds = par.run_alike(train, boxes(nodes), steps)
        whole_s, alike_s = time.perf_counter() - begin_s, max(s for s, _ in kinds.values())
        ranks = f"{8 * nodes} ranks, distinct ones only"
        print(f"  {ranks:<29}{alike_s * 1e3:8.3f} ms in {whole_s:6.1f} s")
        met &= nodes != 8 or abs(alike_s / simulated_s - 1) < 1e-9
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
