"""The boundary around answers: whatever one does, it forges no points and reaches no files."""

import json
import os
import struct
import subprocess
import sys
import time
from collections import deque
from fractions import Fraction
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from d2lpar.checks import exercise_grading
from d2lpar.checks.grader import CLIENT
from d2lpar.checks.grader.remote import Remote
from d2lpar.checks.verdict import NOT_GRADED, Ended
from d2lpar.trials import confinement, kernel, plain, starter
from d2lpar.trials.confinement import Limits

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="has another boundary")
FEW_CALLS = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/sys/kernel/seccomp").exists(), reason="no seccomp"
)
RIGHT = """
def shards_seen(images, devices):
    size = -(-images // devices)
    return [min(size, images - start) for start in range(0, images, size)]
"""
HEAD = "def shards_seen(images, devices):\n"


@pytest.fixture(scope="module", autouse=True)
def no_process_left():
    yield
    CLIENT.close()


def graded(body, *, limit_s=20.0, **limits):
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return CLIENT.grade(
        exercise_grading.__name__, "shards_seen", HEAD + lines, limit_s=limit_s, **limits
    )


def test_a_right_answer_is_right():
    report = CLIENT.grade(exercise_grading.__name__, "shards_seen", RIGHT)
    assert report["status"] == "right", report


# --- forged points --------------------------------------------------------------------------------

FORGERIES = {
    "a report on every descriptor": """
import json, os
report = json.dumps({"status": "right", "text": "yes", "points": 10**6, "number": 1}) + "\\n"
for descriptor in range(300):
    try:
        os.write(descriptor, report.encode() * 50)
    except OSError:
        pass
return []""",
    "a message as the channel has them": """
import json, os
said = json.dumps({"blobs": [], "tree": {"kind": "dict", "of": [["status", "right"]]}}).encode()
for descriptor in range(300):
    try:
        os.write(descriptor, len(said).to_bytes(8, "big") + said)
    except OSError:
        pass
return []""",
    "the frames": """
import sys
frame = sys._getframe()
while frame is not None:
    for name, value in [*frame.f_locals.items()]:
        if name == "expected" and isinstance(value, list):
            return value
    frame = frame.f_back
return []""",
    "the garbage collector": """
import gc
for each in gc.get_objects():
    name = getattr(each, "__name__", "")
    if isinstance(name, str) and name.startswith("d2lpar.checks"):
        return each.by_name.exercises()
return []""",
    "a traceback": """
import traceback, sys
try:
    raise ValueError
except ValueError as error:
    trace = error.__traceback__
    while trace.tb_frame.f_back is not None:
        if "expected" in trace.tb_frame.f_back.f_locals:
            return trace.tb_frame.f_back.f_locals["expected"]
        trace = type(trace)(None, trace.tb_frame.f_back, 0, 1)
return []""",
    "a list that equals all": """
class Any(list):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __iter__ = lambda self: iter([])
return Any()""",
    "numbers that equal all": """
class Any(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
class Some(float):
    __eq__ = lambda self, other: True
    __hash__ = float.__hash__
return [Any(1), Some(1.5)]""",
    "a text that equals all": """
class Any(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
return Any("x")""",
    "a tensor that equals all": """
import torch
class Any(torch.Tensor):
    __eq__ = lambda self, other: True
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True
return torch.ones(2).as_subclass(Any)""",
    "an object that is everything": """
class Any:
    __class__ = list
    __eq__ = lambda self, other: True
    __len__ = lambda self: 2
    __iter__ = lambda self: iter([15, 15])
return Any()""",
    "another judge": """
import d2lpar.trials.plain as plain, d2lpar.trials.answering as answering
plain.packed = lambda value: b"\\0" * 8
answering.Server._reply = lambda *_: None
return []""",
    "changed torch": """
import torch, builtins
torch.equal = lambda *_: True
builtins.isinstance = lambda *_: True
builtins.sum = lambda *_: 30
return []""",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_forgery_earns_points(forgery):
    report = graded(FORGERIES[forgery])
    assert report["status"] in ("wrong", "refused"), report
    assert report.get("points", 0) == 0
    # And what comes next is graded as ever.
    assert CLIENT.grade(exercise_grading.__name__, "shards_seen", RIGHT)["status"] == "right"


def test_what_follows_a_forged_reply_is_not_somebody_elses_points():
    """An answer that sends replies ahead sends its own results, and nobody else's."""
    ahead = FORGERIES["a message as the channel has them"]
    assert graded(ahead)["status"] == "wrong"
    reports = [graded("return []") for _ in range(2)]
    assert [each["status"] for each in reports] == ["wrong", "wrong"]


# --- files, environment, processes ----------------------------------------------------------------


@LINUX
@pytest.mark.parametrize(
    "line",
    [
        "return open({file!r}).read()",
        "open({file!r}, 'w').write('mine')",
        "open({file!r}, 'ab').write(b'mine')",
        "import os; os.remove({file!r})",
        "import os; os.rename({file!r}, {file!r} + '2')",
        "import os; os.truncate({file!r}, 0)",
        "import os; os.chmod({file!r}, 0)",
        "import os; os.symlink({file!r}, 'here')",
        "import shutil; shutil.rmtree({folder!r})",
        "import torch; torch.save([1], {file!r})",
        "import torch; torch.from_file({file!r}, shared=True, size=4).fill_(1)",
        "import numpy; numpy.ones(4).tofile({file!r})",
        "import numpy; numpy.memmap({file!r}, mode='r+')",
        "import ctypes; c = ctypes.CDLL(None); c.unlink({file!r}.encode())",
        "import ctypes; c = ctypes.CDLL(None); c.creat({file!r}.encode(), 0o644)",
        "import ctypes; c = ctypes.CDLL(None); return [c.syscall(87, {file!r}.encode())]",
    ],
)
def test_no_file_is_read_written_or_deleted(line, tmp_path):
    file = tmp_path / "anna.ipynb"
    file.write_text("secret" * 20)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o777)
    file.chmod(0o666)
    report = graded(line.format(file=str(file), folder=str(tmp_path)))
    assert report["status"] == "wrong", report
    assert "secret" not in json.dumps(report)
    assert file.read_text() == "secret" * 20
    assert [*tmp_path.iterdir()] == [file]
    assert file.stat().st_mode & 0o777 == 0o666


@LINUX
@pytest.mark.parametrize(
    "path",
    [
        "notebooks/solutions/multi_gpu_concise.py",
        "tools/challenge_records.py",
        "d2lpar/checks/multi_gpu_concise.py",
        "d2lpar/checks/challenges/par_runs.json",
        "d2lpar/checks/challenges/own_answers.json",
        "d2lpar/trials/training.py",
        "README.md",
    ],
)
def test_no_solution_and_no_record_can_be_read(path):
    file = Path(__file__).parents[2] / path
    assert file.exists()
    report = graded(f"return open({str(file)!r}).read()")
    assert "PermissionError" in report["text"], report


@LINUX
def test_nothing_of_who_grades_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    CLIENT.close()  # the next one inherits it
    report = graded("""
import os, ctypes
print([*os.environ])
for whose in ("self", 1, os.getppid()):
    try:
        print(open(f"/proc/{whose}/environ").read())
    except OSError as error:
        print(type(error).__name__)
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"SECRET_TOKEN"))
return []""")
    assert (
        report["printed"]
        == "['TORCHINDUCTOR_CACHE_DIR']\n" + 2 * "PermissionError\n" + "FileNotFoundError\nNone\n"
    )
    with psutil.Process(CLIENT._process.pid).oneshot():
        assert "SECRET_TOKEN" not in psutil.Process(CLIENT._process.pid).environ()


@FEW_CALLS
@pytest.mark.parametrize(
    "line",
    [
        "import os; os.fork()",
        "import os; os.posix_spawn('/bin/sleep', ['sleep', '99'], {})",
        "import subprocess; subprocess.Popen(['sleep', '99'])",
        "import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
        "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.killpg(0, 9)",
        "import os; os.setsid()",
        "import os; os.system('true') and 1 / 0",
        "import socket; socket.create_connection(('127.0.0.1', 80))",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import os; os.memfd_create('a')",
        "import resource, os; resource.prlimit(2, resource.RLIMIT_CPU, (1, 1))",
        "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
    ],
)
def test_no_process_is_started_signalled_or_called(line):
    before = {process.pid for process in psutil.process_iter()}
    report = graded(line)
    assert report["status"] == "wrong", report
    assert "Error" in report["text"], report
    new = {p.pid: p for p in psutil.process_iter() if p.pid not in before}
    assert not [p for p in new.values() if "sleep" in p.name()]


@FEW_CALLS
def test_a_bomb_of_forks_is_none():
    report = graded("""
import os
made = 0
for _ in range(20):
    try:
        if os.fork() == 0:
            os._exit(0)
        made += 1
    except OSError:
        pass
return [made]""")
    assert "got [0]" in report["text"], report


@FEW_CALLS
def test_nobody_is_traced():
    report = graded("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
found = [libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(16, 1, 0, 0), libc.ptrace(0, 0, 0, 0)]
return [*found, libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0)]""")
    assert "got [-1, -1, -1, -1]" in report["text"], report


@LINUX
def test_a_process_that_has_been_started_all_the_same_ends_with_the_answer():
    """Where the kernel has no filter: twice forked, in a session of its own, and deaf."""
    text = """
import os, signal, time
def f():
    for _ in range(2):
        if os.fork():
            return 1
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""
    program = f"""
import time
from d2lpar.trials import confinement, kernel
kernel.allow_few_calls = lambda: False
confinement.separate = lambda: kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1) and []
from d2lpar.trials.starter import starter
own = starter()
from d2lpar.checks.grader import remote
from d2lpar.trials.confinement import Limits
import psutil
remote.start_with(own)
with remote.Remote("f", {text!r}, Limits(20, 10**9)) as answer:
    print(answer(), any("no filter" in each for each in answer.lacks))
    print(len(psutil.Process().children(recursive=True)))
until_s = time.monotonic() + 10  # the keeper's own end
while len(psutil.Process().children(recursive=True)) > 1 and time.monotonic() < until_s:
    time.sleep(0.01)
print(len(psutil.Process().children(recursive=True)))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    first, during, after = found.stdout.split("\n")[:3]
    assert first == "1 True", found
    assert int(during) > int(after) == 1  # the starter


# --- limits ---------------------------------------------------------------------------------------


def test_what_is_printed_is_quoted_and_limited():
    report = graded("print('x]]>\\x00' * 10**7)\nreturn []")
    assert report["status"] == "wrong"
    assert len(report["printed"]) <= 2000


@LINUX
def test_a_hundred_megabytes_printed_in_c_go_nowhere():
    report = graded("import os\nfor _ in range(100): os.write(1, b'x' * 10**6)\nreturn []")
    assert (report["status"], report["printed"]) == ("wrong", "")


@pytest.mark.parametrize(
    "line",
    [
        "return 'x' * 10**8",
        "return [0] * 10**7",
        "import torch; return torch.zeros(2 * 10**8)",
        "found = []\nfor _ in range(10**5): found = [found]\nreturn found",
        "found = []\nfound.append(found)\nreturn found",
        "import itertools; return itertools.count()",
        "return 10**5000",
    ],
)
def test_what_is_too_large_is_no_answer(line):
    report = graded(line)
    assert report["status"] == "wrong", report
    assert len(report["text"]) <= 600


def test_a_sleeper_and_a_worker_are_ended():
    start_s = time.monotonic()
    sleeper = graded("import time; time.sleep(600)", limit_s=1)
    worker = graded("while True: pass", limit_s=1)
    assert "longer than 1 s" in sleeper["text"], sleeper
    assert "longer than 1 s" in worker["text"], worker
    assert time.monotonic() - start_s < 200


@LINUX
def test_a_limit_too_small_for_the_exercise_blames_nobody():
    report = CLIENT.grade(
        exercise_grading.__name__,
        "accumulate",
        "def accumulate(loss, X, y, params, pieces):\n    loss(X, y, params).backward()\n",
        limit_bytes=2_000_000,
    )
    assert report["status"] == NOT_GRADED, report


def test_a_process_that_cannot_start_blames_nobody(monkeypatch):
    class None_(starter.Starter):  # noqa: N801
        def start(self, limits, trial=""):
            raise OSError("no more processes")

    from d2lpar.checks.grader import remote

    monkeypatch.setattr(remote, "_starter", None_)
    with pytest.raises(Ended) as ended:
        Remote("f", "def f(): pass", Limits(1, 10**9))
    assert ended.value.status == NOT_GRADED
    assert "no more processes" in str(ended.value)


@pytest.mark.parametrize(
    ("how", "status"),
    [("long", "wrong"), ("waited", "wrong"), ("exit 3", "wrong"), ("SIGSEGV", "wrong"),
     ("starved", NOT_GRADED), ("killed", NOT_GRADED)],
)  # fmt: skip
def test_who_is_to_blame_for_an_end(how, status):
    answer = Remote.__new__(Remote)
    answer._limits = Limits(2, 10**9)
    assert answer._ended(how).status == status


@LINUX
def test_time_without_a_processor_is_nobodys(monkeypatch, tmp_path):
    """A process that is ready and does not run is starved: the kernel says for how long."""
    keeper, judge = starter.socket.socketpair()
    limits = Limits(0.1, 10**9)  # patience 5.2 s
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        monkeypatch.setattr(starter, "_starved_s", lambda _: time.monotonic())
        monkeypatch.setattr(starter, "MOST_PATIENCE", 1.2)
        judge.send(starter.BUSY)
        assert starter._Watch(child.pid, keeper, limits).until_it_ends() == starter.STARVED
        monkeypatch.setattr(starter, "_starved_s", lambda _: 0.0)
        judge.send(starter.BUSY)
        assert starter._Watch(child.pid, keeper, limits).until_it_ends() == starter.WAITED
    finally:
        child.kill()
        child.wait()
        keeper.close()
        judge.close()


# --- what there is of a boundary ------------------------------------------------------------------


def in_a_child(work):
    """What `work` returns in a process that is forked for it."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            said = json.dumps(work()).encode()
        except BaseException as error:
            said = json.dumps(repr(error)).encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found = json.load(pipe)
    os.wait()
    return found


@LINUX
def test_a_kernel_without_landlock_and_filters_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "landlock_version", lambda: 0)
    monkeypatch.setattr(kernel, "allow_few_calls", lambda: False)
    monkeypatch.setattr(confinement, "keep", lambda _: None)
    limits = Limits(60, 10**9)
    lacks = in_a_child(lambda: confinement.shut_off(limits, 10**12, (), tmp_path))
    assert confinement.LACKS_FILES in lacks
    assert confinement.LACKS_CALLS in lacks


def test_a_system_without_any_of_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "LINUX", False)
    monkeypatch.setattr(confinement, "keep", lambda _: None)
    limits = Limits(60, 10**9)
    (said,) = in_a_child(lambda: confinement.shut_off(limits, 0, (), tmp_path))
    assert "has no way to shut a process off" in said


@LINUX
@pytest.mark.skipif(not kernel.landlock_version(), reason="no Landlock")
def test_what_is_hidden_is_not_read_and_what_is_beside_it_is(tmp_path):
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)

    def look():
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        assert kernel.allow_reading([tmp_path], [tmp_path / "closed"])
        found = [(tmp_path / "open" / "a").read_text()]
        for work in (
            lambda: (tmp_path / "closed" / "a").read_text(),
            lambda: (tmp_path / "open" / "a").write_text("b"),
            lambda: (tmp_path / "open" / "b").write_text("b"),
            lambda: Path("/etc/passwd").read_text(),
        ):
            try:
                found.append(work())
            except PermissionError:
                found.append("no")
        return found

    assert in_a_child(look) == ["open", "no", "no", "no", "no"]


@LINUX
@pytest.mark.parametrize(
    ("column", "file"),
    [
        (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        (1, "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_of_calls_are_those_of_the_kernels_headers(column, file):
    if not Path(file).exists():
        pytest.skip("no headers")
    text = Path(file).read_text().replace("__NR3264_", "__NR_")
    known = {}
    for line in text.split("\n"):
        match line.split():
            case ["#define", name, number, *_] if name.startswith("__NR_") and number.isdigit():
                known[name.removeprefix("__NR_")] = int(number)
    known["newfstatat"] = known.get("newfstatat", known.get("fstatat"))
    calls = kernel.CALLS | {name: each[0] for name, each in kernel.CHECKED.items()}
    assert {
        name: numbers[column] for name, numbers in calls.items() if numbers[column] is not None
    } == {name: known[name] for name, numbers in calls.items() if numbers[column] is not None}


def test_an_answer_runs_where_there_is_no_fork():
    process = starter.Spawns().start(Limits(60, 10**9))
    try:
        assert process.ask(False)["value"] is None
        assert process.ask(["f", "def f(x): return [x, x]"])["value"] is None
        assert process.ask(["calling.directly", [3]])["value"] == [3, 3]
    finally:
        assert process.end() == starter.DONE


# --- plain data -----------------------------------------------------------------------------------


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**70), 1.5, float("inf"), "\ud800\0é", [1, [2.0, "x"]], (1, (2,)), {1, 2},
        {1: "a", "b": (2,), (3, 4): None}, range(1, 9, 2), Fraction(1, 3), deque([1, 2]),
        torch.arange(6).view(2, 3), torch.tensor(1.5), torch.empty(0, 3), torch.ones(2).bool(),
        torch.ones(3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.complex64),
        torch.arange(6.0).view(2, 3).t(), np.arange(3.0),
    ],
)  # fmt: skip
def test_plain_data_arrives_as_it_was(value):
    assert same(value, plain.unpacked(plain.packed(value)))


def test_what_is_no_plain_data_arrives_as_its_print():
    class Thing:
        def __repr__(self):
            return "a thing" * 100

    class Number(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    found = plain.unpacked(plain.packed([Thing(), Number(3), np.int64(4), np.float32(0.5), len]))
    assert isinstance(found[0], plain.Other)
    assert (found[0].name, len(repr(found[0]))) == ("Thing", plain.LONGEST_SHOWN)
    assert [type(each) for each in found[1:4]] == [int, int, float]
    assert found[1:4] == [3, 4, 0.5]
    assert repr(found[4]) == "<built-in function len>"


@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_of_what_has_too_many_items_none_is_written(kind):
    class Untouched(kind):
        def __iter__(self):
            raise AssertionError("an item was asked for")

    items = [0] * (plain.MOST_LISTED + 1)
    with pytest.raises(plain.NotPlainError, match="too many items: 2,666,667"):
        plain.packed({"returned": Untouched(items)})
    with pytest.raises(AssertionError, match="asked for"):
        plain.packed(Untouched([0]))
    assert len(json.dumps(items)) > plain.MOST_TEXT_BYTES, "fewer bytes than that hold them"


def test_equal_tensors_are_sent_once():
    one = torch.rand(10_000)
    assert len(plain.packed([one, one.clone(), one.clone()])) < 1.1 * one.nbytes


def message(tree, *blobs):
    text = json.dumps({"blobs": [len(blob) for blob in blobs], "tree": tree}).encode()
    return struct.pack(">Q", len(text)) + text + b"".join(blobs)


def tensor(dtype="float32", shape=(1,), blob=0):
    return {"kind": "tensor", "of": {"dtype": dtype, "shape": [*shape], "blob": blob}}


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff" * 8, struct.pack(">Q", 3) + b"{}}", message({"kind": "pickle", "of": []}),
        message(tensor(), b"123"), message(tensor(shape=(-1,)), b"1234"),
        message(tensor(shape=(True,)), b"1234"), message(tensor(blob=7), b"1234"),
        message(tensor("qint8"), b"1234"), message({"kind": "dict", "of": [[[], 1]]}),
        message({"kind": "fraction", "of": [1, 0]}), message({"kind": "range", "of": [1, 2, 0]}),
        message({"of": []}), message({"kind": "tuple", "of": 3}),
        struct.pack(">Q", 200_000) + b"[" * 200_000,
        struct.pack(">Q", 40) + b'{"blobs": [99999999999], "tree": null}  ',
        struct.pack(">Q", 9000) + b"1" * 9000,
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(bad):
    with pytest.raises((plain.NotPlainError, plain.EndOfMessagesError)):
        plain.unpacked(bad)


def test_the_client_hands_down_no_environment(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    assert "SECRET_TOKEN" not in confinement.environment()
