"""DTensor on virtual ranks: a tensor in parts computes what it computes whole, with torch's own
collectives on the clock."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.nn import functional as F

import d2lpar as par
from d2lpar.vgpu import emulate_cuda
from d2lpar.vgpu.ranks.private.dtensor import sharding_propagator

WHOLE = torch.arange(30.0).view(6, 5)
ONE = [Replicate(), Shard(0), Shard(1)]
TWO = [list(pair) for pair in itertools.product(ONE, repeat=2)]


def on_mesh(function, shape):
    names = ("dp", "tp")[-len(shape) :]
    return function(init_device_mesh("vgpu", shape, mesh_dim_names=names))


def run(function, n=4, shape=(2, 2), with_values=True):
    """Call `function(mesh)` on n ranks."""
    with par.simulate("8x-v100-pcie", n, with_values=with_values) as gpus:
        return par.run_ranks(on_mesh, gpus, function, shape)


def recorded(function, n=2, shape=(2,)):
    """The collectives of device 0: names and bytes."""
    with par.simulate("8x-v100-pcie", n) as gpus, par.record() as timeline:
        par.run_ranks(on_mesh, gpus, function, shape)
    spans = [s for s in timeline if s.device == "vgpu:0" and s.kind == "collective"]
    return [(s.name, s.bytes) for s in spans]


# --- a tensor in parts ----------------------------------------------------------------------------


def test_parts_of_all_placements_make_the_whole_again():
    def parts(mesh):
        for placements in TWO:
            part = distribute_tensor(WHOLE, mesh, placements)
            assert part.device == part.to_local().device == torch.device("vgpu", dist.get_rank())
            assert torch.equal(part.full_tensor().cpu(), WHOLE), placements

    run(parts)


def test_every_placement_becomes_every_other():
    def redistribute(mesh):
        for given in ONE:
            mine = distribute_tensor(WHOLE, mesh, [given])
            for target in ONE:
                assert torch.equal(mine.redistribute(mesh, [target]).full_tensor().cpu(), WHOLE)

    run(redistribute, n=3, shape=(3,))


def test_parts_that_are_summands():
    def reduce(mesh):
        mine = torch.full((4, 2), dist.get_rank() + 1.0).to(f"vgpu:{torch.vgpu.current_device()}")
        summands = DTensor.from_local(mine, mesh, [Partial()])
        largest = DTensor.from_local(mine, mesh, [Partial("max")]).full_tensor()
        mean = DTensor.from_local(mine, mesh, [Partial("avg")]).redistribute(mesh, [Shard(0)])
        shard = summands.redistribute(mesh, [Shard(1)]).to_local()
        return (
            summands.full_tensor()[0, 0].item(),
            largest.max().item(),
            mean.to_local().tolist(),
            (list(shard.shape)),
        )

    assert run(reduce, n=2, shape=(2,)) == [(3.0, 2.0, [[1.5, 1.5]] * 2, [4, 1])] * 2


def operations():
    w, x = torch.linspace(-1, 1, 20).view(5, 4), WHOLE / 10
    return {
        "product": lambda t: t(x) @ t(w),
        "sum": lambda t: t(x).sum(0),
        "mean": lambda t: t(x).mean(),
        "softmax": lambda t: t(x).softmax(-1),
        "layer norm": lambda t: F.layer_norm(t(x), (5,)),
        "view": lambda t: t(x).view(2, 3, 5).transpose(0, 1),
        "cat": lambda t: torch.cat([t(x), t(x).exp()], 1),
        "index": lambda t: t(x)[1:4, 2],
        "norm": lambda t: torch.linalg.vector_norm(t(x)),
        "where": lambda t: torch.where(t(x) > 1, t(x), -t(x)),
        "max": lambda t: t(x).amax(1),
        "in place": lambda t: t(x).clone().mul_(2).add_(t(x)),
    }


@pytest.mark.parametrize("name", operations())
def test_operations_on_parts_are_those_on_the_whole(name):
    operation = operations()[name]
    expected = operation(lambda whole: whole)

    def compute(mesh):
        for placements in ([Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(0), Shard(1)]):
            found = operation(lambda whole: distribute_tensor(whole, mesh, placements))  # noqa: B023
            torch.testing.assert_close(found.full_tensor().cpu(), expected)

    run(compute)


def test_gradients_of_parts_are_those_of_the_whole():
    def loss(x, w):
        return (torch.tanh(x @ w).softmax(-1) * torch.arange(1.0, 5, device=w.device)).sum()

    x, w = (WHOLE / 10).requires_grad_(), torch.linspace(-1, 1, 20).view(5, 4).requires_grad_()
    loss(x, w).backward()

    def compute(mesh):
        mine = distribute_tensor(x.detach(), mesh, [Shard(0), Replicate()]).requires_grad_()
        weight = distribute_tensor(w.detach(), mesh, [Replicate(), Shard(1)]).requires_grad_()
        with implicit_replication():
            loss(mine, weight).backward()
        for found, whole in ((mine, x), (weight, w)):
            torch.testing.assert_close(found.grad.full_tensor().cpu(), whole.grad)

    run(compute)


def test_programs_for_cuda():
    def compute():
        mesh = init_device_mesh("cuda", (2,))
        part = distribute_tensor(WHOLE, mesh, [Shard(0)])
        return str(part.to_local().device), (part.t() @ part).full_tensor().cpu()

    with emulate_cuda(2, verbose=False) as gpus:
        found = par.run_ranks(compute, gpus)
    assert [device for device, _ in found] == ["cuda:0", "cuda:1"]
    torch.testing.assert_close(found[1][1], WHOLE.t() @ WHOLE)


def test_a_mesh_of_processors_exchanges_tensors_of_the_host():
    def compute(_):
        part = distribute_tensor(WHOLE, init_device_mesh("cpu", (4,)), [Shard(1)])
        assert part.to_local().device.type == "cpu"
        return (part @ part.t()).full_tensor()

    torch.testing.assert_close(run(compute)[3], WHOLE @ WHOLE.t())


# --- random numbers -------------------------------------------------------------------------------


def test_shards_draw_their_own_numbers_and_replicas_the_same():
    def draw(mesh):
        torch.manual_seed(3)
        sharded = dtensor.rand(4, 4, device_mesh=mesh, placements=[Shard(0), Replicate()])
        after = torch.rand(2, device=sharded.device)
        dropped = F.dropout(dtensor.ones(64, device_mesh=mesh, placements=[Shard(0), Shard(0)]))
        common = dtensor.randn(3, device_mesh=mesh, placements=[Replicate()] * 2)
        return [t.cpu() for t in (sharded.to_local(), after, dropped.to_local(), common.to_local())]

    first, second, third, last = run(draw)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], third[0])
    kept = [tuple(found[2].tolist()) for found in (first, second, third, last)]
    assert len(set(kept)) == 4
    assert {value for values in kept for value in values} == {0.0, 2.0}
    for found in (second, third, last):
        assert torch.equal(found[1], first[1])
        assert torch.equal(found[3], first[3])
    assert all(map(torch.equal, run(draw)[2], third))


def test_replicas_draw_what_one_device_draws_and_ranks_begin_as_rank_0():
    def draw(mesh):
        torch.manual_seed(dist.get_rank())
        common = dtensor.rand(5, device_mesh=mesh, placements=[Replicate()] * 2)
        dtensor._random.manual_seed(11, mesh)
        seeded = dtensor.rand(5, device_mesh=mesh, placements=[Replicate()] * 2)
        torch.manual_seed(11)
        return (
            common.to_local().cpu(),
            seeded.to_local().cpu(),
            torch.rand(5, device=common.device).cpu(),
        )

    def alone(seed):
        with par.simulate("8x-v100-pcie", 1, with_values=True) as (gpu,):
            torch.manual_seed(seed)
            return torch.rand(5, device=gpu).cpu()

    for common, seeded, plain in run(draw):
        assert torch.equal(common, alone(0))
        assert torch.equal(seeded, plain)
        assert torch.equal(seeded, alone(11))


@pytest.mark.parametrize("seeded", [False, True])
def test_a_first_draw_takes_the_state_of_rank_0_unless_ranks_were_seeded(seeded):
    """So a dropout on parts of a sequence exchanges something the first time: torch's tests seed
    ranks before they count the collectives of such a plan."""

    def draw(mesh):
        if seeded:
            dtensor._random.manual_seed(0, mesh)
        net = parallelize_module(nn.Dropout(0.5), mesh["tp"], SequenceParallel())
        x = distribute_tensor(torch.ones(2, 4, 3, device=mesh.device_type), mesh["tp"], [Shard(1)])
        with CommDebugMode() as counts:
            y = net(x)
        return y.placements, counts.get_total_counts()

    assert run(draw) == [((Shard(1),), 0 if seeded else 1)] * 4


def test_a_generator_of_one_s_own_goes_on_alike_on_all_ranks():
    def draw(mesh):
        mine = torch.Generator(f"vgpu:{torch.vgpu.current_device()}").manual_seed(5)
        x = dtensor.zeros(8, device_mesh=mesh, placements=[Shard(0), Replicate()])
        x.uniform_(generator=mine)
        return x.to_local().tolist(), torch.rand(2, generator=mine, device=mine.device).tolist()

    found = run(draw)
    assert found[0][0] == found[1][0] != found[2][0] == found[3][0]
    assert found[0][1] == found[3][1]


# --- bytes ----------------------------------------------------------------------------------------

MB = 2**20


def test_what_a_change_of_placement_sends():
    def change(given, target):
        def call(mesh):
            mine = torch.empty(MB // 4 // mesh.size(), 4, device=mesh.device_type)
            local = DTensor.from_local(mine, mesh, [given], run_check=False)
            local.redistribute(mesh, [target]).to_local().add(1)

        return recorded(call)

    assert change(Shard(0), Replicate()) == [("all_gather", 4 * MB)]
    assert change(Partial(), Shard(0)) == [("reduce_scatter", 2 * MB)]
    assert change(Partial(), Replicate()) == [("all_reduce", 2 * MB)]
    assert change(Shard(0), Shard(1)) == [("all_to_all", 2 * MB)]
    assert change(Replicate(), Shard(0)) == []


@pytest.mark.filterwarnings("ignore:Found a non-scalar tensor with numel=1")
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1), torch.tensor([0.1])], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_steps_of_parts_are_those_of_the_whole(kind, lr):
    def stepped(weight):
        optimizer = kind([weight], lr=lr, fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        return weight.detach()

    def rank(mesh):
        parts = distribute_tensor(WHOLE.to(mesh.device_type), mesh, [Shard(0)])
        return stepped(torch.nn.Parameter(parts)).full_tensor().cpu()

    expected = stepped(torch.nn.Parameter(WHOLE.clone()))
    for found in run(rank, n=2, shape=(2,)):
        torch.testing.assert_close(found, expected)
    run(rank, n=2, shape=(2,), with_values=False)


def test_shapes_alone_do():
    def call(mesh):
        big = dtensor.empty(2**15, 2**15, device_mesh=mesh, placements=[Shard(0), Shard(1)])
        return list((big @ big).to_local().shape)

    assert run(call, with_values=False) == [[2**14, 2**14]] * 4


def test_alike_ranks_have_parts_of_the_full_mesh():
    def call():
        mesh = init_device_mesh("vgpu", (8,))
        part = dtensor.zeros(64, 3, device_mesh=mesh, placements=[Shard(0)])
        return list(part.to_local().shape), list(part.full_tensor().shape)

    assert par.run_alike(call, "8x-h100-nvswitch") == {0: ([8, 3], [64, 3])}


def test_ranks_that_ask_the_same_of_lists_are_told_what_one_has_found_out(monkeypatch):
    """Optimizers ask so, of hundreds at once, and torch takes seconds to find out."""
    owner, name = sharding_propagator()
    find_out, asked = getattr(owner, name), []

    def note(schema):
        asked.append(schema.op)
        return find_out(schema)

    monkeypatch.setattr(owner, name, note)

    def call(mesh):
        for placements in TWO:
            parts = [distribute_tensor(WHOLE + i, mesh, placements) for i in range(3)]
            for i, part in enumerate(torch._foreach_mul(parts, 2)):
                assert part.device_mesh.get_rank() == dist.get_rank()
                assert list(part.placements) == placements
                assert torch.equal(part.full_tensor().cpu(), 2 * (WHOLE + i)), placements

    run(call)
    assert asked.count(torch.ops.aten._foreach_mul.Scalar) == len(TWO)


def compiled_by_another_backend():
    mesh = init_device_mesh("cuda", (2,))
    local = torch.arange(8.0).view(2, 4).cuda().requires_grad_()
    x = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    compiled = torch.compile(lambda x: x.sin() * 2, backend="aot_eager", fullgraph=True)
    compiled(x).sum().full_tensor().backward()
    torch.testing.assert_close(local.grad, 2 * local.detach().cos())


def test_what_wraps_virtual_tensors_is_not_traced_on_a_device_that_is_not_there():
    """Autograd asked CUDA's driver for the streams of tensors without values: it aborted."""
    with emulate_cuda(2, verbose=False) as gpus:
        par.run_ranks(compiled_by_another_backend, gpus)
