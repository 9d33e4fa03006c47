"""Ranks over gloo that never touch a GPU; with "spawn", started by the program itself."""

import os
import sys

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, size, *given):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("gloo", *given, rank=rank, world_size=size)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(3, 1).to(device))
    loss = net(torch.full((1, 3), float(rank))).sum()
    loss.backward()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    gradient = net.module.weight.grad[0, 0].item()
    print(f"{rank} of {size} on {device}: {total.item()} {gradient} {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        multiprocessing.spawn(work, (3, "tcp://localhost:29501"), nprocs=3)
    else:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
