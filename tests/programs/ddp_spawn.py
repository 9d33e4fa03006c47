"""DistributedDataParallel on processes that the program starts itself, in three ways."""

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

mine = None
told = "by the module"


def worker(rank, args, queue):
    global mine
    mine = args.device = rank  # arguments are copied: the others keep theirs
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29511"
    init_process_group("nccl", rank=rank, world_size=args.world_size)
    net = DistributedDataParallel(nn.Linear(4, 4).to(rank), device_ids=[rank])
    net(torch.full((2, 4), float(rank), device=rank)).sum().backward()
    dist.barrier(device_ids=[rank])
    grad = net.module.weight.grad.mean().item()
    queue.put((mine, args.device, told, grad, str(net.module.weight.device)))
    dist.destroy_process_group()


class Worker(mp.Process):
    def __init__(self, rank, args, queue):
        super().__init__()
        self.rank, self.args, self.queue = rank, args, queue

    def run(self):
        worker(self.rank, self.args, self.queue)


def main(how):
    world_size = torch.cuda.device_count()
    args = SimpleNamespace(world_size=world_size, device=None)
    queue = mp.get_context("spawn" if how == "spawn" else "fork").Queue()
    if how == "spawn":
        mp.spawn(worker, args=(args, queue), nprocs=world_size)
    else:
        make = {"process": lambda r: mp.Process(target=worker, args=(r, args, queue))}.get(how)
        make = make or (lambda r: Worker(r, args, queue))
        processes = [make(rank) for rank in range(world_size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * world_size
    assert (mine, args.device, queue.qsize()) == (None, None, world_size)
    for _ in range(world_size):
        print(how, *queue.get())


if __name__ == "__main__":
    told = "by the main program"
    main(sys.argv[1])
