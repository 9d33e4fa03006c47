"""Stores of keys and values on virtual ranks: TCPStore, FileStore, and that of a group."""

import os
import warnings
from datetime import timedelta

import pytest
import running
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.vgpu.ranks.launcher import host_time_s

PORT = 23456


def numbers():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def through_tcp():
    rank, size = numbers()
    store = dist.TCPStore("localhost", PORT, size, rank == 0, timedelta(seconds=5))
    if rank == size - 1:  # the first ranks ask before the last one says
        store.set("last", "here")
    total = store.add("visitors", rank)
    return store.get("last"), total, store.port


def test_a_tcp_store_gives_what_another_rank_sets_later():
    found = par.run_ranks(through_tcp, 3)
    assert [value for value, _, _ in found] == [b"here"] * 3
    assert max(total for _, total, _ in found) == 0 + 1 + 2
    assert {port for _, _, port in found} == {PORT}


def opened_twice():
    rank, size = numbers()
    seen = []
    for attempt in range(2):
        store = dist.TCPStore("localhost", PORT, size, is_master=rank == 0)
        seen.append(store.check(["mark"]))
        dist.barrier()
        store.set("mark", str(attempt))
    return seen


def test_a_store_opened_anew_is_empty():
    assert par.run_ranks(opened_twice, 2) == [[False, False]] * 2


def by_file(path):
    rank, size = numbers()
    store = dist.FileStore(path, size)
    store.set(f"from {rank}", str(rank))
    neighbour = (rank + 1) % size
    return int(store.get(f"from {neighbour}")), store.compare_set("one", "", str(rank)) != b""


def test_a_file_store_is_one_file_to_all(tmp_path):
    path = tmp_path / "store"
    assert par.run_ranks(by_file, 3, str(path)) == [(1, True), (2, True), (0, True)]
    assert path.exists()  # programs remove it


def through_the_groups_own():
    """C++ keeps the keys of a PrefixStore apart, and calls the store that it is made of."""
    rank, _ = numbers()
    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    if rank == 1:
        store.set("key", "value")
    store.wait(["key"], timedelta(seconds=5))
    return store.get("key"), store.add("count", 1) > 0


def test_the_store_of_a_group_is_there():
    assert par.run_ranks(through_the_groups_own, 3) == [(b"value", True)] * 3


def said_late():
    rank, _ = numbers()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        par.host_work(0.25, "thinking")
        store.set("done", "yes")
    store.get("done")
    return host_time_s()


def test_who_waits_goes_on_no_earlier_than_the_value_was_set():
    with par.simulate("2x-v100-textbook"):
        first, second = par.run_ranks(said_late, 2)
    assert first >= 0.25
    assert second == pytest.approx(first)


def asked_in_vain():
    dist.TCPStore("localhost", PORT, is_master=numbers()[0] == 0).get("never")


def test_a_key_that_nobody_sets_is_named():
    with pytest.raises(RuntimeError, match=r"get\('never'\) of the TCPStore at port 23456"):
        par.run_ranks(asked_in_vain, 2)


def queued():
    rank, _ = numbers()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        for value in "ab":
            store.queue_push("letters", value)
        return None
    return [store.queue_pop("letters") for _ in "ab"], store.queue_len("letters")


@pytest.mark.skipif(not hasattr(dist.Store, "queue_push"), reason="this torch has no queues")
def test_a_queue_waits_for_what_is_pushed():
    assert par.run_ranks(queued, 2)[0] == ([b"a", b"b"], 0)


STARTED_BY_A_STORE = """
import os, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore("localhost", 29876, size, rank == 0)
dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=rank)
total = torch.full((1,), rank + 1.0, device=f"cuda:{rank}")
dist.all_reduce(total)
assert dist.distributed_c10d._get_default_store().check(["seen"]) is False
dist.barrier()
dist.distributed_c10d._get_default_store().set("seen", "")
print(total.item(), store.check(["seen"]), store.check(["0//seen"]))
"""


def test_a_group_is_made_by_the_programs_own_store(monkeypatch, tmp_path):
    (tmp_path / "program.py").write_text(STARTED_BY_A_STORE)
    monkeypatch.chdir(tmp_path)
    found = running.run("--quiet", "--nproc-per-node", 2, "program.py")
    assert (found.status, found.err) == (0, "")
    assert found.lines == ["3.0 False True"] * 2


def gradients_through_functions(rank_input):
    from torch.distributed.nn import functional

    x = rank_input(numbers()[0]).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it has a newer name
        total = functional.all_reduce(x)
    total.pow(2).sum().backward()
    return total.detach(), x.grad


def test_differentiable_collectives_use_the_group_of_each_rank():
    def input_of(rank):
        return torch.tensor([1.0 + rank, 2.0])

    total = input_of(0) + input_of(1)
    for found, gradient in par.run_ranks(gradients_through_functions, 2, input_of):
        torch.testing.assert_close(found, total)
        torch.testing.assert_close(gradient, 2 * 2 * total)  # both ranks' losses have it


# --- what nobody sets -----------------------------------------------------------------------------


def in_vain(make):
    """The errors of waits that end, and the simulated seconds that each took."""
    rank, size = numbers()
    store = make(rank, size)
    store.set_timeout(timedelta(seconds=2))
    found = []
    waits = (
        lambda: store.wait(["a", "b"], timedelta(milliseconds=300)),
        lambda: store.get("c"),
        lambda: store.queue_pop("d"),
    )
    for wait in waits if rank == 0 else ():
        begin_s = host_time_s()
        with pytest.raises(dist.DistStoreError) as error:
            wait()
        found.append((str(error.value).splitlines()[0], round(host_time_s() - begin_s, 3)))
        assert "rank 0 waits in " in str(error.value)
    dist.barrier()
    return found


STORES = {
    "tcp": lambda rank, size: dist.TCPStore("localhost", PORT, size, rank == 0),
    "of a group": lambda rank, size: dist.distributed_c10d._get_default_store(),
}


@pytest.mark.parametrize(("kind", "begin"), [("tcp", "/"), ("of a group", "/default_pg/0//")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_wait_ends_with_torch_s_error_and_takes_its_time(kind, begin, ranks):
    """The words are those of torch's TCPStore."""
    found = par.run_ranks(in_vain, ranks, STORES[kind])
    keys = [", ".join(begin + key for key in each) for each in ("ab", "c", "d")]
    after_s = [0.3, 2.0, 2.0]
    assert [text for text, _ in found[0]] == [
        f"wait timeout after {round(s * 1000)}ms, keys: {k}"
        for k, s in zip(keys, after_s, strict=True)
    ]
    assert [seconds for _, seconds in found[0]] == after_s


def not_enough(kind):
    rank, _ = numbers()
    limit = timedelta(seconds=2)
    if (rank == 0) == (kind is dist.DistStoreError):
        with pytest.raises(kind) as error:
            dist.TCPStore("localhost", PORT, 3, rank == 0, limit)
        return str(error.value).splitlines()[0]
    return None


def test_a_store_that_too_few_open():
    found = par.run_ranks(not_enough, 2, dist.DistStoreError)
    assert found[0] == "Timed out after 2 seconds waiting for clients. 1/3 clients joined."
    found = par.run_ranks(not_enough, 2, dist.DistNetworkError)
    assert found[1].startswith("The client socket has timed out after 2000ms while trying to ")


# --- what a group's store is made of --------------------------------------------------------------


def made_of(group):
    """The classes, from the outside in, and where the last one is."""
    store, names = dist.distributed_c10d._get_process_group_store(group), []
    while isinstance(store, dist.PrefixStore):
        names.append("PrefixStore")
        store = store.underlying_store
    kinds = [kind for kind in ("TCPStore", "FileStore", "HashStore") if is_a(store, kind)]
    places = [getattr(store, name, None) for name in ("libuvBackend", "port", "path")]
    return names + kinds, places


def is_a(store, kind):
    return isinstance(store, getattr(dist, kind))


def joined(how):
    dist.init_process_group("gloo", **how)
    group = dist.new_group([0])
    found = made_of(dist.group.WORLD), made_of(group)
    dist.distributed_c10d._get_process_group_store(group).set("mine", "x")
    keys = [f"0//{mark}" for mark in ("mine", "1//mine")]
    if "store" in how:
        found = *found, [how["store"].check([key]) for key in keys]
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("how", ["tcp", "tcp, no libuv", "environment", "file", "store"])
def test_the_store_of_a_group_is_made_as_torch_s(how, monkeypatch, tmp_path):
    """As the same call in a process without virtual GPUs."""
    port = dist.TCPStore("localhost", 0, 1, is_master=True).port  # which is free, then
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "USE_LIBUV": "0"}
    if how == "environment":
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    method = {
        "tcp": f"tcp://localhost:{port}",
        "tcp, no libuv": f"tcp://localhost:{port}?use_libuv=0",
        "environment": "env://",
        "file": f"file://{tmp_path}/meeting",
    }
    arguments = {"rank": 0, "world_size": 1}
    if how == "store":
        options = [{"store": dist.HashStore(), **arguments} for _ in range(2)]
    else:
        options = [{"init_method": method[how], **arguments}] * 2
    expected = joined(options[0])
    (tmp_path / "meeting").unlink(missing_ok=True)
    with par.emulate_cuda(1, verbose=False):
        assert joined(options[1]) == expected


def other_classes():
    """Whether names that a program imported before know what it makes on ranks."""
    rank, size = numbers()
    store = dist.TCPStore("localhost", PORT, size, rank == 0)
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", dist.HashStore()))
    return (
        isinstance(store, dist.TCPStore),
        isinstance(store, (dist.FileStore, dist.PrefixStore)),
        isinstance(prefixed, dist.PrefixStore),
        issubclass(dist.TCPStore, dist.Store),
    )


def test_stores_of_ranks_are_of_torch_s_classes():
    assert par.run_ranks(other_classes, 2) == [(True, False, True, True)] * 2


def asked_of_one_with_a_prefix(make):
    """What only the store itself knows, asked through two prefixes."""
    store = dist.PrefixStore("a", dist.PrefixStore("b", make()))
    store.set_timeout(timedelta(seconds=7))
    before = store.num_keys()  # torch's counts one by which its clients join
    store.set("key", "value")
    store.queue_push("queue", "one")
    again = store.clone()
    return (
        store.num_keys() - before,
        store.list_keys(),
        store.timeout,
        store.queue_len("queue"),
        again.get("key"),
        again.queue_pop("queue"),
        store.underlying_store.list_keys(),
    )


def by_tcp():
    return dist.TCPStore("localhost", 0, 1, is_master=True)  # which nobody else keeps


@pytest.mark.skipif(not hasattr(dist.Store, "queue_push"), reason="this torch has no queues")
def test_a_store_with_a_prefix_hands_on_what_torch_s_does():
    """C++ did not find what is written in Python, once nothing but it knew the store."""
    assert par.run_ranks(asked_of_one_with_a_prefix, 1, by_tcp) == [
        asked_of_one_with_a_prefix(by_tcp)
    ]


# --- torch's own, which whoever starts ranks has made ---------------------------------------------

MADE_BEFORE = {
    "hash": lambda path: dist.HashStore(),
    "file": lambda path: dist.FileStore(str(path), 2),
    "tcp": lambda path: dist.TCPStore("localhost", 0, 1, is_master=True),
    "prefix": lambda path: dist.PrefixStore("pre", dist.HashStore()),
}


def through(store):
    """The first rank asks for what only the second one sets."""
    if numbers()[0] == 1:
        store.set("first", "1")
        store.set("second", "2")
        return None
    store.wait(["first"], timedelta(seconds=60))
    return store.get("second"), store.multi_get(["first", "second"])


@pytest.mark.parametrize("kind", MADE_BEFORE)
def test_who_waits_in_a_store_of_torch_s_lets_the_others_go_on(kind, tmp_path):
    store = MADE_BEFORE[kind](tmp_path / "store")
    found = par.run_ranks(through, 2, store)
    assert found == [(b"2", [b"1", b"2"]), None]


def test_torch_s_own_error_tells_of_what_nobody_sets():
    def in_vain_too(store):
        if numbers()[0] == 0:
            with pytest.raises(dist.DistStoreError) as error:
                store.wait(["a"], timedelta(milliseconds=50))
            return str(error.value)
        return None

    store = MADE_BEFORE["tcp"](None)
    with pytest.raises(dist.DistStoreError) as expected:
        store.wait(["a"], timedelta(milliseconds=50))
    assert par.run_ranks(in_vain_too, 2, store) == [str(expected.value), None]


POLLS = {
    "add": lambda store: store.add("there", 0) < 2,
    "check": lambda store: not store.check(["rank 2"]),
    "get": lambda store: store.get("there") != b"2",
    "num_keys": lambda store: store.num_keys() < 3,
    "compare_set": lambda store: store.compare_set("there", "2", "3") != b"3",
}


def polled(is_missing):
    """Rank 0, whose turn is first, asks until the others have come."""
    rank, size = numbers()
    store = dist.TCPStore("localhost", PORT, size, is_master=rank == 0)
    if rank:
        store.add("there", 1)
        store.set(f"rank {rank}", "")
        return 0
    asked = 0
    while is_missing(store):
        asked += 1
    return asked


@pytest.mark.parametrize("call", POLLS)
def test_a_rank_that_asks_in_a_loop_lets_the_others_answer(call):
    asked, *_ = par.run_ranks(polled, 3, POLLS[call])
    assert 0 < asked < 10
