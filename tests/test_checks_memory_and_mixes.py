"""Wrong answers to the exercises of lesson 09, and what they are told."""

import pytest
import torch
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
