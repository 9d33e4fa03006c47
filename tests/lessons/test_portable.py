"""Functions that no new process could import run there all the same, and share what they use."""

import functools
import pickle
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import nbformat
import pytest
import torch
import torch.multiprocessing as mp
from nbclient import NotebookClient

import d2lpar as par

ROOT = str(Path(__file__).parents[2])
SPAWN = mp.get_context("spawn")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_in(context, function, *args):
    """Exit code of a process of its own."""
    process = context.Process(target=par.portable(function), args=args)
    process.start()
    process.join(60)
    return process.exitcode


METHODS = [m for m in ("spawn", "forkserver", "fork") if m in mp.get_all_start_methods()]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
def test_arguments_and_what_the_function_uses_are_shared(method):
    context = mp.get_context(method)
    seen, step = torch.zeros(3).share_memory_(), 2.0  # with "fork" nothing else shares them
    lock, results = context.Lock(), context.SimpleQueue()

    def add(x, times):
        nonlocal step
        for _ in range(times):
            with lock:
                x += step
                seen.add_(1)
        results.put(x.sum().item())
        step = 7.0

    x = torch.zeros(5).share_memory_()
    assert run_in(context, add, x, 3) == 0
    assert x.tolist() == [6.0] * 5
    assert seen.tolist() == [3.0] * 3
    assert results.get() == 30.0
    assert step == 2.0


def test_it_is_called_like_its_function():
    def scale(x, by=2):
        """Some text."""
        return x * by

    ours = par.portable(scale)
    assert (ours(3), ours(3, by=5), ours.__name__, ours.__doc__) == (6, 15, "scale", "Some text.")
    with pytest.raises(ValueError, match="takes a function, not 3"):
        par.portable(3)


def sent(function):
    """Sends a function as starting a process does; ValueError if it cannot be sent."""
    return ForkingPickler.dumps(par.portable(function))


def test_what_cannot_be_sent_is_named(gpus):
    lock, file, tensor = threading.Lock(), open(__file__), torch.ones(2, device=gpus[1])  # noqa: SIM115

    def uses_lock():
        return lock

    def uses_it_inside():
        return [(lambda: uses_lock()) for _ in range(2)]

    def by_default(rank, log=file):
        return log

    def by_keyword(*, where=tensor):
        return where

    def on_gpu():
        return torch.ones(2, device=gpus[1])

    def recursive(n):
        return recursive(n - 1), file

    with file:
        for function, expected in (
            (uses_lock, r"^uses_lock cannot be .* it uses lock \(cannot pickle '_thread.lock'"),
            (uses_it_inside, r"it uses lock, used by uses_lock \("),
            (by_default, r"it uses log \('.*test_portable.py' is an open file\): make it inside"),
            (by_keyword, r"it uses where \(a tensor on vgpu:1 cannot .*send tensor.cpu\(\)"),
            (on_gpu, r"it uses gpus \(vgpu:0 is a virtual GPU of this process, and others"),
            (recursive, r"it uses file \("),
            (functools.partial(print, lock), r"it uses argument 0 \("),
            (functools.partial(print, end=file), r"it uses end \("),
        ):
            with pytest.raises(ValueError, match=expected):
                sent(function)


def test_a_virtual_tensor_is_no_argument(gpus):
    with pytest.raises(ValueError, match="a tensor on vgpu:0 cannot be sent to another process"):
        run_in(SPAWN, lambda x: None, torch.ones(2, device=gpus[0]))
    with pytest.raises(TypeError, match="vgpu:2 is a virtual GPU of this process"):
        run_in(SPAWN, lambda device: None, gpus[2])
    cpu = torch.device("cpu")
    assert pickle.loads(ForkingPickler.dumps(cpu)) == cpu


def test_standard_output_may_be_used():
    stream = sys.stdout
    sent(lambda: print("text", file=stream))


# --- from a notebook ------------------------------------------------------------------------------

CELLS = [
    """
import torch, torch.multiprocessing as mp, matplotlib.pyplot as plt
import d2lpar as par
from torch import nn
gpus = par.devices(2, kind="virtual", verbose=False)
""",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)

def gradient(x):
    return x - 4.0

def fail(x, rank):
    return x[rank + 5]

def add(rank, net, total, lock):
    import sys
    assert isinstance(net, Net) and not {"matplotlib", "IPython"} & {*sys.modules}
    assert torch._C._get_privateuse1_backend_name() != "vgpu"
    for _ in range(100):
        with lock, torch.no_grad():
            total[rank] += 1
            net.layer.weight -= 0.5 * gradient(net.layer.weight)
    fail(total, rank)

net, total = Net(), torch.zeros(1, dtype=torch.int64)
""",
    """
mp.spawn(par.portable(add), args=(net, total, mp.get_context("spawn").Lock()), nprocs=1)
""",
    "print(total.tolist(), net.layer.weight.tolist())",
]


QUICK_METHODS = [m for m in METHODS if m != "spawn"]  # with which the cells before start some
QUEUES = """
for method in METHODS:
    context = mp.get_context(method)
    queue, other = context.Queue(), context.Queue()
    queue.put(torch.ones(2))
    process = context.Process(target=par.portable(double), args=(queue, other), daemon=True)
    process.start()
    print(other.get())
    queue.put(torch.ones(2))  # for nobody
"""
DOUBLE = "def double(queue, other):\n    other.put((2 * queue.get()).tolist())"
AT_END = "import atexit, pathlib\n_ = atexit.register(pathlib.Path(FOLDER, 'end').touch)"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What the cells of a notebook have put out, and what its kernel has left in TMPDIR."""
    folder = tmp_path_factory.mktemp("tmp")
    codes = [
        *CELLS,
        DOUBLE,
        QUEUES.replace("METHODS", repr(QUICK_METHODS)),
        AT_END.replace("FOLDER", repr(str(folder))),
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in codes])
    client = NotebookClient(notebook, timeout=120, allow_errors=True, kernel_name="python3")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PYTHONPATH", ROOT), ("TMPDIR", folder), ("OMP_NUM_THREADS", 1)):
            patch.setenv(name, str(value))
        client.execute()
    return [cell.outputs for cell in notebook.cells], [path.name for path in folder.iterdir()]


@pytest.mark.slow
def test_from_a_notebook(executed):
    (ready, defined, failed, shared, *_), _ = executed
    assert ready == defined == []
    assert [out.text for out in shared] == ["[100] [[4.0, 4.0, 4.0]]\n"]
    (error,) = (out for out in failed if out.output_type == "error")
    assert error.ename == "ProcessRaisedException"
    assert "IndexError: index 5 is out of bounds" in error.evalue
    assert "return x[rank + 5]" in error.evalue  # a line of the cell before


@pytest.mark.slow
def test_a_kernel_ends_by_itself_and_leaves_no_folder(executed):
    (*_, printed, nothing), left = executed
    assert "".join(out.text for out in printed) == "[2.0, 2.0]\n" * len(QUICK_METHODS)
    assert nothing == []
    # Where a process fails, torch leaves a file.
    assert [name for name in left if not name.startswith("pytorch-errorfile-")] == ["end"]


# --- from a script --------------------------------------------------------------------------------

SCRIPT = """
import torch, torch.multiprocessing as mp
import d2lpar as par

class Net(torch.nn.Linear):
    pass

def train(rank, net, x):
    assert isinstance(net, Net)
    x += rank + 1

if __name__ == "__main__":
    x = torch.zeros(2)
    mp.spawn(par.portable(train), args=(Net(1, 1), x), nprocs=1)
    print(x.tolist())
"""


def test_from_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ROOT, "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert (found.stdout, found.stderr) == ("[1.0, 1.0]\n", "")
