"""The command `d2lpar`: what it prints, where errors go, and its exit status."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from d2lpar import machines
from d2lpar.command import cli
from d2lpar.machines.measuring import calibrating, calibration, microbenchmarks, report

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys):
    """Runs a command; gives its exit status, and what it wrote on stdout and stderr."""

    def command(*arguments):
        try:
            status = cli.main(arguments)
        except SystemExit as exit:  # argparse's way to end
            status = exit.code
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return command


def test_an_interrupt_is_a_line_and_no_traceback(run, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", ("", interrupted))
    found = run("doctor")
    assert (found.status, found.err) == (130, "d2lpar: interrupted\n")


def test_machines_are_listed(run):
    found = run("machines")
    assert (found.status, found.err) == (0, "")
    for name in machines.CATALOGUE:
        assert f"\n{name} " in found.out
    row = next(line for line in found.out.splitlines() if line.startswith("4x-titan-x "))
    assert row.split() == ["4x-titan-x", "7", "7", "336.5", "12", "15.75", "15.75"]
    assert "ib-ndr" in found.out
    # By generation, the oldest first, each machine under that of its first accelerator.
    places = [found.out.index(f"\n{title}\n") for title in report.GENERATIONS.values()]
    assert places == sorted(places)
    hopper = found.out.index(report.GENERATIONS["hopper"])
    blackwell = found.out.index(report.GENERATIONS["blackwell"])
    assert hopper < found.out.index("\n8x-h20-nvswitch ") < blackwell


def test_a_machine_is_shown_with_its_sources(run):
    found = run("machines", "64x8x-p100-dgx1-4xib-edr")
    assert found.status == 0
    machine = machines.machine("64x8x-p100-dgx1-4xib-edr")
    for source in (
        machine.source,
        machine.notes,
        machine.accelerators[0].source,
        machine.host_link.source,
        machine.peer.source,
        machine.network.source,
        machine.host.source,
    ):
        assert source in found.out
    assert "512 x P100-SXM2-16GB" in found.out
    assert "64 nodes of 8" in found.out
    assert "12.5 GB/s a direction, latency 9.6 µs, shared by 2" in found.out
    assert "to a peer: through the host" in run("machines", "4x-rtx-4090").out


def test_a_machine_in_a_file(run, tmp_path):
    file = machines.save(machines.machine("1x-k80"), tmp_path / "mine.json")
    assert "1 x Tesla K80" in run("machines", str(file)).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("machines", "8xa100"), "no machine is called '8xa100'"),
        (("machines", "no.json"), "no.json: there is no such file"),
        (("machines", "this machine"), "not calibrated yet"),
        (("calibrate", "--device", "toaster"), "'toaster' is no device"),
    ],
)
def test_mistakes_are_told_on_stderr(run, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(calibration, "default_path", lambda: tmp_path / "none.json")
    found = run(*arguments)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("d2lpar: ")
    assert message in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [(), ("dance",), ("doctor", "--fast"), ("calibrate", "--seconds", "-1")]
)
def test_wrong_usage(run, arguments):
    found = run(*arguments)
    assert (found.status, found.out) == (2, "")
    assert "usage: d2lpar" in found.err


def test_help_names_every_command(run):
    found = run("--help")
    assert found.status == 0
    for name, (what, _) in cli.COMMANDS.items():
        assert f"  {name:<10} {what}\n" in found.out
    assert "--seconds" in run("calibrate", "--help").out


def test_doctor(run):
    found = run("doctor")
    assert (found.status, found.err) == (0, "")
    assert torch.__version__ in found.out


def test_calibrate_prints_and_saves(run, monkeypatch, tmp_path):
    monkeypatch.setattr(microbenchmarks, "WORKING_SETS", microbenchmarks.WORKING_SETS[:6])
    monkeypatch.setattr(microbenchmarks, "COPY_BYTES", 2**20)
    file = tmp_path / "here.json"
    found = run("calibrate", "--seconds", "0.2", "--device", "cpu", "--output", str(file))
    assert (found.status, found.err) == (0, "")
    saved = calibration.Calibration.load(file)
    assert found.out == f"{saved}\n\nsaved as {file}\n"


def test_a_folder_that_cannot_be_written(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    known = SimpleNamespace(save=lambda path: machines.save(machines.machine(), path))
    monkeypatch.setattr(calibrating, "calibrate", lambda **_: known)
    found = run("calibrate", "--output", str(tmp_path / "file" / "x.json"))
    assert found.status == 2
    assert "file" in found.err


def test_commands_of_other_modules(run, monkeypatch, tmp_path):
    module = tmp_path / "dancing.py"
    module.write_text("def main(arguments):\n    print('dance', arguments)\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "dance", ("move", "dancing"))
    found = run("dance", "--slowly", "now")
    assert (found.status, found.out) == (3, "dance ['--slowly', 'now']\n")
    assert "  dance      move\n" in run("--help").out


def test_as_a_program():
    def command(*arguments, **options):
        return subprocess.run(
            [sys.executable, "-m", "d2lpar", *arguments],
            cwd=ROOT,
            text=True,
            stderr=subprocess.PIPE,
            check=False,
            **options,
        )

    right = command("machines", stdout=subprocess.PIPE)
    assert (right.returncode, right.stderr) == (0, "")
    assert right.stdout.startswith("machine ")
    wrong = command("machines", "8xa100", stdout=subprocess.PIPE)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr


def test_a_reader_that_has_had_enough():
    with subprocess.Popen(
        [sys.executable, "-m", "d2lpar", "machines"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()  # long before the first line is there
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("words", [["machines"], ["doctor"], ["run", "x.py"], ["course", "update"]])
def test_a_folder_that_is_no_more_is_named(tmp_path, words):
    """MKL ended the process, with a line about a library that it could not load."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from d2lpar.command.cli import main; "
        f"sys.exit(main({words}))"
    )
    environment = {**os.environ, "PWD": str(gone), "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert str(gone) in found.stderr
    assert "cd" in found.stderr
    assert found.stderr.count("\n") == 1
