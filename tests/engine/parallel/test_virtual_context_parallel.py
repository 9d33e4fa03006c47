"""Context parallelism on virtual ranks: a sequence in parts attends as the whole."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)
from torch.nn import functional as F

import d2lpar as par

BATCH, HEADS, LENGTH, WIDTH, RANKS = 1, 2, 128, 8, 2
BYTES = BATCH * HEADS * LENGTH * WIDTH * 4  # of the queries of the whole sequence


def inputs():
    torch.manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3)]


def attend(tensors, causal):
    """The result, and the gradients of queries, keys and values."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    out = F.scaled_dot_product_attention(*tensors, is_causal=causal)
    out.square().sum().backward()
    return [out.detach(), *(t.grad for t in tensors)]


def of_rank(method, causal, kind="vgpu"):
    mesh = init_device_mesh(kind, (RANKS,))
    device = torch.device(kind, torch.get_device_module(kind).current_device())
    set_rotate_method(method)
    tensors = [t.to(device) for t in inputs()]
    with context_parallel(mesh, buffers=tensors, buffer_seq_dims=[2] * 3):
        assert tensors[0].shape[2] == LENGTH // RANKS
        found = attend(tensors, causal)
        found = context_parallel_unshard(mesh, found, [2] * 4)
    assert tensors[0].shape[2] == LENGTH  # they are whole again after the block
    return [t.cpu() for t in found]


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_a_sequence_in_parts_attends_as_the_whole(method):
    plain, expected = F.scaled_dot_product_attention, attend(inputs(), causal=True)
    with par.simulate("8x-v100-pcie", RANKS, with_values=True) as gpus:
        found = par.run_ranks(of_rank, gpus, method, True)
    for of_a_rank in found:
        for tensor, whole in zip(of_a_rank, expected, strict=True):
            torch.testing.assert_close(tensor, whole, rtol=1e-4, atol=1e-5)
    assert F.scaled_dot_product_attention is plain


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_it_does_so_as_a_program_for_cuda(method):
    with par.emulate_cuda(RANKS, "8x-v100-pcie", verbose=False) as gpus:
        found = par.run_ranks(of_rank, gpus, method, True, "cuda")
    for of_a_rank in found:
        for tensor, whole in zip(of_a_rank, attend(inputs(), causal=True), strict=True):
            torch.testing.assert_close(tensor, whole, rtol=1e-4, atol=1e-5)


def test_keys_and_values_go_round_the_ring_and_their_gradients_too():
    with par.simulate("8x-v100-pcie", RANKS, with_values=True) as gpus, par.record() as timeline:
        par.run_ranks(of_rank, gpus, "alltoall", True)
    spans = [s for s in timeline if s.device == "vgpu:0" and s.kind == "collective"]
    # A rank has half of the keys and of the values. Forward they are passed on once, backward once
    # more, and their gradients in each of the two steps.
    round_the_ring = [s.bytes for s in spans if s.name == "all_to_all"]
    assert round_the_ring == [BYTES] * 4
    kernels = [s.name for s in timeline if s.device == "vgpu:0" and "attention" in s.name]
    assert len(kernels) == 2 * RANKS  # a part of the keys each, forward and backward


def test_only_the_rank_in_the_block_has_its_attention_replaced():
    """Ranks take turns within the block, as its collectives make them."""

    def one_after_the_other():
        mesh = init_device_mesh("vgpu", (RANKS,))
        device = torch.device("vgpu", torch.vgpu.current_device())
        plain = F.scaled_dot_product_attention
        tensors = [t.to(device) for t in inputs()]
        torch.distributed.barrier()
        if mesh.get_local_rank() == 0:
            with context_parallel(mesh, buffers=tensors[:1],
                                  buffer_seq_dims=[2]):  # fmt: skip
                replaced = F.scaled_dot_product_attention is not plain
                torch.distributed.barrier()
        else:
            replaced = F.scaled_dot_product_attention is not plain
            torch.distributed.barrier()
        return replaced, F.scaled_dot_product_attention is plain

    with par.simulate("8x-v100-pcie", RANKS, with_values=True) as gpus:
        assert par.run_ranks(one_after_the_other, gpus) == [(True, True), (False, True)]
