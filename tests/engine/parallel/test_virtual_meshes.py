"""Device meshes and groups of virtual ranks: who is in them, and what they are called."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
import virtual_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import d2lpar as par
from d2lpar.vgpu import emulate_cuda


def here(*values):
    return torch.tensor(values, dtype=torch.float32).to(f"vgpu:{torch.vgpu.current_device()}")


run = partial(virtual_ranks.run, n=4)


def summed(group):
    """The sum of the ranks' numbers over a group, and what a second group of as many has."""
    total = here(float(dist.get_rank()))
    dist.all_reduce(total, group=group)
    return total.item()


# --- meshes ---------------------------------------------------------------------------------------


def test_a_mesh_of_one_dimension_is_the_group_of_all():
    def mesh():
        mesh = init_device_mesh("vgpu", (4,))
        assert mesh.get_group() is dist.group.WORLD
        return mesh.device_type, mesh.get_local_rank(), mesh.size(), summed(mesh.get_group())

    assert run(mesh) == [("vgpu", r, 4, 6.0) for r in range(4)]


def test_a_mesh_of_two_dimensions_has_rows_and_columns():
    def mesh():
        mesh = init_device_mesh("vgpu", (2, 2), mesh_dim_names=("dp", "tp"))
        across = [dist.get_process_group_ranks(mesh[name].get_group()) for name in ("dp", "tp")]
        sums = [summed(mesh.get_group(name)) for name in ("dp", "tp")]
        return mesh.get_coordinate(), across, sums, mesh.get_local_rank("tp")

    assert run(mesh) == [
        ((0, 0), [[0, 2], [0, 1]], [2.0, 1.0], 0),
        ((0, 1), [[1, 3], [0, 1]], [4.0, 1.0], 1),
        ((1, 0), [[0, 2], [2, 3]], [2.0, 5.0], 0),
        ((1, 1), [[1, 3], [2, 3]], [4.0, 5.0], 1),
    ]


def test_three_dimensions_are_sliced_and_flattened():
    def mesh():
        mesh = init_device_mesh("vgpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        both = mesh["pp", "tp"]
        flat = mesh["dp", "tp"]._flatten("dp_tp")
        members = dist.get_process_group_ranks(flat.get_group())
        return both.mesh.tolist(), members, flat.get_local_rank(), summed(flat.get_group())

    found = run(mesh, n=8)
    assert found[1] == ([[0, 1], [4, 5]], [0, 1, 2, 3], 1, 6.0)
    assert found[6] == ([[2, 3], [6, 7]], [4, 5, 6, 7], 2, 22.0)


def test_each_rank_s_mesh_is_its_own():
    """Caches of torch, which all ranks share, must not give one rank the mesh of another."""

    def mesh():
        mesh = init_device_mesh("vgpu", (2, 2))
        assert mesh == init_device_mesh("vgpu", (2, 2))
        return mesh

    first, second = run(mesh)[:2]
    assert first != second
    assert hash(first) != hash(second)


def test_a_mesh_is_the_current_one_of_its_rank_only():
    def mesh():
        mesh = init_device_mesh("vgpu", (2,))
        if dist.get_rank() == 0:
            with mesh:
                dist.barrier()
        else:
            dist.barrier()
            with pytest.raises(RuntimeError, match="No device mesh is currently active"):
                dist.device_mesh._mesh_resources.get_current_mesh()

    run(mesh, n=2)


def test_a_mesh_of_some_ranks_leaves_others_out():
    def mesh():
        mesh = DeviceMesh("vgpu", [1, 3])
        return mesh.get_coordinate(), mesh.mesh.tolist()

    assert run(mesh) == [(None, [1, 3]), ((0,), [1, 3]), (None, [1, 3]), ((1,), [1, 3])]


def test_programs_for_cuda_have_meshes_of_cuda():
    def mesh():
        mesh = init_device_mesh("cuda", (2, 1), mesh_dim_names=("dp", "tp"))
        total = torch.full((1,), dist.get_rank() + 1.0, device="cuda")
        dist.all_reduce(total, group=mesh["dp"].get_group())
        return mesh.device_type, total.item(), str(total.device)

    with emulate_cuda(2, verbose=False) as gpus:
        found = par.run_ranks(mesh, gpus)
    assert found == [("cuda", 3.0, "cuda:0"), ("cuda", 3.0, "cuda:1")]


def test_a_mesh_larger_than_the_world_is_refused_by_torch():
    with pytest.raises(RuntimeError, match="not be bigger than default world size 2, but found 4"):
        run(lambda: init_device_mesh("vgpu", (2, 2)), n=2)


def test_alike_ranks_have_meshes_of_the_full_size():
    def mesh():
        mesh = init_device_mesh("vgpu", (2, 4), mesh_dim_names=("dp", "tp"))
        dist.all_reduce(here(0.0), group=mesh["tp"].get_group())
        return mesh["tp"].size(), dist.get_process_group_ranks(mesh["dp"].get_group())

    assert par.run_alike(mesh, "8x-h100-nvswitch") == {0: (4, [0, 4])}


# --- groups ---------------------------------------------------------------------------------------


def test_names_of_groups_are_the_same_on_all_ranks_as_torch_gives_them():
    def names():
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[dist.get_rank() // 2]
        with_all = dist.new_group(group_desc="all of them")
        return (
            dist.group.WORLD.group_name,
            mine.group_name,
            with_all.group_name,
            (with_all.group_desc, mine.group_desc, dist.group.WORLD.group_desc),
        )

    described = ("all of them", "undefined", "default_pg")
    expected = [("0", pair, "3", described) for pair in "1122"]
    assert run(names) == expected


def test_groups_in_an_order_of_one_s_own():
    def group():
        group = dist.new_group([2, 0], sort_ranks=False)
        return None if group is dist.GroupMember.NON_GROUP_MEMBER else dist.get_rank(group)

    if "sort_ranks" not in dist.new_group.__annotations__:
        pytest.skip("this torch sorts the ranks of a group")
    assert run(group, n=3) == [1, None, 0]


def test_groups_that_only_their_members_make():
    def group():
        r = dist.get_rank()
        if r == 3:
            return None
        if r == 2:
            dist.new_group([2, 3][:1], use_local_synchronization=True)
            return None
        twice = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(2)]
        assert twice[0].group_name != twice[1].group_name
        return summed(twice[1])

    assert run(group) == [1.0, 1.0, None, None]


def test_subgroups():
    def groups():
        mine, everyone = dist.new_subgroups(2)
        assert everyone[dist.get_rank() // 2] is mine
        return summed(mine)

    assert run(groups) == [1.0, 1.0, 5.0, 5.0]


def test_splitting_a_group():
    def split():
        r = dist.get_rank()
        odd = dist.new_group([1, 3])
        halves = dist.split_group(split_ranks=[[0, 1], [3, 2]], group_desc="half")
        ones = dist.split_group(odd, split_ranks=[[1], [0]]) if r % 2 else None
        part = dist.split_group(split_ranks=[[0, 1, 2]])
        alone = None if ones is None else dist.get_process_group_ranks(ones)
        return (
            summed(halves),
            dist.get_rank(halves),
            alone,
            part is not None and (part is not dist.GroupMember.NON_GROUP_MEMBER),
        )

    assert run(split) == [
        (1.0, 0, None, True),
        (1.0, 1, [1], True),
        (5.0, 1, None, True),
        (5.0, 0, [3], False),
    ]


@pytest.mark.parametrize("ranks", [[0, 0], [0, 2], [], [-1]])
def test_groups_of_ranks_that_there_are_not(ranks):
    with pytest.raises(ValueError, match=r"a group has (one or more )?ranks from 0 to 1"):
        run(lambda: dist.new_group(ranks), n=2)


def test_groups_end_one_by_one_and_all_together():
    def end():
        resolve = dist.distributed_c10d._resolve_process_group
        group = dist.new_group([0, 1])
        assert resolve(group.group_name) is group
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.destroy_process_group(group)
        other = dist.new_group([0, 1])
        dist.destroy_process_group()
        assert not dist.is_initialized()
        for ended in (group, other):
            with pytest.raises(RuntimeError, match="Could not resolve"):
                resolve(ended.group_name)
        dist.init_process_group("nccl")
        return summed(dist.new_group([0, 1]))

    assert run(end, n=2) == [1.0, 1.0]


def test_nothing_of_a_run_is_kept_in_torch_s_registry():
    known = []

    def groups():
        mesh = init_device_mesh("vgpu", (2,))
        known.append(weakref.ref(mesh.get_group()))

    run(groups, n=2)
    gc.collect()
    assert [group() for group in known] == [None, None]
