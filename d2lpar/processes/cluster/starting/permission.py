"""Whether processes can be ranks here: not on Windows, and not where a sandbox forbids it."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable

from .. import messages

ASKED = "D2LPAR_RANKS"  # "virtual" asks for virtual ranks, wherever they run


def why_virtual() -> str | None:
    """Why ranks have to be virtual here, in a few words; None if they can be processes."""
    if is_asked():
        return messages.AS_ASKED.format(name=ASKED)
    if os.name != "posix":
        return messages.NO_POSIX.format(system=platform.system())
    return _refused(messages.NO_PORTS, _open_port) or _refused(messages.NO_PROCESSES, _start)


def is_asked() -> bool:
    """Whether the user asks for virtual ranks. ValueError for a D2LPAR_RANKS that says else."""
    asked = os.environ.get(ASKED, "")
    if asked not in ("", "virtual"):
        raise ValueError(messages.ERROR_ASKED.format(name=ASKED, value=asked))
    return bool(asked)


def _refused(text: str, attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except OSError as error:
        return text.format(reason=error.strerror or error)
    return None


def _open_port() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with socket.create_connection(one.getsockname(), timeout=5):
            pass


def _start() -> None:
    subprocess.run([sys.executable, "-S", "-E", "-c", ""], check=True)
