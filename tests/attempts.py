"""Runs commands one after the other, goes on where one fails, and says at the end which did.

    python tests/attempts.py NAME COMMAND [NAME COMMAND …]

SIGTERM ends the command that runs, and this; a shell would leave the command behind.
"""

import os
import re
import shlex
import signal
import subprocess
import sys


def without_jobserver(makeflags):
    """The flags of `make -j4` without its job server, which no child of a child can reach."""
    return re.sub(r" ?(-j\d*|--jobserver-\w+=\S+)(?= |$)", "", makeflags)


def attempt(command):
    """Whether the command succeeded; a signal to end reaches it, and this process after it."""
    signals = []
    flags = without_jobserver(os.environ.get("MAKEFLAGS", ""))
    with subprocess.Popen(shlex.split(command), env={**os.environ, "MAKEFLAGS": flags}) as process:

        def end(number, frame):
            signals.append(number)
            if number == signal.SIGTERM:  # Ctrl-C reaches it from the terminal
                process.terminate()

        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, end)
    if signals:
        sys.exit(128 + signals[0])
    return process.returncode == 0


def main(*arguments):
    passed, failed = [], []
    for name, command in zip(arguments[::2], arguments[1::2], strict=True):
        print(f"\n=== {name}", flush=True)
        (passed if attempt(command) else failed).append(name)
    print(f"\nFAILED: {', '.join(failed)}" if failed else f"\nPASSED: {', '.join(passed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
