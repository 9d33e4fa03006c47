"""Ranks with two GPUs each: a network in two parts under DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class InTwoParts(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4).to(first), nn.Linear(4, 2).to(second)

    def forward(self, X):
        return self.second(self.first(X.to(self.first.weight.device)).to(self.second.weight.device))


rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.manual_seed(0)
net = DistributedDataParallel(InTwoParts(2 * rank, 2 * rank + 1))
net(torch.full((1, 4), rank + 1.0)).sum().backward()
places = [str(p.device) for p in net.parameters()]
print(rank, places[0], places[-1], net.module.first.weight.grad.norm().item())
dist.destroy_process_group()
