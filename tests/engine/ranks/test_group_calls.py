"""What programs call on groups of virtual ranks, and what ranks share besides tensors."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import virtual_ranks
from torch import nn
from torch.distributed import ReduceOp
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from virtual_ranks import here

import d2lpar as par

run = partial(virtual_ranks.run, n=4)


def mine(*shape):
    return torch.full(shape or (2,), dist.get_rank() + 1.0, device=here())


def called(work, *results):
    work.wait()
    return [result.tolist() for result in results]


FORMS = {
    "one tensor": lambda g, x: g.allreduce(x),
    "a list": lambda g, x: g.allreduce([x]),
    "an operation": lambda g, x: g.allreduce(x, ReduceOp.SUM),
    "by its name": lambda g, x: g.allreduce([x], op=ReduceOp.SUM),
    "options": lambda g, x: g.allreduce([x], dist.AllreduceOptions()),
    "coalesced": lambda g, x: g.allreduce_coalesced([x]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_group_sums_in_every_form(form):
    def rank():
        x = mine()
        form(dist.group.WORLD, x).wait()
        return x.tolist()

    assert run(rank, n=2) == [[3.0, 3.0]] * 2


def test_a_group_takes_operations_and_roots_in_place_of_options():
    def rank():
        group, x, y, z = dist.group.WORLD, mine(), mine(), mine()
        parts = [torch.empty(2, device=here()) for _ in range(2)]
        group.allreduce(x, ReduceOp.MAX).wait()
        group.broadcast(y, 1).wait()
        group.reduce(z, 0, ReduceOp.PRODUCT).wait()
        group.allgather(parts, mine()).wait()
        scattered = torch.empty(1, device=here())
        group.reduce_scatter(scattered, list(mine().split(1))).wait()
        gathered = [torch.empty(2, device=here()) for _ in range(2 * (dist.get_rank() == 1))]
        group.gather(gathered, mine(), 1).wait()
        group.barrier(timeout=None).wait()
        return [t.tolist() for t in (x, y, z, *parts, scattered, *gathered)]

    first, second = run(rank, n=2)
    both = [[1.0, 1.0], [2.0, 2.0]]
    assert first == [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0], *both, [3.0]]
    assert second == [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0], *both, [3.0], *both]


ALL_KINDS = "cpu:gloo,cuda:nccl"


def answers(backend):
    """What a group of a backend says of itself, and which kinds of tensors it sums."""
    if backend != "from the start":
        dist.init_process_group(backend)
    group, summed = dist.group.WORLD, []
    for device in ("cpu", here()):
        with contextlib.suppress(RuntimeError):  # what it says: see the next test
            dist.all_reduce(torch.ones(1, device=device))
            summed.append(torch.device(device).type)
    half = dist.new_group([0, 1])
    assert half._device_types == group._device_types
    return [device.type for device in group._device_types], summed, dist.get_backend(half)


@pytest.mark.parametrize(
    ("backend", "kinds", "name"),
    [
        ("nccl", ["vgpu"], "nccl"),
        ("NCCL", ["vgpu"], "nccl"),
        ("gloo", ["cpu", "vgpu"], "gloo"),
        (ALL_KINDS, ["cpu", "vgpu"], ALL_KINDS),
        ("from the start", ["cpu", "vgpu"], "nccl"),
    ],
)
def test_a_group_exchanges_tensors_of_its_backends(backend, kinds, name):
    """As torch's table of what each backend is capable of."""
    assert run(answers, backend, n=2) == [(kinds, kinds, name)] * 2


@pytest.mark.parametrize("asked", ["mpi", "UCC", "xccl", "cpu:mpi,cuda:nccl"])
def test_backends_that_torch_is_not_built_with_are_refused_in_its_words(asked):
    """They exchanged as gloo, in simulated times that are not theirs."""

    def rank():
        makers = dist.init_process_group, lambda name: dist.new_group(backend=name)
        return [told(lambda make=make: make(asked)) for make in makers]

    name = asked.removeprefix("cpu:")[:4].rstrip(",").upper()
    for of_rank in run(rank, n=2):
        for error, words in of_rank:
            assert error is RuntimeError
            assert f"Distributed package doesn't have {name} built in" in words
            assert "'nccl'" in words
    for is_available in (dist.is_mpi_available, dist.is_ucc_available, dist.is_xccl_available):
        assert not is_available()


def test_sends_and_batches_of_nccl_refuse_tensors_of_the_host():
    def rank():
        dist.init_process_group("nccl")
        x, other = torch.ones(1), 1 - dist.get_rank()
        ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, x, other)]
        calls = (
            lambda: dist.send(x, other),
            lambda: dist.batch_isend_irecv(ops),
            lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather([x, x.clone()], x),
        )
        for call in calls:
            with pytest.raises(RuntimeError, match=r"No backend type associated with .* cpu"):
                call()
        with pytest.raises(ValueError, match="CPU-capable backend"):
            dist.monitored_barrier()

    run(rank, n=2)


def exchanged():
    """Objects by each of torch's functions."""
    dist.init_process_group("nccl")
    number, all_of_them, one = dist.get_rank(), [None, None], [None]
    dist.all_gather_object(all_of_them, {"rank": number})
    dist.scatter_object_list(one, ["for 0", "for 1"] if number == 0 else None, src=0)
    gathered = [None, None] if number == 0 else None
    dist.gather_object(number, gathered, dst=0)
    told = [number]
    dist.broadcast_object_list(told, src=1)
    passed = ["sent"] if number == 0 else [None]
    if number == 0:
        dist.send_object_list(passed, 1)
    else:
        dist.recv_object_list(passed, 0)
    return all_of_them, one, gathered, told, passed


@pytest.mark.parametrize("with_values", [True, False])
def test_objects_go_by_devices_in_a_group_of_nccl(with_values):
    """Where these have no values, by hosts."""
    both = [{"rank": 0}, {"rank": 1}]
    machine = par.simulate(virtual_ranks.MACHINE, 2, with_values=with_values)
    with machine as gpus, par.record() as timeline:
        found = par.run_ranks(exchanged, gpus)
    assert found == [
        (both, ["for 0"], [0, 1], [1], ["sent"]),
        (both, ["for 1"], None, [1], ["sent"]),
    ]
    assert any(span.name == "all_gather" for span in timeline) == with_values


def test_a_barrier_of_nccl_asks_for_its_device_as_torch_does():
    def rank():
        dist.init_process_group("nccl")
        with pytest.warns(UserWarning, match="using the device under current context"):
            dist.barrier()

    run(rank, n=1)


@pytest.mark.parametrize(
    ("backend", "text"),
    [("nvcc", "there is no backend 'nvcc'"), ("cpu:gloo,cpu:nccl", "names no backends")],
)
def test_a_backend_that_there_is_not_is_named(backend, text):
    with pytest.raises(ValueError, match=text):
        run(lambda: dist.init_process_group(backend), n=1)


class OwnGroup(dist.ProcessGroup):
    """One that a program has written."""


@pytest.mark.parametrize("asked", ["of_program", "cpu:gloo,cuda:of_program"])
def test_what_a_program_writes_to_exchange_is_refused_by_name(asked):
    if "of_program" not in dist.Backend.backend_list:
        make = lambda store, rank, size, timeout: OwnGroup(rank, size)  # noqa: E731
        dist.Backend.register_backend("of_program", make, devices=["cpu", "cuda"])

    def rank():
        own = OwnGroup(0, 1)
        with pytest.raises(NotImplementedError, match="'of_program' is the program's own"):
            dist.init_process_group(asked)
        with pytest.raises(NotImplementedError, match="OwnGroup is the program's own"):
            nn.parallel.DistributedDataParallel(nn.Linear(1, 1).to(here()), process_group=own)
        with pytest.raises(NotImplementedError, match="_register_on_completion_hook"):
            dist.group.WORLD._register_on_completion_hook(print)

    run(rank, n=1)


def test_nccl_needs_gpus():
    with pytest.raises(ValueError, match="ProcessGroupNCCL is only supported with GPUs"):
        par.run_ranks(lambda: dist.init_process_group("nccl"), 2)


def test_tensors_of_several_sizes_are_gathered_and_scattered():
    def rank():
        number, sizes = dist.get_rank(), [1, 2, 3, 4]
        parts = [torch.empty(size, device=here()) for size in sizes]
        dist.all_gather(parts, mine(sizes[number]))
        total = torch.empty(sizes[number], device=here())
        dist.reduce_scatter(total, [mine(size) for size in sizes])
        return [part.tolist() for part in parts], total.tolist()

    for number, (parts, total) in enumerate(run(rank)):
        assert parts == [[1.0], [2.0] * 2, [3.0] * 3, [4.0] * 4]
        assert total == [10.0] * (number + 1)


def test_sizes_that_do_not_fit_are_still_refused():
    def rank():
        parts = [torch.empty(size, device=here()) for size in (1, 3)]
        dist.all_gather(parts, mine(2))

    with pytest.raises(ValueError, match="all_gather on 2 ranks needs 2 times 2 elements"):
        run(rank, n=2)


def exchange_with_all():
    number, ranks = dist.get_rank(), range(dist.get_world_size())
    targets = [torch.zeros(2, device=here()) for _ in ranks]
    batch = [dist.P2POp(dist.irecv, targets[other], other) for other in ranks]
    batch += [dist.P2POp(dist.isend, mine() + 10 * other, other) for other in ranks]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return [int(target[0]) - 10 * number for target in targets]


def test_a_batch_may_send_to_oneself():
    assert run(exchange_with_all) == [[1, 2, 3, 4]] * 4


def test_alone_a_send_to_oneself_is_refused_as_is_half_of_one():
    def alone():
        dist.group.WORLD.send([mine()], dist.get_rank(), 0)

    def half():
        dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(), dist.get_rank())])

    with pytest.raises(ValueError, match="both ends would wait for each other"):
        run(alone, n=2)
    with pytest.raises(RuntimeError, match="sends 1 and receives 0 tensors to and from itself"):
        run(half, n=2)


def test_groups_of_a_group_are_made_at_once():
    def rank():
        half, halves = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        single, singles = dist.new_subgroups(group_size=1, group=half)
        x = mine()
        dist.all_reduce(x, group=half)
        dist.all_reduce(x, group=single)
        return x[0].item(), len(halves), len(singles), dist.get_pg_count()

    assert run(rank) == [(4.0, 2, 2, 5), (6.0, 2, 2, 5)] * 2


def test_groups_that_overlap_under_one_name_are_an_error():
    def rank():
        dist.new_group([0, 1] if dist.get_rank() == 0 else [0, 1, 2])

    with pytest.raises(RuntimeError, match="must call new_group in the same order"):
        run(rank, n=3)


def test_a_host_waits_on_a_device_for_what_its_own_process_has_queued(tmp_path):
    """Every process synchronises device 0, as programs do that set no device: torch's averaging of
    models is one. Rank 0 waits there for a collective to which the others have yet to come."""

    def rank(number):
        x = torch.ones(2, device=f"cuda:{number}") * number
        torch.cuda.synchronize(0)
        dist.init_process_group("nccl", "tcp://localhost:29561", rank=number, world_size=2)
        dist.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]
        (tmp_path / str(number)).touch()

    with par.emulate_cuda(2, verbose=False):
        torch.multiprocessing.start_processes(rank, nprocs=2, start_method="fork")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_store_lets_ranks_wait_for_each_other():
    def rank():
        number, count = dist.get_rank(), dist.get_world_size()
        store = dist.TCPStore("localhost", 29501, count, is_master=number == 0)
        assert isinstance(store, dist.Store)
        prefixed = dist.PrefixStore("here", store)
        if number == 0:
            read = prefixed.get("from the last").decode()  # which has had no turn yet
        else:
            prefixed.set("from the last", f"rank {number}")
            read = ""
        return read, store.add("all", 1), store.check(["nothing"]), store.num_keys() > 0

    answers = run(rank)
    assert answers[0][0].startswith("rank")
    assert sorted(total for _, total, *_ in answers) == [1, 2, 3, 4]
    assert {(found, known) for *_, found, known in answers} == {(False, True)}


def test_compare_and_forget_in_a_store():
    def rank():
        store = dist.TCPStore("localhost", 29503, is_master=True)
        first = store.compare_set("key", "", "a")
        second = store.compare_set("key", "wrong", "b")
        store.append("key", "c")
        return first, second, store.get("key"), store.delete_key("key"), store.check(["key"])

    assert run(rank, n=1) == [(b"a", b"a", b"ac", True, False)]


def test_what_ranks_add_up_is_not_seen_by_a_programs_modes():
    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    def rank():
        x = mine()
        with Names() as names, FlopCounterMode(display=False):
            dist.all_reduce(x)
        return x.tolist(), [name for name in names.seen if name.startswith("aten")]

    assert run(rank, n=2) == [([3.0, 3.0], [])] * 2


def pairs():
    pair = TwoTensor(mine(), 10 * mine())
    dist.all_reduce(pair)
    others = [TwoTensor(mine(), mine()) for _ in range(4)]
    dist.all_gather(others, pair)
    return [half.tolist() for half in (pair.a, pair.b, others[3].a, others[3].b)]


def test_what_tensors_wrap_is_exchanged():
    assert run(pairs) == [[[10.0] * 2, [100.0] * 2] * 2] * 4


# --- what c10d's groups over NCCL refuse, in their words -----------------------------------------

ROOT = dist.GatherOptions()
ROOT.rootRank = 2
WRONG = {
    "too large an output": (
        lambda g, x: g._allgather_base(torch.empty(5, device=here()), x),
        (ValueError, "output tensor size must be equal to world_size times input tensor size"),
    ),
    "an output of another type": (
        lambda g, x: g._allgather_base(torch.empty(4, device=here(), dtype=torch.int), x),
        (TypeError, "output tensor must have the same type as input tensor"),
    ),
    "too small an input": (
        lambda g, x: g._reduce_scatter_base(torch.empty(2, device=here()), x),
        (ValueError, "input tensor must be the same size as output size times world size"),
    ),
    "an input of another type": (
        lambda g, x: g._reduce_scatter_base(torch.empty(1, device=here(), dtype=torch.int), x),
        (TypeError, "input tensor must be the same type as the output tensor"),
    ),
    "no such root": (lambda g, x: g.gather([[x, x]], [x], ROOT), (ValueError, "invalid root rank")),
    "a root with lists": (
        lambda g, x: g.gather([[x, x]], [x], 0),
        (TypeError, "incompatible function arguments"),
    ),
    "no tensors": (
        lambda g, x: g.gather([[x, x]], [], dist.GatherOptions()),
        (RuntimeError, "There were no tensor arguments to this function"),
    ),
    "sparse tensors": (
        lambda g, x: g.allreduce([x.to_sparse()]),
        (RuntimeError, "NCCL does not support all_reduce with sparse tensors"),
    ),
}


@pytest.mark.parametrize(("call", "raised"), WRONG.values(), ids=WRONG)
def test_wrong_calls_of_a_group_are_refused_in_the_words_of_nccl(call, raised):
    def rank():
        with pytest.raises(raised[0], match=raised[1]):
            call(dist.group.WORLD, mine())

    run(rank, n=2)


def test_a_group_scatters_sums_without_options():
    def rank():
        part = torch.empty(1, device=here())
        dist.group.WORLD._reduce_scatter_base(part, mine()).wait()
        return part.item()

    assert run(rank, n=2) == [3.0, 3.0]


def test_a_group_counts_the_collectives_that_a_rank_has_begun():
    def rank():
        group = dist.new_group([0, 1])
        before = group._get_sequence_number_for_group()
        for _ in range(3):
            dist.all_reduce(mine(), group=group)
        return before, group._get_sequence_number_for_group()

    assert run(rank, n=2) == [(0, 3), (0, 3)]


def test_a_tag_and_the_same_ranks_are_one_group():
    """Device meshes of older versions of torch found their groups so."""

    def pair(tag):
        both = [c10d._new_group_with_tag(ranks, pg_tag=tag) for ranks in ([0, 1], [2, 3])]
        return both[dist.get_rank() // 2]

    def rank():
        first, again, other, plain = pair("a"), pair("a"), pair("b"), pair(None)
        x = mine()
        dist.all_reduce(x, group=plain)
        return first is again, first is other, first is plain, x.tolist()

    assert [found[:3] for found in run(rank)] == [(True, False, False)] * 4
    assert [found[3][0] for found in run(rank)] == [3.0, 3.0, 7.0, 7.0]


@pytest.mark.filterwarnings("ignore:Running broadcast on global rank 0 which does not")
def test_who_is_no_member_of_a_group_knows_its_ranks_all_the_same():
    def rank():
        group = dist.new_group([1])
        dist.broadcast(mine(), 1, group=group)
        return dist.get_group_rank(group, 1)

    assert run(rank, n=2) == [0, 0]


@pytest.mark.parametrize("backend", ["nccl", "gloo", "cpu:gloo,vgpu:nccl"])
def test_a_group_says_which_backend_it_has(backend):
    def rank():
        return dist.new_group(backend=backend).name()

    assert run(rank, n=2) == [backend if ":" not in backend else "undefined"] * 2


def test_sizes_may_be_given_in_a_tensor():
    def rank():
        sizes = torch.tensor([1, 2]) if dist.get_rank() == 0 else torch.tensor([2, 1])
        source, target = mine(3), torch.zeros(3, device=here())
        dist.all_to_all_single(target, source, sizes, sizes)
        return target.tolist()

    assert run(rank, n=2) == [[1.0, 2.0, 2.0], [1.0, 1.0, 2.0]]


# --- data types -----------------------------------------------------------------------------------


def told(call):
    """What a call raises, as type and words, or None."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16])
def test_types_that_neither_nccl_nor_gloo_exchanges_are_refused(dtype):
    """As torch over gloo was seen to, and by its table for NCCL."""

    def rank(device):
        x = torch.ones(2).to(dtype).to(device or here())
        calls = (dist.all_reduce, lambda x: dist.broadcast(x, 0))
        return [told(partial(call, x)) for call in calls]

    for found in run(rank, "cpu", n=2):
        assert [error for error, words in found if "Invalid scalar type" in words] == [
            RuntimeError
        ] * 2
    for found in run(rank, None, n=2):
        assert [error for error, words in found if "supported for NCCL" in words] == [TypeError] * 2


def test_gloo_sends_bytes_of_any_type():
    def rank():
        x = torch.full((2,), dist.get_rank() + 1, dtype=torch.int16)
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
        return x.tolist()

    assert run(rank, n=2) == [[1, 1]] * 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits_are_reduced_from_hopper_on(dtype):
    def rank():
        x = torch.full((4,), 1.5 + dist.get_rank(), device=here()).to(dtype)
        dist.all_reduce(x)
        mean = torch.ones(2, device=here()).to(dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return x.float().tolist(), mean.float().tolist()

    with par.simulate("8x-h100-nvswitch", 2, with_values=True) as gpus:
        assert par.run_ranks(rank, gpus) == [([4.0] * 4, [1.0, 1.0])] * 2
    for found in run(lambda: told(rank), n=2):
        assert found[0] is dist.DistBackendError
        assert "begins with sm90" in found[1]
        assert "V100" in found[1]


def test_numbers_of_eight_bits_without_a_negative_zero_are_only_sent():
    def rank():
        x = torch.full((2,), dist.get_rank() + 1.0, device=here()).to(torch.float8_e4m3fnuz)
        dist.broadcast(x, 1)
        return x.float().tolist(), told(lambda: dist.all_reduce(x))[1]

    for values, words in run(rank, n=2):
        assert values == [2.0, 2.0]
        assert words.startswith("Unsupported Float8 type for NCCL reduction")


def test_nccl_makes_no_mean_of_booleans():
    def rank():
        x = torch.tensor([True, dist.get_rank() == 1], device=here())
        refused = told(lambda: dist.all_reduce(x.clone(), dist.ReduceOp.AVG))
        dist.all_reduce(x)
        return x.tolist(), refused

    for values, (error, words) in run(rank, n=2):
        assert values == [True, True]
        assert error is TypeError
        assert "AVG with boolean inputs" in words
