"""Wrong answers to the exercises of lesson 09, and what they are told."""

import pytest
import torch
import torch.distributed as dist
from test_checks import solution

from d2lpar import checks


def held(shared, *, each=16):
    """Bytes if `shared[stage - 1]` of the `each` of a parameter are divided."""

    def answer(parameters, ranks, stage):
        divided = (0, *shared)[stage]
        return parameters * (each - divided + divided / ranks)

    return answer


def sixteen_divided(parameters, ranks, stage):
    """Plausible: half remembered, all is divided from stage 2 on."""
    of_stage = solution("memory_and_mixes", "zero_bytes")
    return parameters * 16 / ranks if stage == 2 else of_stage(parameters, ranks, stage)


def without_the_copy(parameters, ranks, stage):
    """Plausible: Adam has two moments, so K = 8."""
    return held((8, 10, 12), each=12)(parameters, ranks, stage)


def always_divided(parameters, ranks, stage):
    return 16 * parameters / ranks


def in_gigabytes(parameters, ranks, stage):
    return solution("memory_and_mixes", "zero_bytes")(parameters, ranks, stage) / 1e9


def grid(*sizes):
    return torch.arange(torch.Size(sizes).numel()).view(sizes)


def along(mesh, rank):
    """The groups of a rank along the axes of a mesh, in their order."""
    place = (mesh == rank).nonzero()[0].tolist()
    return tuple(
        mesh[tuple(slice(None) if i == axis else place[i] for i in range(3))].tolist()
        for axis in range(3)
    )


def reversed_axes(rank, data, pipeline, channel):
    """Plausible: neighbours in the data axis."""
    return along(grid(channel, pipeline, data), rank)[::-1]


def data_and_pipeline_swapped(rank, data, pipeline, channel):
    """Plausible: Megatron-LM's default order, whose pipeline ranks are the furthest apart."""
    pipelines, replicas, channels = along(grid(pipeline, data, channel), rank)
    return replicas, pipelines, channels


def own_coordinates(rank, *sizes):
    return tuple((grid(*sizes) == rank).nonzero()[0].tolist())


def the_others(rank, *sizes):
    return tuple([r for r in group if r != rank] for group in along(grid(*sizes), rank))


def itself_first(rank, *sizes):
    return tuple([rank, *group] for group in the_others(rank, *sizes))


def planes(rank, *sizes):
    """Plausible: all ranks of the same index along an axis, which is the opposite."""
    mesh = grid(*sizes)
    place = (mesh == rank).nonzero()[0].tolist()
    return tuple(mesh.select(axis, at).flatten().tolist() for axis, at in enumerate(place))


def train(
    whole, loss_of, make_optimizer, steps, *, mean=True, gathers=True, clears=True, wholly=False
):
    """ZeRO-1, but for what is changed."""
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = whole.detach().chunk(n)[rank].clone()
    shard.grad = torch.empty_like(shard)
    optimizer = make_optimizer([shard])
    for _ in range(steps):
        if clears:
            whole.grad = None
        loss_of(whole).backward()
        if wholly:
            total = whole.grad.clone()
            dist.all_reduce(total)
            shard.grad = total.chunk(n)[rank].clone()
        else:
            dist.reduce_scatter_tensor(shard.grad, whole.grad)
        if mean:
            shard.grad /= n
        optimizer.step()
        if gathers:
            dist.all_gather_into_tensor(whole.data, shard)
        else:
            whole.data.chunk(n)[rank].copy_(shard)


def changed(**options):
    def zero_1(*given):
        return train(*given, **options)

    return zero_1


def all_on_each(whole, loss_of, make_optimizer, steps):
    """Plausible: data parallelism."""
    optimizer = make_optimizer([whole])
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(whole).backward()
        dist.all_reduce(whole.grad)
        whole.grad /= dist.get_world_size()
        optimizer.step()


def into_another_tensor(whole, loss_of, make_optimizer, steps):
    """Plausible: a new tensor is trained, and the caller's stays as it was."""
    train(whole.detach().clone().requires_grad_(), loss_of, make_optimizer, steps)


def own_gradient(whole, loss_of, make_optimizer, steps):
    """Plausible: nothing is summed."""
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = whole.detach().chunk(n)[rank].clone()
    optimizer = make_optimizer([shard])
    for _ in range(steps):
        whole.grad = None
        loss_of(whole).backward()
        shard.grad = whole.grad.chunk(n)[rank].clone()
        optimizer.step()
        dist.all_gather_into_tensor(whole.data, shard)


KEPT = []


def gathered(shard):
    W = shard.new_empty(dist.get_world_size() * len(shard), shard.shape[1])
    dist.all_gather_into_tensor(W, shard)
    return W


def keeps_the_whole(X, shard):
    """Plausible: kept for the backward pass."""
    KEPT.append(gathered(shard))
    return X @ KEPT[-1]


def splits_the_product(X, shard):
    """Plausible: channel parallelism by rows, which needs the same X everywhere."""
    summand = X.chunk(dist.get_world_size(), 1)[dist.get_rank()] @ shard
    dist.all_reduce(summand)
    return summand


def in_reverse(X, shard):
    return X @ torch.cat(gathered(shard).chunk(dist.get_world_size())[::-1])


def gathers_twice(X, shard):
    return (X @ gathered(shard) + X @ gathered(shard)) / 2


def scattered(gradient, shard):
    own = torch.empty_like(shard)
    dist.reduce_scatter_tensor(own, gradient)
    return own / dist.get_world_size()


def backward(X, shard, dY):
    return dY @ gathered(shard).T, scattered(X.T @ dY, shard)


def sum_of_gradients(X, shard, dY):
    dX, dshard = backward(X, shard, dY)
    return dX, dshard * dist.get_world_size()


def gradient_of_own_batch(X, shard, dY):
    """Plausible: nothing is summed."""
    n, rank = dist.get_world_size(), dist.get_rank()
    return dY @ gathered(shard).T, (X.T @ dY).chunk(n)[rank]


def gradient_of_the_whole(X, shard, dY):
    """Plausible: as data parallelism does it."""
    gradient = X.T @ dY
    dist.all_reduce(gradient)
    return dY @ gathered(shard).T, gradient / dist.get_world_size()


def all_reduced_and_cut(X, shard, dY):
    """Plausible: right, and sends twice as much."""
    dX, gradient = gradient_of_the_whole(X, shard, dY)
    return dX, gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()


def untransposed(X, shard, dY):
    dX, dshard = backward(X, shard, dY)
    return -dX, dshard


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    KEPT.clear()


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("zero_bytes", held((2, 4, 16)), "stage 1 divides Adam's 12 bytes"),
        ("zero_bytes", held((2, 14, 16)), "stage 1 divides Adam's 12 bytes"),
        ("zero_bytes", held((12, 12, 16)), "stage 2 divides the gradients as well"),
        ("zero_bytes", held((12, 14, 14)), "stage 3 divides everything"),
        ("zero_bytes", sixteen_divided, "expected 16.64 GB, got 1.875 GB: stage 2"),
        ("zero_bytes", without_the_copy, "expected 120 GB, got 90 GB: without ZeRO"),
        ("zero_bytes", always_divided, "without ZeRO every rank holds all 16 bytes"),
        ("zero_bytes", in_gigabytes, "got 120, which are gigabytes"),
        ("zero_bytes", lambda *_: None, "number of bytes"),
        ("groups_of", reversed_axes, "along data expected [0, 12], got [0, 1]: replicas"),
        ("groups_of", data_and_pipeline_swapped, "along data expected [0, 12], got [0, 4]"),
        ("groups_of", own_coordinates, "three lists of ranks, got (0, 0, 0)"),
        ("groups_of", the_others, "rank 0 itself is in each of its groups"),
        ("groups_of", itself_first, "sorted, so that all members"),
        ("groups_of", planes, "expected [0, 12], got [0, 1, 2"),
        ("groups_of", lambda rank, *sizes: along(grid(*sizes), rank)[:2], "three lists"),
        ("zero_1", all_on_each, "the optimizers of 2 ranks got [36, 36] parameters"),
        ("zero_1", into_another_tensor, "`whole` is as it was"),
        ("zero_1", own_gradient, "the mean of all ranks' gradients"),
        ("zero_1", changed(mean=False), "the gradients are a sum over 2 ranks"),
        ("zero_1", changed(gathers=False), "rank 0 of 2: only its own shard has changed"),
        ("zero_1", changed(clears=False), "the gradients of earlier steps are still in the sum"),
        ("zero_1", changed(wholly=True), "3 × all_reduce, 3 × all_gather; expected 3 × reduce_sc"),
        ("fsdp_forward", keeps_the_whole, "something still refers to it"),
        ("fsdp_forward", splits_the_product, "sums of what ranks made of *different* batches"),
        ("fsdp_forward", in_reverse, "The shards are W's rows, rank 0 has the first"),
        ("fsdp_forward", gathers_twice, "the exchanges were 2 × all_gather; expected 1"),
        ("fsdp_forward", lambda X, shard: X @ shard, "cannot be multiplied"),
        ("fsdp_forward", lambda *_: None, "expected a tensor, got None"),
        ("fsdp_backward", sum_of_gradients, "this is the sum over 2 ranks: divide by 2"),
        ("fsdp_backward", gradient_of_own_batch, "without the others'"),
        ("fsdp_backward", gradient_of_the_whole, "a rank stores only its shard"),
        ("fsdp_backward", all_reduced_and_cut, "1 × all_reduce, 1 × all_gather; expected"),
        ("fsdp_backward", untransposed, "in dX expected"),
        ("fsdp_backward", lambda X, shard, dY: dY, "expected two tensors, dX and dshard"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_the_figures_of_the_paper():
    """Rajbhandari et al. 2020, figure 1: 7.5e9 parameters on 64 ranks."""
    answer = solution("memory_and_mixes", "zero_bytes")
    found = [round(answer(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    assert found == [120.0, 31.4, 16.6, 1.9]
    assert "120.0, 31.4, 16.6, 1.9 GB" in checks.zero_bytes(answer).text


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 5, 2), (3, 1, 1)])
def test_groups_meet_in_their_rank_and_cover_the_mesh(sizes):
    answer = solution("memory_and_mixes", "groups_of")
    ranks = range(torch.Size(sizes).numel())
    for axis, size in enumerate(sizes):
        groups = {tuple(answer(rank, *sizes)[axis]) for rank in ranks}
        assert sorted(r for group in groups for r in group) == list(ranks)
        assert {len(group) for group in groups} == {size}
    for rank in ranks:
        assert set.intersection(*map(set, answer(rank, *sizes))) == {rank}


def test_more_than_a_gpu_has_is_told_and_drawn():
    def doubled(whole, loss_of, make_optimizer, steps):
        """Right, with a copy of all parameters that nobody needs."""
        spare = whole.detach().clone()
        train(whole, loss_of, make_optimizer, steps)
        del spare

    verdict = checks.zero_1(doubled)
    assert verdict.status == checks.WRONG
    assert "right numbers, but with a layer of 4 GB vgpu:" in verdict.text
    assert "out of memory" in verdict.text
    assert max(verdict.picture["points"]) > 8e9


def test_the_line_of_memory_tells_what_is_freed_from_what_is_kept():
    def peak_bytes(answer):
        return max(checks.fsdp_forward(answer).picture["points"])

    freed_bytes = peak_bytes(lambda X, shard: X @ gathered(shard))
    assert peak_bytes(keeps_the_whole) > freed_bytes + 3 * 2.4e9  # three of four layers more
