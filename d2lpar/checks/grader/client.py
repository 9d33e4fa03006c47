"""The way to the grader's process, from the notebook's: started once, asked for each answer."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from ...timeline.printing import say
from ...trials.confinement import environment

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S, LIMIT_BYTES = 60.0, 4_000_000_000
START_S = 180.0  # of the process, on a busy machine
MOST_S, LONGEST = 120.0, 40  # for an answer, also where other programs keep the machine busy
SOON_S = 20.0  # after which somebody may ask whether anything happens
# Answers' processes are forked before a judge is loaded, so that they have none of it.
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from d2lpar.trials.starter import starter; own = starter(); "
    "from d2lpar.checks.grader.server import main; main(own)"
)
TEXT_STARTS = (
    "The grader starts a process of its own, which loads PyTorch: 5 s of processor time, once. "
    "Other programs keep this machine busy, so it takes longer."
)
TEXT_ENDED = "the grader's process has ended, and a new one starts with the next call: {error}"


class GraderError(RuntimeError):
    """The grader's process did not answer."""


class Client:
    """One process that grades; a new one if the last has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._number = 0
        self._lock = threading.Lock()

    def grade(
        self,
        judge: str,
        name: str,
        source: str,
        *,
        limit_s: float = LIMIT_S,
        limit_bytes: int = LIMIT_BYTES,
        **more: int,
    ) -> dict:
        """What `grade(name, source, limits, **more)` of the module `judge` says of an answer.

        Raises GraderError if the process ends; an interrupt ends it.
        """
        with self._lock:
            self._number += 1
            request = {
                "number": self._number,
                "judge": judge,
                "name": name,
                "source": source,
                "limit_s": limit_s,
                "limit_bytes": limit_bytes,
                "more": more,
            }
            try:
                self._ask(self._running(), request)
                return self._answer(MOST_S + LONGEST * limit_s)
            except BaseException:
                self._end()
                raise

    def lacks(self) -> list[str]:
        """What this machine does not have of the boundary around an answer, for who grades."""
        return list(self.grade("", "", "").get("lacks", []))

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._lines = queue.Queue()
            self._process = subprocess.Popen(
                # Not from this folder, nor from the user's: a file torch.py there is not torch.
                [sys.executable, "-I", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),  # it is the answers', too: /proc tells it
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt is for the notebook's process alone
            )
            threading.Thread(
                target=_read, args=(self._process.stdout, self._lines), daemon=True
            ).start()
            with _said_if_slow(TEXT_STARTS):
                self._line(START_S)
        return self._process

    def _ask(self, process: subprocess.Popen[str], request: dict) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise GraderError(TEXT_ENDED.format(error=error)) from None

    def _answer(self, seconds: float) -> dict:
        report = self._line(seconds)
        if report.get("number") != self._number:
            raise GraderError(TEXT_ENDED.format(error="its answer is one to another question"))
        return report

    def _line(self, seconds: float) -> dict:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise GraderError(TEXT_ENDED.format(error=f"no answer in {seconds:.0f} s")) from None
        if not line:
            raise GraderError(TEXT_ENDED.format(error="it said nothing"))
        try:
            return json.loads(line)
        except ValueError:
            raise GraderError(TEXT_ENDED.format(error=f"it said {line[:80]!r}")) from None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """With the child in which an answer runs: nobody else would end one that sleeps."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group, as it began a session
    else:
        process.kill()


@contextlib.contextmanager
def _said_if_slow(text: str) -> Iterator[None]:
    told = {"stream": sys.stderr, "flush": True}
    timer = threading.Timer(SOON_S, say, (text,), told)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(lines: object, found: queue.Queue[str]) -> None:
    for line in lines:  # type: ignore[attr-defined]
        found.put(line)
    found.put("")
    lines.close()  # type: ignore[attr-defined]


CLIENT = Client()
atexit.register(CLIENT.close)
