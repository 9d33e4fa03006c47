"""Runs commands one after the other, goes on where one fails, and says at the end which did.

    python tests/helpers/attempts.py [--beside NAME COMMAND] NAME COMMAND [NAME COMMAND …]

What runs beside the others uses the cores while those wait; what it says comes in one piece.
SIGTERM ends the commands that run, and this; a shell would leave them behind.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile

BESIDE = "--beside"


def without_jobserver(makeflags):
    """The flags of `make -j4` without its job server, which no child of a child can reach."""
    return re.sub(r" ?(-j\d*|--jobserver-\w+=\S+)(?= |$)", "", makeflags)


class Attempt:
    """A command that runs; `said` holds its output back until it has ended."""

    def __init__(self, name, command, said=None):
        self.name = name
        self._said = said
        flags = without_jobserver(os.environ.get("MAKEFLAGS", ""))
        self.process = subprocess.Popen(
            shlex.split(command),
            env={**os.environ, "MAKEFLAGS": flags},
            stdout=said,
            stderr=said and subprocess.STDOUT,
        )

    def succeeds(self):
        """Whether it does, once it has ended."""
        status = self.process.wait()
        if self._said is not None:
            self._said.seek(0)
            print(f"\n=== {self.name}\n{self._said.read().decode()}", end="", flush=True)
        return status == 0


class Attempts:
    """Those that run, and those that have ended. A signal to end reaches the former, then this."""

    def __init__(self):
        self._running, self._signals = [], []
        self.passed, self.failed = [], []
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._end)

    def _end(self, number, frame):
        self._signals.append(number)
        if number == signal.SIGTERM:  # Ctrl-C reaches them from the terminal
            for attempt in self._running:
                attempt.process.terminate()

    def begin(self, *what):
        """Start an attempt, which is returned."""
        attempt = Attempt(*what)
        self._running.append(attempt)
        if signal.SIGTERM in self._signals:  # came while it began
            attempt.process.terminate()
        return attempt

    def end(self, attempt):
        """Wait for an attempt, and note how it ended."""
        (self.passed if attempt.succeeds() else self.failed).append(attempt.name)
        self._running.remove(attempt)
        if self._signals:
            for left in self._running:
                left.process.wait()
            sys.exit(128 + self._signals[0])


def main(*arguments):
    attempts = Attempts()
    with tempfile.TemporaryFile() as said:
        beside = None
        if arguments[0] == BESIDE:
            beside = attempts.begin(*arguments[1:3], said)
            arguments = arguments[3:]
        for name, command in zip(arguments[::2], arguments[1::2], strict=True):
            print(f"\n=== {name}", flush=True)
            attempts.end(attempts.begin(name, command))
        if beside is not None:
            attempts.end(beside)
    failed = attempts.failed
    print(f"\nFAILED: {', '.join(failed)}" if failed else f"\nPASSED: {', '.join(attempts.passed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
