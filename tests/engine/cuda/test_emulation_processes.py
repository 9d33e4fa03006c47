"""Locks, events, barriers, pipes, managers and shared numbers between virtual processes."""

import itertools
import time
from threading import BrokenBarrierError

import pytest
import torch
import torch.multiprocessing as mp

import d2lpar as par


@pytest.fixture(autouse=True)
def cuda():
    torch.set_num_threads(1)
    with par.emulate_cuda(3, verbose=False) as devices:
        yield devices


def spawned(function, *args, n=3):
    """What `function(rank, *args)` gives on each of `n` processes that torch spawns."""
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_send_result, args=(function, results, *args), nprocs=n)
    found = dict(results.get() for _ in range(n))
    return [found[rank] for rank in range(n)]


def _send_result(rank, function, results, *args):
    results.put((rank, function(rank, *args)))


# --- locks ----------------------------------------------------------------------------------------


def hold(rank, lock, order):
    with lock:
        order.append(("in", rank))
        time.sleep(1)  # simulated: nobody else can come in
        torch.ones(1, device="cuda").item()
        order.append(("out", rank))
    return time.time()


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore"])
def test_locks_let_one_in_at_a_time(kind):
    lock, order = getattr(mp, kind)(), mp.Manager().list()
    ends_s = spawned(hold, lock, order)
    assert [who for what, who in order if what == "in"] == [0, 1, 2]
    assert [what for what, _ in order] == ["in", "out"] * 3
    # Each has waited for the one before it, in simulated time, too.
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(ends_s))
    assert ends_s[2] >= 3


def try_to_take(rank, lock, barrier):
    if rank == 0:
        lock.acquire()
    barrier.wait()
    begin_s = time.time()
    taken = lock.acquire(block=False), lock.acquire(timeout=2)
    return (*taken, round(time.time() - begin_s, 3))


def test_a_lock_that_is_taken_is_not_taken_again():
    found = spawned(try_to_take, mp.Lock(), mp.Barrier(2), n=2)
    assert found == [(False, False, 2), (False, False, 2)]


def test_locks_and_semaphores_count():
    again, bounded = mp.RLock(), mp.BoundedSemaphore(2)
    with again, again:
        pass
    with pytest.raises(AssertionError, match="not owned"):
        again.release()
    assert bounded.acquire()
    bounded.release()
    with pytest.raises(ValueError, match="too many times"):
        bounded.release()
    only = mp.Lock()
    only.acquire()
    with pytest.raises(RuntimeError, match=r"Lock\.acquire waits for ever: no process is left"):
        only.acquire()


# --- events, conditions, barriers -----------------------------------------------------------------


def wait_for_start(rank, start, ready):
    if rank == 2:
        time.sleep(5)
        start.set()
    else:
        assert start.is_set() if rank else start.wait()  # whoever asks often learns it then, too
        assert time.time() >= 5
    ready.wait()
    return round(time.time(), 1)


def test_who_waits_for_an_event_goes_on_when_it_is_set():
    first, second, third = spawned(wait_for_start, mp.Event(), mp.Barrier(3))
    assert first == second == third >= 5


def test_the_program_waits_for_events_of_its_processes():
    event = mp.Event()
    process = mp.Process(target=event.set)
    process.start()
    assert event.wait()
    process.join()
    assert not mp.Event().wait(timeout=3)
    with pytest.raises(RuntimeError, match=r"Event\.wait waits for ever"):
        mp.Event().wait()


def take_turns(rank, condition, turn):
    seen = []
    for _ in range(2):
        with condition:
            condition.wait_for(lambda: turn.value % 3 == rank)
            seen.append(turn.value)
            turn.value += 1
            condition.notify_all()
    return seen


def test_conditions_let_processes_take_turns():
    found = spawned(take_turns, mp.Condition(), mp.Value("i", 0))
    assert found == [[0, 3], [1, 4], [2, 5]]


def meet(rank, barrier, rounds):
    time.sleep(rank)
    numbers = [barrier.wait() for _ in range(rounds)]
    return sorted(numbers), time.time()


def test_all_leave_a_barrier_when_the_last_has_come():
    found = spawned(meet, mp.Barrier(3), 2)
    times_s = [time_s for _, time_s in found]
    assert times_s[0] == times_s[1] == times_s[2] >= 2


def come_alone(rank, barrier):
    if rank:
        return None
    with pytest.raises(BrokenBarrierError):
        barrier.wait(timeout=1)
    return barrier.broken


def test_a_barrier_breaks_when_somebody_gives_up():
    assert spawned(come_alone, mp.Barrier(2), n=2)[0] is True


# --- pipes, managers, shared numbers --------------------------------------------------------------


def answer(rank, ends):
    mine, other = ends[rank], 1 - rank
    given = {"rank": rank, "list": [rank]}
    mine.send(given)
    given["list"].append("changed later")
    assert mine.poll(timeout=1)
    return mine.recv() == {"rank": other, "list": [other]}


def test_pipes_carry_copies_both_ways():
    assert spawned(answer, mp.Pipe(), n=2) == [True, True]
    receiver, sender = mp.Pipe(duplex=False)
    sender.send_bytes(b"bytes")
    assert receiver.recv_bytes() == b"bytes"
    assert not receiver.poll()
    with pytest.raises(OSError, match="read-only"):
        receiver.send(1)
    with pytest.raises(EOFError):
        receiver.recv()


def fill(rank, results, names, settings):
    results[rank] = torch.full((2,), float(rank), device="cuda").cpu()
    names.append(f"rank {rank}")
    settings.last = rank
    return settings.title


def test_a_manager_s_objects_collect_what_processes_have():
    with mp.Manager() as manager:
        results, names = manager.dict(), manager.list()
        settings = manager.Namespace(title="shared")
        assert spawned(fill, results, names, settings) == ["shared"] * 3
        assert sorted(results.keys()) == [0, 1, 2]
        assert results[1].tolist() == [1, 1]
        assert sorted(names) == ["rank 0", "rank 1", "rank 2"]
        assert len(names) == 3
        assert settings.last in (0, 1, 2)
        results["list"] = []
        results["list"].append("into a copy")
        assert results["list"] == []
        with pytest.raises(NotImplementedError, match="a manager's Pool is not emulated"):
            manager.Pool()


def count(rank, total, each):
    for _ in range(10):
        with total.get_lock():
            total.value += 1
    each[rank] = 10 * rank
    return


def test_numbers_in_shared_memory():
    total, each = mp.Value("i", 0), mp.Array("d", 3)
    spawned(count, total, each)
    assert total.value == 30
    assert list(each) == [0, 10, 20]


def wait_in_vain(rank, event):
    event.wait()


def test_who_waits_in_vain_is_named():
    with pytest.raises(Exception, match=r"rank 1 waits in Event\.wait, at test_emulation_pro"):
        mp.spawn(wait_in_vain, args=(mp.Event(),), nprocs=2)


def test_queues_know_what_is_done():
    queue = mp.JoinableQueue()
    queue.put(1)
    with pytest.raises(RuntimeError, match=r"JoinableQueue\.join waits for ever"):
        queue.join()
    assert queue.get() == 1
    queue.task_done()
    queue.join()


# --- what becomes of waits ------------------------------------------------------------------------


def waits_refused(rank, barrier):
    before = torch.cuda.get_sync_debug_mode()
    if rank == 0:
        torch.cuda.set_sync_debug_mode("error")
    barrier.wait()
    try:
        torch.ones(1, device="cuda").item()
    except RuntimeError as error:
        return before, torch.cuda.get_sync_debug_mode(), str(error)
    finally:
        barrier.wait()
    return before, torch.cuda.get_sync_debug_mode(), None


def test_each_process_says_for_itself_what_becomes_of_waits():
    torch.cuda.set_sync_debug_mode("warn")
    found = spawned(waits_refused, mp.Barrier(2), n=2)
    assert found == [(0, 2, "called a synchronizing CUDA operation"), (0, 0, None)]
    assert torch.cuda.get_sync_debug_mode() == 1
