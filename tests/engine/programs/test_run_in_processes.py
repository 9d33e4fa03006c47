"""`d2lpar run`: ranks, which are processes, take the times of threads that take turns, to the last
digit, whatever they exchange; and what processes have of their own is the system's."""

import json
import os
import time
from pathlib import Path

import pytest
import running

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

BEGIN = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
torch.cuda.set_device(device)
torch.manual_seed(rank)
def tell(*words):
    torch.cuda.synchronize()
    print(rank, *words, flush=True)
"""
DDP = """
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).cuda()
net = nn.parallel.DistributedDataParallel(net, device_ids=[rank], bucket_cap_mb=0.02)
for _ in range(3):
    loss = net(torch.randn(8, 64, device="cuda")).square().mean()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
tell(loss.item(), sum(p.double().sum().item() for p in net.parameters()))
"""
FSDP2 = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).cuda()
for layer in net:
    fully_shard(layer)
fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    loss = net(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
tell(loss.item())
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
net = parallelize_module(net, init_device_mesh("cuda", (ranks,)), plan)
net(torch.ones(4, 32, device="cuda")).sum().backward()
tell(net[0].weight.grad.full_tensor().double().sum().item())
"""
PIPELINE = """
net = nn.Linear(128, 128, device="cuda")
for _ in range(3):
    x = torch.ones(16, 128, device="cuda")
    if rank:
        dist.recv(x, rank - 1)
    y = net(x)
    if rank < ranks - 1:
        dist.send(y.detach(), rank + 1)
tell(y.double().sum().item())
"""
TWO_GROUPS_ON_ONE_LINK = """
x = torch.ones(2**20, device="cuda")
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
dist.barrier(device_ids=[rank])
begin.record()
dist.all_reduce(x, group=groups[rank % 2])
end.record()
torch.cuda.synchronize()
tell(begin.elapsed_time(end))
"""
ONE_DEVICE = """
torch.cuda.set_device(0)
x = torch.full((1000, 1000), float(rank + 1), device="cuda")
for _ in range(3):
    x = x @ x / 1000
    dist.all_reduce(x)
tell(x[0, 0].item())
"""
STREAMS = """
a, x = torch.ones(256, 256, device="cuda"), [torch.ones(2**16, device="cuda") for _ in range(2)]
side = torch.cuda.Stream()
for i in range(3):
    work = dist.all_reduce(x[0], async_op=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        b = a @ a
        other = dist.all_reduce(x[1], async_op=True)
    c = a @ a @ a if rank else a @ a
    work.wait()
    other.wait()
    event = torch.cuda.Event()
    event.record()
    polls = 0
    while not event.query():
        polls += 1
tell(x[0][0].item(), x[1][0].item(), polls)
"""
SENDS = """
given, taken = torch.full((2**12,), float(rank), device="cuda"), torch.empty(2**12, device="cuda")
for _ in range(3):
    ops = [dist.P2POp(dist.isend, given, (rank + 1) % ranks),
           dist.P2POp(dist.irecv, taken, (rank - 1) % ranks)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
tell(taken[0].item())
"""
GRAPH = """
x = torch.ones(2**14, device="cuda")
dist.all_reduce(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    dist.all_reduce(y)
for _ in range(3):
    graph.replay()
tell(y[0].item())
"""
OBJECTS = """
found = [None] * ranks
dist.all_gather_object(found, {"rank": rank})
store = dist.TCPStore("localhost", 29777, ranks, rank == 0)
store.set(f"key {rank}", str(rank))
tell(found, [store.get(f"key {other}") for other in range(ranks)])
"""
OPTIMIZER = """
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
tell()
"""
PROGRAMS = {
    "DDP": (DDP, 2, []),
    "FSDP2": (FSDP2, 2, []),
    "tensor parallel": (TENSOR_PARALLEL, 2, []),
    "pipeline": (PIPELINE, 3, []),
    "two groups on one link": (TWO_GROUPS_ON_ONE_LINK, 4, ["--machine", "16x-k80"]),
    "two ranks on one device": (ONE_DEVICE, 2, []),
    "streams": (STREAMS, 2, []),
    "sends": (SENDS, 3, []),
    "graph": (GRAPH, 2, []),
    "shapes only": (DDP, 4, ["--shapes-only"]),
    "optimizer": (OPTIMIZER, 2, []),
}
# As they were when ranks were threads, which took turns by construction.
THREADS = json.loads(Path(__file__).with_name("times_of_threads.json").read_text())
OF_DEVICES = ("busy", "communicating", "exposed_communication", "waiting_for_host")
OF_DEVICES += ("waiting_for_others", "idle")


@pytest.mark.parametrize("name", PROGRAMS)
def test_processes_take_the_times_of_threads_to_the_last_digit(name, tmp_path):
    source, ranks, options = PROGRAMS[name]
    begin = BEGIN.replace("nccl", "gloo") if source == ONE_DEVICE else BEGIN
    program, file = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(begin + source + "dist.destroy_process_group()\n")
    words = ("--quiet", "--hazards", "--report", file, *options, "--nproc-per-node", ranks)
    found = running.run(*words, program)
    assert (found.status, found.err) == (0, "")
    report = json.loads(file.read_text())
    assert not report["hazards"]
    assert THREADS[name] == {
        "simulated_s": report["simulated_s"],
        "ms_per_step": report["ms_per_step"],
        "devices": [[each[f"{what}_s"] for what in OF_DEVICES] for each in report["devices"]],
        "waits": [[each["call"], each["count"], each["seconds"]] for each in report["syncs"]],
    }


def test_ranks_exchange_objects_and_meet_in_stores(tmp_path):
    found = _run(tmp_path, BEGIN + OBJECTS)
    told = "[{'rank': 0}, {'rank': 1}] [b'0', b'1']"
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == [f"{rank} {told}" for rank in range(2)]


def _run(tmp_path, source, *words, ranks=2):
    (tmp_path / "program.py").write_text(source)
    program = tmp_path / "program.py"
    return running.run("--quiet", "--nproc-per-node", ranks, program, *words)


def test_a_thread_of_a_rank_has_its_group_and_its_devices(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "import threading\n"
        "def work():\n"
        "    torch.cuda.set_device(device)\n"  # as with CUDA, a thread begins on the first
        "    x = torch.ones(2, device='cuda') * (dist.get_rank() + 1)\n"
        "    dist.all_reduce(x)\n"
        "    print(rank, dist.get_rank(), x.tolist())\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n",
    )
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == ["0 0 [3.0, 3.0]", "1 1 [3.0, 3.0]"]


LAST_WORDS = (
    BEGIN
    + """
import sys, threading
from d2lpar.vgpu.conductor import starting, wire
dist.all_reduce(torch.zeros(2, device="cuda"))
torch.cuda.synchronize()
here = os.path.dirname(__file__)
def wait_for(name, seconds):  # by the clock on the wall, computing or resting
    path, since = os.path.join(here, name), os.times().elapsed
    while not os.path.exists(path) or os.times().elapsed < since + seconds:
        if sys.argv[1] == "rests" or rank == 0:
            threading.Event().wait(0.01)
        since = since if os.path.exists(path) else os.times().elapsed
if rank == 0:
    wait_for("ready", 1.0)
    open(os.path.join(here, "gone"), "w").close()
    sys.exit(7)
open(os.path.join(here, "ready"), "w").close()
wait_for("gone", 0.4)
if sys.argv[1] == "asks":  # and what a handler raises comes before that is sent
    mine = starting.current().wire
    question = (wire.ASK, wire.SEAT, "pause", ("a turn",), None, mine.next_number())
    mine._calls.append(question)
print("last words")
"""
)


@pytest.mark.parametrize("how", ["rests", "works", "asks"])
def test_what_a_rank_prints_after_another_has_failed_is_seen(tmp_path, how):
    found = _run(tmp_path, LAST_WORDS, how)
    assert found.status == 7
    assert found.lines == ["last words"]
    assert "Ended" not in found.err


CHILDREN = """
import multiprocessing as mp, os, subprocess, sys
import torch, torch.distributed as dist
def work(number, size, queue):
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", rank=number, world_size=size)
    x = torch.full((4,), number + 1.0, device="cuda")
    dist.all_reduce(x)
    queue.put((dist.get_rank(), x[0].item(), torch.cuda.device_count()))
def work_of_pool(number, size):
    found = mp.SimpleQueue()
    work(number, size, found)
    return found.get()
if __name__ == "__main__":
    child = "import torch; print(torch.cuda.device_count(), torch.ones(2).cuda().sum().item())"
    words = [sys.executable, "-c", child]
    print(subprocess.run(words, capture_output=True, text=True).stdout, end="")
    for method in ("spawn", "fork"):  # CUDA has not started here
        context = mp.get_context(method)
        queue = context.Queue()
        processes = [context.Process(target=work, args=(i, 2, queue)) for i in range(2)]
        for process in processes:
            process.start()
        print(method, sorted(queue.get() for _ in processes))
        for process in processes:
            process.join()
            assert process.exitcode == 0
    with mp.get_context("fork").Pool(2) as pool:
        print(pool.starmap(work_of_pool, [(0, 2), (1, 2)], chunksize=1))
"""


def test_children_by_subprocess_spawn_and_fork_see_the_gpus_and_make_groups(tmp_path):
    (tmp_path / "program.py").write_text(CHILDREN)
    words = ("--quiet", "--gpus", 2, tmp_path / "program.py")
    found = running.run(*words)
    assert (found.status, found.err) == (0, "")
    ranks = "[(0, 3.0, 2), (1, 3.0, 2)]"
    assert found.lines == ["2 2.0", f"spawn {ranks}", f"fork {ranks}", ranks]


def test_a_fork_after_cuda_has_begun_is_refused_as_cuda_refuses_it(tmp_path):
    found = _run(
        tmp_path,
        "import os, torch\n"
        "torch.ones(1, device='cuda')\n"
        "if not os.fork():\n"
        "    torch.ones(1, device='cuda')\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n",
        ranks=1,
    )
    assert (found.status, found.lines) == (0, ["1"])
    assert "in forked subprocess" in found.err


def test_all_ranks_begin_on_the_first_device_as_with_cuda(tmp_path):
    source = "import torch\nprint(torch.cuda.current_device(), torch.ones(1).cuda().device)\n"
    found = _run(tmp_path, source)
    assert (found.status, found.err, found.lines) == (0, "", ["0 cuda:0"] * 2)


def test_what_a_process_has_is_its_own(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "import json, locale\n"
        "json.mark = rank\n"
        "os.umask(rank)\n"
        "x = torch.ones(1000 * (rank + 1), device='cuda')\n"
        "dist.barrier(device_ids=[rank])\n"
        "tell(json.mark, os.umask(0), torch.cuda.memory_allocated(rank) > 0,\n"
        "     torch.cuda.memory_allocated(1 - rank), os.getppid() != os.getpid())\n",
    )
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == ["0 0 0 True 0 True", "1 1 1 True 0 True"]


HANGS = BEGIN + "if rank == 0:\n    dist.barrier(device_ids=[0])\n"


def test_ranks_that_wait_in_vain_are_named_with_their_lines(tmp_path):
    found = _run(tmp_path, HANGS)
    assert found.status == 1
    line = HANGS.splitlines().index("    dist.barrier(device_ids=[0])") + 1
    waits = f"rank 0 waits in barrier() of the group of ranks 0, 1 for rank 1, at program.py:{line}"
    assert waits in found.err
    assert "rank 1 has returned" in found.err


def test_an_endless_loop_of_one_rank_is_shown_with_its_line_at_an_interrupt(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "import signal, threading\n"
        "if rank == 1:\n"
        "    threading.Timer(0.5, os.kill, (os.getppid(), signal.SIGINT)).start()\n"
        "    while True:\n"
        "        pass\n"
        "dist.barrier(device_ids=[rank])\n",
    )
    assert found.status == 130
    assert "interrupted" in found.err
    assert "rank 1 was interrupted at" in found.err


def test_calls_that_do_not_fit_are_named(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "x, y = torch.ones(4, device='cuda'), torch.zeros(4, device='cuda').int()\n"
        "dist.send(x, 1) if rank == 0 else dist.recv(y, 0)\n",
    )
    assert found.status == 1
    assert "number of elements and data type must be the same" in found.err


def test_a_process_that_ends_at_once_is_no_success(tmp_path):
    found = _run(tmp_path, "import os, torch\ntorch.ones(1).cuda()\nos._exit(3)\n", ranks=1)
    assert found.status == 3
    assert "ended with exit status 3" in found.err


def test_a_rank_that_is_killed_ends_all(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier(device_ids=[rank])\n",
    )
    assert found.status == 128 + 9
    assert "rank 1 was ended by SIGKILL" in found.err


SIGNALS = (
    BEGIN
    + """
import signal, time
heard = []
def tell_all(number, frame):  # it asks, while the rank waits for another
    heard.append((dist.get_rank(), torch.cuda.Event().query(), time.time() >= 0))
signal.signal(signal.SIGUSR1, tell_all)
if rank == 1:
    os.kill(os.getppid(), signal.SIGUSR1)
    begin_s = time.process_time()
    while time.process_time() < begin_s + 0.5:
        pass
dist.barrier(device_ids=[rank])
tell(heard)
"""
)


def test_a_handler_may_ask_while_its_rank_waits(tmp_path):
    found = _run(tmp_path, SIGNALS)
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == [f"{rank} [({rank}, True, True)]" for rank in range(2)]


TWO_THREADS = (
    BEGIN
    + """
import threading
beside = dist.new_group(backend="gloo")
def save():  # as a checkpoint is saved beside the training
    for i in range(20):
        x = torch.ones(2) * i
        dist.all_reduce(x, group=beside)
    print(rank, x.tolist())
thread = threading.Thread(target=save)
thread.start()
for i in range(20):
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x)
    x.sum().item()
thread.join()
tell(x.tolist())
"""
)


def test_two_threads_of_a_rank_exchange_at_once(tmp_path):
    found = _run(tmp_path, TWO_THREADS)
    assert (found.status, found.err) == (0, "")
    lines = [f"{rank} {total}" for rank in range(2) for total in ("[2.0, 2.0]", "[38.0, 38.0]")]
    assert sorted(found.lines) == lines


def test_a_rank_that_waits_for_something_else_does_not_keep_the_others(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "import time\n"
        "flag = f'{os.path.dirname(os.path.abspath(__file__))}/flag'\n"
        "if rank == 0:\n"
        "    os.mkfifo(flag)\n"
        "    open(flag).read()\n"  # until the other writes
        "x = torch.ones(2, device='cuda')\n"
        "if rank == 1:\n"
        "    while not os.path.exists(flag):\n"
        "        pass\n"
        "    x.sum().item()\n"  # needs its turn
        "    open(flag, 'w').close()\n"
        "dist.all_reduce(x)\n"
        "tell(x.tolist())\n",
    )
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == ["0 [2.0, 2.0]", "1 [2.0, 2.0]"]


def test_the_error_of_a_call_that_nobody_waits_for_is_told(tmp_path):
    found = _run(
        tmp_path,
        BEGIN + "x = torch.ones(4 + rank, device='cuda')\ndist.all_reduce(x, async_op=True)\n",
    )
    assert found.status == 1
    assert "all_reduce" in found.err


def test_processes_meet_in_a_store_before_they_are_ranks(tmp_path):
    source = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(number):
    store = dist.TCPStore("localhost", 29666, 2, number == 0)
    store.set(str(number), "here")
    say(number, store.get(str(1 - number)).decode())
    dist.init_process_group("nccl", store=store, rank=number, world_size=2)
    torch.cuda.set_device(number)
    x = torch.ones(1, device="cuda")
    dist.all_reduce(x)
    say(number, x.item())
def say(number, what):  # at once: two processes write
    print(f"{number} {what}\\n", end="", flush=True)
if __name__ == "__main__":
    mp.start_processes(work, nprocs=2, start_method="fork")
"""
    (tmp_path / "program.py").write_text(source)
    found = running.run("--quiet", "--gpus", 2, tmp_path / "program.py")
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == ["0 2.0", "0 here", "1 2.0", "1 here"]


LOADS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        assert time.time() > 0  # simulated, in a worker, too
        return torch.tensor([float(i)])
net = torch.nn.Linear(1, 1).cuda()
print(sum(net(x.cuda()).shape[0] for x in DataLoader(Numbers(), 2, num_workers=1)))
"""


def test_a_worker_of_a_loader_may_ask_for_the_time(tmp_path):
    found = _run(tmp_path, LOADS, ranks=1)
    assert (found.status, found.err, found.lines) == (0, "", ["4"])


def test_processes_are_started_where_none_can_be_forked(tmp_path):
    """As on macOS and Windows: Python starts anew for each rank."""
    source = BEGIN + DDP + "dist.destroy_process_group()\n"
    (tmp_path / "program.py").write_text(source)
    starts = "from d2lpar.vgpu.programs.in_processes import children; children.FORKS = False"
    words = ("--quiet", "--report", tmp_path / "report.json", "--nproc-per-node", 2)
    found = running.run(*words, tmp_path / "program.py", more=starts)
    assert (found.status, found.err) == (0, "")
    assert len(found.lines) == 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["simulated_s"] == THREADS["DDP"]["simulated_s"]


TOO_MUCH = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    dist.init_process_group("gloo", "tcp://localhost:29577", rank=rank, world_size=2)
    if rank == 0:
        held = torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda")
        dist.barrier()
    else:
        dist.barrier()
        free, total = torch.cuda.mem_get_info()
        try:
            torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(free <= total - 10 * 2**30, "10.00 GiB" in str(error), flush=True)
    dist.barrier()
if __name__ == "__main__":
    mp.start_processes(work, nprocs=2, start_method="fork")
"""


def test_processes_on_one_gpu_share_its_memory(tmp_path):
    (tmp_path / "program.py").write_text(TOO_MUCH)
    found = running.run("--quiet", "--shapes-only", "--gpus", 1, tmp_path / "program.py")
    assert (found.status, found.err, found.lines) == (0, "", ["True True"])


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no such memory")
def test_what_a_killed_run_has_left_goes_with_the_next(tmp_path, monkeypatch):
    program = "import os\nopen('pid', 'w').write(str(os.getpid()))\nos.kill(os.getppid(), 9)\n"
    monkeypatch.chdir(tmp_path)
    assert _run(tmp_path, program + "while True:\n    pass\n", ranks=1).status < 0
    end_s = time.monotonic() + 10
    while os.path.exists(f"/proc/{Path('pid').read_text()}"):
        assert time.monotonic() < end_s, "a rank goes on that nobody hears"
        time.sleep(0.05)
    assert _run(tmp_path, "", ranks=1).status == 0
    alive = [path for path in Path("/dev/shm").glob("d2lpar-*-*") if path.is_dir()]
    pids = {int(path.name.split("-")[1]) for path in alive}
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)


BREAKS_AT_THE_END = """
from d2lpar.vgpu.ranks.world.rank_scheduler import RankScheduler
before = RankScheduler.finish
def finish(scheduler, rank):
    if rank == 0:
        return before(scheduler, rank)
    with scheduler._lock:
        scheduler._leave(rank)
    raise ZeroDivisionError("a fault of ours")
RankScheduler.finish = finish
"""


def test_a_fault_in_what_serves_a_rank_ends_the_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BEGIN + "if rank == 0:\n    dist.barrier()\n    tell('never')\n")
    found = running.run("--nproc-per-node", "2", program, more=BREAKS_AT_THE_END)
    assert found.status != 0
    assert "a fault of ours" in found.err
    assert "never" not in found.out


@pytest.mark.parametrize(
    "call", ["dist.all_reduce(x)", "(dist.send if rank else dist.recv)(x, 1 - rank)"]
)
def test_a_watchdog_ends_who_waits_for_a_rank_that_sleeps_again_and_again(tmp_path, call):
    """Also where that never comes to the call."""
    program = tmp_path / "program.py"
    sleeps = "import time\nx = torch.ones(4, device='cuda')\nwhile rank:\n    time.sleep(0.5)\n"
    program.write_text(BEGIN + sleeps + call + "\ntorch.cuda.synchronize()\n")
    found = running.run("--nproc-per-node", "2", program)
    assert found.status != 0
    assert "[Rank 0] Watchdog caught collective operation timeout" in found.err
    assert "rank 1 had not come by then" in found.err


def test_who_has_come_before_it_sleeps_is_not_late(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        BEGIN
        + "import time\nx = torch.ones(4, device='cuda')\n"
        + "work = dist.all_reduce(x, async_op=True)\n"
        + "if rank:\n    for _ in range(2000):\n        time.sleep(0.5)\n"
        + "work.wait()\ntell(x.tolist())\n"
    )
    found = running.run("--quiet", "--nproc-per-node", "2", program)
    assert (found.status, found.err) == (0, "")
    assert sorted(found.lines) == ["0 [2.0, 2.0, 2.0, 2.0]", "1 [2.0, 2.0, 2.0, 2.0]"]
