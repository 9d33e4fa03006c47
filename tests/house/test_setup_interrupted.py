"""Set-up that is interrupted: nothing is installed outside of .venv, and the next call ends well.

The user's Python is played by `helpers/stand_in_python.py`. The real one is only asked where it
would install.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import stand_in_python
from test_setup import ROOT, setup_env

pytest.importorskip("fcntl", reason="make is not for Windows")

LOCK = "".join(
    f"{name}==1.0 \\\n    --hash=sha256:{0:064}\n    # via nothing\n"
    for name in ("nvidia-nccl", "pip", "torch", "uv")
)
PACKAGES = {"d2lpar", "nvidia-nccl", "pip", "torch", "uv"}


class Machine:
    """A clone, and a user's Python that set-up is run with."""

    def __init__(self, folder: Path):
        self.python = stand_in_python.install_at(folder / "users python")
        self.before = tree(folder / "users python")
        self.clone = folder / "a clone"
        self.clone.mkdir()
        for name in ("setup_env.py", "pyproject.toml"):
            shutil.copy(ROOT / name, self.clone)
        (self.clone / "requirements.lock").write_text(LOCK)
        self.log = folder / "log"
        self.drivers = folder / "drivers"  # with nvidia-smi, by which a driver is told
        self.drivers.mkdir()
        (self.drivers / "nvidia-smi").write_text("#!/bin/sh\n")
        (self.drivers / "nvidia-smi").chmod(0o755)

    @property
    def venv(self):
        return self.clone / ".venv"

    @property
    def stamp(self):
        return self.venv / "d2lpar.json"

    def start(self, step=0, how="", command=0, go_on_s=0.0, **variables):
        """A call that ends before a step, or gets a signal in a command that then goes on."""
        self.counts = Path(tempfile.mkdtemp(dir=self.log.parent))
        mine = {"COMMAND": command, "SIGNAL": how, "GO_ON_S": go_on_s}
        mine["COUNT"] = self.counts / "count"
        world = {name: os.environ[name] for name in os.environ if name not in ("PYTHON", "TORCH")}
        program = ROOT / "tests" / "helpers" / "set_up_program.py"
        with self.log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-IB", program, self.clone, self.python, str(step), how],
                env={
                    **world,
                    **stand_in_python.environment(),
                    "PATH": os.pathsep.join([str(self.drivers), os.environ["PATH"]]),
                    **{f"STAND_IN_{name}": str(value) for name, value in mine.items()},
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, **arguments):
        """A call's exit status and output."""
        with self.start(**arguments) as process:
            status = process.wait(timeout=120)
        return status, self.log.read_text()

    def complete(self, **variables):
        status, output = self.run(**variables)
        assert status == 0, output
        return output

    def assert_finished(self):
        """All is in .venv, nothing lies about, and the user's Python is as it was."""
        assert tree(self.python.parent.parent) == self.before
        installed = {path.name: path.read_text() for path in (self.venv / "lib").iterdir()}
        assert {name for name in installed if installed[name] == "complete"} == PACKAGES
        assert json.loads(self.stamp.read_text())["root"] == str(self.clone)
        assert (self.venv / "pyvenv.cfg").exists()
        assert [path.name for path in self.clone.glob(".venv?*")] == [".venv.lock"]

    def change_stamp(self, **content):
        self.stamp.write_text(json.dumps({**json.loads(self.stamp.read_text()), **content}))


def tree(folder):
    return sorted((str(path), path.is_file() and path.read_bytes()) for path in folder.rglob("*"))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


# What set-up can find


def is_new(machine):
    pass


def needs_rebuild(machine):
    machine.complete()
    machine.change_stamp(python="3.9")


def needs_update(machine):
    machine.complete()
    machine.change_stamp(inputs="an earlier lock")


def is_the_users_own(machine):
    """As `uv venv` makes it: without pip."""
    stand_in_python.make_venv(machine.python, machine.venv)
    (machine.venv / "lib" / "pip").unlink()
    (machine.venv / "mine").write_text("to be kept")


STATES = [is_new, needs_rebuild, needs_update, is_the_users_own]


# Interrupting


def survived(machine, prepare, endings):
    """How many ways to end set-up were made up for by the next call; all were, or the test ends."""
    prepare(machine)
    saved = machine.clone.with_name("saved")
    shutil.copytree(machine.clone, saved, symlinks=True)
    for number, ending in enumerate(endings):
        shutil.rmtree(machine.clone)
        shutil.copytree(saved, machine.clone, symlinks=True)
        status, output = machine.run(**ending)
        if status == 0:  # there was no further step
            return number
        assert status == -9 or "Setting up stopped: interrupted" in output
        machine.complete()
        machine.assert_finished()
        assert prepare is not is_the_users_own or (machine.venv / "mine").exists()
    return None


@pytest.mark.parametrize("prepare", [needs_rebuild, is_the_users_own])
def test_it_survives_a_kill_in_the_midst_of_any_command(prepare, machine):
    """What the command goes on writing gets into nobody's way."""
    endings = ({"command": n, "how": "SIGKILL", "go_on_s": 0.1} for n in itertools.count(1))
    assert survived(machine, prepare, endings) >= 3


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_it_survives_an_end_before_some_steps_of_a_rebuild(how, machine):
    endings = ({"step": step, "how": how} for step in itertools.count(4, 10))
    assert survived(machine, needs_rebuild, endings) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("prepare", STATES)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "SIGTERM"])
@pytest.mark.usefixtures("interrupts")
def test_it_survives_any_signal_in_the_midst_of_any_command(how, prepare, machine):
    endings = ({"command": n, "how": how, "go_on_s": 1} for n in itertools.count(1))
    assert survived(machine, prepare, endings) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("prepare", STATES)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_it_survives_an_end_before_any_step(how, prepare, machine):
    endings = ({"step": step, "how": how} for step in itertools.count(1))
    assert survived(machine, prepare, endings) >= 10


def test_the_next_call_waits_for_what_a_killed_one_left_behind(machine):
    needs_rebuild(machine)
    assert machine.run(command=2, how="SIGKILL", go_on_s=60)[0] == -9
    stop = machine.counts / "stop"
    with machine.start() as second:
        while "waiting" not in machine.log.read_text() and second.poll() is None:
            time.sleep(0.05)
        stop.touch()
        assert second.wait(timeout=60) == 0
    assert "waiting" in machine.log.read_text()
    machine.assert_finished()


# What it leaves alone


def test_half_an_environment_is_not_taken_for_the_users_python(machine):
    """What deleting file by file leaves behind: bin/python, but neither stamp nor pyvenv.cfg."""
    machine.complete()
    machine.stamp.unlink()
    (machine.venv / "pyvenv.cfg").unlink()
    before = tree(machine.clone)
    status, output = machine.run()
    assert status == 1
    assert "pyvenv.cfg" in output
    assert "Delete it or move it away" in output
    assert tree(machine.python.parent.parent) == machine.before
    assert tree(machine.venv) == [
        entry for entry in before if entry[0].startswith(f"{machine.venv}/")
    ]


def test_an_environment_of_ours_that_lost_its_pyvenv_cfg_is_made_anew(machine):
    machine.complete()
    (machine.venv / "pyvenv.cfg").unlink()
    machine.complete()
    machine.assert_finished()


def test_the_users_own_environment_gets_its_pip_and_is_never_replaced(machine):
    is_the_users_own(machine)
    machine.complete()
    machine.assert_finished()
    before = tree(machine.venv)
    status, output = machine.run(TORCH="cpu")
    assert status == 1
    assert "the default build, not cpu" in output
    assert tree(machine.venv) == before

    machine.change_stamp(inputs="an earlier lock", python="3.9")
    machine.complete()
    assert (machine.venv / "mine").exists()


def test_settings_of_pip_do_not_lead_elsewhere(machine, tmp_path):
    machine.complete(PIP_PREFIX=str(tmp_path / "elsewhere"))
    machine.assert_finished()
    assert not (tmp_path / "elsewhere").exists()


def test_leftovers_go_and_other_folders_stay(machine):
    (machine.clone / f"{setup_env.DISCARDED}x" / "venv" / "bin").mkdir(parents=True)
    (machine.clone / ".venv-of-mine").mkdir()
    machine.complete()
    (machine.clone / ".venv-of-mine").rmdir()
    machine.assert_finished()


def test_a_call_with_nothing_to_do_writes_nothing(machine):
    """So a finished clone may be read-only."""
    machine.complete()
    (machine.clone / ".venv.lock").unlink()
    before = tree(machine.clone)
    assert machine.complete() == ""
    assert tree(machine.clone) == before


def test_a_moved_clone_keeps_its_environment(machine):
    machine.complete()
    (machine.venv / "kept").touch()
    machine.clone = machine.clone.rename(machine.clone.with_name("moved clone"))
    machine.complete()
    machine.assert_finished()
    assert (machine.venv / "kept").exists()


def test_two_calls_at_once_make_one_environment(machine):
    with machine.start() as first, machine.start() as second:
        assert [first.wait(timeout=120), second.wait(timeout=120)] == [0, 0]
    machine.assert_finished()


def test_a_requirement_without_a_hash_is_not_installed(machine):
    lock = machine.clone / "requirements.lock"
    lock.write_text(LOCK.replace(f"torch==1.0 \\\n    --hash=sha256:{0:064}\n", "torch==1.0\n"))
    status, output = machine.run()
    assert status == 1
    assert "a hash is missing" in output


def test_only_a_python_inside_the_venv_counts_as_its_own(tmp_path, monkeypatch):
    """The real interpreter, which is asked and runs nothing."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], check=True)
    assert setup_env.version_here() == setup_env.dotted(sys.version_info[:2])

    (tmp_path / ".venv" / "pyvenv.cfg").rename(tmp_path / "saved")
    monkeypatch.setattr(setup_env, "run", lambda *command: pytest.fail("this is run"))
    assert setup_env.version_here() is None
    with pytest.raises(SystemExit, match=r"pyvenv\.cfg"):
        setup_env.in_venv("pip", "install", "anything")


@pytest.mark.skipif(setup_env.may_have_gpu(), reason="there is an NVIDIA driver, or no need of one")
@pytest.mark.parametrize("unreachable", ["", "1"])
def test_without_a_driver_torch_comes_without_cuda_if_that_can_be_had(machine, unreachable):
    (machine.drivers / "nvidia-smi").unlink()
    output = machine.complete(STAND_IN_UNREACHABLE=unreachable)
    installed = {path.name for path in (machine.venv / "lib").iterdir()}
    assert ("nvidia-nccl" in installed) == bool(unreachable)
    assert json.loads(machine.stamp.read_text())["torch"] == ("default" if unreachable else "cpu")
    assert "torch" in installed
    assert machine.complete() != output  # nothing is left to do
