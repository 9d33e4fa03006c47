"""The advice at the end of a run: what it says of ten programs whose bottleneck is known, against
the same programs with the advice taken."""

from __future__ import annotations

import json

import pytest
import running

from d2lpar import machines
from d2lpar.machines.prices import price_of
from d2lpar.timeline import Span, Timeline
from d2lpar.validation import groups, recorded
from d2lpar.validation.report import Errors
from d2lpar.vgpu.programs.advice.recent import RecentTimeline, blocks
from d2lpar.vgpu.programs.advice.replay import Change, Replay
from d2lpar.vgpu.programs.report import DeviceReport, RunReport

BEGIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
taken = "taken" in sys.argv
"""

# Small layers, each as quick for the GPU as nothing: the host cannot queue them fast enough.
SMALL_LAYERS = """
net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(20)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(16, 64, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=False)
    net(x).sum().backward()
    optimizer.step()
"""
GRAPHED = """
if taken:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for i in range(12):
    if i == 6:
        start.record()
    graph.replay() if taken else step()
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end) / 6)
"""
ONE_BY_ONE = SMALL_LAYERS.replace("0.1)", "0.1, momentum=0.9, foreach=False)")
LARGER_BATCH = """
batch = 32 * (1 + taken)
net = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(batch, 16, 256, device="cuda")
for _ in range(8):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
LARGE_PRODUCTS = """
net = nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(8192, 8192, device="cuda")
for _ in range(6):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
READS_THE_LOSS = """
net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(256, 1024, device="cuda")
for _ in range(10):
    optimizer.zero_grad()
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    norms = [p.grad.norm() for p in net.parameters()]
    if not taken:
        print(sum(norm.item() for norm in norms))
"""
BRINGS_BACK = """
net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(1024, 1024, device="cuda")
kept = torch.empty(1024, 1024).pin_memory()
for _ in range(10):
    optimizer.zero_grad()
    y = net(x)
    y.sum().backward()
    optimizer.step()
    if taken:
        kept.copy_(y.detach(), non_blocking=True)
    else:
        y.detach().cpu()
"""
FROM_PAGEABLE = """
net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
host = torch.randn(4096, 2048)
if taken:
    host = host.pin_memory()
for _ in range(10):
    x = host.to("cuda", non_blocking=taken)
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
RANKS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
net = DDP(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(64, 2048, device="cuda")
for _ in range(6):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
SHARDED = RANKS.replace(
    "net = DDP(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda())",
    """from torch.distributed.fsdp import fully_shard
net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
for layer in net:
    fully_shard(layer)
fully_shard(net)""",
)
OFFLOADED = (
    SHARDED.replace("fully_shard(net)", "fully_shard(net, offload_policy=CPUOffloadPolicy())")
    .replace("import fully_shard", "import CPUOffloadPolicy, fully_shard")
    .replace("fully_shard(layer)", "fully_shard(layer, offload_policy=CPUOffloadPolicy())")
    .replace("for _ in range(4)]).cuda()", "for _ in range(4)])")
    .replace("SGD(net.parameters(), 0.1)", "AdamW(net.parameters(), fused=taken)")
)
ALMOST_FULL = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
batch, width = FIGURES
rows = batch * (1 + taken)
net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)]).cuda()
if dist.is_torchelastic_launched():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    net = DDP(net.cuda())
optimizer = torch.optim.Adam(net.parameters())
for _ in range(4):
    y = net(torch.randn(rows, width, device="cuda"))
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
"""
OF_ACTIVATIONS = ALMOST_FULL.replace("FIGURES", "190_000, 1024")
OF_PARAMETERS = ALMOST_FULL.replace("FIGURES", "512, 8192")
ANSWERS = """
net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(30)]).cuda().requires_grad_(False)
x = torch.randn(8, 128, device="cuda")
for _ in range(12):
    net(x)
torch.cuda.synchronize()
"""
# A step of some 2,500 spans, most of them the optimizer's, most of the time the products'.
LONG_UPDATES = """
net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(40)]).cuda()
optimizer = torch.optim.Adam(net.parameters(), foreach=False)
x = torch.randn(16384, 512, device="cuda")
for _ in range(8):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""

ONE, TWO = ("--gpus", "1", "--machine", "2x-v100-textbook"), ("--nproc-per-node", "2")
SLOW, FAST = ("--machine", "2x-v100-textbook"), ("--machine", "4x-v100-nvlink")


@pytest.fixture
def reported(monkeypatch, tmp_path):
    """Runs a program's text, and gives its report and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(source, *words, more=(), before=""):
        (tmp_path / "program.py").write_text(BEGIN + source)
        words = ("--report", "report.json", "--shapes-only", *words, "program.py", *more)
        ran = running.run(*words, more=before)
        assert ran.status == 0, ran.err
        return json.loads((tmp_path / "report.json").read_text()), ran

    return run


def gain_by(report, words):
    return next((gain for gain in report["advice"] if words in gain["words"]), None)


def ms_of(report, ran):
    """Of a step: by the report, or as a program measures it whose graph has the updates."""
    return report["ms_per_step"] or float(ran.lines[0])


@pytest.mark.parametrize("source", [SMALL_LAYERS + GRAPHED, ONE_BY_ONE + GRAPHED])
def test_a_step_that_waits_for_the_host_is_advised_a_graph(reported, source):
    before, first = reported(source, *ONE)
    _, second = reported(source, *ONE, more=["taken"])
    assert "CUDA graph" in before["advice"][0]["words"]
    times = float(first.lines[0]) / float(second.lines[0])
    assert before["advice"][0]["times"] == pytest.approx(times, rel=0.15)
    assert "the GPUs wait for the host" in first.lines[-1]


@pytest.mark.parametrize(
    ("source", "words", "rel"),
    [
        (READS_THE_LOSS, "no item", 0.03),
        (BRINGS_BACK, "pinned memory", 0.05),
        (FROM_PAGEABLE, "pinned memory", 0.1),
    ],
)
def test_a_step_that_makes_the_host_wait_is_told_by_what(reported, source, words, rel):
    before, _ = reported(source, *ONE)
    after, _ = reported(source, *ONE, more=["taken"])
    gain = gain_by(before, words)
    assert gain is not None, before["advice"]
    times = before["ms_per_step"] / after["ms_per_step"]
    assert gain["times"] == pytest.approx(times, rel=rel)
    found = gain_by(after, words)
    assert found is None


def test_an_optimizer_on_the_host_is_named_where_it_takes_most_of_a_step(reported, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, _ = reported(OFFLOADED, *TWO, *SLOW)
    after, _ = reported(OFFLOADED, *TWO, *SLOW, more=["taken"])
    gain = gain_by(before, "fused=True")
    assert gain["bound"] == "at most"
    times = before["ms_per_step"] / after["ms_per_step"]
    left = gain_by(after, "fused=True")["times"]
    assert 1.5 < times < gain["times"]
    assert gain["times"] == pytest.approx(times * left, rel=0.05)


def test_twice_the_batch_gives_at_least_what_is_said(reported):
    before, _ = reported(LARGER_BATCH, *ONE)
    after, _ = reported(LARGER_BATCH, *ONE, more=["taken"])
    gain = gain_by(before, "twice the batch")
    assert gain["bound"] == "at least"
    times = 2 * before["ms_per_step"] / after["ms_per_step"]
    assert 1.3 < gain["times"] <= 1.02 * times


@pytest.mark.parametrize("words", [ONE, (*TWO, *SLOW)])
def test_twice_the_batch_takes_the_memory_that_is_said(reported, words):
    """Parameters fill most of the GPU, so that twice of what is held would be too much."""
    before, ran = reported(OF_PARAMETERS, *words)
    after, _ = reported(OF_PARAMETERS, *words, more=["taken"])
    for device, larger in zip(before["devices"], after["devices"], strict=True):
        held, there = device["peak_memory_bytes"], device["memory_bytes"]
        assert there / 2 < held < larger["peak_memory_bytes"]
        found = device["twice_the_batch_bytes"]
        assert found == pytest.approx(larger["peak_memory_bytes"], rel=0.01)
    assert "does not fit" not in ran.lines[-1]


def test_twice_the_batch_is_not_advised_where_it_does_not_fit(reported, tmp_path):
    before, ran = reported(OF_ACTIVATIONS, *ONE)
    (device, *_) = before["devices"]
    assert device["peak_memory_bytes"] < device["memory_bytes"] < device["twice_the_batch_bytes"]
    assert gain_by(before, "twice the batch") is None
    assert "twice the batch does not fit" in ran.lines[-1]
    after = running.run("--shapes-only", *ONE, tmp_path / "program.py", "taken")
    assert "OutOfMemoryError" in after.err


@pytest.mark.parametrize("source", [RANKS, SHARDED])
def test_faster_links_give_at_most_what_is_said(reported, source):
    before, ran = reported(source, *TWO, *SLOW)
    after, _ = reported(source, *TWO, *FAST)
    assert before["advice"][0]["words"] == "faster links"
    assert before["advice"][0]["bound"] == "at most"
    times = before["ms_per_step"] / after["ms_per_step"]
    assert 1.2 < times < before["advice"][0]["times"]
    assert "communicate" in ran.lines[-1]


def test_a_program_that_computes_is_advised_nothing(reported):
    report, ran = reported(LARGE_PRODUCTS, *ONE)
    assert report["advice"] == []
    assert "the GPUs compute" in ran.lines[-1]


def test_products_of_float32_are_advised_to_be_rounded_where_a_gpu_can(reported):
    source = 'if taken: torch.set_float32_matmul_precision("high")\n' + LARGE_PRODUCTS
    on = "--gpus", "1", "--machine", "2x-rtx-4090"
    before, _ = reported(source, *on)
    after, _ = reported(source, *on, more=["taken"])
    times = before["ms_per_step"] / after["ms_per_step"]
    assert gain_by(before, "TF32")["times"] == pytest.approx(times, rel=0.01)
    assert times > 1.3
    assert gain_by(after, "TF32") is None


def test_a_program_without_steps_is_advised_too(reported):
    report, _ = reported(ANSWERS, *ONE)
    assert "CUDA graph" in report["advice"][0]["words"]
    assert gain_by(report, "batch") is None  # of which nothing is known


def test_replicas_of_one_process_are_advised_no_graph(reported):
    source = SMALL_LAYERS.replace(".cuda()", "").replace(
        "optimizer =", "net = nn.DataParallel(net.cuda())\noptimizer =", 1
    )
    report, _ = reported(source + "for _ in range(4):\n    step()\n", "--gpus", "2", *SLOW)
    assert report["steps"] == 4
    assert gain_by(report, "CUDA graph") is None
    assert gain_by(report, "twice the batch") is not None


def test_a_quiet_run_has_its_advice_in_the_report(reported):
    report, ran = reported(ANSWERS, *ONE, "--quiet")
    assert report["advice"]
    assert ran.lines == []


def test_a_run_that_fails_is_advised_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(BEGIN + ANSWERS + "raise SystemExit(3)")
    ran = running.run("--report", "report.json", "--share", "run.html", *ONE, "program.py")
    assert ran.status == 3
    assert json.loads((tmp_path / "report.json").read_text())["advice"] == []
    assert 'id="timeline"' in (tmp_path / "run.html").read_text()


def test_steps_without_length_that_lead_in_a_circle_are_replayed():
    spans = [Span("host", "rank 0", "dispatch", "it", 0, 1, correlation=i) for i in (1, 2, 3)]
    names = (("all_reduce", (0, 1)), ("it", ()), ("all_reduce", (0, 1)))
    for i, (name, group) in enumerate(names, 1):
        kind = "collective" if group else "compute"
        spans.append(Span("g:0", 0, kind, name, 1, 1, correlation=i, group=group))
    assert Replay(spans).seconds() == 1


def test_a_run_that_is_replayed_unchanged_takes_as_long_as_it_took(reported, tmp_path):
    reported(RANKS, *TWO, *SLOW, "--timeline", "run.json")
    timeline = Timeline.from_chrome_trace(tmp_path / "run.json")
    replay = Replay(timeline.spans)
    assert replay.seconds() == pytest.approx(timeline.duration_s, rel=1e-9)
    slower = Change(lambda span: span.duration_s * (1 + (span.kind == "collective")))
    assert replay.seconds(slower) > replay.seconds()


def test_a_shared_run_is_one_page(reported, tmp_path):
    words = ("--gpus", "1", "--machine", "8x-v100-dgx1", "--share", "run.html")
    report, _ = reported(READS_THE_LOSS, *words)
    page = (tmp_path / "run.html").read_text()
    assert "no item at program.py:" in page
    assert "http" not in page
    assert f"{report['steps']} steps" in page
    price = price_of(machines.machine("8x-v100-dgx1"))
    assert f"${price.usd_per_gpu_h:.2f} an hour" in page
    assert price.date in page


@pytest.mark.parametrize(
    ("source", "group"), [(READS_THE_LOSS, groups.PROGRAMS), (ANSWERS, groups.INFERENCE)]
)
def test_a_run_says_how_far_off_its_group_typically_is(reported, tmp_path, source, group):
    report, ran = reported(source, *ONE, "--share", "run.html")
    apart = [p for p in recorded().apart if p.group == group]
    assert report["uncertainty"] == Errors.of(apart).median
    said = f"(± {report['uncertainty']:.0%})"
    assert any(said in line for line in ran.lines)
    assert said in (tmp_path / "run.html").read_text()


def test_blocks_are_as_high_as_a_device_is_busy():
    spans = [Span("g", 0, "compute", "", 0, 2), Span("g", 0, "compute", "", 3, 3.5)]
    assert blocks(spans, (0, 4), 4) == "██▁▅"


KEPT = "from d2lpar.vgpu.programs import runner; runner.MANY = {}"
REPLAYED = "from d2lpar.vgpu.programs.advice import advice; advice.REPLAYED = {}"
LOOKED_AT = "from d2lpar.vgpu.programs.advice import elsewhere; elsewhere.LOOKED_AT = {}"


@pytest.mark.parametrize(
    ("before", "shown", "steps"),
    [
        (KEPT.format(5_500), "the last 2 steps", 2),
        (KEPT.format(4_000), "the last step", 1),
        (REPLAYED.format(7_000), "the second half of the steps", 4),
        (REPLAYED.format(100), "the second half of the steps", 4),
        (LOOKED_AT.format(200), "the second half of the steps", 4),
    ],
)
def test_advice_rests_on_whole_steps(reported, before, shown, steps):
    words = "--gpus", "1", "--machine", "4x-a100-nvlink"
    whole, _ = reported(LONG_UPDATES, *words)
    report, ran = reported(LONG_UPDATES, *words, before=before)
    head, row = ran.lines[-3:-1]
    assert f"computing in {shown}, {steps * report['ms_per_step']:.3g} ms:" == head
    assert set(row.split()[1]) <= {*"▄▅▆▇█"}
    assert [gain["words"].split(",")[0] for gain in report["advice"]] == [
        gain["words"].split(",")[0] for gain in whole["advice"]
    ]
    for gain, expected in zip(report["advice"], whole["advice"], strict=True):
        assert gain["times"] == pytest.approx(expected["times"], rel=0.02)


def test_a_step_that_is_too_long_to_be_kept_is_advised_nothing(reported, tmp_path):
    words = "--share", "run.html"
    report, ran = reported(LONG_UPDATES, *ONE, *words, before=KEPT.format(2_000))
    assert report["advice"] == []
    assert not any("computing in" in line for line in ran.lines)
    for said in (ran.lines[-1], (tmp_path / "run.html").read_text()):
        assert "the last step is not wholly among the 2,000 spans" in said


def test_a_recording_knows_since_when_it_has_all():
    recent = RecentTimeline("", 3, samples_memory=False)
    long, short = (Span("host", "", "host", "", 0, end_s) for end_s in (5, 1))
    for span in (long, short, short):
        recent.add(span)
    assert recent.whole_since_s < 0
    for span in (short, short):
        recent.add(span)
    assert recent.whole_since_s == 5
    recent.add(Span("g", 0, "compute", "", 6, 7, correlation=1))  # its dispatch was forgotten
    assert recent.whole_since_s == 7


def test_what_nobody_rents_has_no_price_and_is_not_advised(reported):
    assert price_of(machines.machine("2x-v100-textbook")) is None
    report, _ = reported(RANKS, *TWO, "--machine", "8x-v100-pcie")  # the same host, slower links
    assert gain_by(report, "faster links")
    assert gain_by(report, "textbook") is None


def test_nothing_is_said_of_memory_that_is_not_known():
    device = DeviceReport("cuda:0", 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, None, 16 * 10**9)
    report = RunReport("train.py", [], "8x-v100-p3dn", 8, 1, 8, 1, 8, devices=[device])
    assert "0 bytes" in str(report)
    report.status = 1
    assert "0 bytes" not in str(report)
