"""Importing the package starts nothing and brings in nothing heavy."""

import email.message
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import d2lpar

ROOT = Path(__file__).resolve().parents[2]


def run(code):
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_importing_brings_in_nothing_heavy_and_registers_nothing():
    heavy = "matplotlib d2l torchvision IPython ipywidgets torch._dynamo torch.distributed.fsdp"
    assert (
        run(f"""
import torch
before = set(sys.modules)
import pytest

import d2lpar
print([name for name in {heavy!r}.split() if name in sys.modules and name not in before],
      torch._C._get_privateuse1_backend_name(), torch.cuda.is_initialized())
""")
        == "[] privateuseone False"
    )


def test_virtual_devices_need_no_plots_either():
    assert (
        run("""
import d2lpar as par
par.devices(2, kind="virtual", verbose=False)
heavy = ("matplotlib", "d2l", "torchvision", "torch._dynamo")
print([name for name in heavy if name in sys.modules])
""")
        == "[]"
    )


def test_every_name_is_there():
    assert (
        run("""
import pytest

import d2lpar
print([name for name in d2lpar.__all__ if name != "plots" and not hasattr(d2lpar, name)])
""")
        == "[]"
    )
    assert set(d2lpar.__all__) <= set(dir(d2lpar))


def test_a_torch_that_is_too_old_is_named():
    assert "virtual GPUs need torch 2.10 or newer, and this is torch 2.9.1" in run("""
import torch, torch.utils.backend_registration as registration
del registration._setup_privateuseone_for_python_backend
torch.__version__ = "2.9.1"
import d2lpar as par
try:
    par.devices(2, kind="virtual")
except RuntimeError as error:
    print(error)
""")


def test_it_works_where_python_has_nothing_that_only_posix_has():
    """As on Windows: no fork, no signals to end a process by, none of these modules."""
    found = run("""
import os, signal, psutil, IPython
import torch.distributed.run  # torch itself asks for SIGKILL unless it was built for Windows
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty"):
    sys.modules[name] = None
for owner, names in ((os, "fork register_at_fork killpg setsid sched_getaffinity getuid uname"),
                     (signal, "SIGKILL SIGHUP SIGALRM SIGUSR1 setitimer pthread_sigmask")):
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
import d2lpar as par
devices = par.devices(2, kind="virtual", verbose=False)

def on_rank():
    import torch
    x = torch.ones(2, device="vgpu")
    torch.distributed.all_reduce(x)
    return x.tolist()

print(par.run_ranks(on_rank, devices))
with par.emulate_cuda(2, verbose=False):
    print(torch.ones(1, device="cuda:1").device)
os.name = "nt"
import warnings; warnings.simplefilter("ignore")
ranks = par.cluster(2)
print(ranks.run(torch.distributed.get_rank))
try:
    par.cluster(2, profile="ssh")
except RuntimeError as error:
    print(error)
""")
    assert found.startswith("[[2.0, 2.0], [2.0, 2.0]]\ncuda:1\n[0, 1]\n")
    assert "on Windows, WSL is Linux" in found


@pytest.fixture
def installed_with(monkeypatch):
    """Lets the package be installed with some addresses."""

    def install(*urls):
        metadata = email.message.Message()
        for url in urls:
            metadata["Project-URL"] = url
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)

    return install


def test_what_pip_is_told_to_install_is_the_repository(installed_with):
    """d2lpar is on no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = "https://code.example/someone/course"
    installed_with("Homepage, https://course.example", f"Repository, {repository}")
    assert "traces" in project["optional-dependencies"]
    assert d2lpar.requirement("traces") == f"d2lpar[traces] @ git+{repository}"
    assert d2lpar.requirement("traces", "v1") == f"d2lpar[traces] @ git+{repository}@v1"


def test_without_an_address_pip_is_told_the_folder(installed_with):
    installed_with("Homepage, https://course.example")
    assert d2lpar.requirement("traces", "v1") == f"{ROOT}[traces]"
