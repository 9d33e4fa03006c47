"""What a process sets of torch and Python, and others must not see: blocks that wait for them."""

import socket
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint

import d2lpar as par


def sdp():
    flags = torch.backends.cuda
    return flags.math_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.flash_sdp_enabled()


def alternate(block, seen):
    """Of two ranks, the second begins its block while the first waits in its own; the first's ends
    before the second's."""
    rank = dist.get_rank()
    before = seen()
    if rank == 1:
        dist.barrier()
    with block(rank):
        within = seen()
        if rank == 0:
            dist.barrier()  # the other begins
        dist.barrier()
        assert seen() == within
    if rank == 0:
        dist.barrier()
    assert seen() == before
    if rank == 1:
        dist.barrier()
    return within


def attention(rank):
    return sdpa_kernel((SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION)[rank])


def convolutions(rank):
    return torch.backends.cudnn.flags(enabled=True, benchmark=rank == 1, deterministic=rank == 0)


def anomalies(rank):
    return torch.autograd.set_detect_anomaly(rank == 1)


def early_stop(rank):
    return checkpoint.set_checkpoint_early_stop(rank == 0)


@pytest.mark.parametrize(
    ("block", "seen"),
    [
        (attention, sdp),
        (convolutions, lambda: torch.backends.cudnn.benchmark),
        (early_stop, lambda: checkpoint._enable_checkpoint_early_stop),
        (anomalies, torch.is_anomaly_enabled),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_blocks_of_two_ranks_do_not_undo_each_other(block, seen):
    before = seen()
    first, second = par.run_ranks(alternate, 2, block, seen)
    assert first != second
    assert seen() == before


def set_own(put, get, values):
    rank = dist.get_rank()
    put(values[rank])
    dist.barrier()
    return get()


@pytest.mark.parametrize(
    ("put", "get", "values"),
    [
        (
            torch.set_float32_matmul_precision,
            torch.get_float32_matmul_precision,
            ("high", "medium"),
        ),
        (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode, (1, 2)),
        (torch.set_warn_always, torch.is_warn_always_enabled, (True, False)),
        (sys.setrecursionlimit, sys.getrecursionlimit, (3000, 4000)),
        (socket.setdefaulttimeout, socket.getdefaulttimeout, (1.0, 2.0)),
        (
            lambda digits: torch.set_printoptions(precision=digits),
            lambda: str(torch.tensor(1 / 3)),
            (2, 6),
        ),
    ],
)
def test_each_rank_has_its_own_settings_and_nobody_keeps_them(put, get, values):
    before = get()
    first, second = par.run_ranks(set_own, 2, put, get, values)
    assert first != second
    assert get() == before


def test_ranks_begin_with_the_settings_of_whoever_starts_them():
    with sdpa_kernel(SDPBackend.MATH):
        assert par.run_ranks(sdp, 2) == [(True, False, False)] * 2
