"""Blocks that a program names are on timelines and in trace files, around what they queued."""

import threading

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import d2lpar as par
from d2lpar.timeline import Timeline

nvtx = torch.cuda.nvtx


@pytest.fixture
def cuda():
    with par.emulate_cuda(2, verbose=False) as devices:
        yield devices


def train(steps):
    net = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        with record_function(f"step {step}"):
            torch.cuda.nvtx.range_push("forward")
            loss = net(torch.ones(8, 64, device="cuda")).sum()
            torch.cuda.nvtx.range_pop()
            loss.backward()
            optimizer.step()


def within(timeline, block, kind="dispatch"):
    """Names of spans of the host in a block."""
    return [
        s.name for s in timeline.on("host", kind)
        if block.start_s <= s.start_s and s.end_s <= block.end_s
    ]  # fmt: skip


def test_a_recording_has_them_around_what_they_queued(cuda):
    with par.record() as timeline:
        train(2)
    found = {block.name: block for block in timeline.annotations}
    assert set(found) == {"step 0", "step 1", "forward", "Optimizer.step#SGD.step"}
    assert [block.name for block in timeline.annotations].count("forward") == 2
    assert {block.stream for block in timeline.annotations} == {"main"}
    assert "addmm" in within(timeline, found["forward"])
    assert "_foreach_add_" not in within(timeline, found["forward"])
    assert "_foreach_add_" in within(timeline, found["Optimizer.step#SGD.step"])
    assert found["step 0"].end_s <= found["step 1"].start_s


def test_they_take_no_time(cuda):
    def recorded():
        torch.cuda.synchronize()
        with par.record() as timeline:
            train(2)
        return timeline.duration_s, len(timeline)

    before = recorded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.nvtx, "range_push", lambda name: 0)
        patch.setattr(torch.cuda.nvtx, "range_pop", lambda: 0)
        assert recorded() == pytest.approx(before)


@pytest.mark.parametrize("streamed", [False, True])
def test_files_have_them_and_read_them_back(cuda, tmp_path, streamed):
    file = tmp_path / "run.json"
    with par.record() as timeline, par.record(to=file if streamed else None):
        train(2)
    if not streamed:
        timeline.save_trace(file)
    again = Timeline.from_chrome_trace(file)
    assert [block.name for block in again.annotations] == [b.name for b in timeline.annotations]
    assert "addmm" in within(again, again.annotations[0])
    assert not [span for span in again if span.kind == "annotation"]


def test_each_rank_has_its_own(cuda):
    def rank():
        torch.cuda.set_device(torch.distributed.get_rank())
        depths = [nvtx.range_push("outer")]
        torch.distributed.barrier()  # the other rank goes on with a range open, too
        depths.append(nvtx.range_push("inner"))
        torch.ones(4, device="cuda")
        return *depths, nvtx.range_pop(), nvtx.range_pop()

    with par.record() as timeline:
        assert par.run_ranks(rank, 2) == [(0, 1, 1, 0)] * 2
    mine = [block for block in timeline.annotations if block.stream == "rank 1"]
    assert [block.name for block in mine] == ["inner", "outer"]
    assert mine[1].start_s <= mine[0].start_s <= mine[0].end_s <= mine[1].end_s


def test_ranges_and_marks_of_nvtx(cuda):
    with par.record() as timeline:
        assert nvtx.range_push("outer") == 0
        with nvtx.range("step {} of {all}", 3, all=5):
            nvtx.mark("here")
        number = nvtx.range_start("across threads")
        thread = threading.Thread(target=nvtx.range_end, args=[number])
        thread.start()
        thread.join()
        assert nvtx.range_pop() == 0
        assert nvtx.range_pop() < 0  # there is none
    names = [block.name for block in timeline.annotations]
    assert names == ["here", "step 3 of 5", "across threads", "outer"]


def test_a_block_that_ends_by_an_error_has_ended(cuda):
    with par.record() as timeline, pytest.raises(RuntimeError), record_function("fails"):
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    assert [block.name for block in timeline.annotations] == ["fails"]


def test_a_profile_of_torch_has_them_too(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("the product"):
        torch.ones(64, 64) @ torch.ones(64, 64)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    seen = Timeline.from_chrome_trace(tmp_path / "trace.json")
    (block,) = [block for block in seen.annotations if block.name == "the product"]
    assert block.start_s >= 0
    assert "matmul" in within(seen, block, kind="host")
