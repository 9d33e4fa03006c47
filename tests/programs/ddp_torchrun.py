"""DistributedDataParallel as started by torchrun, or by torch.distributed.launch."""

import argparse
import os
import random
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

step = 0  # a global variable of the main module


def train(steps, device):
    global step
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(16, 4).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        step += 1
        loss = net(torch.randn(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fails", type=int)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: None)
    unseeded = random.random()
    assert not dist.is_initialized()
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"]) if args.local_rank is None else args.local_rank
    torch.cuda.set_device(local)
    net = train(args.steps, local)
    if args.fails == dist.get_rank():
        raise ValueError("a bad batch")
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, (round(net.module.weight.sum().item(), 5), unseeded, step))
    sums, draws, steps = zip(*seen, strict=True)
    assert len(set(sums)) == 1, sums
    assert len(set(draws)) == len(draws), draws
    assert set(steps) == {args.steps}, steps
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")
    print("rank", *(os.environ[name] for name in names), local, end=" ")
    dist.barrier(device_ids=[local])
    print(net.module.weight.device, torch.cuda.device_count())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
