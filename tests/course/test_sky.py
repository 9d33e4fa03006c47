"""SkyPilot's task: its validator takes it, and what it runs is one torchrun on each machine."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TASK = ROOT / "notebooks" / "scripts" / "sky.yaml"


def test_skypilot_takes_it(monkeypatch):
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    sky = pytest.importorskip("sky", reason="needs pip install skypilot")
    task = sky.Task.from_yaml(TASK)
    assert (task.num_nodes, task.name) == (2, "d2lpar")


@pytest.mark.parametrize(("rank", "host"), [(0, 1), (1, 0)])
def test_each_machine_starts_torchrun_with_the_first_as_meeting_point(tmp_path, rank, host):
    torchrun = tmp_path / ".venv" / "bin" / "torchrun"
    torchrun.parent.mkdir(parents=True)
    torchrun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    torchrun.chmod(0o755)
    task = yaml.safe_load(TASK.read_text(encoding="utf-8"))
    given = {  # as SkyPilot's documentation has them
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8", "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "4", "SKYPILOT_TASK_ID": "job-1",
        "ARGUMENTS": "--epochs 5",
    }  # fmt: skip
    found = subprocess.run(
        ["bash", "-c", task["run"]], cwd=tmp_path, env=os.environ | given, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split() == [
        "--nnodes=2", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.0.0.7:29400", "--rdzv-id=job-1", f"--rdzv-conf=is_host={host}",
        "notebooks/scripts/train.py", "--epochs", "5",
    ]  # fmt: skip
