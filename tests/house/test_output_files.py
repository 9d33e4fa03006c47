"""Files that commands write: tried before the work, whole or not at all, and not lost."""

import json
import os
import random
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import d2lpar as par
from d2lpar.command import cli
from d2lpar.command.course import grading
from d2lpar.lesson import results_table
from d2lpar.machines.measuring import calibrating
from d2lpar.timeline import Span, Timeline, whole_file
from d2lpar.timeline.streaming import StreamedTimeline
from d2lpar.timeline.traces import trace as trace_files
from d2lpar.timeline.whole_file import NOT_WRITTEN, OutputFile

ROOT = Path(__file__).parents[2]
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

    monkeypatch.setattr("d2lpar.vgpu.programs.runner._run_as_planned", works)
    monkeypatch.setattr(grading, "grade", works)
    monkeypatch.setattr(calibrating, "calibrate", works)


def homework(folder):
    folder.mkdir()
    (folder / "anna.py").write_text("def shards_seen(images, devices):\n    return 1\n")
    return folder


# --- before the work ------------------------------------------------------------------------------

COMMANDS = {
    "--report": ("run", "--report", "{}", "program.py"),
    "--timeline": ("run", "--timeline", "{}", "program.py"),
    "--output": ("calibrate", "--output", "{}"),
    "--junit": ("course", "grade", "{homework}", "--lesson", "05", "--junit", "{}"),
    "--scores": ("course", "grade", "{homework}", "--lesson", "05", "--scores", "{}"),
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


@pytest.mark.parametrize(
    "words",
    [
        ("--report", "t/rank_0.json", "--timeline", "t", "program.py"),
        ("--timeline", "./t/", "--report", "linked/rank_12.json", "program.py"),
        ("--timeline", "new", "--report", "new/rank_0.json", "program.py"),
        ("--timeline", "t", "program.py", "--before", "t/rank_3.json"),
        ("--timeline", "t", "--report", "r.json", "program.py"),
        ("--timeline", "t", "t/rank_3.json"),
    ],
)
def test_what_would_be_written_over_in_another_outputs_folder_is_refused(
    program, nothing_runs, capsys, words
):
    Path("t").mkdir()
    Path("linked").symlink_to("t")
    Path("t/rank_3.json").write_text(PROGRAM)
    Path("r.json").write_text("old")
    Path("t/rank_2.json").symlink_to("../r.json")
    assert cli.main(["run", *words]) == 2
    assert "would write over" in capsys.readouterr().err
    assert sorted(path.name for path in Path("t").iterdir()) == ["rank_2.json", "rank_3.json"]
    assert Path("r.json").read_text() == "old"


@pytest.mark.parametrize(
    "words", [("t/notes.json", "t"), ("rank_0.json", "t"), ("rank_0.json", "t.json")]
)
def test_outputs_that_are_apart_may_be_neighbours(program, words):
    Path("t").mkdir()
    report, timeline = words
    assert cli.main(["run", "--report", report, "--timeline", timeline, "program.py"]) == 0
    assert json.loads(Path(report).read_text())["status"] == 0


@pytest.mark.parametrize("names", [("home/anna.py", "b"), ("a", "../home/a")])
def test_reports_of_grading_are_apart_from_submissions(
    monkeypatch, nothing_runs, capsys, tmp_path, names
):
    home = homework(tmp_path / "home")
    (tmp_path / "home" / "a").symlink_to(tmp_path / "a")
    monkeypatch.chdir(ROOT)
    places = [tmp_path / name if name[0] != "." else home / name for name in names]
    words = ["--lesson", "05", "--junit", str(places[0]), "--scores", str(places[1])]
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
    timeline = StreamedTimeline("simulated", tmp_path / name)
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


# --- what programs write --------------------------------------------------------------------------


def profile(device):
    with torch.profiler.profile(with_stack=True) as profiler:
        for _ in range(200):
            torch.ones(3, device=device) + 1
    return profiler


def trace(path):
    profile("cuda").export_chrome_trace(str(path))


def stacks(path):
    profile("cuda").export_stacks(str(path), "self_cpu_time_total")


def trace_of_events(path):
    profile("cuda").events().export_chrome_trace(str(path))


def memory_snapshot(path):
    torch.cuda.memory._record_memory_history()
    kept = [torch.ones(2**20, device="cuda") for _ in range(100)]
    torch.cuda.memory._dump_snapshot(str(path))
    assert len(kept) == 100


def memory_usage(path):
    """What torch makes of a snapshot by a script that it fetches is put in its place."""
    text = "<svg>" + 2**14 * " "
    with mock.patch("torch.cuda.memory._memory", return_value=text):
        torch.cuda.memory._save_memory_usage(str(path), {})


WRITERS = [trace, stacks, trace_of_events, memory_snapshot, memory_usage]


@pytest.fixture
def cuda():
    with par.emulate_cuda(1, verbose=False):
        yield


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", ["new", "new.gz"])
def test_what_torch_writes_is_whole_or_as_it_was(cuda, tmp_path, write, name):
    path = tmp_path / name
    path.write_text("old")
    with files_of_at_most(2**12), pytest.raises(OSError, match=f"{name} cannot be written: File"):
        write(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == [name]
    write(path)
    assert path.stat().st_size > 2**9
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_error_in_the_middle_leaves_what_torch_wrote_before(cuda, tmp_path, monkeypatch):
    file = tmp_path / "snapshot.pickle"
    file.write_text("old")

    def broken(snapshot, stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("torch.cuda.memory.pickle.dump", broken)
    with pytest.raises(KeyboardInterrupt):
        torch.cuda.memory._dump_snapshot(str(file))
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.pickle"]


def test_flight_records_are_whole_or_as_they_were(tmp_path, monkeypatch):
    """The end of a program that hangs is told all the same, with the name of what is not there."""
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "record_"))
    (tmp_path / "record_0").write_text("old")

    def hangs():
        for _ in range(100):
            dist.all_reduce(torch.ones(1, device=f"vgpu:{dist.get_rank()}"))
        if dist.get_rank() == 0:
            dist.barrier()

    with files_of_at_most(2**12), pytest.raises(RuntimeError, match=r"record_0 cannot be written"):
        par.run_ranks(hangs, par.devices(2, kind="virtual"))
    assert (tmp_path / "record_0").read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_chakra_traces_are_all_written_or_none(tmp_path):
    pytest.importorskip("google.protobuf")
    hosts = [
        Span("host", f"rank {rank}", "dispatch", "matmul", i * 1e-6, (i + 1) * 1e-6, correlation=n)
        for rank, length in enumerate((10, 2000))
        for i, n in enumerate(range(10**6 * rank + 1, 10**6 * rank + 1 + length))
    ]
    work = [
        Span(f"vgpu:{s.stream[-1]}", 0, "compute", "matmul", s.end_s, s.end_s + 1e-7,
             correlation=s.correlation)
        for s in hosts
    ]  # fmt: skip
    timeline = Timeline("simulated", [*hosts, *work])
    old = [tmp_path / "run.0.et", tmp_path / "run.1.et"]
    for path in old:
        path.write_text("old")
    with (
        files_of_at_most(2**16 + 2**13),
        pytest.raises(OSError, match=r"run\.1\.et cannot be written: File too large"),
    ):
        timeline.save_chakra(tmp_path / "run")
    assert [path.read_text() for path in old] == ["old", "old"]
    assert sorted(tmp_path.iterdir()) == old
    assert timeline.save_chakra(tmp_path / "run") == old
    assert old[1].stat().st_size > 2**16 + 2**13


@pytest.mark.parametrize("name", ["trace.json", "folder"])
def test_a_trace_whose_writing_is_broken_off_leaves_the_one_before(tmp_path, name):
    old = Timeline("simulated", _spans(1))
    old.save_trace(tmp_path / name)

    def broken_off():
        yield from _spans(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_files.save(tmp_path / name, "simulated", broken_off(), [])
    whole = tmp_path / name / "rank_0.json" if name == "folder" else tmp_path / name
    assert Timeline.from_chrome_trace(whole).spans == old.spans
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def test_the_rows_of_a_table_are_kept_whole_or_not_at_all(tmp_path):
    table = results_table.Recorder(tmp_path / "t.csv", ["run", "text"], key=["run"], told=["test"])
    table.add([(1, "a")])
    with files_of_at_most(2**12), pytest.raises(OSError, match=r"t\.csv"):
        table.add([(2, 2**12 * "b")])
    table.add([(3, "c")])
    assert [row["run"] for row in results_table.read(tmp_path / "t.csv").rows] == [1, 3]


# --- what killed processes leave ------------------------------------------------------------------

HOLDS = (
    "import sys, time\nfrom d2lpar.timeline.whole_file import OutputFile\n"
    "file = OutputFile(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()\n"
    "file.write('of another')\n"
)


@pytest.mark.parametrize("name", ["r.json", 80 * "語"])
def test_the_next_output_removes_what_killed_processes_left_and_nothing_else(tmp_path, name):
    place = tmp_path / name
    words = [sys.executable, "-c", HOLDS, str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed, living = (subprocess.Popen(words, env=environment, **pipes) for _ in range(2))
    try:
        for process in (killed, living):
            assert process.stdout.readline() == "open\n"
        killed.kill()
        killed.wait()
        beside = [f".{name}.part", ".other.json.0123456789abcdef0123456789abcdef.part"]
        for other in beside:
            (tmp_path / other).write_text("somebody's")
        assert len(list(tmp_path.iterdir())) == 4
        whole_file.write(place, "mine")
        assert len(list(tmp_path.iterdir())) == 4  # mine, two of somebody's, and what lives
        assert all((tmp_path / other).exists() for other in beside)
        living.communicate("", timeout=60)
        assert place.read_text() == "of another"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, *beside])
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def test_a_beginning_that_was_named_is_removed_by_nobody(tmp_path):
    """Who was told where it is may still want it."""
    for number in range(2):
        timeline = StreamedTimeline("simulated", tmp_path / "t.json")
        with files_of_at_most(2**16):
            for span in _spans(2000):
                timeline.add(span)
            with pytest.raises(OSError, match=r"A beginning is in .*t\.json") as error:
                timeline.close()
        assert len(list(tmp_path.iterdir())) == number + 1
        assert Path(str(error.value).partition("A beginning is in ")[2]).stat().st_size > 2**12


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
