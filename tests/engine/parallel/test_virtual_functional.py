"""Functional, coalesced and differentiable collectives of virtual ranks: results, bytes, times."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.nn.functional as dnn
import virtual_ranks
from test_ranks_time import record, rounded, work
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx

import d2lpar as par
from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

PLACES = pytest.mark.parametrize("on_host", [False, True], ids=["devices", "host"])
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names are torch 2.15 only


def place(on_host=False):
    return torch.device("cpu" if on_host else f"vgpu:{torch.vgpu.current_device()}")


run = partial(virtual_ranks.run, n=4)


def on(values, device):
    return torch.tensor(values, dtype=torch.float32).to(device)


# --- results --------------------------------------------------------------------------------------


@PLACES
def test_functional_collectives_over_a_dimension_of_a_mesh(on_host):
    def call():
        mesh = init_device_mesh("vgpu", (2, 2), mesh_dim_names=("dp", "tp"))
        r, tp = dist.get_rank(), mesh["tp"]
        mine = on([r, 10.0 * r], place(on_host))
        found = [
            fc.all_reduce(mine, "sum", tp),
            fc.all_gather_tensor(mine, 0, (mesh, 0)),
            fc.all_gather_tensor(mine.view(1, 2), 1, (mesh, 0)),
            fc.reduce_scatter_tensor(mine, "avg", 0, tp),
            fc.all_to_all_single(mine, [1, 1], [1, 1], tp),
            fc.broadcast(mine, 1, tp),
        ]
        assert all(isinstance(t, fc.AsyncCollectiveTensor) for t in found)
        assert mine.tolist() == [r, 10 * r]
        return [t.tolist() for t in found]

    found = run(call)
    assert found[0] == [[1, 10], [0, 0, 2, 20], [[0, 0, 2, 20]], [0.5], [0, 1], [1, 10]]
    assert found[3] == [[5, 50], [1, 10, 3, 30], [[1, 10, 3, 30]], [25], [20, 30], [3, 30]]


@PLACES
def test_coalesced_collectives_have_several_tensors(on_host):
    def call():
        r, group = dist.get_rank(), dist.group.WORLD
        mine = [on([r, 1.0], place(on_host)), on([2.0 * r] * 4, place(on_host))]
        summed = fc.all_reduce_coalesced(mine, "max", group)
        gathered = fc.all_gather_into_tensor_coalesced(mine, group)
        scattered = fc.reduce_scatter_tensor_coalesced(mine, "sum", [0, 0], group)
        return [[t.tolist() for t in found] for found in (summed, gathered, scattered)]

    assert run(call, n=2)[1] == [
        [[1, 1], [2, 2, 2, 2]],
        [[0, 1, 1, 1], [0, 0, 0, 0, 2, 2, 2, 2]],
        [[2], [2, 2]],
    ]


def test_a_group_may_be_named_by_a_list_of_ranks_and_by_its_name():
    def call():
        mine = on([dist.get_rank()], place())
        pair = dist.new_group([0, 1])
        by_name = fc.all_reduce(mine, "sum", pair.group_name)
        by_list = fc.all_reduce(mine, "sum", [0, 1])
        return by_name.item(), by_list.item()

    assert run(call, n=2) == [(1.0, 1.0)] * 2


def test_collectives_in_place_and_into_given_tensors():
    ops = torch.ops._c10d_functional

    def call():
        r, name = dist.get_rank(), dist.group.WORLD.group_name
        mine, out = on([r, r + 1.0], place()), torch.empty(4, device=place())
        ops.wait_tensor(ops.all_gather_into_tensor_out(mine, 2, name, out=out))
        ops.wait_tensor(ops.all_reduce_(mine, "sum", name))
        return out.tolist(), mine.tolist()

    assert run(call, n=2) == [([0, 1, 1, 2], [1, 3])] * 2


def test_the_values_need_not_be_waited_for_by_hand():
    def call():
        total = fc.all_reduce(torch.ones(4, device=place()), "sum", dist.group.WORLD)
        view = total.view(2, 2)
        assert isinstance(view, fc.AsyncCollectiveTensor)
        return (view @ view).tolist()

    assert run(call) == [[[32.0, 32.0], [32.0, 32.0]]] * 4


@pytest.mark.parametrize(
    ("op", "expected"), [("BAND", 0b100), ("BOR", 0b111), ("BXOR", 0b011)], ids=str
)
def test_bits_are_reduced_on_the_host_as_by_gloo_and_not_on_devices_as_by_nccl(op, expected):
    reduce_op = getattr(dist.ReduceOp, op)

    def call(on_host):
        bits = torch.tensor([0b110 if dist.get_rank() else 0b101]).to(place(on_host))
        dist.all_reduce(bits, op=reduce_op)
        return bits.item()

    assert run(call, True, n=2) == [expected] * 2
    with pytest.raises(ValueError, match=f"Cannot use ReduceOp.{op} with NCCL: .* by {op}"):
        run(call, False, n=2)


def test_what_is_multiplied_before_it_is_summed():
    def call():
        mine = on([2.0], place())
        factor = 0.5 if dist.get_rank() else 3.0
        dist.all_reduce(mine, op=dist._make_nccl_premul_sum(factor))
        return mine.item()

    if not hasattr(dist.ReduceOp, "factor"):
        pytest.skip("this torch does not tell the factor")
    assert run(call, n=2) == [7.0, 7.0]


def test_a_root_that_the_group_does_not_have():
    with pytest.raises(ValueError, match="invalid root rank: 2: a group of 2 ranks"):
        run(lambda: fc.broadcast(on([1.0], place()), 2, dist.group.WORLD), n=2)


def test_each_rank_traces_for_itself():
    """Ranks take turns in the middle of it."""

    def call():
        def summed(x):
            return fc.all_reduce(x, "sum", dist.group.WORLD) + 1

        return [str(node.target) for node in make_fx(summed)(torch.ones(4)).graph.nodes]

    before = torch.nn.Module.__call__, torch.nn.Module.__getattr__
    first, second = run(call, n=2)
    assert first == second
    assert "_c10d_functional.all_reduce.default" in first
    assert (torch.nn.Module.__call__, torch.nn.Module.__getattr__) == before  # and so their times


# --- several as one -------------------------------------------------------------------------------


@PLACES
def test_the_coalescing_manager_makes_one_collective_of_several(on_host):
    def call():
        device, r = place(on_host), dist.get_rank()
        a, b = on([r], device), on([r, r], device)
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(a)
            dist.all_reduce(b)
        out = [torch.empty(2, device=device), torch.empty(4, device=device)]
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as begun:
            dist.all_gather_into_tensor(out[0], a)
            dist.all_gather_into_tensor(out[1], b + r)
        begun.wait()
        c = torch.empty(1, device=device)
        with dist.distributed_c10d._coalescing_manager():
            dist.reduce_scatter_tensor(c, b + r)
        return a.item(), b.tolist(), *[t.tolist() for t in out], c.item()

    assert run(call, n=2)[0] == (1, [1, 1], [1, 1], [1, 1, 2, 2], 3)


def test_batches_of_sends_in_any_order():
    def call():
        r, device = dist.get_rank(), place()
        after, before = (r + 1) % 4, (r - 1) % 4
        taken, given = torch.empty(2, device=device), on([r, -r], device)
        ops = [dist.P2POp(dist.irecv, taken, before), dist.P2POp(dist.isend, given, after)]
        for each in dist.batch_isend_irecv(ops if r % 2 else ops[::-1]):
            each.wait()
        return taken.tolist()

    assert run(call) == [[3, -3], [0, 0], [1, -1], [2, -2]]


def test_all_to_all_of_lists():
    def call():
        r, device = dist.get_rank(), place()
        taken = [torch.empty(r + 1, device=device) for _ in range(3)]
        dist.all_to_all(taken, [on([10.0 * r + i] * (i + 1), device) for i in range(3)])
        return [t.tolist() for t in taken]

    assert run(call, n=3)[1] == [[1, 1], [11, 11], [21, 21]]


def test_gathering_into_one_tensor_of_the_root():
    if not hasattr(dist, "gather_single"):
        pytest.skip("this torch gathers into lists only")

    def call():
        r, device = dist.get_rank(), place()
        out = torch.empty(3, 2, device=device) if r == 1 else None
        dist.gather_single(on([r, r], device), out, dst=1)
        return None if out is None else out.tolist()

    assert run(call, n=3) == [None, [[0, 0], [1, 1], [2, 2]], None]


def test_a_monitored_barrier_names_who_is_missing():
    def meet(late):
        par.host_work(dist.get_rank() * 1.0, "prepare")
        if dist.get_rank() != late:
            dist.monitored_barrier()
        return current_runtime().now_s()

    times = run(meet, None, n=3)
    assert min(times) >= 2.0
    with pytest.raises(RuntimeError, match=r"waits in monitored_barrier\(\) .*for rank 2"):
        run(meet, 2, n=3)


def test_objects():
    def call():
        r = dist.get_rank()
        everyone = [None] * 3
        dist.all_gather_object(everyone, {"rank": r})
        gathered = [None] * 3 if r == 1 else None
        dist.gather_object((r,), gathered, dst=1)
        taken = [None]
        dist.scatter_object_list(taken, ["a", "b", "c"] if r == 0 else None, src=0)
        told = [r]
        dist.broadcast_object_list(told, src=2)
        if r == 0:
            dist.send_object_list(["letter"], dst=1)
        elif r == 1:
            dist.recv_object_list(told, src=0)
        return everyone[2], gathered, taken, told

    assert run(call, n=3) == [
        ({"rank": 2}, None, ["a"], [2]),
        ({"rank": 2}, [(0,), (1,), (2,)], ["b"], ["letter"]),
        ({"rank": 2}, None, ["c"], [2]),
    ]


# --- gradients ------------------------------------------------------------------------------------


def gradients(call, n=2, on_host=False):
    """What each rank's loss, weighted by its number + 1, gives its input."""

    def back():
        r = dist.get_rank()
        x = on([1.0 + r, 2.0, 3.0, 4.0], place(on_host)).requires_grad_()
        y = call(x)
        (y * torch.arange(1.0, y.numel() + 1, device=y.device).view_as(y)).sum().mul(
            r + 1
        ).backward()
        return x.grad.tolist()

    return run(back, n=n)


@PLACES
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda x: fc.all_to_all_single_autograd(x, [2, 2], [2, 2], dist.group.WORLD),
            [[1, 2, 2, 4], [3, 4, 6, 8]],
        ),
        (
            lambda x: fc.all_gather_tensor_autograd(x, 0, dist.group.WORLD),
            [[3, 6, 9, 12], [15, 18, 21, 24]],
        ),
        (
            lambda x: fc.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD),
            [[1, 2, 2, 4]] * 2,
        ),
    ],
    ids=["all to all", "all-gather", "reduce-scatter"],
)
def test_functional_collectives_with_gradients(call, expected, on_host):
    assert gradients(call, on_host=on_host) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (dnn.all_reduce, [[3, 6, 9, 12]] * 2),
        (lambda x: dnn.broadcast(x, 0), [[3, 6, 9, 12], [0, 0, 0, 0]]),
        (
            lambda x: dnn.all_to_all_single(torch.empty_like(x), x, [2, 2], [2, 2]),
            [[1, 2, 2, 4], [3, 4, 6, 8]],
        ),
        (lambda x: torch.cat(dnn.all_gather(x)), [[3, 6, 9, 12], [15, 18, 21, 24]]),
        (
            lambda x: dnn.reduce_scatter(torch.empty_like(x[:2]), list(x.split(2))),
            [[1, 2, 2, 4]] * 2,
        ),
    ],
    ids=["all-reduce", "broadcast", "all to all", "all-gather", "reduce-scatter"],
)
def test_collectives_of_torch_distributed_nn(call, expected):
    assert gradients(call) == expected


# --- bytes and times ------------------------------------------------------------------------------


def spans(function, kind="collective"):
    with par.simulate("8x-v100-pcie", 2) as gpus, par.record() as timeline:
        par.run_ranks(function, gpus)
    return [s for s in timeline if s.device == "vgpu:0" and s.kind == kind]


def test_one_span_with_the_bytes_of_all_tensors():
    def call():
        tensors = [torch.ones(100, device=place()), torch.ones(300, device=place())]
        for t in fc.all_reduce_coalesced(tensors, "sum", dist.group.WORLD):
            t.wait()

    def one():
        fc.all_reduce(torch.ones(400, device=place()), "sum", dist.group.WORLD).wait()

    (together,), (single,) = spans(call), spans(one)
    assert (together.name, together.bytes) == (single.name, single.bytes) == ("all_reduce", 1600)
    assert together.end_s - together.start_s == pytest.approx(single.end_s - single.start_s)


def test_the_stream_waits_where_the_result_is_used_first_and_not_before():
    def overlap():
        mine = torch.empty(1, device=place())
        total = torch.ops._c10d_functional.all_reduce_(mine, "sum", dist.group.WORLD.group_name)
        work(5)
        torch.ops._c10d_functional.wait_tensor(total)
        work(1)

    assert [s[1:] for s in rounded(record(overlap)) if s[0] == "vgpu:0"] == [
        (1, "all_reduce", 1, 3),
        (0, "compute", 2, 7),
        (0, "compute", 7, 8),
    ]


def test_shapes_alone_do():
    def call():
        mesh = init_device_mesh("vgpu", (2, 2), mesh_dim_names=("dp", "tp"))
        big = torch.empty(2**20, 2**10, device=place())
        return list(fc.all_gather_tensor(big, 0, mesh["dp"]).wait().shape)

    assert run(call, with_values=False) == [[2**21, 2**10]] * 4


def test_what_a_functional_collective_gives_is_waited_for_by_calls_of_groups():
    """torch unwraps it on its way to the group, as the output of a tensor parallel layer that is
    sent to the next stage of a pipeline."""

    def rank():
        number = dist.get_rank()
        x = on([number + 1.0] * 2, place())
        total = fc.all_reduce(x, "sum", dist.group.WORLD)
        assert isinstance(total, fc.AsyncCollectiveTensor)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, total)
        twice = fc.all_reduce(x, "sum", dist.group.WORLD)
        dist.all_reduce(twice)
        passed = torch.empty_like(x)
        if number == 0:
            alone = dist.new_group([0], use_local_synchronization=True)
            dist.send(fc.all_reduce(x, "sum", alone), 1)
        else:
            dist.recv(passed, 0)
        return [t.tolist() for t in (*parts, twice)], passed.tolist() if number else None

    summed, sent = [3.0, 3.0], [1.0, 1.0]
    both = [summed, summed, [6.0, 6.0]]
    assert virtual_ranks.run(rank) == [(both, None), (both, sent)]
