"""Files that commands write: tried before the work, whole or not at all, and not lost."""

import json
import os
import random
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from d2lpar.command import cli
from d2lpar.command.course import grading
from d2lpar.machines import calibration
from d2lpar.timeline import Span, Timeline, whole_file
from d2lpar.timeline.streaming import LongTimeline
from d2lpar.timeline.whole_file import NOT_WRITTEN, OutputFile

ROOT = Path(__file__).parents[1]
PROGRAM = "import torch\nprint(torch.ones(3, device='cuda').sum().item(), flush=True)\n"


@contextmanager
def files_of_at_most(nbytes):
    """A disk with so much room: writing more is refused by the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program in the current folder, which holds nothing else."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


@pytest.fixture
def nothing_runs(monkeypatch):
    """Whatever begins to work fails the test."""

    def works(*_, **__):
        raise AssertionError("the work has begun")

    monkeypatch.setattr("d2lpar.vgpu.programs.runner._run_processes", works)
    monkeypatch.setattr(grading, "grade", works)
    monkeypatch.setattr(calibration, "calibrate", works)


def homework(folder):
    folder.mkdir()
    (folder / "anna.py").write_text("def shards_seen(images, devices):\n    return 1\n")
    return folder


# --- before the work ------------------------------------------------------------------------------

COMMANDS = {
    "--report": ("run", "--report", "{}", "program.py"),
    "--timeline": ("run", "--timeline", "{}", "program.py"),
    "--output": ("calibrate", "--output", "{}"),
    "--junit": ("course", "grade", "{homework}", "--lesson", "04", "--junit", "{}"),
    "--scores": ("course", "grade", "{homework}", "--lesson", "04", "--scores", "{}"),
}


@pytest.mark.parametrize("option", COMMANDS)
@pytest.mark.parametrize("where", ["no/x.json", "file/x.json", "folder.json", "loop.json", "pipe"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(
    program, nothing_runs, monkeypatch, capsys, tmp_path, option, where
):
    Path("file").write_text("old")
    Path("folder.json").mkdir()
    Path("loop.json").symlink_to("loop.json")
    os.mkfifo("pipe")
    words = [word.format(tmp_path / where, homework=tmp_path / "home") for word in COMMANDS[option]]
    homework(tmp_path / "home")
    if "grade" in words:
        monkeypatch.chdir(ROOT)
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert where.partition("/")[0] in told
    assert told.count("\n") == 1
    assert (tmp_path / "file").read_text() == "old"
    assert not list(tmp_path.glob("**/*.part"))


@pytest.mark.parametrize("option", ["--report", "--timeline"])
def test_a_full_disk_is_found_before_anything_runs(program, nothing_runs, capsys, option):
    with files_of_at_most(2**15):
        assert cli.main(["run", option, "x.json", "program.py"]) == 2
    assert "x.json cannot be written: File too large" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    "words",
    [
        ("--report", "program.py", "program.py"),
        ("--report", "./linked.py", "program.py"),
        ("--timeline", "hard.json", "program.py"),
        ("--report", "x.json", "--timeline", "./x.json", "program.py"),
        ("--report", "x.json", "--timeline", "dangling.json", "program.py"),
        ("--report", "data.json", "program.py", "--data", "./data.json"),
        ("--report", "data.json", "torchrun", "--nproc-per-node", "1", "program.py", "data.json"),
        ("--report", "data.json", "program.py", "--data=data.json"),
    ],
)
def test_a_file_that_is_read_or_written_already_is_refused(program, nothing_runs, capsys, words):
    Path("linked.py").symlink_to("program.py")
    Path("hard.json").hardlink_to("program.py")
    Path("dangling.json").symlink_to("x.json")
    Path("data.json").write_text("1")
    assert cli.main(["run", *words]) == 2
    assert "name another file to write" in capsys.readouterr().err
    assert program.read_text() == PROGRAM
    assert Path("data.json").read_text() == "1"
    assert not Path("x.json").exists()


@pytest.mark.parametrize("names", [("home/anna.py", "b"), ("a", "../home/a")])
def test_reports_of_grading_are_apart_from_submissions(
    monkeypatch, nothing_runs, capsys, tmp_path, names
):
    home = homework(tmp_path / "home")
    (tmp_path / "home" / "a").symlink_to(tmp_path / "a")
    monkeypatch.chdir(ROOT)
    places = [tmp_path / name if name[0] != "." else home / name for name in names]
    words = ["--lesson", "04", "--junit", str(places[0]), "--scores", str(places[1])]
    assert cli.main(["course", "grade", str(home), *words]) == 2
    assert "name another file to write" in capsys.readouterr().err
    assert (home / "anna.py").read_text().startswith("def")


def test_a_terminal_or_a_pipe_may_be_named_twice():
    whole_file.require_apart({"--report": "/dev/null", "--timeline": "/dev/null"}, {})


# --- when the work is done ------------------------------------------------------------------------


def test_what_there_was_stays_until_the_new_one_is_whole(tmp_path):
    """Its mode stays, too, and a link leads to it as before."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real.json")
    file = OutputFile(link)
    assert real.read_text() == "old"
    file.write("new")
    assert (real.read_text(), link.is_symlink()) == ("new", True)
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_a_new_file_has_the_mode_that_any_other_has(tmp_path):
    (tmp_path / "other").write_text("")
    whole_file.write(tmp_path / "new", "text\n")
    assert (tmp_path / "new").read_bytes() == b"text\n"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_is_not_written_leaves_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    with whole_file.tried({"--a": tmp_path / "old", "--b": tmp_path / "new", "--c": None}) as files:
        assert [*files] == ["--a", "--b"]
        assert len([*tmp_path.iterdir()]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_report_that_cannot_be_written_at_last_is_kept_elsewhere(program, monkeypatch, capsys):
    """The program turns the file's name into a folder, and its folder into another."""
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere.absolute()))
    program.write_text(PROGRAM + "import os\nos.mkdir('x.json')\nos.chdir('elsewhere')\n")
    assert cli.main(["run", "--report", "x.json", "program.py"]) == NOT_WRITTEN
    found = capsys.readouterr()
    assert "simulated on" in found.out
    monkeypatch.chdir(program.parent)
    (kept,) = elsewhere.iterdir()
    assert str(kept.absolute()) in found.err
    assert json.loads(kept.read_text())["program"] == "program.py"


def test_what_can_be_kept_nowhere_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    file = OutputFile(tmp_path / "x")
    (tmp_path / "x").mkdir()
    assert file.write_or_rescue("1 point").endswith("\n1 point")


def _spans(count):
    """Work of irregular lengths: their trace takes room even when it is packed."""
    bytes_of = random.Random(0).randrange
    return [
        Span("vgpu:0", 0, "compute", "matmul", i * 1e-6, (i + 1) * 1e-6, bytes_of(10**9))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "folder"])
def test_a_trace_that_fills_the_disk_disturbs_nobody_who_works(tmp_path, name):
    """It is raised at the end, and the old trace is as it was."""
    old = Timeline("simulated", _spans(1))
    old.save_trace(tmp_path / name)
    timeline = LongTimeline("simulated", to=tmp_path / name)
    with files_of_at_most(2**16):
        for span in _spans(20000):
            timeline.add(span)
        with pytest.raises(OSError, match=r"File too large. A beginning is in .*\.part"):
            timeline.close()
    whole = tmp_path / name / "rank_0.json" if name == "folder" else tmp_path / name
    assert Timeline.from_chrome_trace(whole).spans == old.spans


def test_a_run_whose_trace_fills_the_disk_says_so_and_reports(program, capsys):
    program.write_text(
        "import torch\nx = torch.ones(3, device='cuda')\nfor _ in range(3000):\n    x = x + 1\n"
    )
    with files_of_at_most(2**17):
        status = cli.main(["run", "--timeline", "t.json", "--report", "r.json", "program.py"])
    found = capsys.readouterr()
    assert status == NOT_WRITTEN
    assert "simulated on" in found.out
    assert "t.json could not be written" in found.err
    assert json.loads(Path("r.json").read_text())["unwritten"]
    assert not Path("t.json").exists()


# --- stdout ---------------------------------------------------------------------------------------


def shell(text):
    """Status, and stderr, of a line of the shell; `"$PYTHON" -m d2lpar` is the command."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        ["bash", "-c", text], env=environment, capture_output=True, text=True, timeout=300
    )
    return found.returncode, found.stderr


@pytest.mark.parametrize("to", ["| head -1", ">&-", ">&- 2>&-", "> /dev/full"])
def test_whoever_does_not_listen_loses_no_file(program, to):
    program.write_text("import torch\ntorch.ones(3, device='cuda')\n")
    status, told = shell(f'"$PYTHON" -m d2lpar run --report r.json program.py {to}')
    assert status == (NOT_WRITTEN if "full" in to else 0)
    assert "Traceback" not in told
    assert "Exception" not in told
    assert json.loads(Path("r.json").read_text())["status"] == 0


@pytest.mark.parametrize(
    ("to", "status"), [("| true", 0), (">&-", 0), ("> /dev/full", NOT_WRITTEN)]
)
@pytest.mark.parametrize("words", ["machines", "machines no"])
def test_any_command_goes_without_stdout(to, status, words):
    found, told = shell(f'set -o pipefail; "$PYTHON" -m d2lpar {words} {to}')
    assert found == (2 if "no" in words else status)
    assert "Traceback" not in told
    assert "Exception" not in told


@pytest.mark.parametrize("kind", ["device", "folder", "pipe", "large"])
@pytest.mark.parametrize("words", [("machines",), ("validate", "--csv")])
def test_what_never_ends_is_no_file_to_read(tmp_path, capsys, kind, words):
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x.json"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "large":
        path.touch()
        os.truncate(path, 2**40)
    assert cli.main([*words, str(path)]) == 2
    assert str(path) in capsys.readouterr().err
