"""Who am I? The place of this process among the ranks of a job, whoever started it."""

from __future__ import annotations

import contextlib
import difflib
import gc
import logging
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from ..vgpu.device_naming import RANK_DEVICE

TORCHRUN, SLURM, ALONE = "torchrun", "Slurm", "nobody"

log = logging.getLogger(__name__)

# A Slurm job meets at port 15000 + its number modulo 10000: the same for all its tasks, another
# for its neighbours, and below the ports that systems hand out and that torchrun takes (29400).
FIRST_PORT, PORTS = 15_000, 10_000

MEANING = {
    "RANK": "the number of this process among all, from 0",
    "WORLD_SIZE": "the number of processes in all",
    "LOCAL_RANK": "the number of this process on its machine, from 0",
    "MASTER_ADDR": "the name or address of the machine of rank 0",
    "MASTER_PORT": "a free port of that machine, the same for all processes",
    "SLURM_NTASKS": "the number of tasks in all",
    "SLURM_LOCALID": "the number of this task on its node, from 0",
    "SLURM_JOB_ID": "the number of the job",
    "SLURM_JOB_NODELIST": "the nodes of the job",
}
REMEDY = {
    TORCHRUN: "Start the script with torchrun, which sets it, or set it yourself",
    SLURM: "Start the script with srun, which sets it, or set it yourself",
}


@dataclass(frozen=True)
class RankInfo:
    """The place of one process in a job.

    Attributes:
        rank: number of this process among all, 0 to world_size - 1.
        world_size: processes in all.
        local_rank: number of this process among those of its machine, from 0.
        local_world_size: processes on this machine.
        master_address: machine of rank 0, where all processes meet; empty if there is but one.
        master_port: port to meet at, on that machine; 0 if there is but one process.
        started_by: "torchrun" (or by hand, with its variables), "Slurm" or "nobody".

    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_address: str = ""
    master_port: int = 0
    started_by: str = ALONE

    @property
    def device(self) -> torch.device:
        """A GPU of its own if each rank of this machine can have one, else the CPU.

        D2LPAR_DEVICES=virtual leaves real GPUs alone, here as everywhere. A virtual rank
        (`d2lpar.run_ranks`) has its virtual GPU.
        """
        if RANK_DEVICE in os.environ:
            return torch.device(os.environ[RANK_DEVICE])
        virtual = os.environ.get("D2LPAR_DEVICES") == "virtual"
        found = 0 if virtual or not torch.cuda.is_available() else torch.cuda.device_count()
        if found >= self.local_world_size:
            return torch.device("cuda", self.local_rank)
        if found == 1 and "SLURM_GPUS_PER_TASK" in os.environ:
            return torch.device("cuda", 0)  # each task sees its own alone
        return torch.device("cpu")


def place(environ: Mapping[str, str] | None = None) -> RankInfo:
    """The place that torchrun's variables give this process, or else Slurm's, or else no one's.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT;
    without LOCAL_WORLD_SIZE all ranks are taken to be on one machine. srun sets SLURM_PROCID,
    SLURM_NTASKS, SLURM_LOCALID and the list of nodes, the first of which is the master; the port
    is 15000 + SLURM_JOB_ID % 10000. MASTER_ADDR and MASTER_PORT, if set, go before both.

    Args:
        environ: variables to read instead of this process's.

    Raises:
        ValueError: a variable is missing, misspelt or impossible, or the list of nodes cannot be
            expanded: says which variable, its value, and what to do.

    """
    env = os.environ if environ is None else environ
    if "RANK" in env or "WORLD_SIZE" in env:
        return _from_torchrun(env)
    if "SLURM_PROCID" in env:
        return _from_slurm(env)
    return RankInfo()


@contextlib.contextmanager
def process_group(
    backend: str | None = None, *, timeout_s: float | None = None
) -> Iterator[RankInfo]:
    """A block in which torch.distributed works, between all ranks that were started together.

    Gives this process's `RankInfo`, whose `device` is made the current one. Without OMP_NUM_THREADS
    the ranks of a machine share its cores (under Slurm each has SLURM_CPUS_PER_TASK). At the end,
    also after an error, the group is destroyed and the number of threads is what it was.

    Args:
        backend: "nccl", "gloo", …; by default nccl where each rank has a GPU, else gloo.
        timeout_s: how long to wait for other ranks, in seconds; torch's own default if not given.

    Raises:
        ValueError: as `place` does; or MASTER_ADDR is unknown or MASTER_PORT taken.
        RuntimeError: there is a process group already, as on ranks of `d2lpar.cluster`.

    """
    if dist.is_initialized():
        raise RuntimeError(
            f"This process is rank {dist.get_rank()} of a process group of {dist.get_world_size()} "
            "already: leave the process_group() block out, or destroy that group before it."
        )
    me = place()
    backend = backend or ("nccl" if me.device.type == "cuda" else "gloo")
    if me.device.type == "cuda":
        torch.cuda.set_device(me.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(_threads(me, threads))
    try:
        _meet(me, backend, timeout_s)
        yield me
    finally:
        gc.collect()  # a network in DDP holds the group in a cycle, and gloo's threads with it
        if dist.is_initialized():
            dist.destroy_process_group()
        torch.set_num_threads(threads)


# --- What the variables say ----------------------------------------------------------------------


def _from_torchrun(env: Mapping[str, str]) -> RankInfo:
    world_size = _count(env, "WORLD_SIZE", TORCHRUN, least=1)
    # LOCAL_RANK of a virtual rank is the number of its device, which may be any.
    limit = None if RANK_DEVICE in env else ("WORLD_SIZE", world_size)
    rank = _count(env, "RANK", TORCHRUN, below=("WORLD_SIZE", world_size))
    local_world_size = world_size
    if "LOCAL_WORLD_SIZE" in env:
        local_world_size = _count(env, "LOCAL_WORLD_SIZE", TORCHRUN, least=1)
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=_count(env, "LOCAL_RANK", TORCHRUN, below=limit),
        local_world_size=local_world_size,
        master_address=_text(env, "MASTER_ADDR", TORCHRUN),
        master_port=_port(env, TORCHRUN),
        started_by=TORCHRUN,
    )


def _from_slurm(env: Mapping[str, str]) -> RankInfo:
    world_size = _count(env, "SLURM_NTASKS", SLURM, least=1)
    rank = _count(env, "SLURM_PROCID", SLURM, below=("SLURM_NTASKS", world_size))
    if rank == 0 and world_size > 1 and "SLURM_STEP_ID" not in env:
        # In a batch script Slurm sets SLURM_PROCID, too; rank 0 would wait for the others forever.
        raise ValueError(
            f"SLURM_NTASKS is {world_size}, but this is the batch script itself, not one of its "
            "tasks (SLURM_STEP_ID is not set). Start them all: `srun python …`."
        )
    if world_size == 1:
        return RankInfo(started_by=SLURM)
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=_count(env, "SLURM_LOCALID", SLURM, below=("SLURM_NTASKS", world_size)),
        local_world_size=_tasks_of_this_node(env, world_size),
        master_address=env.get("MASTER_ADDR") or _first_host(env),
        master_port=_port(env, TORCHRUN) if "MASTER_PORT" in env else _port_of_job(env),
        started_by=SLURM,
    )


def _tasks_of_this_node(env: Mapping[str, str], world_size: int) -> int:
    """Slurm writes them for all nodes, as in "2(x3),1": two on each of three nodes, then one."""
    listed = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    if not listed or "SLURM_NODEID" not in env:
        return world_size
    tasks = []
    for part in listed.split(","):
        count, _, nodes = part.rstrip(")").partition("(x")
        tasks += [int(count)] * int(nodes or 1)
    return tasks[int(env["SLURM_NODEID"])]


def _first_host(env: Mapping[str, str]) -> str:
    """The first of the nodes; `scontrol` expands the list, as nobody else knows all of its forms.

    SLURM_STEP_NODELIST goes first, since a step may have fewer nodes than its job.
    """
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    name = next((name for name in names if env.get(name)), "SLURM_JOB_NODELIST")
    nodes = _text(env, name, SLURM)
    by_hand = "set MASTER_ADDR to the first node's name in the batch script, before srun"
    try:
        found = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ValueError(
            f"{name} is {nodes!r}, and scontrol, which would expand it, is not on this node's "
            f"PATH (containers often lack it): {by_hand}."
        ) from None
    hosts = found.stdout.split()
    if found.returncode or not hosts:
        said = found.stderr.strip() or "nothing"
        raise ValueError(
            f"{name} is {nodes!r}: `scontrol show hostnames` ended with {found.returncode} and "
            f"said {said!r}. Correct the list, or {by_hand}."
        )
    return hosts[0]


def _port_of_job(env: Mapping[str, str]) -> int:
    return FIRST_PORT + _count(env, "SLURM_JOB_ID", SLURM) % PORTS


def _port(env: Mapping[str, str], starter: str) -> int:
    return _count(env, "MASTER_PORT", starter, least=1, below=("the number of ports", 65_536))


def _text(env: Mapping[str, str], name: str, starter: str) -> str:
    """The variable's value; ValueError with the nearest name if it is missing or empty."""
    if env.get(name):
        return env[name]
    known = {*MEANING, "LOCAL_WORLD_SIZE", "SLURM_PROCID"}
    near = difflib.get_close_matches(name, set(env) - known, n=1, cutoff=0.8)
    if near:
        raise ValueError(
            f"{name} is not set, but {near[0]} is, to {env[near[0]]!r}: is it misspelt? "
            f"{name} is {MEANING[name]}."
        )
    first = "RANK" if "RANK" in env else "WORLD_SIZE"
    first = first if starter == TORCHRUN else "SLURM_PROCID"
    raise ValueError(
        f"{first} is {env.get(first)!r}, but {name} is not set. {REMEDY[starter]}: {MEANING[name]}."
    )


def _count(
    env: Mapping[str, str],
    name: str,
    starter: str,
    *,
    least: int = 0,
    below: tuple[str, int] | None = None,
) -> int:
    """The variable's value as a whole number from `least` on, less than the one named `below`."""
    text = _text(env, name, starter)
    meaning = MEANING.get(name, "a whole number")
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}: it must be a whole number, {meaning}.")
    number = int(text)
    if number < least:
        raise ValueError(f"{name} is {number}: it must be at least {least}, {meaning}.")
    if below and number >= below[1]:
        raise ValueError(
            f"{name} is {number}: it must be less than {below[0]}, which is {below[1]}."
        )
    return number


# --- Meeting the others --------------------------------------------------------------------------


def _threads(me: RankInfo, all_cores: int) -> int:
    """Threads for this rank, so that the ranks of a machine do not fight for its cores."""
    if "OMP_NUM_THREADS" in os.environ:
        return all_cores  # torch has obeyed it
    if me.started_by == SLURM and "SLURM_CPUS_PER_TASK" in os.environ:
        return _count(os.environ, "SLURM_CPUS_PER_TASK", SLURM, least=1)
    return max(1, all_cores // me.local_world_size)


def _meet(me: RankInfo, backend: str, timeout_s: float | None) -> None:
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    if not me.master_address:
        store = dist.HashStore()  # nobody to meet: no port is needed
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        return
    _check_master(me)
    _warn_of_shared_store(me)
    # torchrun's agents have a store of their own, which only env:// knows of.
    where = "env://" if me.started_by == TORCHRUN else _url(me)
    try:
        dist.init_process_group(
            backend, init_method=where, rank=me.rank, world_size=me.world_size, timeout=timeout
        )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise ValueError(_port_taken(me)) from error


def _warn_of_shared_store(me: RankInfo) -> None:
    """A restarted rank may find the address of a dead one there, and wait for it in vain.

    Source: pytorch issue 135712. Here it failed in every fifth restart, and in none of 14 without.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if me.rank == 0 and shared and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        log.warning(
            "torchrun's restarts may fail: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before it."
        )


def _url(me: RankInfo) -> str:
    address = f"[{me.master_address}]" if ":" in me.master_address else me.master_address
    return f"tcp://{address}:{me.master_port}"


def _check_master(me: RankInfo) -> None:
    """At once, where torch would try for minutes."""
    try:
        socket.getaddrinfo(me.master_address, me.master_port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"MASTER_ADDR is {me.master_address!r}, which this machine ({socket.gethostname()}) "
            f"cannot find ({error.strerror or error}): give rank 0's machine by a name or address "
            "that all machines know."
        ) from error


def _port_taken(me: RankInfo) -> str:
    return (
        f"MASTER_PORT is {me.master_port}, and {_holder(me.master_port)} has that port on "
        f"{socket.gethostname()}: end it if it is a forgotten run of yours (`ss -ltnp` lists "
        "ports), or set MASTER_PORT to another number, the same for all ranks."
    )


def _holder(port: int) -> str:
    """The process that listens at a port, if this user may know."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr and connection.laddr.port == port
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"
