"""Checkpoints: whole or not at all, and a resumed run is the run that was not interrupted."""

import errno
import logging
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import warm_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from d2lpar import launch
from d2lpar.processes import checkpoint
from d2lpar.processes.checkpoint import Checkpoints

PROJECT = Path(__file__).parents[2]
N, BATCH = 44, 8  # the last batch of an epoch has four


class Run:
    """Training with all that remembers: dropout, momentum, batch norm, a shuffled sampler."""

    def __init__(self, folder, keep=2):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - what others draw from
        self.X, self.y = torch.randn(N, 6), torch.randint(3, (N,))
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
        )
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.sgd, step_size=5)
        self.checkpoints = Checkpoints(folder, keep=keep)
        self.parts = {"model": self.net, "sgd": self.sgd, "schedule": self.schedule}
        self.step, self.epoch, self.seen, self.losses = 0, 0, 0, {}

    def resume(self):
        found = self.checkpoints.resume(**self.parts)
        if found:
            self.step, position = found
            self.epoch, self.seen = position["epoch"], position["seen"]
        return self

    def to(self, step, every=None):
        while self.step < step:
            order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch))
            rows = order[self.seen : self.seen + BATCH]
            noise = random.random() + np.random.rand()  # noqa: NPY002 - augmentation
            loss = nn.functional.cross_entropy(self.net(self.X[rows] + noise), self.y[rows])
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
            self.schedule.step()
            self.step, self.seen = self.step + 1, self.seen + len(rows)
            if self.seen == N:
                self.epoch, self.seen = self.epoch + 1, 0
            self.losses[self.step] = loss.item()
            if every and self.step % every == 0:
                self.save()
        return self

    def save(self):
        position = {"epoch": self.epoch, "seen": self.seen}
        self.checkpoints.save(self.step, position, **self.parts)


def same(run: Run, other: Run) -> bool:
    """To the last bit: parameters, buffers, momenta."""
    ours, theirs = run.net.state_dict(), other.net.state_dict()
    momenta = zip(run.sgd.state.values(), other.sgd.state.values(), strict=True)
    return all(torch.equal(ours[name], theirs[name]) for name in ours) and all(
        torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in momenta
    )


@pytest.mark.parametrize("died", range(3, 20, 4))
def test_a_resumed_run_is_the_run_without_a_crash(tmp_path, died):
    whole = Run(tmp_path / "none").to(20)
    dead = Run(tmp_path / "run").to(died, every=3)
    torch.manual_seed(99)  # a new process has other random numbers
    resumed = Run(tmp_path / "run").resume()
    first = resumed.step
    resumed.to(20)
    assert first == died - died % 3  # nothing repeated beyond the interval
    assert resumed.losses == {step: whole.losses[step] for step in range(first + 1, 21)}
    assert same(resumed, whole)
    assert dead.losses == {step: whole.losses[step] for step in range(1, died + 1)}


def test_what_is_forgotten_shows(tmp_path):
    """The judge above judges: a run that goes on with other random numbers is another run."""
    whole = Run(tmp_path / "none").to(12)
    Run(tmp_path / "run").to(6, every=6)
    resumed = Run(tmp_path / "run").resume()
    torch.manual_seed(99)
    assert not same(resumed.to(12), whole)


def test_no_checkpoint_yet(tmp_path):
    assert Checkpoints(tmp_path / "new").resume() is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    run = Run(tmp_path, keep=keep).to(10, every=2)
    kept = [f"step-{step:08}.pt" for step in range(2, 11, 2)][-keep:]
    assert sorted(os.listdir(tmp_path)) == kept
    assert [file.name for file in run.checkpoints.files()] == kept


def test_to_keep_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"keep of .* must be .* from 1 on, not 0"):
        Checkpoints(tmp_path, keep=0)


def cut_to(share: float):
    return lambda raw: raw[: int(len(raw) * share)]


def flip_a_bit_of_a_tensor(raw: bytes) -> bytes:
    wrong = bytearray(raw)
    wrong[raw.index(b"data/0") + 150] ^= 1
    return bytes(wrong)


DAMAGES = {
    "empty": cut_to(0),
    "cut short": cut_to(0.5),
    "last bytes gone": cut_to(0.999),
    "zeros": lambda raw: bytes(len(raw)),
    "one wrong bit": flip_a_bit_of_a_tensor,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_the_one_before_it_taken(tmp_path, caplog, damage):
    whole = Run(tmp_path / "none").to(12)
    Run(tmp_path / "run").to(8, every=4)
    newest = tmp_path / "run" / "step-00000008.pt"
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    resumed = Run(tmp_path / "run").resume()
    assert resumed.step == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(newest) in caplog.text
    assert same(resumed.to(12, every=4), whole)
    assert Run(tmp_path / "run").resume().step == 12  # the damaged one has been overwritten


FOREIGN = {
    "a list": ([1, 2], "it holds a list that `save` did not write"),
    "a network's state": (nn.Linear(1, 1).state_dict(), "OrderedDict that `save` did not write"),
    "another trainer's": ({"epoch": 3, "format": "pt"}, "it holds a dict that `save` did not"),
    "half of ours": ({"format": 1, "step": 8, "position": {}}, "it lacks parts, random"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_named_and_the_one_before_it_taken(tmp_path, caplog, what):
    Run(tmp_path).to(4, every=4)
    foreign, wrong = FOREIGN[what]
    torch.save(foreign, tmp_path / "step-00000008.pt")
    assert Run(tmp_path).resume().step == 4
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{tmp_path / 'step-00000008.pt'} cannot be read" in record.getMessage()
    assert wrong in record.getMessage()


def test_nothing_but_foreign_files_does_not_start_anew_in_silence(tmp_path):
    torch.save([1, 2], tmp_path / "step-00000008.pt")
    with pytest.raises(ValueError, match="None of the 1 checkpoints"):
        Run(tmp_path).resume()


STRANGE = ["step-final.pt", "step-3.pt", "step-000001.5.pt", "step-٠٠٠٠٠٠٠٩.pt", "best.pt"]


def test_files_and_folders_of_other_names_are_left_alone(tmp_path, caplog):
    for name in STRANGE:
        (tmp_path / name).write_bytes(b"the user's")
    (tmp_path / "step-00000001.pt").mkdir()
    run = Run(tmp_path, keep=1).to(4, every=2)
    assert [file.name for file in run.checkpoints.files()] == ["step-00000004.pt"]
    assert Run(tmp_path).resume().step == 4
    assert all((tmp_path / name).read_bytes() == b"the user's" for name in STRANGE)
    assert caplog.records == []


@pytest.mark.parametrize("step", [1.5, -1, True, "3", torch.tensor(3)])
def test_a_step_that_is_no_step_is_refused_by_name(tmp_path, step):
    with pytest.raises(ValueError, match=r"step is .*: it must be a whole number from 0 on"):
        Checkpoints(tmp_path / "new").save(step, {})
    assert not (tmp_path / "new").exists()


def test_damaged_files_of_later_steps_push_nothing_out(tmp_path):
    run = Run(tmp_path).to(2, every=1)
    for step in (7, 8):
        (tmp_path / f"step-{step:08}.pt").write_bytes(b"")
    run.to(4, every=1)
    assert Run(tmp_path).resume().step == 4


def test_nothing_but_damage_does_not_start_anew_in_silence(tmp_path):
    run = Run(tmp_path).to(2, every=1)
    for file in run.checkpoints.files():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"None of the 2 checkpoints .* another folder"):
        run.resume()


def test_another_format_is_not_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    Run(tmp_path).to(1, every=1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has format 2; this version reads 1"):
        Run(tmp_path).resume()


def test_a_part_that_was_not_saved(tmp_path):
    run = Run(tmp_path).to(1, every=1)
    with pytest.raises(ValueError, match=r"'momentum' is not in the checkpoint: it has \['model'"):
        run.checkpoints.resume(momentum=run.sgd)


class Unfit:
    """A part whose state is checked late, when it has taken half of it."""

    def __init__(self):
        self.half = "as it was"

    def state_dict(self):
        return {"half": self.half}

    def load_state_dict(self, state):
        self.half = state["half"]
        if state["half"] != "as it was":
            raise RuntimeError("this does not fit")


@pytest.mark.parametrize("wrong", ["missing", "another network", "late"])
def test_where_a_part_does_not_fit_nothing_is_loaded(tmp_path, wrong):
    saved = Run(tmp_path).to(3)
    unfit = Unfit()
    unfit.half = "otherwise"
    saved.checkpoints.save(3, {}, **saved.parts, unfit=unfit, small=nn.Linear(2, 2))
    run = Run(tmp_path / "none").to(1)
    weights = {name: value.clone() for name, value in run.net.state_dict().items()}
    rate, momenta = (
        run.schedule.last_epoch,
        next(iter(run.sgd.state.values()))["momentum_buffer"].clone(),
    )
    parts = {
        "missing": {"nowhere": run.net},
        "another network": {"small": nn.Linear(3, 2)},
        "late": {"unfit": (late := Unfit())},
    }[wrong]
    before = [torch.get_rng_state(), random.getstate()]
    with pytest.raises((ValueError, RuntimeError), match=r"nowhere|size mismatch|does not fit"):
        Checkpoints(tmp_path).resume(**run.parts, **parts)
    assert all(torch.equal(weights[name], value) for name, value in run.net.state_dict().items())
    assert torch.equal(next(iter(run.sgd.state.values()))["momentum_buffer"], momenta)
    assert run.schedule.last_epoch == rate
    assert late.half == "as it was"
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("where", ["write", "replace"])
def test_a_crash_while_saving_leaves_what_there_was(tmp_path, monkeypatch, where):
    run = Run(tmp_path).to(3, every=3)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*{"write": (os, "fsync", full), "replace": (os, "replace", full)}[where])
    with pytest.raises(OSError, match=r"disk full.*step-00000006\.pt"):
        run.to(6, every=3)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["step-00000003.pt"]
    assert Run(tmp_path).resume().step == 3


# Saves a small checkpoint, then some for which there is no room; says how that went.
FILLS_THE_DISK = """
import os, resource, signal, sys
from torch import nn
from d2lpar.processes.checkpoint import Checkpoints

folder, limit = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
checkpoints = Checkpoints(folder)
checkpoints.save(1, {}, model=nn.Linear(1, 1))
for inputs in (10_000, 1_008):  # no room for a tensor; for all tensors, but no more
    try:
        checkpoints.save(2, {}, model=nn.Linear(inputs, 64))
    except OSError as error:
        print(f"errno={error.errno} {error}")
    print(os.listdir(folder), checkpoints.resume()[0])
"""
SMALL_DISK = """
set -eu
mount -t tmpfs -o size=256k none "$1"
"${@:2}"
"""
AS_ROOT = ["unshare", "--user", "--map-root-user", "--mount"]


def fill_the_disk(folder: Path, limit: int = 0, before: tuple = ()) -> list[str]:
    arguments = [str(folder), str(limit)]
    code = [sys.executable, "-c", FILLS_THE_DISK, *arguments]
    if before:
        done = subprocess.run(
            [*before, *code], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
        )
    else:
        done = warm_process.run(f"import sys\nsys.argv += {arguments}\n{FILLS_THE_DISK}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_full_disk_is_called_that_and_the_older_checkpoint_stays(tmp_path):
    small = [*AS_ROOT, "bash", "-c", SMALL_DISK, "bash", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*small, "true"], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    said = fill_the_disk(tmp_path, before=small)
    assert len(said) == 4
    for error, left in zip(said[::2], said[1::2], strict=True):
        assert error.startswith(f"errno={errno.ENOSPC} [Errno {errno.ENOSPC}] disk full: ")
        assert f"those before it are unharmed: '{tmp_path / 'step-00000002.pt'}'" in error
        assert left == "['step-00000001.pt'] 1"


@pytest.mark.skipif(sys.platform == "win32", reason="file-size limits are a POSIX thing")
def test_a_file_that_may_not_grow_is_an_error_of_the_system(tmp_path):
    error, left, *_ = fill_the_disk(tmp_path, limit=100_000)
    assert error.startswith(f"errno={errno.EFBIG} [Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}")
    assert left == "['step-00000001.pt'] 1"


def test_what_a_killed_process_leaves_is_not_taken_and_goes_with_the_next_save(tmp_path):
    Run(tmp_path).to(3, every=3)
    (tmp_path / checkpoint.PART.format("0" * 16)).write_bytes(b"half")
    (tmp_path / "unfinished.part").write_bytes(b"the user's")
    run = Run(tmp_path).resume()
    assert run.step == 3
    run.to(5, every=5)
    left = ["step-00000003.pt", "step-00000005.pt", "unfinished.part"]
    assert sorted(os.listdir(tmp_path)) == left


# Processes that know nothing of one another save and read in one folder, at steps of their own.
AT_ONCE = """
import sys, torch
from torch import nn
from d2lpar.processes.checkpoint import Checkpoints

torch.set_num_threads(1)
first, folder = int(sys.argv[2]), sys.argv[1]
net, checkpoints = nn.Linear(200, 200), Checkpoints(folder)
for step in range(first, first + 40):
    checkpoints.save(step, {"of": first}, model=net)
    assert checkpoints.resume(model=net) is not None
print("saved", flush=True)
sys.stdin.readline()  # it runs on
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_processes_that_save_into_one_folder_leave_one_another_theirs(tmp_path):
    starts = [0, 100, 1000]  # of two with one step, the one that is written last stays
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, str(tmp_path), str(start)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for start in starts
    ]
    said = [process.stdout.readline() for process in processes]
    left = sorted(os.listdir(tmp_path))
    errors = [process.communicate("\n", timeout=60)[1] for process in processes]
    assert (said, errors) == (["saved\n"] * 3, [""] * 3)
    newest = {f"step-{start + i:08}.pt" for start in starts for i in (38, 39)}
    assert newest - set(left) == set()
    assert not [name for name in left if not name.startswith("step-")]


def test_the_newest_are_kept_of_what_an_ended_process_has_left_too(tmp_path):
    Run(tmp_path).to(4, every=1)
    Run(tmp_path).resume().to(6, every=1)
    assert sorted(os.listdir(tmp_path)) == ["step-00000005.pt", "step-00000006.pt"]


def test_what_is_being_read_stays(tmp_path, monkeypatch):
    Run(tmp_path).to(2, every=1)
    saver, load = Checkpoints(tmp_path, keep=1), torch.load

    def slow(*args, **options):  # another process saves meanwhile
        saver.save(9, {})
        return load(*args, **options)

    monkeypatch.setattr(torch, "load", slow)
    assert Run(tmp_path).resume().step == 2
    assert "step-00000002.pt" in os.listdir(tmp_path)


# Forks savers and kills each of them in the midst of it; each goes on where the last one was.
KILLED = """
import os, random, signal, sys, time
import torch
from torch import nn
from d2lpar.processes.checkpoint import Checkpoints

torch.set_num_threads(1)
net, chance, reached = nn.Linear(300, 300), random.Random(0), []
for _ in range(30):
    saver = os.fork()
    if not saver:
        checkpoints = Checkpoints(sys.argv[1])
        step = (checkpoints.resume(model=net) or (0, {}))[0]
        while True:
            step += 1
            checkpoints.save(step, {}, model=net)
    while not Checkpoints(sys.argv[1]).files():
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(saver, signal.SIGKILL)
    os.waitpid(saver, 0)
    reached.append(Checkpoints(sys.argv[1]).resume(model=net)[0])
print(reached == sorted(reached), reached[-1], *os.listdir(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_thirty_kills_during_a_save_lose_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no warning of a damaged file
    in_order, last, *left = done.stdout.split()
    assert in_order == "True"
    assert f"step-{int(last):08}.pt" in left
    assert len(left) <= 4  # two to keep, one to come, one half written


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(os, "replace", lambda part, file: calls.append(replace(part, file)))
    Run(tmp_path).to(1, every=1)
    assert calls == [(tmp_path / "step-00000001.pt").stat().st_size, None]


def test_other_programs_can_read_it(tmp_path):
    run = Run(tmp_path).to(2, every=2)
    state = torch.load(tmp_path / "step-00000002.pt", weights_only=True)
    assert state["step"] == 2
    assert state["position"] == {"epoch": 0, "seen": 16}
    assert torch.equal(state["parts"]["model"]["0.weight"], run.net[0].weight)
    assert zipfile.is_zipfile(tmp_path / "step-00000002.pt")


def test_a_network_under_ddp_is_saved_as_itself(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("D2LPAR_DEVICES", "virtual")
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with launch.process_group():
        Checkpoints(tmp_path).save(1, {}, model=DistributedDataParallel(net))
    assert Checkpoints(tmp_path).resume(model=other) == (1, {})
    assert torch.equal(net.weight, other.weight)


def test_another_number_of_ranks_is_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(checkpoint, "_from_all", lambda mine: [mine, mine])  # two ranks save
    Run(tmp_path).to(2, every=2)
    monkeypatch.undo()
    state = torch.get_rng_state()
    assert Checkpoints(tmp_path).resume() == (2, {"epoch": 0, "seen": 16})
    assert "Saved by 2 ranks, resumed by 1" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("value", [np.int64(3), np.float64(0.5)])
def test_what_could_not_be_loaded_again_is_not_saved(tmp_path, value):
    checkpoints, net = Checkpoints(tmp_path), nn.Linear(1, 1)
    checkpoints.save(1, {"epoch": 1}, model=net)
    with pytest.raises(ValueError, match=r"holds .*numpy.* plain numbers"):
        checkpoints.save(2, {"epoch": value}, model=net)
    assert os.listdir(tmp_path) == ["step-00000001.pt"]
    assert checkpoints.resume(model=net) == (1, {"epoch": 1})
