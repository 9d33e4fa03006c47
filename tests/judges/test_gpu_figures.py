"""`make gpu`: what measures a real GPU, tried on emulated ones, which must do as predicted."""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import d2lpar as par
from d2lpar.validation import measure, predict, read_rows
from d2lpar.validation.rows import row_of
from d2lpar.validation.workloads import measuring

REPOSITORY = Path(__file__).resolve().parents[2]
GPU = REPOSITORY / "benchmarks" / "gpu"
MACHINE = "1x-h100-nvswitch"
MODULES = ("card", "children", "figures", "lessons", "measure", "summary")


@pytest.fixture
def gpu(monkeypatch):
    """A function that imports a module of the command, for this test alone."""
    monkeypatch.syspath_prepend(str(GPU))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: __import__(name)
    for name in MODULES:
        sys.modules.pop(name, None)


def table() -> dict[str, dict[str, str]]:
    with (GPU / "rows.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def figure_of(name: str, **parameters: str):
    row = table()[name]
    texts = dict(part.strip().split("=") for part in row["parameters"].split(";")) | parameters
    shown = "; ".join(f"{key}={value}" for key, value in texts.items())
    rest = {"machine": MACHINE, "published": "1", "source": "s", "url": "u", "note": ""}
    return row_of({**row, **rest, "parameters": shown}, "here")


# --- the same programs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("mm-bf16-1024", "mm-tf32-2048", "mm-fp32-1024", "scale-fp32-4mib", "bmm-bf16-heads"),
        *("auto-parallelism-first-call", "auto-parallelism-second-call", "results-64mb-pageable"),
        *("h2d-pageable-64mb", "d2h-pinned-64mb", "h2d-pinned-16kb"),
        *("cudnn-128-causal-backward", "efficient-64-fp32-both", "scores-64-both"),
        *("layer-fp32-backward", "rms-few-long-both", "cross-entropy-50257-both"),
        *("add-queued", "add-waited-for", "adam-100-small", "cifar-script", "cifar-graph"),
        *("peak-cifar-resnet18", "softmax-compiled"),
    ],
)
def test_on_an_emulated_gpu_predictions_come_true(name):
    check_emulated(figure_of(name))


def test_a_replica_on_an_emulated_gpu_takes_what_is_predicted(monkeypatch):
    monkeypatch.setattr(measuring, "REPEATS", 2)  # each is many small operations
    check_emulated(figure_of("replicate-multi-gpu-concise", model="cifar_preact20"))


def check_emulated(row):
    predicted = predict(row).predicted
    with par.emulate_cuda(1, MACHINE, shape_only=True, verbose=False):
        measured, _ = measure(row, torch.device("cuda", 0), budget_s=0.0)
    assert measured == pytest.approx(predicted, rel=0.01)


def test_another_gpu_takes_another_time_than_is_predicted():
    """So the comparison above can fail."""
    row = figure_of("mm-bf16-1024")
    with par.emulate_cuda(1, "1x-a100-nvswitch", shape_only=True, verbose=False):
        measured, _ = measure(row, torch.device("cuda", 0), budget_s=0.0)
    assert measured < 0.7 * predict(row).predicted


def test_the_first_call_of_auto_parallelism_is_not_repeated_warm():
    first, second = (
        predict(figure_of("auto-parallelism-first-call", call=call)).predicted
        for call in ("first", "second")
    )
    assert first > 5 * second
    with par.emulate_cuda(1, MACHINE, shape_only=True, verbose=False):
        _, spread = measure(figure_of("auto-parallelism-first-call"), torch.device("cuda", 0), 0.0)
    assert spread != spread  # of one run there is none


def test_a_real_gpu_gets_numbers_and_classes_that_there_are():
    with par.emulate_cuda(1, MACHINE, verbose=False):
        device = torch.device("cuda", 0)
        with measuring.on_real_gpu(device, 0.0):
            made = [
                measuring.filled(torch.full((1000,), 7, device=device).to(dtype))
                for dtype in (torch.float32, torch.long, torch.bool)
            ]
        numbers, classes, flags = (tensor.cpu() for tensor in made)
    assert numbers.std() == pytest.approx(1, abs=0.2)
    assert not classes.any()
    assert not flags.any()
    there = torch.full((3,), 7.0)
    assert measuring.filled(there).tolist() == [7.0] * 3  # simulated: shapes count alone


def test_a_row_of_two_gpus_is_refused():
    row = figure_of("mm-bf16-1024", devices="2")
    with (
        par.emulate_cuda(1, MACHINE, shape_only=True, verbose=False),
        pytest.raises(ValueError, match="this row is of 2"),
    ):
        measure(row, torch.device("cuda", 0), 0.0)


def test_every_table_is_there_and_none_is_a_source_of_its_own():
    rows = list(table().values())
    tables = [row["table"] for row in rows]
    wanted = {"products", "copies", "attention", "norms", "launches", "replicas"}
    assert wanted | {"graphs", "memory", "compile"} <= set(tables)
    assert max(map(tables.count, tables)) <= 12
    assert tables.count("memory") == 10


# --- the command ----------------------------------------------------------------------------------


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(GPU), *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_file_has_predictions_and_figures_that_the_table_can_read(tmp_path):
    path = tmp_path / "out" / "gpu.csv"
    done = command(
        *("--emulate", MACHINE, "--csv", str(path), "--tables", "streams"),
        *("--lessons", "", "--budget-s", "0"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        assert float(row["published"]) == pytest.approx(float(row["predicted"]), rel=0.01)
        assert "emulated, not measured" in row["source"]  # nobody may take it for a measurement
        assert row["spread"]
        assert not row["apart"]
    assert [row.id for row in read_rows(path)] == [row["id"] for row in rows]
    assert "0 rows are off" in done.stdout


def test_without_a_gpu_it_says_what_to_do(gpu, monkeypatch):
    card = gpu("card")

    def missing(_name):
        raise OSError

    monkeypatch.setattr(card.ctypes, "CDLL", missing)
    with pytest.raises(card.NoGpuError, match=r"libcuda.*with one NVIDIA GPU.*EMULATE="):
        card.name_of_gpu()


def test_a_gpu_that_is_not_known_is_named_with_the_remedy(gpu):
    card = gpu("card")
    with pytest.raises(card.NoGpuError, match=r"'NVIDIA X9'.*MACHINE=1x-h100-nvswitch"):
        card.machine_of("NVIDIA X9")
    for name, machine in card.MACHINES.items():
        (accelerator,) = par.machines.machine(machine).accelerators
        model = name.replace("NVIDIA ", "").replace("Tesla ", "").replace("GeForce ", "")
        assert model.split("-")[0].split()[0] in accelerator.name, name


def test_a_table_that_is_not_there_is_named():
    done = command("--emulate", MACHINE, "--tables", "product")
    assert done.returncode == 2
    assert "no table product: there is products, copies" in done.stderr


# --- limits ---------------------------------------------------------------------------------------

FAKE = """
import sys, time
sys.path.insert(0, {folder!r})
from children import answer
first = sys.argv[1]
answer(torch="2", cuda="13")
if first == "a":
    answer(begin="a")
    answer(id="a", published="2", spread="0.1", no_figure="")
    answer(begin="b")
    sys.exit("out of luck")
if first == "c":
    answer(begin="c")
    time.sleep(60)
answer(begin=first)
answer(id=first, published="3", spread="", no_figure="")
"""


@pytest.fixture
def run(gpu, monkeypatch, tmp_path):
    """A run whose measuring process is a fake: it dies in row b, and hangs in row c."""
    import runpy

    figures = gpu("figures")
    names = runpy.run_path(str(GPU / "__main__.py"))
    rows = [
        dict.fromkeys(figures.COLUMNS, "")
        | {"id": name, "table": where, "unit": "s", "predicted": "1", "no_figure": "waiting"}
        for name, where in {"a": "products", "b": "products", "c": "norms", "d": "steps"}.items()
    ]
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE.format(folder=str(GPU)), encoding="utf-8")

    class Fake(names["Run"]):
        def _predict(self):
            pass

        def _measuring(self, first):
            return [sys.executable, str(fake), first]

    names["Run"].all.__globals__["LIMITS_S"]["norms"] = 0.5
    kept = figures.Figures(tmp_path / "gpu.csv", rows, lambda _text: None)
    options = argparse.Namespace(csv=kept.path, emulate="", lessons="", machine="")
    return Fake(kept, options, "a fake")


def test_what_fails_or_takes_too_long_is_said_and_the_rest_goes_on(run, tmp_path):
    begin_s = time.monotonic()
    run.all()
    assert time.monotonic() - begin_s < 30
    with (tmp_path / "gpu.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert [rows[name]["published"] for name in "abcd"] == ["2", "", "", "3"]
    assert "its process ended: out of luck" in rows["b"]["no_figure"]
    assert "the time of the norms was over" in rows["c"]["no_figure"]
    assert not rows["d"]["no_figure"]
    assert "measured by us on a fake" in rows["d"]["note"]
    assert rows["d"]["apart"]  # what was predicted before is a blind round


def test_a_process_is_ended_with_what_it_started(gpu, tmp_path):
    children, marker = gpu("children"), tmp_path / "alive"
    grandchild = f"import time, pathlib; time.sleep(2); pathlib.Path({str(marker)!r}).touch()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with (
        children.Child([sys.executable, "-c", program], os.environ, tmp_path / "log") as child,
        pytest.raises(TimeoutError),
    ):
        child.answer(time.monotonic() + 0.5)
    time.sleep(2.5)
    assert not marker.exists()


def test_the_summary_counts_by_table_and_lists_what_is_far_off(gpu):
    summary, figures = gpu("summary"), gpu("figures")

    def row(name, predicted, published, **more):
        fields = {"id": name, "table": "norms", "unit": "s", "workload": "rows", **more}
        return dict.fromkeys(figures.COLUMNS, "") | fields | {
            "predicted": predicted, "published": published
        }  # fmt: skip

    rows = [row("near", "1.1", "1"), row("far", "0.5", "1"), row("failed", "1", "", no_figure="no")]
    told = summary.lines(rows)
    assert told[1].split() == ["norms", "2", "30.0%", "30.0%", "50%", "1"]
    assert any(line.startswith("1 rows are off by more than 30%") for line in told)
    assert [line.split()[0] for line in told if line.endswith(("-50.0%", "no"))] == [
        "far",
        "failed",
    ]


# --- lessons --------------------------------------------------------------------------------------


def test_a_lesson_is_compared_with_what_is_stored_cell_by_cell(tmp_path):
    program = f"""
import json, sys
sys.path.insert(0, {str(GPU)!r})
import lessons

def cell(source, *outputs, tags=()):
    return {{"source": source, "outputs": list(outputs), "metadata": {{"tags": list(tags)}}}}

def out(text):
    return {{"output_type": "stream", "name": "stdout", "text": text}}

def value(text):
    return {{"output_type": "execute_result", "data": {{"text/plain": text}}}}

good = [cell("print(1)\\n2", out("1\\n"), value("2")), cell("print(3)", out("3\\n"))]
other = cell("print(4)", out("5\\n"))
measured = cell("print(6)", out("7\\n"), tags=[lessons.NOT_COMPARED])
told = []
for chosen in ([*good, other, measured], [*good, cell("1 / 0")]):
    lessons.cells = lambda name: chosen
    told.append(lessons.run("00"))
print(json.dumps(told))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    whole, failed = __import__("json").loads(done.stdout.splitlines()[-1])
    assert whole["published"] == "2"
    assert whole["no_figure"].endswith("other outputs in cells [2]")
    assert failed == {"no_figure": "failed in cell 2: ZeroDivisionError: division by zero"}


def test_lessons_are_there_with_outputs_to_compare(gpu):
    lessons = gpu("lessons")
    for name in ("01", "02", "03", "04", "05", "06"):
        assert int(lessons.row(name)["predicted"]) >= 5
    assert lessons.recorded_world()["D2LPAR_DEVICES"] == "virtual"


def test_rows_without_a_figure_are_left_out_of_the_table(tmp_path):
    good = "a,launch,elements=4; dtype=float32,x,1,s,s,u,t,,\n"
    bad = "lesson-01,lesson,,,,cells,,,lessons,,failed: no wheel\n"
    path = tmp_path / "rows.csv"
    header = "id,workload,parameters,machine,published,unit,source,url,table,note,no_figure\n"
    path.write_text(header + good + bad, encoding="utf-8")
    assert [row.id for row in read_rows(path)] == ["a"]
