"""What `d2lpar run` says of a run that is slow because it computes values."""

import json

import pytest
import running

from d2lpar.vgpu.programs import shapes_advice
from d2lpar.vgpu.programs.report import RunReport

PRODUCTS = """
import torch
import torch.distributed as dist
dist.init_process_group()
torch.cuda.set_device(dist.get_rank())
x = torch.ones(300, 300, device="cuda")
for _ in range(20):
    x = x @ x / 300
dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    ("values_s", "real_s", "is_advised"),
    [(50.0, 60.0, True), (10.0, 60.0, False), (4.0, 5.0, False)],
)
def test_shapes_only_is_advised_where_values_take_most_of_a_long_run(values_s, real_s, is_advised):
    assert bool(shapes_advice.advice(values_s, real_s)) == is_advised
    report = RunReport("p.py", [], "m", 1, 1, 1, 1, 1, wall_s=real_s, values_s=values_s)
    assert ("--shapes-only" in str(report)) == is_advised


@pytest.mark.parametrize("shapes_only", [False, True])
def test_a_report_says_how_long_values_have_taken(tmp_path, shapes_only):
    script, report = tmp_path / "products.py", tmp_path / "run.json"
    script.write_text(PRODUCTS)
    options = ["--quiet", "--report", str(report), *(["--shapes-only"] * shapes_only)]
    assert running.run(*options, "--nproc-per-node", 2, script).status == 0
    found = json.loads(report.read_text())
    share = found["values_s"] / found["wall_s"]
    assert share < 0.01 if shapes_only else 0.01 < share < 1.0


def test_progress_says_it_while_the_program_runs(tmp_path):
    """As if each second took a hundred: the first line comes after 0.05 s."""
    quicker = (
        "from d2lpar.vgpu.programs import shapes_advice\n"
        "progress.FIRST_S = shapes_advice.WORTH_S = 0.05\nshapes_advice.MOST = 0.0"
    )
    script = tmp_path / "long.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(1000, 1000, device='cuda')\n"
        "for _ in range(20):\n    x = x @ x / 1000\n"
    )
    found = running.run(script, more=quicker)
    assert found.status == 0
    said = [line for line in found.err.splitlines() if line.startswith("d2lpar: ")]
    assert said
    assert all("to compute values, which --shapes-only leaves out" in s for s in said)
