"""Segments and blocks, as of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp)."""

from bisect import insort
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import d2lpar as par
from d2lpar.vgpu.memory import allocator_settings, segments, snapshot
from d2lpar.vgpu.memory.caching_allocator import CachingAllocator
from d2lpar.vgpu.memory.graph_pools import GraphPool

MIB = 2**20
CAPACITY = 256 * MIB


@pytest.fixture(params=[False, True], ids=["segments", "expandable"])
def expandable(request, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{request.param}")
    return request.param


@pytest.fixture
def memory():
    return CachingAllocator(0, CAPACITY)


# Bytes asked for, what the tensor takes of them, what is taken from the device for it.
FIRST = [
    (1, 512, 2 * MIB),
    (MIB, MIB, 2 * MIB),
    (MIB + 1, MIB + 512, 20 * MIB),  # larger than 1 MiB: segments of 20
    (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB, 10 * MIB),  # from 10 MiB on: a segment of its own, in steps of 2
    (11 * MIB, 12 * MIB, 12 * MIB),  # whose rest is a block only if it is larger than 1 MiB
    (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
]


@pytest.mark.parametrize(("asked", "taken", "reserved"), FIRST)
def test_the_first_tensor_takes_what_it_takes_of_cuda(memory, asked, taken, reserved):
    kept = memory.allocate(asked)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (taken, reserved)
    assert memory.stats()["requested_bytes.all.current"] == asked
    assert kept.nbytes == taken


def test_the_smallest_block_that_fits_is_taken_and_its_rest_is_free(memory):
    large, middle = memory.allocate(40 * MIB), memory.allocate(30 * MIB)
    del large, middle
    kept = [memory.allocate(25 * MIB), memory.allocate(25 * MIB)]  # of 30, then of 40
    assert memory.reserved_bytes == 70 * MIB
    kept.append(memory.allocate(15 * MIB))  # the rest of 40
    assert memory.reserved_bytes == 70 * MIB
    del kept[1:]
    assert memory.allocate(40 * MIB).nbytes == 40 * MIB  # free neighbours have become one
    assert memory.reserved_bytes == 70 * MIB


def test_a_block_is_for_the_stream_that_had_it(memory):
    kept = memory.allocate(40 * MIB, stream=1)
    del kept
    kept = memory.allocate(40 * MIB, stream=2)
    assert memory.reserved_bytes == 80 * MIB
    assert kept.nbytes == 40 * MIB


def test_fragments_are_lost_but_in_expandable_segments(memory, expandable):
    """Of ten tensors every other one is freed; one five times as large does not fit in between."""
    kept = [memory.allocate(20 * MIB) for _ in range(2)]
    whole = memory.allocate(200 * MIB)
    del whole
    kept += [memory.allocate(20 * MIB) for _ in range(10)]
    del kept[3::2]
    if expandable:
        kept.append(memory.allocate(100 * MIB))
        assert memory.reserved_bytes <= CAPACITY
    else:
        with pytest.raises(torch.OutOfMemoryError, match="more are free, but in fragments"):
            memory.allocate(100 * MIB)
        assert memory.reserved_bytes - memory.allocated_bytes >= 100 * MIB


def test_a_full_device_gives_back_what_it_does_not_need(memory):
    small = memory.allocate(512)
    del small
    whole = memory.allocate(200 * MIB)
    del whole
    kept = memory.allocate(CAPACITY)
    counted = memory.stats()
    assert memory.reserved_bytes == CAPACITY == kept.nbytes
    assert (counted["num_alloc_retries"], counted["num_device_free"]) == (1, 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["make", "make", "free", "empty"]),
        st.one_of(st.integers(1, 3 * MIB), st.integers(1, 64).map(lambda n: n * MIB)),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, setting=st.booleans())
def test_blocks_tile_segments_and_the_statistics_are_their_sums(steps, setting):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTORCH_ALLOC_CONF", f"expandable_segments:{setting}")
        memory, kept = CachingAllocator(0, CAPACITY), []
        for what, size, which in steps:
            if what == "empty":
                memory.empty_cache()
            elif what == "free" and kept:
                del kept[(size + which) % len(kept)]
            elif what == "make":
                try:
                    kept.append(memory.allocate(size, stream=which))
                except torch.OutOfMemoryError:
                    assert sum(one.nbytes for one in kept) + size > CAPACITY / 4
            check(memory, kept)
            assert memory.reserved_bytes <= CAPACITY
        kept.clear()
        memory.empty_cache()
        assert memory.reserved_bytes == memory.allocated_bytes == 0
        assert not snapshot.segments(memory)


def check(memory, kept):
    found = snapshot.segments(memory)
    counted = memory.stats()
    blocks = [block for segment in found for block in segment["blocks"]]
    used = [block for block in blocks if block["state"] == "active_allocated"]
    assert sorted(b["size"] for b in used) == sorted(one.nbytes for one in kept)
    assert counted["allocated_bytes.all.current"] == sum(one.nbytes for one in kept)
    assert counted["requested_bytes.all.current"] == sum(one.requested_bytes for one in kept)
    assert counted["reserved_bytes.all.current"] == sum(s["total_size"] for s in found)
    for segment in found:
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in pairwise(states)
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
    fixed = [s["blocks"] for s in found if not s["is_expandable"]]
    split = [b for s in fixed if len(s) > 1 for b in s if b["state"] == "inactive"]
    assert counted["segment.all.current"] == len(fixed)
    assert counted["inactive_split.all.current"] == len(split)
    assert counted["inactive_split_bytes.all.current"] == sum(b["size"] for b in split)
    ends = sorted((s["address"], s["address"] + s["total_size"]) for s in found)
    assert all(a[1] <= b[0] for a, b in pairwise(ends))


def test_what_a_collection_frees_while_blocks_change_is_freed_after_that(memory, monkeypatch):
    """As garbage in cycles is, when any object is made: here, when a block is put away."""
    kept = [memory.allocate(2 * MIB) for _ in range(8)]

    def put_away(blocks, block):
        if kept:
            kept.pop()
        insort(blocks, block)

    monkeypatch.setattr(segments, "insort", put_away)
    kept.pop()
    again = memory.allocate(2 * MIB)
    monkeypatch.undo()
    check(memory, [*kept, again])


def test_a_tensor_that_is_made_while_blocks_change_has_a_segment_of_its_own(memory, monkeypatch):
    """As by a finalizer of the program's."""
    kept, again = [memory.allocate(2 * MIB) for _ in range(8)], []

    def put_away(blocks, block):
        monkeypatch.undo()
        again.append(memory.allocate(2 * MIB))
        insort(blocks, block)

    monkeypatch.setattr(segments, "insort", put_away)
    del kept[3]
    check(memory, kept + again)
    assert memory.reserved_bytes == 40 * MIB
    kept.clear()
    again.clear()
    memory.empty_cache()
    assert memory.reserved_bytes == 0


# --- graphs, other machines, other processes ------------------------------------------------------


def test_of_a_capture_the_streams_that_it_holds_take_what_graphs_keep(memory):
    first, second = GraphPool([memory]), GraphPool([memory])
    captures = [
        pool.capturing(lambda key, own=(0, number): key == own)
        for number, pool in ((1, first), (2, second))
    ]
    for capture in captures:
        capture.__enter__()
    made = [memory.allocate(40 * MIB, stream=stream) for stream in (0, 1, 2)]
    for capture in captures:  # in that order
        capture.__exit__(None, None, None)
    made.append(memory.allocate(20 * MIB, stream=1))  # when nothing is captured any more
    made.clear()
    memory.empty_cache()
    assert memory.reserved_bytes == 80 * MIB
    del first
    memory.empty_cache()
    assert memory.reserved_bytes == 40 * MIB
    del second
    memory.empty_cache()
    assert memory.reserved_bytes == 0


def test_nothing_is_waited_for_nor_given_back_while_a_graph_is_captured(memory):
    waited = []
    memory.retry = lambda: waited.append(True)
    memory.on_free = lambda allocation: None
    held, pool = memory.allocate(100 * MIB), GraphPool([memory])
    held.used_by(1)
    del held
    counted = memory.stats()
    assert counted["active_bytes.all.current"] == 100 * MIB
    assert (counted["active.all.current"], counted["allocation.all.current"]) == (1, 0)
    with pool.capturing(lambda stream: True):
        memory.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            memory.allocate(200 * MIB)
    assert not waited
    memory.empty_cache()
    assert waited


def test_another_machine_begins_with_what_is_held(memory):
    held, freed = memory.allocate(30 * MIB), memory.allocate(40 * MIB)
    del freed
    memory.hand_over(2 * CAPACITY, 0)
    assert memory.reserved_bytes == memory.peak_reserved_bytes == held.nbytes


def test_other_processes_hear_what_is_held(expandable):
    told = []
    memory = CachingAllocator(0, CAPACITY, context_bytes=7)
    memory.beside = lambda nbytes: told.append(nbytes) or 0
    memory.empty_cache()
    assert told[-1] == 0  # CUDA takes nothing before it is used
    held = memory.allocate(10 * MIB)
    assert told[-1] == memory.reserved_bytes + 7
    with pytest.raises(torch.OutOfMemoryError):
        memory.allocate(CAPACITY)
    assert told[-1] == memory.reserved_bytes + 7
    assert held.nbytes == 10 * MIB


def test_of_an_expandable_segment_nothing_is_left_at_the_end(monkeypatch, memory):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    for _ in range(3):
        memory.allocate(30 * MIB)
        memory.empty_cache()
    assert memory.blocks() == []


def test_what_can_grow_is_kept_for_what_needs_it(monkeypatch, memory):
    """Of 16 MiB in the midst and 14 at the end, 8 are taken from the former."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    kept = [memory.allocate(16 * MIB), memory.allocate(10 * MIB)]
    first = kept.pop(0).block.address
    kept.append(memory.allocate(8 * MIB))
    assert kept[-1].block.address == first


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("", False),
        ("expandable_segments:True", True),
        ("expandable_segments: true,pinned_use_background_threads:True", True),
        ("expandable_segments:False", False),
    ],
)
def test_settings_of_the_environment(monkeypatch, settings, found):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", settings)
    assert allocator_settings.is_expandable() is found


def test_settings_that_are_not_simulated_are_told(monkeypatch):
    settings = "roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    with pytest.warns(UserWarning, match="roundup_power2_divisions is not simulated"):
        assert allocator_settings.is_expandable()


def test_settings_that_a_program_changes_while_it_runs():
    with par.emulate_cuda(1, verbose=False):
        for settings, found in (("expandable_segments:True", True), ("", False)):
            torch._C._accelerator_setAllocatorSettings(settings)
            assert allocator_settings.is_expandable() is found
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    assert not allocator_settings.is_expandable()
