"""Programs on virtual ranks of a machine with eight GPUs, and what they need there."""

from functools import partial

import torch
import torch.distributed as dist

import d2lpar as par

MACHINE = "8x-v100-pcie"


def run(function, *args, n=2, with_values=True, **options):
    """What the function returns on each of n ranks."""
    with par.simulate(MACHINE, n, with_values=with_values) as gpus:
        return par.run_ranks(partial(function, **options) if options else function, gpus, *args)


def here():
    """The device of a virtual rank."""
    return torch.device("vgpu", torch.vgpu.current_device())


class SumOverRanks(torch.autograd.Function):
    """An all-reduce written by hand that gradients pass through."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return SumOverRanks.forward(ctx, gradient)
