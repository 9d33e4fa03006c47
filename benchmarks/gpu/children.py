"""Processes that answer line by line, and are ended with all that they started when time is up."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ANSWER = "answer "  # how a line begins that is no print of somebody else's


class Child:
    """A process in a group of its own; what it says besides answers goes to the end of `log`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log, self._errors = log, log.open("a", encoding="utf-8")
        self._begin = self._errors.tell()
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=dict(env),
            start_new_session=True,
        )
        self._answers: queue.Queue[dict | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for text in said:
                if text.startswith(ANSWER):
                    self._answers.put(json.loads(text[len(ANSWER) :]))
                else:
                    self._errors.write(text)
        self._answers.put(None)

    def answer(self, deadline_s: float) -> dict | None:
        """The next answer, None when it has ended. Raises TimeoutError after `deadline_s`, a time
        of `time.monotonic()`."""
        try:
            return self._answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None

    @property
    def last_words(self) -> str:
        """The last line that it wrote, or how it ended."""
        self._errors.flush()
        written = self._log.read_bytes()[self._begin :].decode(errors="replace").split("\n")
        status = self._process.poll()
        return next((text for text in reversed(written) if text.strip()), f"exit status {status}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._errors.close()


def answer(**fields: object) -> None:
    """Say something to the process that started this one."""
    print(ANSWER + json.dumps(fields), flush=True)
