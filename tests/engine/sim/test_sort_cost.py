"""Sorting: its kernels, counted by hand from what PyTorch and CUB do."""

from __future__ import annotations

import pytest
import torch

import d2lpar as par
from d2lpar.machines import ACCELERATORS
from d2lpar.vgpu.sim.pricing.kernel_cost import traffic
from d2lpar.vgpu.torch_backend.cost.sort_cost import LONGEST_IN_ONE_KERNEL, sorting

LONG = 2**20


def bytes_of(x, along=-1):
    return [kernel.bytes for kernel in sorting(x, along)]


def test_a_long_row_is_sorted_byte_by_byte():
    with_places = 2 * LONG * (4 + 8)
    counted = [LONG * 8, LONG * 4, 0]  # the places, how often each byte occurs, the sums of that
    assert bytes_of(torch.empty(LONG)) == [*counted, *[with_places] * 4]
    assert len(bytes_of(torch.empty(LONG, dtype=torch.long))) == len(counted) + 8


def test_short_rows_take_one_kernel_whichever_their_number():
    for rows in (1, 1000):
        x = torch.empty(rows, LONGEST_IN_ONE_KERNEL, dtype=torch.half)
        copied, places, whole = bytes_of(x)
        assert (copied, places) == (x.numel() * 2 * 2, x.numel() * 8)
        assert whole == 2 * x.numel() * (2 + 8)


def test_a_few_long_rows_are_sorted_twice_and_many_each_by_a_block():
    few = sorting(torch.empty(8, LONG), -1)
    assert len(few) == len(sorting(torch.empty(8 * LONG), -1)) + 2 + 8 + 1  # by row, then fetched
    many = sorting(torch.empty(1024, 2**13), -1)
    assert len(many) == 1 + 6  # 32 bits, 6 at a time
    assert {kernel.blocks for kernel in many[1:]} == {1024}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(0),
        lambda x: torch.sort(x, dim=0, stable=True),
        lambda x: x.argsort(dim=0),
        lambda x: torch.msort(x),
    ],
)
def test_the_dimension_counts_in_whatever_way_it_is_given(call):
    name = "1x-h100-nvswitch"
    with par.simulate(name, with_values=False) as (gpu, *_):
        x = torch.empty(LONG, 1, device=gpu)
        with par.record() as timeline:
            call(x)
        (span,) = (s for s in timeline.spans if s.kind == "compute" and "sort" in s.name)
    assert span.bytes == sum(bytes_of(x, 0))


@pytest.mark.parametrize(("dtype", "measured_s"), [("float32", 0.49e-3), ("float64", 1.33e-3)])
def test_four_million_numbers_take_what_was_measured(dtype, measured_s):
    """By torch.sort on an RTX 5080 (https://github.com/JuliaGPU/AcceleratedKernels.jl/pull/97)."""
    x = torch.empty(4 * 2**20, dtype=getattr(torch, dtype), device="meta")
    gpu = ACCELERATORS["GeForce RTX 5080"]
    seconds = sum(traffic(kernel.bytes).seconds(gpu) for kernel in sorting(x, -1))
    assert seconds == pytest.approx(measured_s, rel=0.15)
