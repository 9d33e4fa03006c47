"""A program run again with a change, beside the same program as it is written with that change; and
what the first run says that it would give."""

from __future__ import annotations

import json

import pytest
import running

from d2lpar import machines
from d2lpar.machines.prices import price_of

LAYERS = """
import sys, torch
from torch import nn
net = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 2).cuda()
if "compiled" in sys.argv:
    net = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(32, 64, 256, device="cuda")
for _ in range(6):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
IMAGES = """
import sys, torch
from torch import nn
layers = [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
net = nn.Sequential(*layers, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
net = net.cuda()
if "compiled" in sys.argv:
    net = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
criterion = nn.CrossEntropyLoss()
images, labels = torch.randn(32, 64, 64, 64), torch.zeros(32, dtype=torch.long)
for _ in range(6):
    optimizer.zero_grad()
    loss = criterion(net(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
    loss.item()
"""
RANKS = LAYERS.replace(
    "if ",
    """import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
net = nn.parallel.DistributedDataParallel(net.cuda())
if """,
)
H100, TWO = ("--machine", "8x-h100-nvswitch", "--gpus", "1"), ("--nproc-per-node", "2")


@pytest.fixture
def reported(monkeypatch, tmp_path):
    """Runs a program's text, and gives its report and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(source, *words, more=()):
        (tmp_path / "program.py").write_text(source)
        ran = running.run("--report", "report.json", "--shapes-only", *words, "program.py", *more)
        assert ran.status == 0, ran.err
        return json.loads((tmp_path / "report.json").read_text()), ran

    return run


def advised(report, begin):
    return next((gain for gain in report["advice"] if gain["again"].startswith(begin)), None)


@pytest.mark.parametrize("source", [LAYERS, IMAGES])
def test_modules_are_compiled_as_torch_compile_does_it(reported, source):
    first, _ = reported(source, *H100, "--try", "compile")
    own, _ = reported(source, *H100, more=["compiled"])
    as_it_is, trial = first["tried"]
    assert as_it_is["seconds"] == pytest.approx(first["ms_per_step"] / 1e3)
    assert trial["seconds"] == pytest.approx(own["ms_per_step"] / 1e3, rel=0.02)
    assert trial["times"] == pytest.approx(as_it_is["seconds"] / trial["seconds"])
    gain = advised(first, "compile")
    assert gain["bound"] == "at most"
    assert 1.05 < trial["times"] <= gain["times"] < 4 * trial["times"]
    assert advised(own, "compile") is None


def test_ranks_are_compiled_within_their_replicas(reported):
    first, _ = reported(RANKS, "--machine", H100[1], *TWO, "--try", "compile")
    own, _ = reported(RANKS, "--machine", H100[1], *TWO, more=["compiled"])
    assert first["tried"][1]["seconds"] == pytest.approx(own["ms_per_step"] / 1e3, rel=0.05)


@pytest.mark.parametrize(
    ("source", "words"), [(LAYERS, H100), (IMAGES, H100), (RANKS, ("--machine", H100[1], *TWO))]
)
def test_the_machine_that_is_advised_takes_and_costs_what_is_said(reported, source, words):
    first, ran = reported(source, *words)
    gain = advised(first, "machine=")
    assert gain is not None, first["advice"]
    assert f"--try {gain['again']}" in ran.lines[-1]
    second, _ = reported(source, *words, "--try", gain["again"])
    as_it_is, there = second["tried"]
    assert gain["times"] == pytest.approx(there["times"], rel=0.03)
    assert there["usd_per_1000"] < as_it_is["usd_per_1000"] / 1.25
    for trial in (as_it_is, there):
        per_h = first["gpus"] * price_of(machines.machine(trial["machine"])).usd_per_gpu_h
        assert trial["usd_per_1000"] == pytest.approx(trial["seconds"] * 1000 / 3600 * per_h)
        assert f"${trial['usd_per_1000']:.4g}" in gain["words"]


def test_no_machine_is_advised_whose_processor_is_not_comparable(reported):
    report, _ = reported(LAYERS, "--machine", "2x-v100-textbook", "--gpus", "1")
    assert advised(report, "machine=") is None
    assert advised(report, "compile")


def test_what_does_not_fit_another_machine_fails_there_alone(reported):
    large = "import torch\nx = torch.empty(30, 2**30, dtype=torch.int8, device='cuda').add(0)\n"
    large += "torch.cuda.synchronize()"
    report, ran = reported(large, *H100, "--try", "machine=1x-a10", "--try", "machine=1x-gh200")
    _, small, enough = report["tried"]
    assert report["status"] == 0 == enough["status"] != small["status"]
    assert "OutOfMemoryError" in small["error"]
    assert any("machine=1x-a10" in line and "failed" in line for line in ran.lines)


@pytest.mark.parametrize("change", ["machine=9x-nothing", "machine=", "graphs"])
def test_an_unknown_change_is_refused_before_the_program_runs(tmp_path, change):
    (tmp_path / "program.py").write_text("print('it runs')")
    ran = running.run("--try", change, tmp_path / "program.py")
    assert ran.status == 2
    assert change.removeprefix("machine=") in ran.err
    assert "it runs" not in ran.out
