"""What the controller and the engines of a cluster run first: they end when the notebook does.

Run as `lifeline.py controller …` by its path, or as a module with `engine …`;
what follows are the arguments of ipyparallel's own programs. It imports nothing of the package, so
that the controller need not wait for torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

HOST = "D2LPAR_CLUSTER_HOST"
LOCK, PIDS = "notebook.lock", "pids"
WORLD = ("D2LPAR_DEVICES", "D2LPAR_MACHINE", "D2LPAR_BACKING")  # ranks compute for real
RECONNECT_S = 5
_GONE_S = 3


def main() -> None:
    """Run the controller or an engine, as the first argument of the command says."""
    role = sys.argv.pop(1)
    for name in WORLD:
        os.environ.pop(name, None)
    watch()
    if role == "controller":
        os.register_at_fork(after_in_child=watch)  # its heart monitor is a process of its own
        # Beside encryption ipyparallel would leave out signatures, and warn that it does.
        sys.argv.append(f"--Session.key={secrets.token_hex()}")
        from ipyparallel.controller.app import main as run
    else:
        # What mpiexec starts needs no mpi4py: torch.distributed connects the ranks.
        sys.argv = [word for word in sys.argv if word != "--mpi"]
        from ipyparallel.engine.app import main as run
    run()


def is_on_notebooks_host() -> bool:
    """Whether this process runs on the notebook's machine."""
    return os.environ.get(HOST, socket.gethostname()) == socket.gethostname()


def controller() -> tuple[str, int]:
    """Host and port at which other hosts reach the controller."""
    info = json.loads(os.environ["IPP_CONNECTION_INFO"])
    address = info["interface"].rpartition("/")[2]
    return info["location"] if address in ("0.0.0.0", "*") else address, info["registration"]


def watch() -> None:
    """End this process with the notebook: by its lock here, by the controller on other hosts."""
    folder = os.environ["IPP_PROFILE_DIR"]
    if is_on_notebooks_host():
        _enlist(folder)
        _in_background(_wait_for_lock, folder)
    else:
        launchers_folder, folder = folder, tempfile.mkdtemp(prefix="d2lpar-cluster-")
        os.environ["IPP_PROFILE_DIR"] = folder
        _in_background(_wait_for_controller, folder, launchers_folder)
    os.environ["IPYTHONDIR"] = folder


def _in_background(function: Callable[..., None], *args: str) -> None:
    threading.Thread(target=function, args=args, daemon=True, name="d2lpar lifeline").start()


def _enlist(folder: str) -> None:
    """Leave a note that this process belongs to the cluster, and when it began."""
    import psutil

    try:
        with open(os.path.join(folder, PIDS, str(os.getpid())), "w") as note:
            note.write(str(psutil.Process().create_time()))
    except FileNotFoundError:  # stopped before it began
        os._exit(1)


def _wait_for_lock(folder: str) -> None:
    import fcntl

    try:
        lock = open(os.path.join(folder, LOCK), "r+")  # noqa: SIM115
        # Exclusive: one process at a time gets it, ends the others and clears up.
        fcntl.lockf(lock, fcntl.LOCK_EX)
    except OSError:
        os._exit(1)
    for process in _others(folder):
        with contextlib.suppress(Exception):
            if not cleans_up(process):
                process.kill()
    _remove(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def _others(folder: str) -> list[psutil.Process]:
    """The other processes of the cluster and all that they started."""
    import psutil

    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(folder, PIDS)):
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                process = psutil.Process(int(name))
                with open(os.path.join(folder, PIDS, name)) as note:
                    same = abs(process.create_time() - float(note.read())) < 1
                for one in [process, *process.children(recursive=True)] if same else ():
                    found[one.pid] = one
    found.pop(os.getpid(), None)
    return list(found.values())


def cleans_up(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's tracker, which removes what a killed process shared.

    It ends by itself when all that share with it are gone.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in word for word in process.cmdline())
    return False


def _remove(folder: str) -> None:
    """Remove the folder, again if a process that is just ending still wrote into it."""
    deadline_s = time.monotonic() + _GONE_S
    while os.path.exists(folder) and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _wait_for_controller(*folders: str) -> None:
    """On another host: hold a connection to the controller, and end when it is gone."""
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    host, port = controller()
    info = json.loads(os.environ["IPP_CONNECTION_INFO"])
    with zmq.Context() as context, context.socket(zmq.DEALER) as line:
        line.linger = 0
        line.curve_publickey, line.curve_secretkey = zmq.curve_keypair()
        line.curve_serverkey = info["curve_serverkey"].encode()
        # So that a host that loses its power is noticed, too.
        line.setsockopt(zmq.TCP_KEEPALIVE, 1)
        line.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
        line.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
        line.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        events = line.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        line.connect(f"tcp://{host}:{port}")
        connected = False
        wait_ms: int | None = 60_000
        while events.poll(wait_ms):
            connected = recv_monitor_message(events)["event"] == zmq.EVENT_CONNECTED
            wait_ms = None if connected else RECONNECT_S * 1000
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # the heart monitor where processes are spawned, not forked
    watch()
