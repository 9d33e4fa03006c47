"""torchrun's agent, called by a program: the ranks that it starts are virtual processes.

`accelerate launch`, its `notebook_launcher`, `fabric run` and `torch.distributed.launcher` end in
torch's `launch_agent`, which starts a function or a script once a rank.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.multiprocessing import ProcessRaisedException

from ...patching import Patches
from ...ranks.state import main_module
from ...ranks.state.process_state import variables_of
from ..lazy_init import devices_here
from .processes import FAILED, FRESH, SPAWN, Child, Children, SpawnedProcesses
from .queues import VirtualQueue

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

_LOCAL_RANK = "${local_rank}"  # what torch writes into arguments, to be replaced by the number


def install(children: Children, patches: Patches) -> None:
    """Let the agent's ranks be virtual from now on."""
    from torch.distributed.launcher import api

    patches.replace(api, "launch_agent", partial(_launch_agent, children))


def _launch_agent(
    children: Children,
    config: LaunchConfig,
    entrypoint: Any,
    args: Sequence[Any],
    *others: object,
    **more: object,
) -> dict[int, Any]:
    """Start the ranks of one machine, wait for them, and give what a function returns on each.

    After a failure all start again, as often as `config.max_restarts` allows. Raises
    ChildFailedError, caused by the error of the first that failed, and NotImplementedError for
    ranks of several machines, or of another program than Python.
    """
    if config.max_nodes > 1:
        raise NotImplementedError(
            f"a program that starts its ranks itself has one machine here, not {config.max_nodes}: "
            "start the script with `d2lpar run --nnodes N --nproc-per-node M SCRIPT`"
        )
    if isinstance(entrypoint, str):
        _check_python(entrypoint)
    for restarts in range(config.max_restarts + 1):
        try:
            return _attempt(children, config, entrypoint, args, restarts)
        except ProcessRaisedException as error:
            if restarts == config.max_restarts:
                raise _failure(entrypoint, error) from error.__cause__
            again = f"all ranks start again: {restarts + 1} of {config.max_restarts}"
            print(f"{error}\n{again}", file=sys.stderr)
        gc.collect()  # what a failed rank held is free
    raise ValueError(f"max_restarts={config.max_restarts}: it takes 0 or more")


def _attempt(
    children: Children, config: LaunchConfig, entrypoint: Any, args: Sequence[Any], restarts: int
) -> dict[int, Any]:
    """Let all ranks live once."""
    results = VirtualQueue(children.run)
    life = partial(_function, entrypoint, results)
    if isinstance(entrypoint, str):
        life = partial(_program, results)
    of_function = config.start_method if callable(entrypoint) else FRESH
    started = []
    for rank in range(config.nproc_per_node):
        variables = _variables(config, rank) | {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
        target = partial(_live, life, variables, rank, tuple(args))
        process = multiprocessing.get_context(SPAWN).Process()  # type: ignore[attr-defined]
        started.append(Child(children, f"rank {rank}", target, of_function, process))
    for child in started:
        children.start(child)
    SpawnedProcesses(started).join()
    return dict(results.get() for _ in started)  # type: ignore[misc]


def _failure(entrypoint: Any, error: ProcessRaisedException) -> ChildFailedError:
    """What the agent raises when a rank has failed for good."""
    name = getattr(entrypoint, "__qualname__", str(entrypoint))
    failure = ProcessFailure(error.error_index, error.error_pid, FAILED, error_file="")
    failure.message = str(error)
    return ChildFailedError(name, {error.error_index: failure})


def _check_python(program: str) -> None:
    if not Path(program).name.startswith("python"):
        raise NotImplementedError(
            f"ranks start {program!r}, which is not Python: virtual GPUs need Python; leave "
            "--no_python out"
        )


def _variables(config: LaunchConfig, rank: int) -> dict[str, str]:
    """What the agent sets for a rank: "Environment Variables" in torchrun's documentation."""
    size = config.nproc_per_node
    here = devices_here()
    address, _, port = config.rdzv_endpoint.rpartition(":")
    found = variables_of(rank, size, here[rank : rank + 1])
    found |= {
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": config.role,
        "TORCHELASTIC_RUN_ID": config.run_id or "none",
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    if address and port.isdigit() and int(port):
        found |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return found


def _live(life: Any, variables: dict[str, str], rank: int, args: tuple) -> None:
    """A rank's life, in its own environment."""
    os.environ.update(variables)
    own = [a.replace(_LOCAL_RANK, str(rank)) if isinstance(a, str) else a for a in args]
    life(rank, own)


def _function(function: Any, results: VirtualQueue, rank: int, args: list) -> None:
    results.put((rank, function(*args)))


def _program(results: VirtualQueue, rank: int, words: list[str]) -> None:
    run_python(words)
    results.put((rank, None))


def run_python(words: Sequence[str]) -> None:
    """Run a script or a module, as `python -u` with these words does."""
    words = [*words]
    while words[0] == "-u":
        del words[0]
    is_module = words[0] == "-m"
    if is_module:
        del words[0]
    sys.argv = words
    (main_module.run_module if is_module else main_module.run_script)(words[0])
