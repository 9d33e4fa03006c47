"""The doctor, on machines that are faked: what it finds, what it advises, what it predicts."""

import re
import subprocess
from types import SimpleNamespace

import pytest
import torch

import d2lpar as par
from d2lpar.command import diagnosis
from d2lpar.command.diagnosis import LESSONS
from d2lpar.lesson import download
from d2lpar.machines.measuring import calibration, system

BY_NUMBER = {lesson.number: lesson for lesson in LESSONS}


@pytest.fixture(autouse=True)
def world(monkeypatch, tmp_path):
    """No variables, no caches, no GPU, no programs; every package is there."""
    for name in ("D2LPAR_DEVICES", "D2LPAR_MACHINE", "D2LPAR_DATA", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(calibration, "default_path", lambda: tmp_path / "calibration.json")
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "fashion-mnist")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: None)
    monkeypatch.setattr(diagnosis, "_version", lambda package: "1.0")


@pytest.fixture
def gpus(monkeypatch):
    """Two real GPUs that reach each other."""
    properties = SimpleNamespace(name="Toy GPU", total_memory=8e9, multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: i < j)


def facts():
    return {fact.topic: fact for fact in par.doctor().facts}


def how(number):
    return diagnosis.lesson_plan(BY_NUMBER[number]).how


def test_a_laptop():
    found = par.doctor()
    text = str(found)
    assert system.processor() in text
    assert f"{system.cores()} cores" in text
    assert torch.__version__ in text
    assert facts()["GPU"].text == "none; virtual ones serve"
    assert found.remedies == [
        "calibration: call `par.calibrate().save()`, which takes less than 20 s"
    ]
    assert "Fashion-MNIST is fetched at first use" in text
    assert "2x-v100-textbook" in text


@pytest.mark.parametrize(("count", "text"), [(1, "1 thread"), (3, "3 threads")])
def test_threads_are_counted(count, text, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert facts()["torch"].text.endswith(f", {text}")


def test_the_lessons_that_exist_are_planned():
    planned = [plan.lesson.number for plan in par.doctor().plans]
    folder = diagnosis.notebooks_folder()
    assert planned == [n for n in BY_NUMBER if list(folder.glob(f"{n}_*.ipynb"))]
    assert {"00", "04"} <= set(planned)


def test_every_notebook_is_a_lesson_of_the_table():
    numbers = {file.name.split("_")[0] for file in diagnosis.notebooks_folder().glob("*.ipynb")}
    # Page 11 only answers questions, and challenges are simulated wherever they run.
    assert numbers - {"11", "10"} <= set(BY_NUMBER)


def test_without_notebooks_it_says_where_to_look(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis, "notebooks_folder", lambda: tmp_path)
    assert f"no notebooks in {tmp_path}" in str(par.doctor())


def test_lessons_without_gpus():
    assert (how("01"), how("04"), how("06")) == ("measured", "simulated", "measured and simulated")
    assert (how("02"), how("03")) == ("measured and simulated",) * 2
    assert "a data loader is timed here" in diagnosis.lesson_plan(BY_NUMBER["02"]).why
    assert (how("07"), how("09")) == ("simulated", "simulated")
    assert "takes 2 GPUs and this machine has none" in diagnosis.lesson_plan(BY_NUMBER["04"]).why
    assert "over gloo" in diagnosis.lesson_plan(BY_NUMBER["07"]).why
    assert "over gloo" in diagnosis.lesson_plan(BY_NUMBER["06"]).why


def test_lessons_with_one_gpu(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert how("04") == "simulated"
    assert "takes 2 GPUs and this machine has 1" in diagnosis.lesson_plan(BY_NUMBER["04"]).why


def test_lessons_with_gpus(gpus, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert (how("01"), how("04"), how("06")) == ("measured", "measured", "measured")
    assert "over nccl" in diagnosis.lesson_plan(BY_NUMBER["06"]).why
    monkeypatch.setenv("D2LPAR_DEVICES", "virtual")
    assert (how("01"), how("04"), how("06")) == ("measured", "simulated", "measured and simulated")


def test_lessons_agree_with_devices(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Toy GPU")
    for kind, expected in (("real", "cuda"), ("", "cuda"), ("virtual", "vgpu")):
        monkeypatch.setenv("D2LPAR_DEVICES", kind)
        monkeypatch.setenv("D2LPAR_BACKING", "cpu")
        assert par.devices(2, verbose=False)[0].type == expected
        assert how("04") == ("measured" if expected == "cuda" else "simulated")


def test_real_gpus_demanded_and_missing(monkeypatch):
    monkeypatch.setenv("D2LPAR_DEVICES", "real")
    assert (how("04"), how("06")) == ("cannot run", "cannot run")


def test_gpus_are_described(gpus, monkeypatch):
    monkeypatch.setattr(diagnosis, "_nvidia_smi", lambda what: ["555.1", "555.1"])
    found = facts()
    assert found["GPU 1"].text == "Toy GPU, 8.0 GB, 40 multiprocessors"
    assert found["GPU driver"].text == "555.1"
    assert found["peer-to-peer"].text.startswith("1 of 2 pairs copy directly")


def test_a_gpu_that_torch_cannot_use(monkeypatch, tmp_path):
    def run(command, **options):
        assert command[1] == "--query-gpu=name"
        return SimpleNamespace(stdout="Toy GPU\n")

    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(diagnosis.subprocess, "run", run)
    assert "Toy GPU, which torch" in facts()["GPU"].text
    assert "CUDA build" in facts()["GPU"].remedy


@pytest.mark.parametrize("error", [OSError("broken"), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_a_driver_that_does_not_answer(monkeypatch, error):
    def run(command, **options):
        raise error

    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(diagnosis.subprocess, "run", run)
    assert facts()["GPU"].text == "none; virtual ones serve"


def test_an_apple_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "Apple's, which the course does not use" in facts()["GPU"].text


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(diagnosis, "_version", lambda name: None if name == "d2l" else "1.0")
    found = facts()["packages"]
    assert "missing: d2l" in found.text
    assert "pip install d2l`" in found.remedy
    plan = diagnosis.lesson_plan(BY_NUMBER["05"])
    assert (plan.how, plan.why) == ("cannot run", "for d2l is missing here")
    assert how("08") == "simulated"


def test_a_lesson_needs_the_packages_that_it_imports():
    for number, lesson in BY_NUMBER.items():
        (file,) = diagnosis.notebooks_folder().glob(f"{number}_*.ipynb")
        text = file.read_text(encoding="utf-8")
        found = re.findall(r'"(?:from|import) (d2l|torchvision)\b', text)
        found += ["torchvision"] * ("d2l" in found)  # which imports it
        found += ["ipyparallel"] * ("par.cluster(" in text)
        assert set(lesson.packages) == set(found), number
        assert lesson.ranks == ("ipyparallel" in found), number


def test_versions_are_those_installed(monkeypatch):
    monkeypatch.undo()
    assert diagnosis._version("torch").split("+")[0] == torch.__version__.split("+")[0]
    assert diagnosis._version("no-such-package-of-ours") is None


def test_an_old_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    assert "need torch 2.10" in facts()["torch"].remedy
    monkeypatch.setattr(torch, "__version__", "2.10.0a0")
    assert not facts()["torch"].remedy


def test_little_disk_space(monkeypatch):
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda f: SimpleNamespace(free=10**6))
    assert "make room in" in facts()["disk"].remedy


def test_launchers(monkeypatch):
    monkeypatch.setattr(
        diagnosis.shutil, "which", lambda name: f"/bin/{name}" if name != "nvidia-smi" else None
    )
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert facts()["launchers"].text.endswith("mpirun, Slurm; in Slurm job 17")


def test_calibrations(monkeypatch):
    file = calibration.default_path()
    file.write_text("{")
    assert "this is not JSON" in facts()["calibration"].text
    assert "par.calibrate().save()" in facts()["calibration"].remedy
    known = SimpleNamespace(source="measured once", readings=[1, 2], torch_version="1.0")
    monkeypatch.setattr(calibration.Calibration, "load", lambda: known)
    assert facts()["calibration"].text == "measured once, 2 readings"
    assert facts()["calibration"].remedy  # it was another torch
    known.torch_version = torch.__version__
    assert not facts()["calibration"].remedy


def test_data(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "is_complete", lambda folder: True)
    assert facts()["data"].text == "Fashion-MNIST is in the cache"
    monkeypatch.setenv("D2LPAR_DATA", "synthetic")
    assert not facts()["data"].remedy
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path))
    assert not facts()["data"].remedy
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "no"))
    assert "which does not exist" in facts()["data"].text
    assert facts()["data"].remedy


def test_wrong_variables(monkeypatch):
    monkeypatch.setenv("D2LPAR_MACHINE", "8xa100")
    assert "'8x-a100-nvswitch'" in facts()["simulated"].text
    assert facts()["simulated"].remedy == "correct D2LPAR_MACHINE or unset it"
    monkeypatch.setenv("D2LPAR_MACHINE", "8x-a100-nvswitch")
    assert "8x-a100-nvswitch" in facts()["simulated"].text
    monkeypatch.setenv("D2LPAR_DEVICES", "both")
    assert facts()["simulated"].text == "D2LPAR_DEVICES is 'both'"


def test_nothing_is_missing(monkeypatch):
    known = SimpleNamespace(source="", readings=[], torch_version=torch.__version__)
    monkeypatch.setattr(calibration.Calibration, "load", lambda: known)
    assert str(par.doctor()).endswith("Nothing is missing.")
