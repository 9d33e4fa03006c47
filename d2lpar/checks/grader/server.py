"""The grader's process: it loads torch once, and lets a child of its own grade each answer.

A line of JSON on stdin is an answer, a line on stdout what came of it. The child has a limit of
processor time, of memory and of time, and may neither write files nor start programs. The process
ends with its stdin.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
from importlib import import_module
from typing import NoReturn, TextIO

import psutil
import torch
import torch._dynamo  # once here, not in each child
import torch.distributed.launcher  # for emulate_cuda; it opens the C library, as no answer may

from ...timeline.printing import say
from ...vgpu.torch_backend.register import register_backend
from .source import Refused

TEXT_LONG = "your function took longer than {seconds:g} s, and was ended"
TEXT_CRASH = "your function ended the process that it ran in ({how})"
TEXT_FORBIDDEN = "your function tried {what}, which an answer may not do"
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.spawn", "socket.connect",
             "os.remove", "os.rename", "shutil.rmtree", "os.kill", "ctypes.dlopen")  # fmt: skip


def main() -> None:
    """Grade what comes until there is no more."""
    torch.set_num_threads(1)
    register_backend()
    tempfile.gettempdir()  # tries once whether it can write there, which children may not
    reports = _own_stdout()
    say(json.dumps({"ready": True}), stream=reports, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        import_module(request["judge"])  # here, not in each child
        report = _in_child(request) if hasattr(os, "fork") else _graded(request)
        say(json.dumps(report | {"number": request["number"]}), stream=reports, flush=True)


def _own_stdout() -> TextIO:
    """A stream of our own to who asks: what answers print, in C, too, is no report."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return reports


def _graded(request: dict) -> dict:
    return import_module(request["judge"]).grade(request["name"], request["source"])


def _in_child(request: dict) -> dict:
    """Grade in a child, which ends with its report, or at its limit."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(request, writing)
    os.close(writing)
    try:
        return _report(child, reading, request["limit_s"])
    finally:
        os.close(reading)


def _child(request: dict, writing: int) -> NoReturn:
    code = 1
    try:
        _limit(request["limit_s"], request["limit_bytes"])
        sys.dont_write_bytecode = True  # what torch loads late
        sys.addaudithook(_watch)
        report = _graded(request)
        with open(writing, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(report))
        code = 0
    finally:
        os._exit(code)


def _report(child: int, reading: int, limit_s: float) -> dict:
    """What the child writes until it ends; it is ended if that takes too long, or nobody asks."""
    text, until_s, parent = b"", time.monotonic() + 2 * limit_s + 5, os.getppid()
    late = False
    while True:
        ready, _, _ = select.select([reading], [], [], 0.2)
        if ready:
            part = os.read(reading, 1 << 20)
            if not part:
                break
            text += part
        elif time.monotonic() > until_s or os.getppid() != parent:
            late = True
            os.kill(child, signal.SIGKILL)
            break
    _, status = os.waitpid(child, 0)
    if text and not late:
        return json.loads(text)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if late or ended_by in (signal.SIGXCPU, signal.SIGKILL):
        return {"status": "wrong", "text": TEXT_LONG.format(seconds=limit_s)}
    how = signal.Signals(ended_by).name if ended_by else f"exit {os.waitstatus_to_exitcode(status)}"
    return {"status": "wrong", "text": TEXT_CRASH.format(how=how)}


def _limit(limit_s: float, limit_bytes: int) -> None:
    """Processor time, and memory beyond what the process has already."""
    import resource

    now = psutil.Process()
    used_s = sum(now.cpu_times()[:2])
    seconds = int(used_s + limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # the report goes through a pipe
    if sys.platform == "linux":
        most = now.memory_info().vms + limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _watch(event: str, arguments: tuple) -> None:
    """Refuse what reaches beyond the process."""
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and isinstance(path, str) and path != os.devnull:
            raise Refused(TEXT_FORBIDDEN.format(what=f"to write {path}"))
    elif event in FORBIDDEN:
        raise Refused(TEXT_FORBIDDEN.format(what=event))


if __name__ == "__main__":
    main()
