"""Fresh processes that need not import torch: they are forked from one that has, and nothing else.

    run("import d2lpar as par; print(par.devices(2))", {"D2LPAR_DEVICES": "virtual"})

Many tests need a process in which nothing has happened yet: virtual GPUs are registered once in a
process. Starting Python and importing torch takes seconds, forking milliseconds. This process is
started with the first use, has one thread and has imported torch and `d2lpar`, which registers
nothing; it forks one child for each request. Tests of importing or of a command's start are to
start Python themselves. Where there is no fork, `run` starts Python, too.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOMS = sorted({path.parent for path in TESTS.rglob("test_*.py")})
HERE = os.pathsep.join(map(str, (TESTS.parent, TESTS / "helpers", *ROOMS)))
HAS_FORK = hasattr(os, "fork")
OUTPUTS = ("stdout", "stderr")

_servers: list[subprocess.Popen[str]] = []


def run(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What `python -c code` does and prints, with exactly this environment (None: a copy).

    The package can be imported, and what lies beside this file. What the code registers to be done
    at exit is not done.
    """
    env = {**(os.environ if env is None else env)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, env.get("PYTHONPATH")]))
    if not HAS_FORK:
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        request = {"code": code, "env": env, "folder": folder, "cwd": os.getcwd()}
        server = _running()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        try:
            answer = server.stdout.readline()
        except BaseException:  # the time of a test is over: the next is not to wait for its child
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            raise
        assert answer, "the process that forks has ended: does a test end its parent?"
        printed = [(Path(folder) / name).read_text(encoding="utf-8") for name in OUTPUTS]
    return subprocess.CompletedProcess(code, int(answer), *printed)


def run_on_ranks(
    function: Callable[..., None], *args: object, ranks: int, importing: str = "torch"
) -> None:
    """Call a test module's `function(rank, *args)` in so many processes, forked from one that has
    imported that module, and what takes long. The arguments are texts and numbers.

    Raises RuntimeError if one fails.
    """
    name, method = function.__name__, "fork" if HAS_FORK else "spawn"
    done = run(
        f"import torch.multiprocessing as mp, {importing}\n"
        f"from {function.__module__} import {name}\n"
        f"mp.start_processes({name}, {args!r}, nprocs={ranks}, start_method={method!r})\n"
    )
    if done.returncode:
        raise RuntimeError(done.stderr)


def _running() -> subprocess.Popen[str]:
    """The process that forks; one for all tests of this process."""
    if _servers and _servers[0].poll() is not None:
        close()
    if not _servers:
        _servers[:] = [
            subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # A thread pool would not survive the fork.
                env={**os.environ, "PYTHONPATH": HERE, "OMP_NUM_THREADS": "1"},
                process_group=0,
            )
        ]
        atexit.register(close)
    return _servers[0]


def close() -> None:
    """End the process that forks: it ends with its input."""
    for server in _servers:
        server.communicate()
    _servers.clear()


# --- in the process that forks --------------------------------------------------------------------


def _answer_requests() -> None:
    """For each line of input fork a child; a line of output has its exit code."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        child = context.Process(target=_play, args=(json.loads(line),))
        child.start()
        child.join()
        print(child.exitcode, flush=True)


def _play(request: dict) -> None:
    """In the child: be the process that was asked for."""
    gc.unfreeze()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["-c"]
    sys.path[:0] = ["", *os.environ["PYTHONPATH"].split(os.pathsep)]
    for number, name in enumerate(OUTPUTS, 1):
        os.dup2(os.open(os.path.join(request["folder"], name), os.O_WRONLY | os.O_CREAT), number)
    exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    # torch imports these itself when the first virtual GPU is made, with its first operation, and
    # with the first optimizer.
    import torch._dynamo
    import torch.distributed.tensor
    import torch.utils.flop_counter  # noqa: F401

    import d2lpar.vgpu.programs.runner  # noqa: F401 - what `d2lpar run` imports

    gc.collect()
    gc.freeze()  # else a child's collector would write to, and so copy, all that it shares
    _answer_requests()
    gc.unfreeze()  # or libraries in C++ report at the end what they find still there
