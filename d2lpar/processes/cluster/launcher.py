"""Starting ranks for a notebook, or giving back those that are there."""

from __future__ import annotations

import os
import platform
import warnings
from pathlib import Path

from ...timeline.inputs import Seconds, require
from . import messages, started, virtual
from .cluster_ranks import ClusterRanks
from .starting import permission, profiles, worker

START_S, QUEUE_S = 60, 600  # how long ranks may take to come up: here, and on a cluster
RANK_S = 10  # and for each that a core starts, on a machine that has other work
MOST_RANKS = 2**12  # processes: several times as many are all that Linux gives a user


def cluster(
    n: int | None = None,
    *,
    profile: str | os.PathLike | None = None,
    timeout_s: float | None = None,
) -> ClusterRanks:
    """Start `n` ranks on this machine, or wherever a profile says: see `ClusterRanks`.

    Each is a process with torch.distributed initialised: over nccl if every rank has a GPU, else
    over gloo, with the processor's cores shared out (an OMP_NUM_THREADS that is set is kept).
    They find `torch`, `dist`, `par`, `rank`, `world_size`, `local_rank` and `device`. There is
    one cluster a notebook: asked again for the same, it is given back, restarted if it has ended;
    asked for another, it is stopped first. While they start, a terminal or notebook shows how far
    they are. The ranks and all their files end with this process, however that ends.

    Where processes or ports are refused, and on Windows, virtual ranks stand in (with a warning):
    `VirtualRanks`, which work on the host, too, and take turns. D2LPAR_RANKS=virtual asks for them.

    `profile` names a folder with an ipcluster_config.py of ipyparallel (a path, a name in
    profiles/, or one of IPython's profiles): see notebooks/profiles for SSH, Slurm and MPI. There
    `n` may be left to c.Cluster.n. Ranks must come up within `timeout_s` seconds (60, and 10 for
    each rank that a core has to start; with a profile 600). Raises ValueError for a wrong `n`,
    profile or time, RuntimeError with the end of a log if they do not come up, or naming what is
    missing.
    """
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ValueError(messages.ERROR_N.format(n=n))
    if n is not None and n > MOST_RANKS:
        raise ValueError(messages.ERROR_MANY.format(n=n, most=MOST_RANKS))
    if n is None and profile is None:
        raise ValueError(messages.ERROR_NO_N)
    require("cluster", Seconds | None, timeout_s=timeout_s)
    rank = worker.this.number if worker.this.number is not None else virtual.own_number()
    if rank is not None:
        raise RuntimeError(messages.ERROR_IN_RANK.format(rank=rank))
    if os.name != "posix" and profile is not None:
        raise RuntimeError(messages.ERROR_SYSTEM.format(system=platform.system()))
    folder = None if profile is None else profiles.find(profile)
    ranks = started.current()
    if ranks is not None and ranks.is_like(n, folder):
        return ranks if ranks.is_running else ranks.restart()
    _register_magic()
    why_virtual = permission.why_virtual() if profile is None else None
    if n is not None and why_virtual is not None:
        return _stand_in(n, why_virtual)
    return _processes(n, folder, timeout_s)


def _stand_in(n: int, why: str) -> ClusterRanks:
    if not permission.is_asked():
        warnings.warn(messages.STAND_IN.format(why=why), stacklevel=3)
    return virtual.VirtualRanks(n, why)


def _processes(n: int | None, folder: Path | None, timeout_s: float | None) -> ClusterRanks:
    try:
        import zmq

        from .ranks import Ranks
    except ModuleNotFoundError as error:
        if error.name not in ("ipyparallel", "zmq"):
            raise
        raise RuntimeError(messages.ERROR_MISSING.format(name=error.name)) from None
    if not zmq.has("curve"):
        raise RuntimeError(messages.ERROR_CURVE)
    if timeout_s is None:
        timeout_s = _start_s(n) if n is not None and folder is None else QUEUE_S
    return Ranks(n, profile=folder, timeout_s=timeout_s)


def _start_s(n: int) -> float:
    """How long `n` ranks may take to come up on this machine."""
    from d2lpar.machines.measuring import system

    return START_S + RANK_S * n / system.cores()


def _register_magic() -> None:
    """Make `%%px` known where there is an IPython, before ipyparallel brings its own."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        from .magic import RankMagics

        shell.register_magics(RankMagics(shell))
