"""Starting ranks for a notebook, or giving back those that are there."""

from __future__ import annotations

import math
import os
import platform
from numbers import Real
from typing import TYPE_CHECKING

from . import messages, worker

if TYPE_CHECKING:
    from .ranks import Ranks

START_S, QUEUE_S = 60, 600  # how long ranks may take to come up: here, and on a cluster
RANK_S = 10  # and for each that a core starts, on a machine that has other work


def cluster(
    n: int | None = None,
    *,
    profile: str | os.PathLike | None = None,
    timeout_s: float | None = None,
) -> Ranks:
    """Start `n` ranks on this machine, or wherever a profile says; see `Ranks` for what they do.

    Each is a process with torch.distributed initialised: over nccl if every rank has a GPU, else
    over gloo, with the processor's cores shared out (an OMP_NUM_THREADS that is set is kept).
    They find `torch`, `dist`, `par`, `rank`, `world_size`, `local_rank` and `device`. There is
    one cluster a notebook: asked again for the same, it is given back, restarted if it has ended;
    asked for another, it is stopped first. While they start, a terminal or notebook shows how far
    they are. The ranks and all their files end with this process, however that ends.

    `profile` names a folder with an ipcluster_config.py of ipyparallel (a path, a name in
    profiles/, or one of IPython's profiles): see notebooks/profiles for SSH, Slurm and MPI. There
    `n` may be left to c.Cluster.n. Ranks must come up within `timeout_s` seconds (60, and 10 for
    each rank that a core has to start; with a profile 600). Raises ValueError for a wrong `n`,
    profile or time, RuntimeError with the end of a log if they do not come up, or naming what is
    missing.
    """
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ValueError(messages.ERROR_N.format(n=n))
    if n is None and profile is None:
        raise ValueError(messages.ERROR_NO_N)
    if timeout_s is not None and not (isinstance(timeout_s, Real) and 0 < timeout_s < math.inf):
        raise ValueError(messages.ERROR_TIMEOUT.format(timeout_s=timeout_s))
    if os.name != "posix":
        raise RuntimeError(messages.ERROR_SYSTEM.format(system=platform.system()))
    if worker.this.number is not None:
        raise RuntimeError(messages.ERROR_IN_RANK.format(rank=worker.this.number))
    from .profiles import find

    folder = None if profile is None else find(profile)
    try:
        import zmq

        from .ranks import Ranks, current
    except ModuleNotFoundError as error:
        if error.name not in ("ipyparallel", "zmq"):
            raise
        raise RuntimeError(messages.ERROR_MISSING.format(name=error.name)) from None
    if not zmq.has("curve"):
        raise RuntimeError(messages.ERROR_CURVE)
    if timeout_s is None:
        timeout_s = _start_s(n) if n is not None and folder is None else QUEUE_S
    ranks = current()
    if ranks is not None and ranks.is_like(n, folder):
        return ranks if ranks.is_running else ranks.restart()
    _register_magic()
    return Ranks(n, profile=folder, timeout_s=timeout_s)


def _start_s(n: int) -> float:
    """How long `n` ranks may take to come up on this machine."""
    from d2lpar.machines import system

    return START_S + RANK_S * n / system.cores()


def _register_magic() -> None:
    """Make `%%px` known where there is an IPython, before ipyparallel brings its own."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        from .magic import RankMagics

        shell.register_magics(RankMagics(shell))
