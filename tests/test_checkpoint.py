"""Checkpoints: whole or not at all, and a resumed run is the run that was not interrupted."""

import logging
import os
import random
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from d2lpar import checkpoint, launch
from d2lpar.checkpoint import Checkpoints

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
    with pytest.raises(ValueError, match="keep is 0"):
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


@pytest.mark.parametrize("where", ["write", "replace"])
def test_a_crash_while_saving_leaves_what_there_was(tmp_path, monkeypatch, where):
    run = Run(tmp_path).to(3, every=3)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(*{"write": (os, "fsync", full), "replace": (os, "replace", full)}[where])
    with pytest.raises(OSError, match="No space"):
        run.to(6, every=3)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["step-00000003.pt"]
    assert Run(tmp_path).resume().step == 3


def test_what_a_killed_process_leaves_is_not_taken_for_a_checkpoint(tmp_path):
    Run(tmp_path).to(3, every=3)
    (tmp_path / "step-00000006.part").write_bytes(b"half")
    assert Run(tmp_path).resume().step == 3


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
