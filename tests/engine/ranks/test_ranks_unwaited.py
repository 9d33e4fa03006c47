"""Collectives whose work the program drops: `dist.all_reduce(x, async_op=True)` by itself."""

import pytest
import torch
import torch.distributed as dist
import virtual_ranks

import d2lpar as par

MIB = 2**20
HELD = pytest.mark.parametrize("exchange", ["all_reduce", "send"])


def begin(exchange):
    """Begin an exchange of 4 MiB, and keep nothing of it."""
    x = torch.ones(MIB, device=virtual_ranks.here())
    torch.vgpu.synchronize()
    if exchange == "all_reduce":
        dist.all_reduce(x, async_op=True)
    else:
        (dist.irecv if dist.get_rank() else dist.isend)(x, 1 - dist.get_rank())


def held():
    return torch.vgpu.memory_allocated(virtual_ranks.here()) // MIB


@HELD
def test_it_keeps_its_tensors_until_it_is_done_and_another_is_begun(exchange):
    def program():
        begin(exchange)
        found = [held()]
        dist.all_reduce(torch.ones(1, device=virtual_ranks.here()))  # the first is under way
        found.append(held())
        torch.vgpu.synchronize()
        found.append(held())  # nobody has looked
        dist.barrier()
        return [*found, held()]

    assert virtual_ranks.run(program) == [[4, 4, 4, 0]] * 2


def test_its_memory_counts_in_peaks():
    def program():
        for _ in range(3):
            begin("all_reduce")
        return torch.vgpu.max_memory_allocated(virtual_ranks.here()) // MIB

    # `begin` waits for its device, so each is done when the next one clears the shelf.
    assert virtual_ranks.run(program) == [8, 8]


def test_nothing_is_held_when_the_ranks_have_ended():
    with par.simulate(virtual_ranks.MACHINE, 2, with_values=True) as gpus:
        par.run_ranks(begin, gpus, "all_reduce")
        assert [torch.vgpu.memory_allocated(gpu) for gpu in gpus] == [0, 0]
