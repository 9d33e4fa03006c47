"""torchrun's options under `d2lpar run torchrun …`: restarts, logs, and what is refused by name."""

import pytest
import running

from d2lpar.vgpu.programs import torchrun

RESTARTS = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
most, times = os.environ["TORCHELASTIC_MAX_RESTARTS"], int(sys.argv[1])
begin = torch.load(sys.argv[2]) if os.path.exists(sys.argv[2]) else 0
for step in range(begin, 4):
    x = torch.tensor(float(step + rank))
    dist.all_reduce(x)
    if rank == 0:
        print(f"attempt {restarts} of {most}: step {step} gives {x.item()}", flush=True)
        torch.save(step + 1, sys.argv[2])
    dist.barrier()
    if restarts < times and step == restarts and rank == 1:
        sys.exit(7) if restarts == 0 else 1 / 0
"""
RESTARTED = """\
attempt 0 of 2: step 0 gives 1.0
attempt 1 of 2: step 1 gives 3.0
attempt 2 of 2: step 2 gives 5.0
attempt 2 of 2: step 3 gives 7.0
""".splitlines()


@pytest.fixture
def run(tmp_path):
    """Runs a program as `d2lpar run OPTIONS torchrun …`; gives status, lines, text on stderr."""

    def command(source, options, *arguments, gpus=None):
        (tmp_path / "program.py").write_text(source)
        words = ("torchrun", *options, tmp_path / "program.py", *arguments)
        own = () if gpus is None else ("--gpus", gpus)
        found = running.run("--quiet", *own, *words)
        return found.status, found.lines, found.err

    return command


def test_a_failed_run_starts_again_from_its_checkpoint(run, tmp_path):
    options = ("--nproc-per-node", 2, "--max-restarts", 2)
    status, lines, err = run(RESTARTS, options, 2, tmp_path / "step.pt")
    assert (status, lines) == (0, RESTARTED)
    assert "d2lpar: rank 1 ended with exit status 7\nd2lpar: all ranks start again: 1 of 2" in err
    assert "ZeroDivisionError" in err


def test_a_run_that_fails_too_often_fails(run, tmp_path):
    options = ("--nproc-per-node", 2, "--max-restarts", 1)
    status, lines, err = run(RESTARTS, options, 2, tmp_path / "step.pt")
    assert (status, len(lines)) == (1, 2)
    assert err.count("start again") == 1


SPEAKS = """
import os, sys
print("out", os.environ["RANK"])
print("err", os.environ["RANK"], end="", file=sys.stderr)
"""


def test_logs_go_where_torchrun_lets_them_go(run, tmp_path):
    options = ("--nproc-per-node", 3, "--log-dir", tmp_path / "logs", "--rdzv-id", "job")
    options += ("--tee", "1:3", "--redirects", "0:1", "--local-ranks-filter", "0,1")
    status, lines, err = run(SPEAKS, (*options, "--role", "rank"))
    assert status == 0
    assert lines == ["[rank1]:out 1"]
    assert err == "err 0[rank1]:err 1"
    (folder,) = (tmp_path / "logs").glob("job_*/attempt_0")
    found = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.log")}
    assert found == {
        "0/stdout.log": "out 0\n",
        "1/stdout.log": "out 1\n",
        "1/stderr.log": "err 1",
    }


def test_local_ranks_all_of_which_are_zero(run):
    source = (
        "import os, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.full((1,), 1.0 + dist.get_rank(), device='cuda')\n"
        "dist.all_reduce(x)\n"
        "print(x.item(), x.device, torch.cuda.device_count(), os.environ['LOCAL_RANK'])\n"
    )
    status, lines, err = run(source, ("--nproc-per-node", 2, "--virtual-local-rank"))
    assert (status, err) == (0, "")
    assert lines == ["3.0 cuda:0 1 0"] * 2


VISIBLE = """
import os, torch, torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
x = torch.full((1,), 1.0 + dist.get_rank(), device=device)
dist.all_reduce(x)
print(x.item(), x.device, torch.cuda.device_count(), flush=True)
"""


@pytest.mark.parametrize("how", ["gpu", "2"])
def test_ranks_see_the_devices_that_the_shell_makes_visible(run, monkeypatch, how):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    status, lines, err = run(VISIBLE, ("--nproc-per-node", how), gpus=4)
    assert (status, err) == (0, "")
    assert lines[:2] == ["3.0 cuda:0 2", "3.0 cuda:1 2"]


def test_no_device_of_those_that_the_shell_makes_visible_is_there(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    status, _, err = run(VISIBLE, ("--nproc-per-node", "gpu"), gpus=4)
    assert status == 2
    assert "CUDA_VISIBLE_DEVICES=7 shows none of the 4 GPUs of a machine" in err


@pytest.mark.parametrize("text", ["0", "3", "0:1,1:2", "1:3", "5:3", "0:2,5:1"])
def test_streams_are_those_of_torchrun_which_leaves_out_ranks_that_are_not_there(text):
    from torch.distributed.elastic.multiprocessing import Std, to_map

    theirs = to_map(Std.from_str(text), 2)
    ours = torchrun._streams(text, "--tee", 2)
    assert {local: ours.get(local, 0) for local in range(2)} == {
        n: int(s) for n, s in theirs.items()
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--no-python",), "--no-python starts a program that is not Python"),
        (("--node-rank", 1, "--nnodes", 2), "--node-rank 1: one command runs the ranks of all"),
        (("--logs-specs", "mine"), "--logs-specs names a plug-in"),
        (("--duplicate-stdout-filters", "loss"), "use grep"),
        (("--event-log-handler", "mine"), "--report FILE"),
        (("--max-restarts", -1), "--max-restarts -1"),
        (("--tee", 4), "--tee 4: it takes 0 to 3"),
        (("--local-ranks-filter", "a"), "--local-ranks-filter a: it takes local ranks"),
    ],
)
def test_what_is_refused_says_what_to_do(run, options, message):
    status, lines, err = run("", options)
    assert (status, lines) == (2, [])
    assert message in err


EVERYTHING = (
    "--nnodes 1:1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id job "
    "--rdzv-conf timeout=60 --standalone --max-restarts 3 --monitor-interval 1 --start-method fork "
    "--role trainer --node-rank 0 --master-addr 127.0.0.1 --master-port 29501 "
    "--local-addr localhost "
    "--log-dir logs --redirects 0 --tee 0 --signals-to-handle SIGTERM --shutdown-timeout 5 "
)


def test_what_starts_and_watches_real_processes_is_accepted(run):
    source = (
        "import os\nfor name in ('MASTER_PORT', 'ROLE_NAME', 'TORCHELASTIC_RUN_ID'):\n"
        "    print(os.environ[name])\n"
    )
    status, lines, err = run(source, EVERYTHING.split())
    assert (status, err) == (0, "")
    assert lines == ["29501", "trainer", "job"] * 2
