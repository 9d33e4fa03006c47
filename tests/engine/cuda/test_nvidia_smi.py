"""`nvidia-smi` in a program for CUDA: it tells of the emulated GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

import d2lpar as par
from d2lpar.vgpu.cuda.torch_cuda.nvidia_smi import stand_in

MIB = 2**20


@pytest.fixture
def emulated():
    with par.emulate_cuda(2, verbose=False):
        yield


def said(*options):
    return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("emulated")
def test_tells_what_torch_tells_of_the_same_gpus():
    held = torch.zeros(3 * MIB, device="cuda")
    free, total = (n // MIB for n in torch.cuda.mem_get_info())
    known = torch.cuda.get_device_properties(0)
    fields = "index,name,memory.used,memory.free,memory.total,compute_cap"
    lines = said(f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.splitlines()
    assert [line.split(", ")[0] for line in lines] == ["0", "1"]
    _, name, used, unused, whole, capability = lines[0].split(", ")
    assert (name, capability) == (known.name, f"{known.major}.{known.minor}")
    assert (int(unused), int(whole)) == (free, total)
    assert int(used) == total - free >= held.nbytes // MIB
    assert f"{used} MiB" in said().stdout


@pytest.mark.usefixtures("emulated")
def test_units_headings_and_what_gpus_do_not_measure():
    command = "nvidia-smi -i 1 --query-gpu=memory.used,temperature.gpu --format=csv"
    with os.popen(command) as told:
        text = told.read()
    assert re.fullmatch(r"memory\.used \[MiB\], temperature\.gpu\n\d+ MiB, \[N/A\]\n", text)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["topo", "-m"], "topo"),
        (["-i", "2"], "'2' is none of 0 to 1"),
    ],
)
def test_what_it_does_not_have_is_refused(options, named):
    found = said(*options)
    assert found.returncode == 2
    assert named in found.stdout


def test_tells_of_gpus_that_a_process_does_not_see(tmp_path):
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, subprocess\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n"
        "import torch\n"
        "assert torch.cuda.device_count() == 1\n"
        "print(subprocess.check_output(['nvidia-smi', '--query-gpu=uuid'], text=True))\n"
    )
    command = [sys.executable, "-m", "d2lpar", "run", "--gpus", "2", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.count("GPU-") == 2


@pytest.mark.parametrize(
    ("command", "shell"),
    [(["echo", "nvidia-smi"], False), ("nvidia-smi | head -1", True), ([sys.executable], False)],
)
def test_other_commands_are_the_systems(command, shell):
    assert stand_in(command, shell=shell) is None


def test_outside_of_emulation_it_is_the_systems(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError):
        said()
