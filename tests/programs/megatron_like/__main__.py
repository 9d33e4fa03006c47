"""Sums within the group of a rank."""

import os
import sys

import torch
import torch.distributed as dist

from . import parallel_state


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize()
    x = torch.full((3,), float(dist.get_rank()), device="cuda")
    dist.all_reduce(x, group=parallel_state.group())
    sys.argv.append(f"rank {dist.get_rank()}")
    dist.barrier(device_ids=[torch.cuda.current_device()])
    print(dist.get_rank(), x[0].item(), len(sys.argv), sys.argv[-1], __package__)


if __name__ == "__main__":
    main()
