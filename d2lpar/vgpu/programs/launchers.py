"""Programs that Slurm's `srun` or an `mpirun` starts, and know who they are by their variables."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

SRUN = "srun"
LAUNCHERS = frozenset({SRUN, "mpirun", "mpiexec"})
JOB = "1"  # Slurm's number of it


class Told(NamedTuple):
    """What a launcher was told: how many processes on how many machines, and the program."""

    processes: int
    nodes: int
    words: list[str]


class WorldSize(NamedTuple):
    """Processes in all, machines, and processes on each of them."""

    processes: int
    nodes: int
    per_node: int


def told(launcher: str, words: Sequence[str]) -> Told:
    """Read the words that follow `srun`, `mpirun` or `mpiexec`.

    ValueError for options that are not known here: those that say how many processes there are, and
    where, are.
    """
    parser = _Parser(launcher, add_help=False, allow_abbrev=False)
    (_srun if launcher == SRUN else _mpirun)(parser.add_argument)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    found = parser.parse_args(list(words))
    if not found.words:
        raise ValueError(
            f"{launcher} names no program: write it behind the options, {launcher} -n 2 python "
            "train.py"
        )
    if found.words[0].startswith("-"):
        raise ValueError(f"{launcher}'s option {found.words[0]} is not known here: leave it out")
    nodes: int = found.nodes
    per_node = 1 if found.per_node is None else found.per_node
    processes: int = nodes * per_node if found.processes is None else found.processes
    if launcher != SRUN and found.hosts:
        processes, nodes = _on_hosts(_slots(found.hosts), found.processes, found.per_node)
    if min(processes, nodes) < 1:
        raise ValueError(
            f"{launcher} with {processes} processes on {nodes} machines: both must be at least 1"
        )
    return Told(processes, nodes, found.words)


def _slots(hosts: str) -> list[int]:
    """How many processes each host takes of "a,b:2": as many as it is named, or has slots."""
    found: Counter[str] = Counter()
    for place in hosts.split(","):
        name, colon, slots = place.partition(":")
        if colon and not slots.isdecimal():
            raise ValueError(f"mpirun's host {place!r} has no number of slots: write {name}:2")
        found[name] += int(slots or 1)
    return list(found.values())


def _on_hosts(slots: list[int], processes: int | None, per_node: int | None) -> tuple[int, int]:
    """How many processes there are, and on how many of the hosts: each is filled before the next,
    as Open MPI does it."""
    takes = [per_node or slot for slot in slots]
    wanted = processes or sum(takes)
    used = next((i for i in range(1, len(takes)) if sum(takes[:i]) >= wanted), len(takes))
    return wanted, used


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"{self.prog}: {message}")


def _srun(add: Callable[..., object]) -> None:
    add("-n", "--ntasks", type=int, dest="processes")
    add("-N", "--nodes", type=int, default=1)
    add("--ntasks-per-node", type=int, dest="per_node")
    # What a cluster shares out; here all processes have what they ask for.
    for option in (
        "--gpus-per-node",
        "--gpus-per-task",
        "--gres",
        "--mem",
        "--time",
        "--partition",
    ):
        add(option)
    add("-c", "--cpus-per-task")
    add("-p", dest="partition")
    add("-t", dest="time")
    add("-l", "--label", action="store_true")


def _mpirun(add: Callable[..., object]) -> None:
    add("-n", "-np", "--np", "-c", type=int, dest="processes")
    add("-N", "--npernode", "-npernode", "-ppn", type=int, dest="per_node")
    add("--nodes", type=int, default=1)
    add("-H", "--host", "-host", "--hosts", "-hosts", dest="hosts")
    add("--hostfile", "-hostfile", "--bind-to", "-bind-to", "--map-by", "-map-by")
    add("-x", action="append")
    add("-mca", "--mca", nargs=2, action="append")
    add("--allow-run-as-root", "--oversubscribe", "--tag-output", action="store_true")


def variables(launcher: str, size: WorldSize, rank: int, node: int, local: int) -> dict[str, str]:
    """What a process finds in its environment: "Output environment variables" in srun's manual
    page, and Open MPI's under "Environment variables" in its FAQ. As there, no variable says where
    processes meet: programs choose MASTER_ADDR and MASTER_PORT, or are told."""
    numbers = _slurm(size, rank, node, local) if launcher == SRUN else _open_mpi(size, rank, local)
    return {name: str(value) for name, value in numbers.items()}


def _slurm(size: WorldSize, rank: int, node: int, local: int) -> dict[str, object]:
    names = [f"node{i}" for i in range(size.nodes)]
    some = "node[" + f"0-{size.nodes - 1}" + "]" if size.nodes > 1 else names[0]
    job = {"SLURM_JOB_ID": JOB, "SLURM_JOBID": JOB, "SLURM_JOB_NUM_NODES": size.nodes}
    return job | {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": size.processes,
        "SLURM_NPROCS": size.processes,
        "SLURM_NNODES": size.nodes,
        "SLURM_NTASKS_PER_NODE": size.per_node,
        "SLURM_TASKS_PER_NODE": _tasks_text(size),
        "SLURM_STEP_NUM_TASKS": size.processes,
        "SLURM_JOB_NODELIST": some,
        "SLURM_NODELIST": some,
        "SLURM_STEP_NODELIST": some,
        "SLURMD_NODENAME": names[node],
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_GPUS_ON_NODE": size.per_node,
    }


def _tasks_text(size: WorldSize) -> str:
    return f"{size.per_node}(x{size.nodes})" if size.nodes > 1 else f"{size.per_node}"


def _open_mpi(size: WorldSize, rank: int, local: int) -> dict[str, object]:
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": size.processes,
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": size.per_node,
        "OMPI_COMM_WORLD_NODE_RANK": local,
        "OMPI_UNIVERSE_SIZE": size.processes,
        "PMI_RANK": rank,
        "PMI_SIZE": size.processes,
    }
