"""Virtual ranks: what `torch.distributed` computes on them, their turns, and their errors."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
import virtual_ranks
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.nn.functional import all_reduce as differentiable_all_reduce
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import d2lpar as par
from d2lpar.vgpu.device_naming import RANK_DEVICE
from d2lpar.vgpu.ranks.world.rendezvous import PendingCollective
from d2lpar.vgpu.torch_backend.machine import runtime

NAMES = ("init_process_group", "destroy_process_group", "split_group")


def names_of_torch():
    """What run_ranks replaces for a while."""
    c10d = dist.distributed_c10d
    found = [getattr(module, name) for module in (dist, c10d) for name in NAMES]
    here = [globals()[name] for name in NAMES[:2]]
    others = [c10d._world, c10d._new_group_with_tag, dist.DeviceMesh.__init__]
    others.append(torch.cuda.nccl.version)
    return [*found, *here, *others, DistributedDataParallel.__init__]


@pytest.fixture(autouse=True)
def nothing_left():
    before, threads = names_of_torch(), set(threading.enumerate())
    yield
    after = names_of_torch()
    assert all(a is b for a, b in zip(before, after, strict=True))
    # None that was not there; one of an earlier file's may have ended meanwhile.
    assert not set(threading.enumerate()) - threads
    assert not dist.is_initialized()


def mine(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).to(f"vgpu:{torch.vgpu.current_device()}")


run = partial(virtual_ranks.run, n=4)


# --- results --------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_ranks_and_names_say_who_one_is():
    def who(extra):
        init_process_group("gloo", init_method="env://")  # a name that was imported before
        assert dist.is_initialized()
        found = dist.get_rank(), dist.get_world_size(), torch.vgpu.current_device(), extra
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        backend, variables = dist.get_backend(), [int(os.environ[name]) for name in names]
        destroy_process_group()
        assert not dist.is_initialized()
        return *found, backend, variables

    assert run(who, "x", n=3) == [(r, 3, r, "x", "gloo", [r, r, 3]) for r in range(3)]
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.parametrize(
    ("op", "expected"),
    [("SUM", 10.0), ("AVG", 2.5), ("MAX", 4.0), ("MIN", 1.0), ("PRODUCT", 24.0)],
)
def test_all_reduce(op, expected):
    def reduce():
        t = mine(dist.get_rank() + 1.0, -0.0)
        dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
        return t[0].item()

    assert run(reduce) == [expected] * 4


def test_other_reductions_are_refused_by_name():
    def reduce():
        dist.all_reduce(mine(1, dtype=torch.int64), op=dist.ReduceOp.BAND)

    with pytest.raises(ValueError, match=r"^Cannot use ReduceOp.BAND with NCCL: .* SUM, AVG"):
        run(reduce)


def test_broadcast_and_reduce():
    def both():
        r = dist.get_rank()
        a, b = mine(r, r), mine(r, 1)
        dist.broadcast(a, src=2)
        dist.reduce(b, dst=1)
        return a.tolist(), b.tolist()

    found = run(both)
    assert [a for a, _ in found] == [[2, 2]] * 4
    assert [b for _, b in found] == [[0, 1], [6, 4], [2, 1], [3, 1]]


def test_gathers():
    def gather():
        r = dist.get_rank()
        parts = [mine(0, 0) for _ in range(4)]
        dist.all_gather(parts, mine(r, -r))
        whole = torch.empty(8, device=parts[0].device)
        dist.all_gather_into_tensor(whole, mine(r, -r))
        to_one = [mine(0) for _ in range(4)] if r == 3 else None
        dist.gather(mine(r), to_one, dst=3)
        return [p.tolist() for p in parts], whole.tolist(), to_one and [t.item() for t in to_one]

    flat = [0, 0, 1, -1, 2, -2, 3, -3]
    for r, (parts, whole, to_one) in enumerate(run(gather)):
        assert [v for part in parts for v in part] == whole == flat
        assert to_one == ([0, 1, 2, 3] if r == 3 else None)


def test_scatters():
    def scatter():
        r = dist.get_rank()
        total, part = mine(0), mine(0)
        dist.reduce_scatter_tensor(total, mine(*[float(10 * i + r) for i in range(4)]))
        other = mine(0)
        dist.reduce_scatter(other, [mine(10 * i + r) for i in range(4)], op=dist.ReduceOp.MAX)
        dist.scatter(part, [mine(i * i) for i in range(4)] if r == 1 else None, src=1)
        return total.item(), other.item(), part.item()

    assert run(scatter) == [(40 * i + 6, 10 * i + 3, i * i) for i in range(4)]


def test_all_to_all():
    def exchange():
        r = dist.get_rank()
        even = torch.empty(4, device=f"vgpu:{r}")
        dist.all_to_all_single(even, mine(*[10 * r + i for i in range(4)]))
        # Rank r has r rows for each other rank.
        sent = torch.full((4 * r, 2), float(r), device=f"vgpu:{r}")
        got = torch.empty(6, 2, device=f"vgpu:{r}")
        dist.all_to_all_single(got, sent, [0, 1, 2, 3], [r] * 4)
        return even.tolist(), got[:, 0].tolist()

    found = run(exchange)
    assert [even for even, _ in found] == [[10 * j + i for j in range(4)] for i in range(4)]
    assert all(got == [1, 2, 2, 3, 3, 3] for _, got in found)


def test_a_ring_of_sends_and_receives_sums_up():
    def ring():
        r, n = dist.get_rank(), dist.get_world_size()
        total, passing = mine(r), mine(r)
        for _ in range(n - 1):
            received = torch.empty_like(passing)
            work = dist.isend(passing, (r + 1) % n)
            dist.recv(received, (r - 1) % n)
            work.wait()
            total, passing = total + received, received
        ops = [
            dist.P2POp(dist.isend, mine(r), (r + 1) % n),
            dist.P2POp(dist.irecv, received, (r - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return total.item(), received.item()

    assert run(ring) == [(6, (r - 1) % 4) for r in range(4)]
    assert run(ring, n=2) == [(1, 1), (1, 0)]


def pass_three(device):
    """Sends with the tags 0, 7, 0, which are received in another order."""
    if dist.get_rank() == 0:
        sent = [torch.full((), v, device=device) for v in (1, 2, 3)]
        works = [dist.isend(x, 1, tag=tag) for x, tag in zip(sent, (0, 7, 0), strict=True)]
        return [work.wait() for work in works]
    got = [torch.zeros((), dtype=torch.long, device=device) for _ in range(3)]
    for t, tag in zip(got, (7, 0, 0), strict=True):
        dist.recv(t, 0, tag=tag)
    return [t.item() for t in got]


def test_sends_of_the_host_are_matched_by_tag_and_order():
    assert par.run_ranks(pass_three, 2, "cpu")[1] == [2, 1, 3]


def test_nccl_ignores_tags_and_each_rank_says_so_once():
    with pytest.warns(UserWarning, match=r"NCCL ignores tag=7 of (send|recv)") as told:
        found = run(lambda: pass_three(mine(0).device), n=2)
    assert found[1] == [1, 2, 3]
    assert len(told) == 2
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize("call", [dist.send, dist.recv, dist.isend, dist.irecv])
@pytest.mark.parametrize("peer", [2, 7])
def test_sends_name_a_rank_of_the_group_and_who_does_not_may_go_on(call, peer):
    def misses():
        x = mine(1)
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match=f"peer rank: {peer}.* 2 ranks"):
                call(x, peer)
        dist.all_reduce(x)
        return x.tolist()

    assert run(misses, n=2) == [[2.0], [2.0]]


def test_what_is_sent_must_be_there():
    """NCCL would read beyond the memory of the tensor."""

    def expanded():
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match="expanded"):
                dist.send(mine(1).expand(4), 1)

    run(expanded, n=2)


def test_what_is_sent_is_what_lies_in_memory():
    """As ProcessGroupNCCL has it, which warns of it; the receiver here has another order."""

    def turned():
        r = dist.get_rank()
        values = torch.arange(6.0, device=f"vgpu:{r}").view(2, 3)
        if r == 0:
            dist.send(values.t(), 1)
            return None
        got = torch.zeros(3, 2, device="vgpu:1")
        dist.recv(got, 0)
        return got.tolist()

    with pytest.warns(UserWarning, match="strides") as told:
        assert run(turned, n=2)[1] == [[0, 1], [2, 3], [4, 5]]
    assert len(told) == 1


def test_objects_travel_also_where_tensors_have_a_shape_only():
    def objects():
        r = dist.get_rank()
        found, one = [None] * 4, [{"from": r}, None]
        dist.all_gather_object(found, {"rank": r, "text": "x" * r})
        dist.broadcast_object_list(one, src=1)
        t = torch.empty(5, device=f"vgpu:{r}")
        dist.all_reduce(t)
        return found, one, t.shape

    for with_values in (True, False):
        for found, one, shape in run(objects, with_values=with_values):
            assert [f["rank"] for f in found] == [0, 1, 2, 3]
            assert (one, shape) == ([{"from": 1}, None], (5,))


def test_groups_of_some_ranks():
    def groups():
        r = dist.get_rank()
        made = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        own = made[r % 2]
        t = mine(r)
        dist.all_reduce(t, group=own)
        dist.broadcast(u := mine(r), src=3 - (1 - r % 2), group=own)
        assert dist.get_process_group_ranks(own) == [r % 2, r % 2 + 2]
        return t.item(), u.item(), dist.get_rank(own), dist.get_rank(made[1 - r % 2])

    assert run(groups) == [(2, 2, 0, -1), (4, 3, 0, -1), (2, 2, 1, -1), (4, 3, 1, -1)]


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
def test_gradients_pass_through_collectives():
    def gradients():
        r = dist.get_rank()
        found = []
        for add_up in (virtual_ranks.SumOverRanks.apply, differentiable_all_reduce):
            x = mine(r + 1.0).requires_grad_()
            total = add_up(x * x)
            ((r + 1) * total).sum().backward()
            found.append((total.item(), x.grad.item()))
        return found

    # The sum of squares is 30; the gradient of sum_r (r + 1) total with respect to x is 10 * 2 x.
    for r, found in enumerate(run(gradients)):
        assert found == [(30.0, 20.0 * (r + 1))] * 2


# --- processes of their own -----------------------------------------------------------------------


def test_random_numbers_of_a_rank_are_its_own():
    def draw():
        r = dist.get_rank()
        torch.manual_seed(r % 2)
        random.seed(r % 2)
        first = torch.rand(1).item(), random.random(), torch.rand(1, device=f"vgpu:{r}").item()
        dist.barrier()
        return first, torch.rand(1).item(), random.random()

    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c, d = run(draw)
    assert (a, b) == (c, d)
    assert a != b
    assert torch.equal(torch.get_rng_state(), before)


def drawn(device, number, wait):
    """What a process draws of every kind, `number` at a time; it waits in between."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  # the generator of the process
    x = torch.ones(3 * number, device=device, requires_grad=True)
    of_its_own = torch.Generator(device).manual_seed(3)
    draws = (
        lambda: torch.rand(number),
        lambda: torch.randn(number, device=device),
        lambda: torch.tensor([random.random() for _ in range(number)]),
        lambda: torch.from_numpy(np.random.rand(number)),  # noqa: NPY002
        lambda: torch.rand(number, device=device, generator=of_its_own),
        lambda: torch.randperm(number, device=device),
        lambda: F.dropout(x),
        lambda: torch.autograd.grad(checkpoint(F.dropout, x, use_reentrant=False).sum(), x)[0],
        lambda: torch.tensor([torch.initial_seed()]),
        lambda: torch.tensor(list(DataLoader(range(number), shuffle=True))),
    )
    found = []
    for draw in draws * 2:
        wait()
        found.append(draw().detach().cpu())
    return found


@pytest.mark.parametrize("kind", ["cpu", "vgpu"])
def test_ranks_with_one_seed_that_draw_different_amounts_draw_what_each_would_alone(kind):
    def draw():
        device = virtual_ranks.here() if kind == "vgpu" else "cpu"
        return drawn(device, 3 + 5 * dist.get_rank(), dist.barrier)

    for number, found in enumerate(run(draw)):
        with par.simulate("8x-v100-pcie", 1, with_values=True) as (gpu,):
            alone = drawn(gpu if kind == "vgpu" else "cpu", 3 + 5 * number, lambda: None)
        assert all(map(torch.equal, found, alone))


def test_who_catches_warnings_catches_its_own():
    def caught():
        number = dist.get_rank()
        with warnings.catch_warnings(record=True) as own:
            warnings.simplefilter("always")
            dist.barrier()
            warnings.warn(f"of rank {number}", stacklevel=1)
            dist.barrier()
        return [str(warning.message) for warning in own]

    assert run(caught, n=2) == [["of rank 0"], ["of rank 1"]]


def test_what_a_rank_ignores_for_a_while_others_are_told():
    def told():
        first = dist.get_rank() == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if first else "error")
            dist.barrier()
            with contextlib.nullcontext() if first else pytest.raises(UserWarning, match="told"):
                warnings.warn("told", stacklevel=1)
            if first:
                dist.barrier()
        if not first:
            dist.barrier()
        return warnings.filters

    before = list(warnings.filters)
    assert run(told, n=2) == [before, before]
    assert warnings.filters == before


def test_shape_only_is_a_rank_s_own():
    def half():
        if dist.get_rank() == 0:
            with par.shape_only():
                dist.barrier()
                return (mine(3) + 1).item()
        t = mine(1) + 1
        dist.barrier()
        return t.item(), (mine(3) + 1).item()

    nan, values = run(half, n=2)
    assert nan != nan
    assert values == (2, 4)


def test_ranks_print_in_order_and_line_by_line(capsys):
    def say():
        for i in range(2):
            print(f"rank {dist.get_rank()}", end=" ")
            dist.barrier()
            print(f"prints {i}")
        print("end", end="")

    run(say, n=2)
    lines = [f"rank {r} prints {i}\n" for i in range(2) for r in range(2)]
    assert capsys.readouterr().out == "".join(lines) + "endend"


def test_other_threads_see_no_ranks():
    seen = []

    def look():
        thread = threading.Thread(target=lambda: seen.append(dist.is_initialized()))
        thread.start()
        thread.join()

    run(look, n=2)
    assert seen == [False, False]


def test_partial_functions_and_methods(gpus):
    class Trainer:
        def go(self, a, b):
            init_process_group("nccl")
            return a, b, dist.get_rank()

    assert par.run_ranks(partial(Trainer().go, 1), gpus[2:0:-1], 2) == [(1, 2, 0), (1, 2, 1)]


def test_a_mismatch_is_told_in_programs_for_cuda_too(gpus):
    """torch asks for NCCL's version whenever it puts an error in words."""

    def other():
        init_process_group("nccl")
        if dist.get_rank():
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1, device="cuda"))

    with (
        par.emulate_cuda(2, verbose=False),
        pytest.raises(RuntimeError, match=r"is barrier\(\) on rank 1, but all_reduce.* on rank 0"),
    ):
        par.run_ranks(other, par.devices(2, verbose=False))


def test_a_measuring_profiler_on_two_ranks_is_refused_and_does_not_crash(gpus):
    def profiled():
        with torch.profiler.profile():
            dist.barrier()

    with pytest.raises(NotImplementedError, match="is running on another virtual rank"):
        par.run_ranks(profiled, gpus)


def test_the_profiler_of_a_rank_that_is_ended_is_stopped(gpus):
    """Or torch says when the process ends: "Requested callback is not found"."""
    stopped = []

    def profiled():
        if dist.get_rank():
            raise ValueError("the error of rank 1")
        try:
            with torch.profiler.profile():
                dist.barrier()
        finally:
            stopped.append(not torch.autograd._profiler_enabled())

    with pytest.raises(ValueError, match="the error of rank 1"):
        par.run_ranks(profiled, gpus)
    assert stopped == [True]


def imported_before(rank, world_size, found):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1")
    init_process_group("nccl", rank=rank, world_size=world_size)
    t = torch.full((2,), float(rank), device=f"cuda:{rank}")
    dist.all_reduce(t)
    found.append((rank, t.sum().item(), os.environ["MASTER_PORT"]))
    destroy_process_group()


def test_spawned_processes_in_a_block_are_ranks(gpus):
    queue = None
    with par.emulate_cuda(3, verbose=False):
        queue = torch.multiprocessing.get_context("fork").SimpleQueue()
        start = partial(torch.multiprocessing.start_processes, start_method="fork")
        start(lambda r: queue.put(r), nprocs=2)
        assert sorted([queue.get(), queue.get()]) == [0, 1]
        context = start(imported_before, (3, []), nprocs=3, join=False)
        while not context.join():
            pass
        with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="ZeroDivision"):
            start(lambda r: 1 // r, nprocs=2)
        start(print, nprocs=4)  # more than GPUs, as on CUDA
    assert "MASTER_PORT" not in os.environ


def test_programs_for_cuda(gpus):
    def train():
        init_process_group("nccl")
        r = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(r)
        torch.manual_seed(0)
        net = DistributedDataParallel(torch.nn.Linear(2, 1).cuda(), device_ids=[r])
        net(torch.full((1, 2), r + 1.0).cuda()).sum().backward()
        t = torch.ones(1, device=f"cuda:{r}")
        dist.all_reduce(t)
        return net.module.weight.grad.tolist(), t.item(), str(t.device)

    with par.emulate_cuda(2):
        found = par.run_ranks(train, [torch.device("cuda", i) for i in range(2)])
    assert found == [([[1.5, 1.5]], 2.0, f"cuda:{i}") for i in range(2)]


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_of_one_rank_ends_all_and_is_named():
    def fail():
        if dist.get_rank() == 2:
            raise KeyError("here")
        dist.all_reduce(mine(1))
        raise AssertionError("never reached")

    with pytest.raises(KeyError, match="here") as caught:
        run(fail)
    assert caught.value.__notes__ == ["raised by rank 2 of 4, on vgpu:2"]
    assert run(dist.get_rank) == [0, 1, 2, 3]


def test_the_machine_goes_on_after_an_error(gpus):
    def fail():
        t = mine(1)
        dist.all_reduce(t, async_op=True)
        if dist.get_rank() == 1:
            dist.all_reduce(t)
            raise ValueError("on purpose")
        dist.barrier()

    with pytest.raises((ValueError, RuntimeError)):
        par.run_ranks(fail, gpus)
    for i in range(4):
        torch.vgpu.synchronize(i)
    assert par.run_ranks(dist.get_rank, gpus) == [0, 1, 2, 3]


def test_what_was_under_way_when_a_rank_failed_is_no_hazard_afterwards(gpus):
    def fail():
        dist.all_reduce(torch.ones(1000, device=f"vgpu:{dist.get_rank()}"), async_op=True)
        dist.barrier()
        raise ValueError("on purpose")

    with contextlib.suppress(ValueError):  # and with the error go the frames that hold the tensor
        par.run_ranks(fail, gpus)
    gc.collect()
    with par.hazards() as found:
        par.run_ranks(lambda: torch.ones(1000, device=f"vgpu:{dist.get_rank()}"), gpus)
    assert found == []


def test_asking_whether_a_collective_is_done_is_waiting_for_it(gpus):
    def ask():
        t = torch.ones(1000, device=f"vgpu:{dist.get_rank()}")
        work = dist.all_reduce(t, async_op=True)
        while not work.is_completed():
            pass
        return t.add_(1)[0].item()

    with par.hazards() as found:
        assert par.run_ranks(ask, gpus[:2]) == [3, 3]
    assert found == []


def test_everybody_waits():
    def wait():
        r = dist.get_rank()
        t = mine(r)
        dist.recv(t, (r + 1) % 2)

    with pytest.raises(RuntimeError, match="no rank can go on") as caught:
        run(wait, n=2)
    text = str(caught.value)
    assert "rank 0 waits in recv([1] float32) of the group of ranks 0, 1 for rank 1" in text
    assert "rank 1 waits in recv" in text


def test_a_rank_returns_while_others_wait_for_it():
    def leave():
        if dist.get_rank() != 1:
            dist.all_reduce(mine(1, 2))

    with pytest.raises(RuntimeError) as caught:
        run(leave, n=3)
    text = str(caught.value)
    assert "rank 0 waits in all_reduce([2] float32, SUM)" in text
    assert "for rank 1" in text
    assert "rank 1 has returned" in text


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (lambda t: dist.broadcast(t, 0), "broadcast([2] float32, root 0) on rank 1"),
        (lambda t: dist.all_reduce(t[:1]), "all_reduce([1] float32, SUM) on rank 1"),
        (lambda t: dist.all_reduce(t.double()), "all_reduce([2] float64, SUM) on rank 1"),
        (lambda t: dist.all_reduce(t, dist.ReduceOp.MAX), "all_reduce([2] float32, MAX) on rank 1"),
        (lambda t: dist.barrier(), "barrier() on rank 1"),
    ],
)
def test_different_collectives_are_named(other, found):
    def mismatch():
        dist.barrier()
        t = mine(1, 2)
        (other if dist.get_rank() else dist.all_reduce)(t)

    with pytest.raises(RuntimeError) as caught:
        run(mismatch, n=2)
    text = str(caught.value)
    assert text.startswith("collective 2 of the group of ranks 0, 1 is " + found)
    assert "all_reduce([2] float32, SUM) on rank 0" in text


def test_they_are_named_by_builds_without_nccl_too(monkeypatch):
    """A build of torch for the CPU has no version of NCCL, and torch asks for it in every error."""
    monkeypatch.delattr(torch._C, "_nccl_version", raising=False)
    test_different_collectives_are_named(lambda t: dist.barrier(), "barrier() on rank 1")


def test_one_rank_gives_a_tensor_of_the_host_and_another_one_of_its_device():
    def mixed():
        dist.all_reduce(mine(1) if dist.get_rank() else torch.ones(1))

    with pytest.raises(RuntimeError) as caught:
        run(mixed, n=2)
    assert "is all_reduce([1] float32, SUM) on rank 1, but all_reduce([1] float32 of the host" in (
        str(caught.value)
    )


def test_different_roots_and_groups():
    def roots():
        dist.broadcast(mine(1), src=dist.get_rank())

    with pytest.raises(RuntimeError, match=r"root 1\) on rank 1, but .*root 0\) on rank 0"):
        run(roots, n=2)

    def groups():
        dist.new_group([0, 1 + dist.get_rank() % 2])

    with pytest.raises(RuntimeError, match=r"\[0, 2\] here and of \[0, 1\] on another"):
        run(groups, n=3)


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (lambda r: torch.ones(1, device="vgpu:0"), r"rank 1 works on vgpu:1.* tensors on vgpu:0"),
        (lambda r: torch.ones(4, 4, device=f"vgpu:{r}").t()[1:], "Tensors must be contiguous"),
        (lambda r: torch.ones(2, 3, 4, 4, device=f"vgpu:{r}")[:, :, 1:], "must be contiguous"),
    ],
)
def test_tensors_that_cannot_be_exchanged(tensor, error):
    with pytest.raises((RuntimeError, ValueError), match=error):
        run(lambda: dist.all_reduce(tensor(dist.get_rank())), n=2)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 2, 2, 3), torch.channels_last), ((2, 2, 2, 2, 3), torch.channels_last_3d)],
)
def test_tensors_with_channels_last_are_exchanged_as_they_are_in_memory(shape, order):
    values = torch.arange(float(torch.Size(shape).numel())).view(shape)

    def exchange():
        r = dist.get_rank()
        summed, sent = (values.to(f"vgpu:{r}").to(memory_format=order) * (1 + r) for _ in range(2))
        dist.all_reduce(summed)
        gathered = [torch.empty_like(sent) for _ in range(2)]
        dist.all_gather(gathered, sent)
        dist.broadcast(sent, src=1)
        found = (summed, *gathered, sent)
        assert all(tensor.is_contiguous(memory_format=order) for tensor in found)
        return [tensor.cpu() for tensor in found]

    for found in run(exchange, n=2):
        for tensor, factor in zip(found, (3, 1, 2, 2), strict=True):
            assert torch.equal(tensor, values * factor)


def test_sizes_that_do_not_fit():
    def gather():
        dist.all_gather_into_tensor(mine(0, 0, 0), mine(1))

    with pytest.raises(ValueError, match=r"all_gather on 2 ranks needs 2 times 1 .*not \[3\]"):
        run(gather, n=2)

    def exchange():
        r = dist.get_rank()
        dist.all_to_all_single(mine(0, 0), mine(1, 2), [1, 1], [1, 1] if r else [2, 0])

    with pytest.raises(ValueError, match=r"expects 1 elements of rank 0, whose .* gives it"):
        run(exchange, n=2)


def test_what_is_missing_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="recv_anysource is not available on virtual"):
        run(lambda: dist.recv(mine(1)), n=2)


@pytest.mark.parametrize("name", ["empty", "rendezvous", "get_symm_mem_workspace"])
def test_symmetric_memory_is_refused_by_name(name):
    from torch.distributed import _symmetric_memory

    words = f"_symmetric_memory.{name} is not available: virtual ranks exchange by collectives"
    with pytest.raises(NotImplementedError, match=words):
        run(lambda: getattr(_symmetric_memory, name)(mine(1), dist.group.WORLD), n=2)


def test_that_symmetric_memory_is_allowed_changes_nothing_and_is_noted():
    from torch.distributed import _symmetric_memory

    def allow():
        _symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        return dist.get_rank()

    with pytest.warns(UserWarning, match="enable_symm_mem_for_group changes nothing: virtual"):
        assert run(allow, n=2) == [0, 1]


def test_launch_knows_virtual_ranks(gpus):
    def who():
        me = par.launch.place()
        with pytest.raises(RuntimeError, match=f"This process is rank {me.rank} of a process gr"):
            par.launch.process_group().__enter__()
        return me.rank, me.world_size, me.local_world_size, str(me.device)

    expected = [(0, 2, 2, "vgpu:3"), (1, 2, 2, "vgpu:1")]
    assert par.run_ranks(who, [gpus[3], gpus[1]]) == expected
    assert RANK_DEVICE not in os.environ


def test_devices_must_be_virtual_and_different(gpus):
    with pytest.raises(ValueError, match="need virtual devices, not cpu"):
        par.run_ranks(print, [torch.device("cpu")])
    with pytest.raises(ValueError, match="a device of its own"):
        par.run_ranks(print, [gpus[0], gpus[0]])
    with pytest.raises(RuntimeError, match="rank 0 cannot run ranks of its own"):
        par.run_ranks(lambda: par.run_ranks(print, gpus), gpus)


def test_a_machine_of_a_rank_s_own_has_no_other_ranks(gpus):
    def elsewhere():
        with par.simulate("2x-v100-textbook"):
            dist.barrier()

    with pytest.raises(RuntimeError, match=r"barrier in a simulate\(\) block of rank 0"):
        par.run_ranks(elsewhere, gpus)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_all(gpus):
    def forever():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.001)
        dist.barrier()

    with pytest.raises(KeyboardInterrupt):
        par.run_ranks(forever, gpus)
    assert par.run_ranks(dist.get_rank, gpus) == [0, 1, 2, 3]


@pytest.mark.usefixtures("interrupts")
def test_virtual_gpus_are_of_use_after_interrupts(gpus):
    def train(steps):
        torch.manual_seed(0)
        device = gpus[dist.get_rank()]
        net = DistributedDataParallel(torch.nn.Linear(3, 3).to(device))
        for _ in range(steps):
            net.zero_grad()
            loss = net(torch.ones(2, 3, device=device)).sum()
            loss.backward()
        return loss.item()

    def interrupted():
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            par.run_ranks(train, gpus[:2], 10**9)
        finally:
            timer.join()

    expected = par.run_ranks(train, gpus[:2], 2)
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert par.run_ranks(train, gpus[:2], 2) == expected


@pytest.mark.parametrize("sends", [False, True])
def test_who_ends_before_its_call_is_on_the_clock_holds_up_nobody_later(gpus, monkeypatch, sends):
    def reduce():
        tensor = torch.ones(2, device=gpus[dist.get_rank()])
        dist.all_reduce(tensor)
        return tensor.tolist()

    def pass_on():
        tensor = torch.full((2,), 4.0, device=gpus[dist.get_rank()])
        if dist.get_rank() < 2:
            (dist.recv if dist.get_rank() else dist.send)(tensor, 1 - dist.get_rank())
        return tensor.tolist()

    queue = PendingCollective.queue

    def ends(pending, *args):
        assert not pending.is_complete, "it ends here"  # the last one carries out what all ask for
        queue(pending, *args)

    monkeypatch.setattr(PendingCollective, "queue", ends)
    with pytest.raises(AssertionError, match="it ends here"):
        par.run_ranks(pass_on if sends else reduce, gpus)
    monkeypatch.setattr(PendingCollective, "queue", queue)
    assert runtime.current_runtime().clock._schedule.to_join == 0
    for each in (pass_on, reduce):
        assert par.run_ranks(each, gpus) == [[4.0, 4.0]] * 4


@pytest.mark.timeout(20)
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_that_does_not_wake_who_waits_ends_all(gpus):
    """As one does that comes when the main thread is about to wait: here another thread has it."""

    def forever():
        if dist.get_rank() == 1:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.001)
        dist.barrier()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt):
            par.run_ranks(forever, gpus)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_does_not_wait_for_a_rank_that_sleeps(gpus):
    awake, after = threading.Event(), []

    def asleep():
        if dist.get_rank() == 1:
            with contextlib.suppress(BaseException):
                os.kill(os.getpid(), signal.SIGINT)
            while not awake.is_set():
                with contextlib.suppress(BaseException):
                    awake.wait(20)  # as time.sleep(20), but for the end of this test
            after.append("awake")
            for _ in range(4000):
                time.sleep(0.01)
        dist.barrier()

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt) as interrupt:
        par.run_ranks(asleep, gpus)
    late = [thread for thread in threading.enumerate() if thread.name.startswith("rank")]
    assert [thread.name for thread in late] == ["rank 1"]
    assert not after
    assert [note.split(" until")[0] for note in interrupt.value.__notes__] == ["rank 1 goes on"]
    assert par.run_ranks(dist.get_rank, gpus) == [0, 1, 2, 3]
    awake.set()
    late[0].join(20)
    assert not late[0].is_alive()  # although it has caught what ends ranks, and went on
    assert par.run_ranks(dist.get_rank, gpus) == [0, 1, 2, 3]
    wait_until(lambda: not set(threading.enumerate()) - before)


def wait_until(ready):
    until_s = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_ranks_of_two_threads_are_refused_and_not_mixed(gpus):
    begun, go_on, results = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        go_on.wait(20)
        dist.barrier()
        return dist.get_rank()

    thread = threading.Thread(target=lambda: results.extend(par.run_ranks(slow, gpus)))
    thread.start()
    assert begun.wait(20)
    try:
        with pytest.raises(RuntimeError, match=r"another thread is in run_ranks, .*Lock around"):
            par.run_ranks(dist.get_rank, gpus)
    finally:
        go_on.set()
        thread.join(20)
    assert results == [0, 1, 2, 3]
    assert par.run_ranks(dist.get_rank, gpus) == [0, 1, 2, 3]


def test_a_thread_of_a_rank_cannot_run_ranks_and_is_not_waited_for_in_vain(gpus):
    errors = []

    def attempt():
        try:
            par.run_ranks(dist.get_rank, gpus)
        except RuntimeError as error:
            errors.append(str(error))

    def rank():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    par.run_ranks(rank, gpus)
    assert len(errors) == 4
    assert all("one set of ranks at a time" in error for error in errors)


@pytest.mark.parametrize("options", [{"world_size": 4, "rank": 0}, {"rank": 5}])
def test_init_process_group_is_held_against_the_ranks_that_there_are(options):
    def train():
        dist.init_process_group("nccl", **options)

    with par.simulate("8x-v100-pcie", 2) as gpus, pytest.raises(ValueError, match="has started 2"):
        par.run_ranks(train, gpus)


@pytest.mark.parametrize(
    ("world_size", "remedy"),
    [(1, r"with torch.distributed.new_group\(ranks\); or start 1"), (4, "start as many ranks")],
)
def test_a_first_group_of_others_than_all_has_a_remedy_of_its_own(world_size, remedy):
    def train():
        dist.init_process_group("nccl", world_size=world_size)

    with par.simulate("8x-v100-pcie", 2) as gpus, pytest.raises(ValueError, match=remedy):
        par.run_ranks(train, gpus)


def test_init_process_group_refuses_a_misspelt_argument_as_torch_does():
    def train():
        dist.init_process_group("gloo", rank=dist.get_rank(), word_size=2)

    with pytest.raises(TypeError, match="unexpected keyword argument 'word_size'"):
        par.run_ranks(train, 2)


def test_a_full_gpu_waits_for_collectives_that_others_have_yet_to_come_to():
    """Each buffer is dropped once its exchange is queued; twenty of them take more than a GPU."""

    def exchanges():
        for _ in range(20):
            buffer = torch.empty(2**28, device=virtual_ranks.here())  # 1.07 GB of 16.9
            dist.all_reduce(buffer, async_op=True)
        return torch.vgpu.max_memory_allocated(virtual_ranks.here())

    def keeps():
        return [torch.empty(2**28, device=virtual_ranks.here()) for _ in range(20)]

    with par.simulate("8x-v100-dgx1", 3) as devices:
        peaks = par.run_ranks(exchanges, devices)
        assert all(10e9 < peak < 17e9 for peak in peaks[:2]), "their hosts are ahead"
        with pytest.raises(torch.OutOfMemoryError):
            par.run_ranks(keeps, devices)


def test_a_module_of_ranks_that_have_ended_is_refused_by_name(gpus):
    def make():
        return DistributedDataParallel(torch.nn.Linear(2, 1, device="vgpu"))

    def use():
        modules[dist.get_rank()](torch.ones(1, 2, device="vgpu")).sum().backward()

    modules = par.run_ranks(make, gpus[:2])
    with pytest.raises((RuntimeError, ValueError), match="make it, and what holds it, such as Dis"):
        par.run_ranks(use, gpus[:2])
