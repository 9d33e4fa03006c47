"""The scoreboard measures what a program takes, keeps it, and shows rows of all lessons."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar as par
from d2lpar.parallelism import scoreboard
from d2lpar.timeline import kept

WIDTH, IMAGES = 64, 8
PARAMETER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def one(devices, steps):
    net = nn.Linear(WIDTH, WIDTH).to(devices[0])
    X = torch.empty(IMAGES, WIDTH, device=devices[0])
    for _ in range(steps):
        net(X).sum().backward()
    torch.empty(1_000_000, device=devices[1])


def copied(devices, steps):
    for _ in range(steps):
        torch.empty(1000, device=devices[0]).to(devices[1])


def summed(devices, steps):
    def rank():
        device = devices[dist.get_rank()]
        net = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device))
        for _ in range(steps):
            net(torch.empty(IMAGES, WIDTH, device=device)).sum().backward()

    par.run_ranks(rank, devices)


def replicated(devices, steps):
    net = nn.DataParallel(nn.Linear(WIDTH, WIDTH).to(devices[0]), devices)
    for _ in range(steps):
        net(torch.empty(IMAGES, WIDTH, device=devices[0])).sum().backward()


def test_one_device_sends_nothing_and_the_fullest_memory_counts():
    row = scoreboard.measure("one", one)
    assert row.sent_bytes == 0
    assert row.memory_bytes == pytest.approx(4_000_000, rel=1e-3)
    assert 0 < row.step_s < 1e-2


def test_a_copy_is_sent_once():
    assert scoreboard.measure("copied", copied).sent_bytes == 4000


def test_ddp_sends_what_a_ring_sends_and_not_its_constructors_broadcast():
    row = scoreboard.measure("DDP", summed)
    assert row.sent_bytes == 2 * PARAMETER_BYTES  # each of two sends 2 (n - 1) / n


def test_data_parallel_sends_parameters_images_outputs_and_gradients():
    half = IMAGES // 2 * WIDTH * 4
    images, outputs_and_their_gradients = half, 2 * half
    row = scoreboard.measure("DataParallel", replicated)
    assert row.sent_bytes == 2 * PARAMETER_BYTES + images + outputs_and_their_gradients


def test_rows_are_kept_printed_and_replaced(folder, capsys):
    scoreboard.add("mine", step_s=0.1, memory_bytes=2e9, sent_bytes=0, source="by hand")
    scoreboard.add("mine", step_s=0.05, memory_bytes=2e9, sent_bytes=3e6, source="by hand")
    assert capsys.readouterr().out.splitlines()[1] == (
        "mine: 50 ms per step, 2.00 GB on the fullest GPU, 3.00 MB sent per step (by hand)"
    )
    assert list(json.loads((folder / "scoreboard.json").read_text())) == ["mine"]
    [row] = [row for row in scoreboard.rows() if row.way == "mine"]
    assert row.step_s == 0.05


def test_nothing_is_kept_where_nothing_shall_be(monkeypatch, folder):
    monkeypatch.setenv(kept.VARIABLE, kept.NOTHING)
    scoreboard.add("mine", step_s=0.1, memory_bytes=1, sent_bytes=0, source="by hand")
    assert not folder.exists()
    assert "mine" not in [row.way for row in scoreboard.rows()]


def test_a_lesson_goes_on_where_nothing_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "file"))
    assert scoreboard.add("mine", step_s=0.1, memory_bytes=1, sent_bytes=0, source="by hand")


@pytest.mark.parametrize(
    "wrong", [{"step_s": 0}, {"memory_bytes": -1}, {"sent_bytes": float("nan")}]
)
def test_a_row_without_sense_is_refused(wrong):
    values = {"step_s": 0.1, "memory_bytes": 1, "sent_bytes": 0, "source": "by hand"} | wrong
    with pytest.raises(ValueError, match="seconds > 0"):
        scoreboard.add("mine", **values)


def test_the_picture_says_all_rows_the_slowest_first():
    for way, step_s in (("quick", 0.1), ("slow", 9.0)):
        scoreboard.add(way, step_s=step_s, memory_bytes=1e9, sent_bytes=0, source="by hand")
    picture = scoreboard.show()
    assert "slow, 9e+03 ms per step, 1 GB on the fullest GPU, 0 MB sent per step" in picture.alt
    assert picture.alt.index("slow") < picture.alt.index("quick")
    assert "by hand" in picture.summary


def test_a_way_that_a_later_lesson_measures_can_be_left_out():
    scoreboard.add("mine", step_s=0.1, memory_bytes=1e9, sent_bytes=0, source="by hand")
    assert "FSDP" in scoreboard.show().alt
    for without in ("FSDP", ["FSDP"]):
        picture = scoreboard.show(without=without)
        assert "FSDP" not in picture.alt
        assert "mine" in picture.alt
    with pytest.raises(ValueError, match=r"no row called 'FDSP'.*FSDP"):
        scoreboard.show(without=["FDSP"])
