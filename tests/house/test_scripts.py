"""The scripts for people without a notebook, run as they would: torchrun, Slurm, two hosts."""

import contextlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import daemons
import psutil
import pytest
import slurm_programs
import torch
import two_hosts

from d2lpar import models

PROJECT = Path(__file__).parents[2]
SCRIPTS = PROJECT / "notebooks" / "scripts"
MARK = "D2LPAR_TEST_RUN"
# 11 steps an epoch, the last of which has 11 images: 6 for one rank and 5 for the other.
IMAGES, WHOLE_BATCH, STEPS, EVERY = 331, 32, 18, 5
RUN = ["--images", IMAGES, "--test-images", 100, "--steps", STEPS, "--every", EVERY, "--lr", 0.02]

# train.py, whose rank 1 kills itself after 13 steps when it is started for the first time.
DIES_ONCE = """
import os, runpy, signal, sys
import torch

step, taken = torch.optim.SGD.step, []

def step_or_die(self):
    taken.append(step(self))
    if len(taken) == 13 and os.environ["RANK"] == "1":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

torch.optim.SGD.step = step_or_die
runpy.run_path(TRAIN, run_name="__main__")
"""

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module", autouse=True)
def world(folder):
    """What scripts need to be at home anywhere; and no process of theirs is left at the end."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("SLURM") or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                patch.delenv(name)
        patch.setenv("D2LPAR_DATA", "synthetic")
        patch.setenv("D2LPAR_DEVICES", "virtual")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("VENV", sys.prefix)
        patch.setenv("TMPDIR", str(folder))
        patch.setenv(MARK, str(folder))
        yield
        patch.delenv(MARK)
        assert marked(str(folder)) == []


def marked(mark: str) -> list[psutil.Process]:
    """The processes that were started with this mark, whoever is their parent by now."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(MARK) == mark and process.pid != os.getpid()
        except psutil.Error:  # another user's, or gone
            continue
        if mine and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def run(*command, mark: Path, ok: bool = True, **variables: str) -> str:
    """What a command prints; it must not last, or leave processes."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=os.environ | variables | {MARK: str(mark)},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=240)
        left = marked(str(mark))
    finally:
        for other in marked(str(mark)):
            other.kill()
        process.wait()
    assert (process.returncode == 0) == ok, said
    assert left == [], said
    return said


def parameters(checkpoints: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    state = torch.load(checkpoints / f"step-{step:08}.pt", weights_only=True)
    assert state["step"] == step
    return state["parts"]["model"]


def furthest(a: dict, b: dict) -> float:
    """The largest difference of two networks' parameters."""
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def submit(folder: Path, *arguments, launcher: str = "srun", **options: str) -> str:
    """What `sbatch slurm.sh` would print into its file, on two nodes that are this machine."""
    script, nodes = SCRIPTS / "slurm.sh", "127.0.0.[1-2]"
    programs = slurm_programs.install(folder / "bin")
    env = slurm_programs.batch_environment(script, nodes, PROJECT, **options)
    env |= {"PATH": f"{programs}:{os.environ['PATH']}", "LAUNCHER": launcher}
    return run("bash", script, *arguments, mark=folder, **env)


def train_in(folder: Path) -> list:
    """Arguments of train.py for one of two ranks."""
    return [*RUN, "--batch-size", WHOLE_BATCH // 2, "--checkpoints", folder / "checkpoints"]


def with_a_rank_that_dies(folder: Path, script: str) -> Path:
    """A folder with the script, and with a train.py whose rank 1 is killed once."""
    folder.mkdir()
    shutil.copy(SCRIPTS / script, folder)
    (folder / "train.py").write_text(f"TRAIN = {str(SCRIPTS / 'train.py')!r}{DIES_ONCE}")
    return folder


@pytest.fixture(scope="module")
def two_ranks(folder) -> tuple[dict, str]:
    """Parameters and output of two ranks under Slurm, one a node, that nothing interrupts."""
    own = folder / "slurm"
    said = submit(own, *train_in(own), **{"ntasks-per-node": "1", "cpus-per-task": "1"})
    return parameters(own / "checkpoints"), said


# --- Tests ---------------------------------------------------------------------------------------


def test_slurm_starts_a_rank_a_task(two_ranks):
    _, said = two_ranks
    assert "2 ranks (gloo, cpu), started by Slurm; 331 images (synthetic)\nstarted anew" in said
    assert said.count("images/s (measured)") == STEPS // EVERY
    assert "attempt" not in said


def test_two_ranks_take_the_steps_of_one_process_with_the_whole_batch(
    two_ranks, folder, monkeypatch, capsys
):
    spec = importlib.util.spec_from_file_location("train", SCRIPTS / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    words = [*RUN, "--batch-size", WHOLE_BATCH, "--checkpoints", folder / "one"]
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, words)])
    with train.par.launch.process_group() as me:
        train.train(train.arguments(), me)
    losses = [
        [line.partition(";")[0] for line in said.splitlines() if line.startswith("step")]
        for said in (two_ranks[1], capsys.readouterr().out)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS // EVERY
    assert furthest(two_ranks[0], parameters(folder / "one")) < 1e-5
    torch.manual_seed(0)
    start = models.lenet().state_dict()
    assert furthest(start, parameters(folder / "one")) > 1e-2


@pytest.mark.slow
def test_a_rank_that_is_killed_is_restarted_and_changes_nothing(two_ranks, folder):
    own = with_a_rank_that_dies(folder / "killed", "one_machine.sh")
    said = run(own / "one_machine.sh", *train_in(own), mark=own)
    assert "2 ranks (gloo, cpu), started by torchrun" in said
    assert "exitcode: -9" in said
    assert said.count("started anew") == said.count("resumed after step 10") == 1
    assert "restarts may fail" not in said
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0


@pytest.fixture
def network():
    """Skips where this user may not make networks, or has no programs for it."""
    if missing := two_hosts.why_not():
        pytest.skip(missing)


@pytest.mark.slow
def test_two_hosts_meet_over_their_network_and_again_after_a_death(network, two_ranks, folder):
    """What two_machines.sh says to do if names lead nowhere: INTERFACE and ADDRESS."""
    networks = os.listdir("/sys/class/net")
    own = with_a_rank_that_dies(folder / "hosts", "two_machines.sh")
    start = ("bash", "-c", '"$0" $HOST_NUMBER "$@"', own / "two_machines.sh")
    command = two_hosts.on_both(*start, two_hosts.ADDRESSES[0], *train_in(own))
    said = run(*command, mark=own, INTERFACE=two_hosts.CABLE)
    assert said.count("2 ranks (gloo, cpu), started by torchrun") == 2
    assert said.count("started anew") == said.count("resumed after step 10") == 1
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0
    assert os.listdir("/sys/class/net") == networks


@pytest.mark.slow
def test_slurm_starts_torchrun_on_each_node(two_ranks, folder):
    own = folder / "torchrun"
    options = {"ntasks-per-node": "1", "cpus-per-task": "1"}
    said = submit(own, *train_in(own), launcher="torchrun", **options)
    assert "2 ranks (gloo, cpu), started by torchrun" in said
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0


@pytest.mark.slow
def test_a_slurm_step_that_lost_a_rank_is_tried_again(folder):
    """Four ranks: their sums depend on the order, which must not change by resuming."""
    options = {"ntasks-per-node": "2", "cpus-per-task": "1"}
    train = [*RUN, "--batch-size", WHOLE_BATCH // 4, "--checkpoints"]
    submit(folder / "kept", *train, folder / "kept", **options)
    with killer(folder / "lost", "SLURM_PROCID", "3") as victims:
        said = submit(folder / "lost", *train, folder / "lost", **options)
    assert len(victims) == 1
    assert "attempt 1 failed" in said
    assert "resumed after step" in said
    assert furthest(parameters(folder / "kept"), parameters(folder / "lost")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_ranks_killed_at_any_moment(two_ranks, folder, seed):
    """Torchrun restarts whichever rank was killed whenever, while starting or saving, too."""
    rng = random.Random(seed)
    own = folder / f"random-{seed}"
    with killer(own, "RANK", str(rng.randrange(2)), wait_s=rng.uniform(0, 6)) as victims:
        run(SCRIPTS / "one_machine.sh", *train_in(own), mark=own)
    assert len(victims) <= 1  # it may have come too late
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0


@pytest.fixture(scope="module")
def slurm(world):
    """A real Slurm of two nodes: its slurm.conf."""
    with daemons.slurm() as config:
        yield config


def submit_really(slurm: Path, folder: Path, launcher: str = "srun") -> str:
    """What `sbatch slurm.sh` writes into its file, on two nodes with a task each."""
    folder.mkdir()
    said = folder / "said"
    options = ["--wait", f"--output={said}", "--ntasks-per-node=1", "--cpus-per-task=1"]
    command = ["sbatch", *options, SCRIPTS / "slurm.sh", *train_in(folder)]
    run(*command, mark=folder, SLURM_CONF=str(slurm), LAUNCHER=launcher)
    return said.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_the_real_slurm_trains_like_its_stand_in(slurm, two_ranks, folder, launcher):
    """Which in turn takes the steps of one process, as a test above says."""
    own = folder / f"real-{launcher}"
    said = submit_really(slurm, own, launcher)
    starter = {"srun": "Slurm", "torchrun": "torchrun"}[launcher]
    assert f"2 ranks (gloo, cpu), started by {starter}; 331 images" in said
    assert "attempt" not in said
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0


@pytest.mark.slow
def test_the_real_slurm_ends_the_other_rank_and_tries_again(slurm, two_ranks, folder):
    own = folder / "real-killed"
    with killer(own, "SLURM_PROCID", "1", checkpoints=own / "checkpoints") as victims:
        said = submit_really(slurm, own)
    assert len(victims) == 1
    assert "attempt 1 failed" in said
    assert "resumed after step" in said
    assert furthest(two_ranks[0], parameters(own / "checkpoints")) == 0


@contextlib.contextmanager
def killer(
    mark: Path,
    variable: str,
    value: str,
    wait_s: float | None = None,
    checkpoints: Path | None = None,
):
    """Kills the one rank with this variable: so long after its start, or at a first checkpoint.

    That is looked for in the folder `mark` unless another is named. Gives the list of those killed.
    """
    checkpoints = checkpoints or mark
    victims, over = [], threading.Event()

    def watch():
        while not over.wait(0.02):
            ranks = [rank for rank in marked(str(mark)) if is_rank(rank, variable, value)]
            if not ranks or (wait_s is None and not any(checkpoints.glob("step-*.pt"))):
                continue
            over.wait(wait_s or 0)
            with contextlib.suppress(psutil.NoSuchProcess):
                ranks[0].kill()
                victims.append(ranks[0].pid)
            return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield victims
    finally:
        over.set()
        thread.join()


def is_rank(process: psutil.Process, variable: str, value: str) -> bool:
    """Whether this is a rank itself, and neither torchrun nor srun."""
    try:
        words, env = process.cmdline(), process.environ()
    except psutil.Error:
        return False
    script = next((word for word in words if word.endswith(".py")), "")
    direct = script.endswith("train.py") and "torch" not in " ".join(words[:3])
    return direct and "srun" not in " ".join(words[:3]) and env.get(variable) == value
