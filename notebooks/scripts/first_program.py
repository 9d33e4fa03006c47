# ruff: noqa
"""A first distributed program, for two GPUs. It has seven bugs: lesson 06 (deeper) asks for them.

d2lpar run --nproc-per-node 2 notebooks/scripts/first_program.py
"""

import argparse
import os
import re

# This program's GPUs, before CUDA starts:
os.environ["CUDA_VISIBLE_DEVICES"] == "0, 1"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import DistributedDataParallel as DDP


def first_host(nodes):
    """Where all ranks meet: the first node of Slurm's list, of gpu[07-09] gpu07."""
    name = nodes.split("[")[0]
    return name + re.findall("[0-9]+", nodes)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=29511)
    args = parser.parse_args()
    rank, local_rank = (
        int(environ["RANK"]),
        int(os.environ["LOCAL_RANK"]),
    )
    world_size = int(os.environ["WORLD_SIZE"])
    host = first_host(
        os.environ.get("SLURM_JOB_NODELIST", "localhost")
    )
    on_gpu = torch.cuda.is_available()
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{host}:{args.prot}",
        rank=rank,
        word_size=world_size,
    )
    device = (
        torch.device("cuda", local_rank)
        if on_gpu
        else torch.device("cpu")
    )
    torch.manual_seed(rank)
    net = nn.Linear(784, 10).to(device)
    net = DDP(net, device_ids=[local_rank] if on_gpu else None)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    X = torch.rand(32, 784, device=device)
    y = torch.randint(10, (32,), device=device)
    for step in range(5):
        loss = nn.functional.cross_entropy(net(X), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    print(f"rank {rank} of {world_size}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
