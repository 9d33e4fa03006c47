"""What a rank does for the notebook: joins the others, calls functions, runs cells."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import cloudpickle
import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ... import pickling
from .. import messages
from ..wire import Failure, Membership, Part, RankProcess, Reply
from . import lifeline

if TYPE_CHECKING:
    from ipykernel.zmqshell import ZMQInteractiveShell

_HIDDEN_FRAMES = (os.path.dirname(os.path.dirname(__file__)), os.sep + "IPython" + os.sep)


@dataclass
class _Rank:
    """What a rank knows of itself."""

    number: int | None = None
    store: dist.Store | None = None
    names: dict[str, object] = field(default_factory=dict)
    reporting: bool = False
    sent: list[str] = field(default_factory=list)  # a message's request; appending needs no lock
    works: bool = False  # for the notebook: only then an interrupt is for it


this = _Rank()  # a process is one rank


def place() -> RankProcess:
    """Where this process runs, and with how many GPUs of its machine."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return RankProcess(socket.gethostname(), os.getpid(), gpus)


def _open_store(world_size: int) -> tuple[str, int]:
    """On rank 0: a store that the system gives a free port. Returns (address, port)."""
    address = _address()
    store = dist.TCPStore(address, 0, world_size, is_master=True, wait_for_workers=False)
    this.store = store
    return address, store.port


def _address() -> str:
    """Where other hosts reach this one: on its way to the controller, which they all reach."""
    host, port = lifeline.controller()
    if lifeline.is_on_notebooks_host():
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing, but chooses the way
        return probe.getsockname()[0]


def _join(memberships: list[Membership]) -> int:
    """Set up torch.distributed and the names that cells and functions find; returns threads."""
    import d2lpar

    assert this.number is not None  # `perform` has said it
    membership = memberships[this.number]
    if os.path.isdir(membership.working_dir):
        os.chdir(membership.working_dir)
    sys.path += [path for path in membership.search_path if path not in sys.path]
    torch.set_num_threads(threads_each(membership.threads, membership.ranks_on_host))
    device = torch.device("cpu")
    if membership.on_gpu:
        device = torch.device("cuda", membership.local_rank)
        torch.cuda.set_device(device)
    if membership.on_one_host:  # works without a network, and is seen by nobody else
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, _loopback())
    dist.init_process_group(
        membership.backend,
        store=_store(membership),
        rank=membership.rank,
        world_size=membership.world_size,
    )
    this.names = {
        "torch": torch,
        "dist": dist,
        "par": d2lpar,
        "rank": membership.rank,
        "world_size": membership.world_size,
        "local_rank": membership.local_rank,
        "device": device,
    }
    _shell().user_ns.update(this.names)
    _count_output()
    _hear_interrupts_only_at_work()
    if not lifeline.is_on_notebooks_host():
        # Needed until here only: a rank that is killed there could not remove it later.
        shutil.rmtree(os.environ["IPP_PROFILE_DIR"], ignore_errors=True)
    return torch.get_num_threads()


def _count_output() -> None:
    """Let ipykernel say of each piece of output to which request it belongs."""
    from ipykernel.iostream import OutStream

    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, OutStream)  # as ipyparallel's engines have them
        # Hooks are those of a thread: here of the one that sends.
        stream.pub_thread.schedule(functools.partial(stream.register_hook, _note_sent))
    _shell().display_pub.register_hook(_note_sent)


def _hear_interrupts_only_at_work() -> None:
    """Keep ipykernel from raising KeyboardInterrupt around a call.

    There it would lose the call's reply, and the notebook would believe that the rank is blocked.
    """
    kernel = _shell().kernel
    kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None


def _interrupted(*_: object) -> None:
    if this.works:
        raise KeyboardInterrupt


def _note_sent(message: dict) -> dict:
    this.sent.append(message["parent_header"].get("msg_id", ""))
    return message


def request() -> str:
    """The request of the notebook that this rank works for."""
    return _shell().data_pub.parent_header.get("msg_id", "")


def _loopback() -> str:
    """The name of the network interface that leads back to this machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"


def threads_each(asked: int | None, ranks: int) -> int:
    """Threads for each of the ranks of this machine, which share its cores unless one is asked."""
    from d2lpar.machines.measuring import system

    return asked or max(1, system.cores() // ranks)


def _store(membership: Membership) -> dist.Store:
    if isinstance(membership.store, str):
        return dist.FileStore(membership.store, membership.world_size)
    if this.store is not None:
        return this.store
    return dist.TCPStore(*membership.store, membership.world_size, is_master=False)


def perform(rank: int, action: str, payload: bytes, reporting: bool) -> Reply:
    """Do what the notebook asks for, and tell of an exception instead of raising it."""
    before = _collectives()
    this.number = rank
    this.reporting = reporting
    this.sent = []
    signal.signal(signal.SIGINT, _interrupted)  # whatever the last call has made of it
    try:
        this.works = True
        # Unpickled here, so that what fails there is told of in the same way.
        value = packed(_ACTIONS[action](*pickle.loads(payload)))
        this.works = False
        reply = Reply(value=value, collectives=_since(before))
    except BaseException as error:
        this.works = False
        reply = Reply(failure=describe(error), collectives=_since(before))
    finally:
        this.reporting = False
        sys.stdout.flush()
        sys.stderr.flush()
    return replace(reply, sent=this.sent.count(request()))


def _call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    give_names(function, _shell().user_ns, this.names)
    return function(*args, **kwargs)


def _run_cell(source: str) -> None:
    """Run a cell of the notebook; what it prints and shows travels as that of any kernel does."""
    result = _shell().run_cell(source, store_history=False)
    result.raise_error()


def _pull(name: str) -> object:
    return value_of(name, _shell().user_ns)


def value_of(name: str, variables: dict[str, object]) -> object:
    """A variable's value. NameError, as Python says it, if there is none."""
    try:
        return variables[name]
    except KeyError:
        raise NameError(f"name {name!r} is not defined") from None


def _push(values: dict[str, object]) -> None:
    _shell().user_ns.update(values)


_ACTIONS: dict[str, Callable[..., object]] = {
    "open_store": _open_store,
    "join": _join,
    "call": _call,
    "cell": _run_cell,
    "pull": _pull,
    "push": _push,
}


def _shell() -> ZMQInteractiveShell:
    """The shell of ipyparallel's engine."""
    from ipykernel.zmqshell import ZMQInteractiveShell
    from IPython import get_ipython

    shell = get_ipython()
    assert isinstance(shell, ZMQInteractiveShell)
    return shell


def give_names(
    function: Callable[..., object], variables: dict[str, object], own: dict[str, object]
) -> None:
    """Let a function that came from the notebook see its rank's `variables`.

    Those that every rank has of its `own` (`rank`, `device`, …) mean the rank's, others the
    notebook's first: its globals were sent with it.
    """
    names = pickling.globals_of(function)
    home = sys.modules.get(str(names.get("__name__")))
    if home is not None and names is vars(home):
        return
    for name, value in variables.items():
        if not name.startswith("_"):
            names.setdefault(name, value)
    if names.get("__name__") == "__main__":
        names.update(own)


def packed(value: object) -> bytes:
    """A result, pickled. TypeError if it cannot be sent to the notebook."""
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        text = messages.ERROR_RESULT.format(kind=kind, reason=error)
        raise TypeError(text) from None


def _collectives() -> int | None:
    """How many operations this rank has given to its process group, if that can be known."""
    if not dist.is_initialized():
        return None
    try:
        if len(distributed_c10d._world.pg_map) > 1:
            return None  # groups of some ranks only: their counts say nothing together
        world = distributed_c10d._get_default_group()
        return world._get_sequence_number_for_group()  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


def _since(before: int | None) -> int | None:
    now = _collectives()
    return None if before is None or now is None else now - before


def describe(error: BaseException) -> Failure:
    """An exception and what caused it, without the frames that every call has."""
    chain = list(_chain(error))
    return Failure(
        name=type(error).__name__,
        message=str(error),
        parts=tuple(map(_part, reversed(chain))),
        time_s=time.time(),
        lost_connection=any(map(_is_lost_connection, _chain(error, hidden=True))),
        interrupted=isinstance(error, KeyboardInterrupt),
    )


def _chain(error: BaseException | None, *, hidden: bool = False) -> Iterator[BaseException]:
    """The exception, what it came from, and so on; `hidden` with what `from None` hides."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        shown = hidden or not error.__suppress_context__
        error = error.__cause__ or (error.__context__ if shown else None)


def _part(error: BaseException) -> Part:
    found = traceback.extract_tb(error.__traceback__)
    frames = [(f.filename, f.lineno or 0, f.name, f.line or "") for f in found]
    while frames and any(place in frames[0][0] for place in _HIDDEN_FRAMES):
        frames.pop(0)
    summary = "".join(traceback.format_exception_only(error)).rstrip()
    return Part(tuple(frames), summary)


# What gloo, NCCL and stores say on the ranks that another one has left alone.
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connection was likely closed",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "failed to recv, got 0 bytes",
    "timed out waiting",
    "nccl communicator was aborted",
    "gloo/transport",
)


def _is_lost_connection(error: BaseException) -> bool:
    message = str(error).lower()
    # Before torch 2.13 or so gloo raises plain RuntimeErrors.
    kind = isinstance(error, (RuntimeError, OSError, dist.DistError))
    return kind and any(words in message for words in _LOST)
