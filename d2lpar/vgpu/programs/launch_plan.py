"""What a command line starts: one process, or ranks as torchrun and torch.distributed.launch do."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..api.visible_devices import CUDA as VISIBLE
from ..api.visible_devices import Variable
from ..bounds import MOST_RANKS
from ..device_naming import MOST_DEVICES, RANK_DEVICE, TYPE
from . import torchrun
from .torchrun import MASTER, LogOptions

OTHERS = ("srun", "mpirun", "mpiexec")  # what starts ranks with variables of their own
LOCAL_RANK = ("--local-rank", "--local_rank")  # of torch.distributed.launch
RUN, LAUNCH = "torch.distributed.run", "torch.distributed.launch"


@dataclass(frozen=True)
class Process:
    """One process of a program: its arguments, its own variables, the numbers of its devices."""

    number: int
    arguments: tuple[str, ...]
    variables: dict[str, str]
    devices: tuple[int, ...]  # all of its machine's; none with `--gpus 0`
    device: int | None  # the one by which it exchanges data with others

    @property
    def own_first(self) -> list[int]:
        """Its devices, first its own."""
        own = [] if self.device is None else [self.device]
        return own + [device for device in self.devices if device != self.device]


@dataclass(frozen=True)
class LaunchPlan:
    """A program and its processes: `target` is a file, or a module's name if `is_module`.

    `nodes` machines have `gpus` devices in all. `per_node` is the number of ranks on each; None
    starts one process without torchrun's variables, as `python` does. `master` are their address
    and port, `run_id`, `max_restarts` (how often all ranks start again after one has failed),
    `role`, `virtual_local_rank` and `logs` what torchrun was told.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    gpus: int = 1
    nodes: int = 1
    per_node: int | None = None
    local_rank_option: bool = False
    master: tuple[str, str] = MASTER
    run_id: str = "none"
    max_restarts: int = 0
    role: str = "default"
    virtual_local_rank: bool = False
    logs: LogOptions | None = None

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self.nodes * (self.per_node or 1)

    def processes(self, restarts: int = 0) -> list[Process]:
        """All of them, by rank, when they have started again so many times."""
        return [self._process(rank, restarts) for rank in range(self.world_size)]

    def _process(self, rank: int, restarts: int) -> Process:
        here = self.gpus // self.nodes
        node, local = divmod(rank, self.per_node or 1)
        devices = tuple(range(node * here, (node + 1) * here))
        arguments = list(self.arguments)
        if self.local_rank_option:
            arguments.insert(0, f"{self._option()}={local}")
        device = devices[_own_of(local, len(devices))] if devices else None
        variables = {} if self.per_node is None else self._variables(rank, node, local, device)
        if variables:
            variables["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
        return Process(rank, (self.target, *arguments), variables, devices, device)

    def _variables(self, rank: int, node: int, local: int, device: int | None) -> dict[str, str]:
        """What torchrun sets: "Environment Variables" in the documentation of torch.distributed.run
        (and the source of its agent, local_elastic_agent.py)."""
        size, per_node = str(self.world_size), str(self.per_node)
        address, port = self.master
        found = {
            "LOCAL_RANK": str(local),
            "RANK": str(rank),
            "GROUP_RANK": str(node),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": self.role,
            "LOCAL_WORLD_SIZE": per_node,
            "WORLD_SIZE": size,
            "GROUP_WORLD_SIZE": str(self.nodes),
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        if device is not None:
            found[RANK_DEVICE] = f"{TYPE}:{device}"
        if self.virtual_local_rank:
            own = _own_of(local, self.gpus // self.nodes)
            found |= {"LOCAL_RANK": "0", VISIBLE: str(own)}
        if self.world_size > 1:
            found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        return found

    def _option(self) -> str:
        """How the script spells it: torch renamed "--local_rank", and scripts know one of both."""
        return LOCAL_RANK[0] if LOCAL_RANK[0] in self._source() else LOCAL_RANK[1]

    def _source(self) -> str:
        path = Path(self.target)
        return path.read_text("utf-8", "replace") if path.is_file() else ""

    def require_program(self) -> None:
        """Raise FileNotFoundError where there is no such program, ValueError where it is a folder
        or a file that Python cannot run."""
        if not self.is_module:
            _require_python(self.target)

    @property
    def lacks_local_rank(self) -> bool:
        """Whether the script is written for torch.distributed.launch alone: it takes the option by
        which that tells a rank its number, is not given it, and does not look for torchrun's."""
        text = self._source()
        given = any(word.split("=")[0] in LOCAL_RANK for word in self.arguments)
        takes = any(f"{quote}{name}{quote}" in text for name in LOCAL_RANK for quote in "'\"")
        return takes and not (self.local_rank_option or given or "LOCAL_RANK" in text)

    @property
    def words(self) -> str:
        """The program and its arguments, as a shell takes them."""
        return shlex.join([*(["-m"] if self.is_module else []), self.target, *self.arguments])


@dataclass
class Asked:
    """What the options of `d2lpar run` say of the start; None if they do not."""

    gpus: int | None = None
    nodes: int | None = None
    per_node: str | None = None
    words: Sequence[str] = field(default_factory=list)

    @property
    def ranks(self) -> bool:
        """Whether they ask for ranks, as torchrun starts them."""
        return self.per_node is not None or self.nodes is not None


def plan(asked: Asked) -> LaunchPlan:
    """What to start. Raises ValueError for a command line that names no program, or another
    launcher than torchrun's, for more ranks than GPUs, and for GPUs that machines cannot share."""
    words = list(asked.words)
    if words and Path(words[0]).name in ("python", "python3"):
        words = words[1:]
    if words[:1] == ["torchrun"]:
        return _by_torchrun(words[1:], asked, launch=False)
    if words and Path(words[0]).name in OTHERS:
        raise ValueError(
            f"{words[0]}: ranks are started as torchrun does, with its variables. Write "
            "`d2lpar run --nproc-per-node N SCRIPT.py`, and --nnodes M for several machines"
        )
    if words[:2] == ["-m", RUN] or words[:2] == ["-m", LAUNCH]:
        return _by_torchrun(words[2:], asked, launch=words[1] == LAUNCH)
    is_module = words[:1] == ["-m"]
    if is_module:
        words = words[1:]
    if not words:
        raise ValueError("no program is named: d2lpar run [OPTIONS] SCRIPT.py or -m MODULE")
    target, *arguments = words
    if not is_module:
        target = _file_of(target)
    more: dict[str, Any] = {}
    if asked.ranks:
        if arguments[:1] == ["--"]:  # torchrun takes it for its own; `python` hands it on
            del arguments[0]
        more = _sizes(
            asked.gpus, asked.nodes or 1, "gpu" if asked.per_node is None else asked.per_node
        )
    elif asked.gpus is not None:
        more = {"gpus": asked.gpus}
    return LaunchPlan(target, tuple(arguments), is_module, **more)


def _require_python(target: str) -> None:
    """Text, or a folder with a `__main__.py`, as `python` takes them."""
    if not os.path.exists(target):
        raise FileNotFoundError(f"there is no file {target!r} to run")
    if os.path.isdir(target):
        if not os.path.exists(os.path.join(target, "__main__.py")):
            raise ValueError(f"{target!r} is a folder: name the Python file in it that is to run")
    elif os.path.isfile(target):
        with open(target, "rb") as file:
            if b"\0" in file.read(4096):
                raise ValueError(
                    f"{target!r} is a binary file, no Python program: name a script, such as "
                    "train.py, or a module by -m"
                )


def _file_of(word: str) -> str:
    """A file; or the Python script of that name that a shell would find, such as accelerate's, also
    where the environment of this Python is not the shell's."""
    beside = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    found = None if os.path.exists(word) else shutil.which(word, path=beside)
    if found is None:
        return word
    with open(found, "rb") as file:
        start = file.read(300)
    return found if start.startswith(b"#!") and b"python" in start else word


def _by_torchrun(words: list[str], asked: Asked, *, launch: bool) -> LaunchPlan:
    """As torch's own parser reads the words that follow `torchrun`."""
    told = torchrun.told(words, launch=launch)
    nodes = asked.nodes or max(_whole(n, "--nnodes") for n in str(told.nnodes).split(":"))
    sizes = _sizes(asked.gpus, nodes, asked.per_node or str(told.nproc_per_node))
    return LaunchPlan(
        told.training_script,
        tuple(told.training_script_args),
        told.module,
        local_rank_option=launch and not told.use_env,
        master=torchrun.master(told),
        run_id=told.rdzv_id,
        max_restarts=told.max_restarts,
        role=told.role,
        virtual_local_rank=getattr(told, "virtual_local_rank", False),
        logs=torchrun.logs(told, sizes["per_node"]),
        **sizes,
    )


def _sizes(gpus: int | None, nodes: int, per_node: str) -> dict[str, Any]:
    """GPUs, machines and ranks on each of them, which must go together."""
    if not 1 <= nodes <= MOST_RANKS:
        raise ValueError(f"--nnodes={nodes}: it takes a whole number from 1 to {MOST_RANKS}")
    if gpus is not None and gpus % nodes:
        raise ValueError(f"--gpus {gpus} cannot be shared evenly by {nodes} machines")
    if per_node in ("gpu", "auto"):
        if gpus == 0:
            raise ValueError(f"--nproc-per-node {per_node} with --gpus 0: say how many ranks")
        gpus = gpus or nodes
        shown = len(_visible(gpus // nodes))
        if not shown:
            raise ValueError(
                f"--nproc-per-node {per_node}: {VISIBLE}={os.environ[VISIBLE]} shows none of the "
                f"{gpus // nodes} GPUs of a machine. Ask for more by --gpus"
            )
        return {"gpus": gpus, "nodes": nodes, "per_node": shown}
    ranks = _whole(per_node, "--nproc-per-node")
    if ranks * nodes > MOST_RANKS:
        raise ValueError(
            f"--nproc-per-node {ranks} makes {ranks * nodes} ranks, and there is a thread for each "
            f"of them, {MOST_RANKS} at most: ask for fewer, or for par.run_alike, which runs only "
            "those that differ"
        )
    gpus = ranks * nodes if gpus is None else gpus
    if gpus > MOST_DEVICES:
        raise ValueError(
            f"--nproc-per-node {ranks} needs {gpus} GPUs, and torch numbers {MOST_DEVICES} devices "
            "of a kind: ask for fewer, or for --gpus 0 if they exchange tensors of the host alone, "
            "over gloo"
        )
    if gpus and ranks > gpus // nodes:
        raise ValueError(
            f"--nproc-per-node {ranks} needs {ranks * nodes} GPUs, a device for each rank, and "
            f"--gpus is {gpus}: ask for as many, or for --gpus 0 if they exchange tensors of the "
            "host alone, over gloo"
        )
    return {"gpus": gpus, "nodes": nodes, "per_node": ranks}


def _visible(count: int) -> list[int]:
    """The numbers of those of a machine's devices that its processes see."""
    return Variable(VISIBLE).visible(count)


def _own_of(local: int, count: int) -> int:
    """The number of a local rank's own device; its own number where it sees fewer."""
    shown = _visible(count)
    return shown[local] if local < len(shown) else local


def _whole(text: str, option: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 20 else 0
    if not 1 <= number <= MOST_RANKS:
        raise ValueError(f"{option}={text}: it takes a whole number from 1 to {MOST_RANKS}")
    return number


def described(launch: LaunchPlan) -> Iterator[str]:
    """What is started, in words."""
    yield f"{'-m ' if launch.is_module else ''}{launch.target}"
    if launch.per_node is not None:
        yield f"{launch.world_size} rank{'s' * (launch.world_size > 1)}"
    if launch.nodes > 1:
        yield f"{launch.nodes} machines"
