"""Hangs of virtual ranks say who waits where; the flight recorder; NCCL's variables."""

import json
import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.vgpu.api.timing import now_s

LARGE = 2**20 + 1  # float32: more than the default of NCCL_BUFFSIZE
LINES = Path(__file__).read_text().splitlines()


@pytest.fixture
def pair():
    torch.set_num_threads(1)
    with par.simulate("8x-a100-nvswitch", 2) as devices:
        yield devices


def line_of(mark):
    """Where this file says so, as errors name it."""
    (number,) = [i for i, line in enumerate(LINES, 1) if line.endswith(f"# {mark}")]
    return f"{Path(__file__).name}:{number}"


def here(size=4, **options):
    return torch.ones(size, device=f"vgpu:{dist.get_rank()}", **options)


def hang(function, devices):
    with pytest.raises(RuntimeError) as caught:
        par.run_ranks(function, devices)
    return str(caught.value)


def test_a_mismatch_names_both_lines(pair):
    def differ():
        if dist.get_rank():
            dist.broadcast(here(), 0)  # broadcast here
        else:
            dist.all_reduce(here())  # sum here

    text = hang(differ, pair)
    assert text.startswith("collective 1 of the group of ranks 0, 1 is ")
    assert (
        "is broadcast([4] float32, root 0) on rank 1, but all_reduce([4] float32, SUM) on" in text
    )
    places = [line_of(mark) for mark in ("broadcast here", "sum here")]
    assert "rank 1 called at {}, rank 0 called at {}".format(*places) in text


def test_sizes_of_a_send_and_its_receive_name_both_lines(pair):
    def differ():
        if dist.get_rank():
            dist.recv(here(5), 0)  # takes five
        else:
            dist.send(here(4), 1)  # gives four

    text = hang(differ, pair)
    assert "sends send([4] float32) to rank 1, which expects recv([5] float32)" in text
    places = [line_of(mark) for mark in ("gives four", "takes five")]
    assert "rank 0 called at {}, rank 1 called at {}".format(*places) in text


def test_a_missing_rank_is_named_with_its_last_call(pair):
    def leave():
        dist.all_reduce(here(2))  # both
        if dist.get_rank() == 0:
            dist.barrier()  # only rank 0

    text = hang(leave, pair)
    assert "  collective 2 of the group of ranks 0, 1:" in text
    assert f"rank 0 called barrier(), at {line_of('only rank 0')}" in text
    assert "rank 1 has returned: its last call was all_reduce([2] float32, SUM)" in text
    assert line_of("both") in text
    assert "a rank that leaves a loop or a branch before others" in text


def test_who_has_come_meanwhile_is_not_waited_for(pair):
    with par.simulate("8x-a100-nvswitch", 4) as devices:

        def leave():
            if dist.get_rank() != 2:
                dist.all_reduce(here())

        text = hang(leave, devices)
    waits = "waits in all_reduce([4] float32, SUM) of the group of ranks 0, 1, 2, 3 for rank 2, at"
    assert [f"rank {rank} {waits}" in text for rank in (0, 1, 3)] == [True] * 3


def test_a_host_that_waits_for_work_behind_a_collective_is_told_which(pair):
    def leave():
        if dist.get_rank() == 0:
            dist.all_reduce(here(), async_op=True)  # nobody else
            torch.vgpu.synchronize()

    text = hang(leave, pair)
    assert "rank 0 waits in a wait of its host for work that follows a collective" in text
    assert f"rank 0 called all_reduce([4] float32, SUM), at {line_of('nobody else')}" in text
    assert "rank 1 has returned: it has called nothing yet" in text


@pytest.mark.parametrize(
    ("first", "advice"),
    [(dist.recv, "let one of them send first"), (dist.send, "let one of them receive first")],
)
def test_two_that_wait_for_each_other_are_told_how_not_to(pair, first, advice):
    def both():
        first(here(LARGE), 1 - dist.get_rank())  # each way

    text = hang(both, pair)
    assert "send from rank 1 to rank 0 of the group of ranks 0, 1:" in text
    assert text.count(line_of("each way")) >= 4
    assert advice in text


def exchange(size, order, how, first=None):
    """Each rank sends to the other and receives from it, in this order (rank 0: `first`); what has
    come."""

    def both():
        other = 1 - dist.get_rank()
        come, given = here(size), here(size) * (2 + dist.get_rank())
        ways = {"recv": (dist.irecv, come), "send": (dist.isend, given)}
        calls = [ways[name] for name in (order if dist.get_rank() else first or order)]
        if how == "batches":
            works = [
                dist.batch_isend_irecv([dist.P2POp(call, tensor, other)])[0]
                for call, tensor in calls
            ]
        elif how == "batch":
            works = dist.batch_isend_irecv([dist.P2POp(*call, other) for call in calls])
        else:
            works = [call(tensor, other) for call, tensor in calls]
            if how == "synchronized":
                torch.vgpu.synchronize()
        for work in works:
            work.wait()
        return come[0].item()

    return both


RECEIVE_FIRST, SEND_FIRST = ("recv", "send"), ("send", "recv")


@pytest.mark.parametrize("how", ["alone", "synchronized", "batches"])
@pytest.mark.parametrize(
    ("size", "order", "advice"),
    [
        (4, RECEIVE_FIRST, "let one of them send first"),
        (LARGE, RECEIVE_FIRST, "let one of them send first"),
        (LARGE, SEND_FIRST, "let one of them receive first"),
    ],
)
def test_what_a_pair_calls_runs_in_the_order_of_the_calls(pair, size, order, advice, how):
    text = hang(exchange(size, order, how), pair)
    assert advice in text
    assert f", behind its {order[0]}([{size}] float32), at test_ranks_hangs.py:" in text
    assert par.run_ranks(lambda: dist.all_reduce(here(), async_op=True).wait(), pair)


@pytest.mark.parametrize(
    ("size", "order", "how"),
    [
        (LARGE, RECEIVE_FIRST, "batch"),
        (LARGE, SEND_FIRST, "batch"),
        (4, SEND_FIRST, "alone"),  # in NCCL's buffer
        (4, SEND_FIRST, "synchronized"),
    ],
)
def test_what_does_not_wait_for_itself_passes(size, order, how):
    with par.simulate("8x-a100-nvswitch", 2, with_values=True) as devices:
        assert par.run_ranks(exchange(size, order, how), devices) == [3, 2]
        assert par.run_ranks(exchange(LARGE, order, "alone", order[::-1]), devices) == [3, 2]


def test_what_is_sent_before_it_is_received_may_be_overwritten(gpus):
    """NCCL's buffer has it already."""

    def both():
        other = 1 - dist.get_rank()
        x = here() * (1 + dist.get_rank())
        dist.send(x, other)
        x.zero_()
        dist.recv(x, other)
        return x[0].item()

    assert par.run_ranks(both, gpus[:2]) == [2, 1]


def test_with_a_device_of_its_own_a_group_has_one_stream_for_all(gpus):
    """`device_id` makes its communicator at once, which sends and receives use, too."""

    def ring(**options):
        rank, n = dist.get_rank(), dist.get_world_size()
        dist.init_process_group("nccl", **options)
        x = here(LARGE)
        works = [dist.isend(x, (rank + 1) % n), dist.irecv(here(LARGE), (rank - 1) % n)]
        return [work.wait() for work in works]

    assert par.run_ranks(ring, gpus[:4])
    with pytest.raises(RuntimeError, match="let one of them receive first"):
        par.run_ranks(lambda: ring(device_id=here().device), gpus[:4])


def test_a_batch_and_a_call_alone_do_not_meet(pair):
    def mixed():
        if dist.get_rank():
            dist.recv(here(), 0)
        else:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, here(), 1)])[0].wait()

    assert "let both use batch_isend_irecv" in hang(mixed, pair)


def test_batches_and_collectives_of_a_group_keep_to_one_order(pair):
    def crossed():
        rank = dist.get_rank()
        op = dist.P2POp(dist.irecv if rank else dist.isend, here(LARGE), 1 - rank)
        calls = [
            lambda: dist.batch_isend_irecv([op])[0],
            lambda: dist.all_reduce(here(), async_op=True),
        ]
        for work in [call() for call in (calls if rank else reversed(calls))]:
            work.wait()

    assert "in the order of the calls" in hang(crossed, pair)


def test_groups_in_different_orders_are_told_apart(pair):
    def cross():
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups if dist.get_rank() else reversed(groups):
            dist.all_reduce(here(), group=group)

    text = hang(cross, pair)
    assert "rank 0 waits in all_reduce([4] float32, SUM) of group 2 of ranks 0, 1" in text
    assert "rank 1 waits in all_reduce([4] float32, SUM) of group 1 of ranks 0, 1" in text
    assert "groups that share ranks are called in different orders" in text


def test_groups_of_the_same_ranks_have_streams_of_their_own(gpus):
    """As NCCL's communicators: what is queued without waiting may come in any order."""

    def cross():
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        order = groups if dist.get_rank() else reversed(groups)
        tensors = [here() for _ in groups]
        works = [
            dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, order, strict=True)
        ]
        for work in works:
            work.wait()
        return [t.sum().item() for t in tensors]

    assert par.run_ranks(cross, gpus[:2]) == [[8, 8], [8, 8]]


# --- the flight recorder --------------------------------------------------------------------------


def traced(function, devices):
    """What each rank's recorder has after `function`."""

    def run():
        function()
        return pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())

    return par.run_ranks(run, devices)


needs_nccl = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_nccl_trace"), reason="a torch without NCCL"
)


@needs_nccl
def test_calls_are_in_the_flight_recorder(pair):
    def some():
        dist.all_reduce(here(3))
        half = dist.new_group([0, 1])
        dist.all_gather_into_tensor(here(4), here(2), group=half)
        if dist.get_rank():
            dist.recv(here(5), 0)
        else:
            dist.send(here(5), 1)
        torch.vgpu.synchronize()
        dist.all_reduce(here(1), async_op=True)

    first, second = traced(some, pair)
    names = [entry["profiling_name"] for entry in first["entries"]]
    assert names == [
        *("nccl:all_reduce", "nccl:_all_gather_base", "nccl:send 0->1", "nccl:all_reduce"),
    ]
    assert second["entries"][2]["profiling_name"] == "nccl:recv 1<-0"
    entry = first["entries"][1]
    assert (entry["input_sizes"], entry["output_sizes"]) == ([[2]], [[4]])
    assert entry["process_group"][0] == "1"
    assert entry["input_dtypes"] == ["Float"]
    assert [e["collective_seq_id"] for e in first["entries"]] == [1, 1, 0, 2]
    assert [e["p2p_seq_id"] for e in first["entries"]] == [0, 0, 1, 0]
    states = [e["state"] for e in first["entries"]]
    assert states[:3] == ["completed"] * 3
    assert states[3] != "completed"
    begun, ended = (entry[f"time_discovered_{what}_ns"] for what in ("started", "completed"))
    assert entry["time_created_ns"] <= begun < ended
    assert first["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    assert first["pg_status"]["0"]["last_completed_collective"] == 1
    assert first["pg_status"]["0"]["last_enqueued_collective"] == 2


@needs_nccl
def test_the_record_is_there_as_json_and_of_what_is_active(pair):
    def run():
        dist.all_reduce(here())
        torch.vgpu.synchronize()
        dist.all_reduce(here(), async_op=True)
        dump = torch._C._distributed_c10d._dump_nccl_trace_json
        return json.loads(dump(onlyActive=True)), json.loads(dump(includeCollectives=False))

    active, without = par.run_ranks(run, pair)[0]
    assert [entry["collective_seq_id"] for entry in active["entries"]] == [2]
    assert without["entries"] == []


def test_a_hang_is_written_for_torch_s_own_analysis(pair, tmp_path, capsys):
    """`python -m torch.distributed.flight_recorder.fr_trace` finds what each rank lacks."""
    fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

    def both():
        os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = str(tmp_path / "trace_rank_")
        dist.all_reduce(here(2))
        if dist.get_rank() == 0:
            dist.all_reduce(here(7))  # alone

    hang(both, pair)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace_rank_0", "trace_rank_1"]
    fr_trace.main([str(tmp_path), "--prefix", "trace_rank_", "-o", str(tmp_path / "db")])
    _, database = pickle.loads((tmp_path / "db").read_bytes())
    found = [(c.collective_name, c.collective_state) for c in database.collectives]
    assert [name for name, _ in found][:1] == ["nccl:all_reduce"]
    assert "all_reduce" in str(database.ncclcalls[-1])
    dumped = pickle.loads((tmp_path / "trace_rank_0").read_bytes())
    (frame,) = dumped["entries"][-1]["frames"]
    assert frame == {
        "name": "both",
        "filename": __file__,
        "line": int(line_of("alone").split(":")[1]),
    }
    capsys.readouterr()


def test_a_hang_is_explained_where_no_record_can_be_written(pair, tmp_path):
    def both():
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(tmp_path / "gone" / "fr_")
        if dist.get_rank() == 0:
            dist.all_reduce(here())

    said = hang(both, pair)
    assert "rank 0 waits" in said
    assert said.count("no flight record is written") == 1
    assert f"{tmp_path / 'gone' / 'fr_'}0 cannot be written" in said
    assert "TORCH_FR_DUMP_TEMP_FILE" in said


def test_the_recorder_keeps_as_many_as_it_is_told(pair):
    def many():
        os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "3"
        for _ in range(5):
            dist.all_reduce(here())

    (found, _) = traced(many, pair)
    assert [entry["collective_seq_id"] for entry in found["entries"]] == [3, 4, 5]


# --- variables of NCCL ----------------------------------------------------------------------------


def test_nccl_debug_prints_communicators_and_calls(pair, capsys):
    def run(**variables):
        os.environ.update(variables)
        for _ in range(2):
            dist.all_reduce(here())

    par.run_ranks(lambda: run(NCCL_DEBUG="INFO"), pair)
    lines = capsys.readouterr().out.splitlines()
    assert sum("NCCL version" in line for line in lines) == 1
    complete = [line for line in lines if "Init COMPLETE" in line]
    assert len(complete) == 2
    assert "rank 1 nranks 2 cudaDev 1" in complete[1]
    assert not any("opCount" in line for line in lines)
    par.run_ranks(lambda: run(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,COLL"), pair)
    calls = [line for line in capsys.readouterr().out.splitlines() if "opCount" in line]
    assert len(calls) == 4
    assert "all_reduce([4] float32, SUM): opCount 1" in calls[-1]
    par.run_ranks(lambda: run(NCCL_DEBUG="WARN"), pair)
    assert capsys.readouterr().out == ""


def test_blocking_waits_let_the_host_wait(pair):
    def waits(value):
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = value
        tensor = here(10**7)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return work.is_completed()

    assert par.run_ranks(waits, pair, "1") == [True, True]
    assert par.run_ranks(waits, pair, "0") == [False, False]


def test_a_wait_with_a_timeout_ends_where_nobody_can_go_on(pair):
    """Without, all ranks would end. Its host has waited so long then."""

    def rank():
        if dist.get_rank() == 0:
            return "", 0.0
        work = dist.all_reduce(here(), async_op=True)
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(timedelta(seconds=2))
        return str(caught.value), now_s(wait=False)

    (none, _), (text, end_s) = par.run_ranks(rank, pair)
    assert none == ""
    assert "caught collective operation timeout: all_reduce([4] float32, SUM)" in text
    assert "rank 0 has returned" in text
    assert 2 < end_s < 2.1


@pytest.mark.parametrize(
    ("all_of_them", "words"), [(False, "Rank 1 failed"), (True, "Ranks 1, 2 failed")]
)
def test_a_monitored_barrier_names_those_that_are_missing(all_of_them, words):
    def rank():
        if dist.get_rank() == 0:
            limit = timedelta(seconds=1)
            with pytest.raises(RuntimeError, match=f"^{words} to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=limit, wait_all_ranks=all_of_them)
        return True

    with par.simulate("8x-v100-pcie", 3) as gpus:
        assert all(par.run_ranks(rank, gpus))


def give_nan(check):
    os.environ["TORCH_NCCL_NAN_CHECK"] = check
    rank = dist.get_rank()
    x = torch.full((2,), float("nan") if rank else 1.0, device=f"vgpu:{rank}")
    dist.all_reduce(x)
    return x.isnan().all().item()


def test_nan_that_nobody_has_computed_is_not_noticed(pair):
    """Under shapes only."""
    assert par.run_ranks(give_nan, pair, "1") == [False, False]


def test_nan_in_a_collective_is_noticed_where_it_is_given():
    pair = par.devices(2, verbose=False)
    assert par.run_ranks(give_nan, pair, "0") == [True, True]
    with pytest.raises(
        RuntimeError, match=r"rank 1 gives NaN to all_reduce\(\[2\] float32"
    ) as told:
        par.run_ranks(give_nan, pair, "1")
    assert "raised by rank 1" in "".join(told.value.__notes__)
