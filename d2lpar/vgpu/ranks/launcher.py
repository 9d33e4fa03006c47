"""Running a function on virtual ranks: threads, turns, and names of torch that know them."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from ... import machines
from ..device_naming import device, text
from ..sim.clock import HostThread
from ..torch_backend.register import register_backend
from ..torch_backend.runtime import current_runtime, instead
from ..torch_backend.tensor import VirtualTensor
from . import c10d_private, ddp
from .alike import Alike, Key, one_kind
from .process_group import VirtualProcessGroup
from .process_state import ProcessState
from .rank import Rank, World, here
from .rank_scheduler import Ended

LAST_WORDS_S = 0.5  # what a rank has, after an interrupt, to come out of what it does

_running = threading.Lock()
_undo = ExitStack()


def run_ranks(
    function: Callable[..., object], devices: Sequence[torch.device], *args: object
) -> list[object]:
    """Call `function(*args)` on a virtual rank for each device; returns the results by rank.

    A rank stands for a process: its device is the current one, its host has a time of its own, and
    it has its own random numbers (which start as the caller's) and torchrun's variables RANK,
    LOCAL_RANK (the number of its device), WORLD_SIZE, …, which `d2lpar.launch.place` reads. In it
    `torch.distributed` works as it does over NCCL, and `DistributedDataParallel` as torch's; groups
    are there from the start, so that `init_process_group` only sets what `get_backend` says. Ranks
    take turns, always the same way.

    Times are those of `machines.collective_cost`; blocks of collectives take multiprocessors from
    what computes beside them. The start of processes and their Python, and memory for NCCL's
    buffers are left out. Objects and tensors of the host are exchanged in no time. Modules and
    global variables are shared, unlike those of processes; `no_grad` and `autocast` of the caller
    do not reach into ranks.

    An error of one rank ends all and is raised here, with a note that names the rank. An interrupt
    ends all, too; a rank in a call that Python cannot break off, such as `time.sleep`, ends when
    that returns, and a note names it. Raises RuntimeError if no rank can go on, if they call
    different collectives, or while another thread runs ranks; ValueError for devices that are not
    virtual, or not different.
    """
    with _alone():
        return _run_alone(function, devices, args)


@contextmanager
def _alone() -> Iterator[None]:
    """Ranks of two runs would exchange one process's state. Waiting for the other run could be for
    ever: a rank may wait for the thread that asks."""
    rank = getattr(here, "rank", None)
    if rank is not None:
        raise RuntimeError(f"rank {rank.number} cannot run ranks of its own")
    if not _running.acquire(blocking=False):
        raise RuntimeError(
            "another thread is in run_ranks, and a process runs one set of ranks at a time: wait "
            "for that thread, or hold a threading.Lock around both calls"
        )
    try:
        yield
    finally:
        _running.release()


def run_alike(
    function: Callable[..., object],
    machine: machines.Named,
    *args: object,
    ranks: int | None = None,
    alike: Key = one_kind,
) -> dict[int, object]:
    """Run `function(*args)` on a machine of many ranks, simulating one rank of each kind.

    There is a rank for each of the first `ranks` accelerators (default: all). `alike(rank)` says
    of which kind a rank is: ranks of a kind run the same program with the same shapes, as do data
    parallel replicas, or those of one pipeline stage. The first of each kind is simulated, shapes
    only, and all groups and collectives have their full size. Returns its result by its rank.

    That is exact if kinds are in symmetric places: a group of ranks that are not simulated must not
    use a link that a simulated rank of another group uses. Raises ValueError where it does, for a
    send to a rank that is not simulated, and for a kind with ranks that no simulated group knows.
    """
    whole = machines.machine(machine)
    whole = whole if ranks is None else whole.with_accelerators(ranks)
    kinds = Alike(whole, alike)
    register_backend()
    with _alone(), instead(kinds.simulated_machine()) as rt:
        rt.shape_only = True
        devices = [device(i) for i in range(rt.device_count)]
        results = _run_alone(function, devices, args, kinds)
    return dict(zip(kinds.simulated, results, strict=True))


def _run_alone(
    function: Callable[..., object],
    devices: Sequence[torch.device],
    args: tuple,
    alike: Alike | None = None,
) -> list[object]:
    rt = current_runtime()
    world = World(rt, _numbers(devices), alike)
    outcome = _Outcome(world)
    before = ProcessState(rt)
    rt.host_threads.flush()
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(outcome.run, rank, function, args),
            name=f"rank {rank.number}",
            daemon=True,
        )
        for rank in world.ranks
    ]
    with _names_of_torch(function):
        rt.clock.others = _let_others_go_on
        try:
            for thread in threads:
                thread.start()
            world.scheduler.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt, or threads that the system refuses
            for thread in outcome.interrupt(threads):
                error.add_note(
                    f"{thread.name} goes on until the call that it is in (time.sleep, a large "
                    "product, …) returns, and ends then"
                )
            raise
        finally:
            rt.clock.others = None
            before.restore()
            world.give_up()
            rt.host_threads.ask(_catch_up, world)
    return outcome.results()


class _Outcome:
    """What ranks return, and the first error."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._results: list[object] = [None] * len(world.ranks)
        self._error: BaseException | None = None

    def run(self, rank: Rank, function: Callable[..., object], args: tuple) -> None:
        """The life of a rank's thread."""
        with suppress(Ended):  # it may come twice
            self._live(rank, function, args)

    def _live(self, rank: Rank, function: Callable[..., object], args: tuple) -> None:
        scheduler, rt = self._world.scheduler, self._world.rt
        here.rank = rank
        try:
            _make_world_group(rank)
            scheduler.begin(rank.index)
            rt.current_device, rt.own_devices = rank.device, [rank.device]
            with rt.host_threads.rank(rank.host_thread):
                self._results[rank.index] = function(*args)
        except Ended:
            pass
        except BaseException as error:
            if not scheduler.ended:
                error.add_note(
                    f"raised by rank {rank.number} of {self._world.size}, on {text(rank.device)}"
                )
                self._error = error
                scheduler.end()
        finally:
            here.rank = None
            scheduler.finish(rank.index)

    def results(self) -> list[object]:
        """By rank. Raises the first error."""
        error = self._error or self._world.scheduler.error
        if error is not None:
            raise error
        return self._results

    def interrupt(self, threads: Sequence[threading.Thread]) -> list[threading.Thread]:
        """End all ranks: those that wait for their turn, and the one that has it. Returns those
        that cannot end yet."""
        scheduler = self._world.scheduler
        scheduler.end()
        if scheduler.holder is not None:
            _raise_ended(threads[scheduler.holder])
        until_s = time.monotonic() + LAST_WORDS_S
        started = [thread for thread in threads if thread.ident is not None]
        for thread in started:
            thread.join(max(0.0, until_s - time.monotonic()))
        late = [thread for thread in started if thread.is_alive()]
        for thread in late:
            threading.Thread(target=_end_later, args=(thread,), daemon=True).start()
        return late


def _raise_ended(thread: threading.Thread) -> None:
    """Let a thread meet Ended as soon as it is back in Python."""
    assert thread.ident is not None, "it has started"
    ident = ctypes.c_ulong(thread.ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Ended))


def _end_later(thread: threading.Thread) -> None:
    """See to it that a rank ends, also one that has caught the first Ended."""
    thread.join(LAST_WORDS_S)
    while thread.is_alive():
        _raise_ended(thread)
        thread.join(LAST_WORDS_S)


def _numbers(devices: Sequence[torch.device]) -> list[int]:
    found = [torch.empty(0, device=device) for device in devices]  # also "cuda:1", if emulated
    names = ", ".join(str(tensor.device) for tensor in found)
    numbers = [tensor.vgpu_index for tensor in found if isinstance(tensor, VirtualTensor)]
    if not found or len(numbers) < len(found):
        raise ValueError(
            f"virtual ranks need virtual devices, not {names or 'none'}: ask for them with "
            'd2lpar.devices(n, kind="virtual") or a simulate() block'
        )
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"every rank has a device of its own, but got {', '.join(map(str, found))}"
        )
    return numbers


def _let_others_go_on(known: Callable[[], bool]) -> None:
    """A host waits for something that may follow a collective to which others have yet to come."""
    rank = getattr(here, "rank", None)
    if rank is not None:
        rank.wait(lambda: True, "", polite=True)
        if not known():
            rank.wait(known, "a wait of its host for work that follows a collective")


def _catch_up(host_thread: HostThread, world: World) -> None:
    host_thread.now_s = max(host_thread.now_s, *(rank.host_thread.now_s for rank in world.ranks))


# --- the names of torch ---------------------------------------------------------------------------


def _make_world_group(rank: Rank, backend: str = "nccl") -> None:
    ranks = list(range(rank.world.size))
    group = VirtualProcessGroup(rank, rank.world.rendezvous(0, ranks))
    rank.groups.add(group, ranks, backend)
    rank.groups.default_pg = group
    rank.made = 0


def init_process_group(backend: str | None = None, *args: object, **kwargs: object) -> None:
    """Check what torch's function is told, for the group of all ranks is there already.

    ValueError if `world_size` or `rank` is not what `run_ranks` has made.
    """
    ours = {"world_size": here.rank.world.size, "rank": here.rank.number}
    for name, value in ours.items():
        if kwargs.get(name, -1) not in (-1, value):
            raise ValueError(
                f"init_process_group was given {name}={kwargs[name]}, but run_ranks has started "
                f"{ours['world_size']} ranks, of which this is number {ours['rank']}: give "
                "run_ranks as many devices as there shall be ranks"
            )
    groups = here.rank.groups
    if groups.default_pg is None:
        _make_world_group(here.rank)
    if backend is not None:
        groups.pg_map[groups.default_pg] = (backend, None)


def destroy_process_group(group: object = None) -> None:
    """Forget the group of all ranks; others are forgotten with their last name."""
    groups = here.rank.groups
    if group is None or group is groups.default_pg:
        groups.default_pg = None


def new_group(ranks: Sequence[int] | None = None, *args: object, **kwargs: object) -> object:
    """A group of these ranks of the world; what torch has for "no member" on the others."""
    rank = here.rank
    ranks = list(range(rank.world.size)) if ranks is None else sorted(ranks)
    rank.made += 1
    rendezvous = rank.world.rendezvous(rank.made, ranks)
    if rank.number not in ranks:
        return c10d_private.NOT_A_MEMBER
    group = VirtualProcessGroup(rank, rendezvous)
    rank.groups.add(group, ranks, rank.groups.pg_map[rank.groups.default_pg][0])
    return group


def _by_thread(theirs: Callable, ours: Callable) -> Callable:
    @functools.wraps(theirs)
    def choose(*args: object, **kwargs: object) -> object:
        return (theirs if getattr(here, "rank", None) is None else ours)(*args, **kwargs)

    return choose


def _init_ddp(self: c10d_private.TorchDDP, *args: Any, **kwargs: Any) -> None:
    if type(self) is not c10d_private.TorchDDP:
        raise NotImplementedError(
            f"{type(self).__name__} is a kind of DistributedDataParallel, and virtual ranks have "
            "torch's own only"
        )
    self.__class__ = ddp.DistributedDataParallel
    assert isinstance(self, ddp.DistributedDataParallel)
    ddp.DistributedDataParallel.__init__(self, *args, **kwargs)


def _refuse_old_fsdp(module: torch.nn.Module, name: str, part: object) -> None:
    """Called when a module gets a part: the first thing that FSDP does in its `__init__`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    in_rank = getattr(here, "rank", None) is not None
    if in_rank and fsdp and isinstance(module, fsdp.FullyShardedDataParallel):
        raise NotImplementedError(
            "virtual ranks have no FullyShardedDataParallel: use DistributedDataParallel there, "
            "and sharded parameters on ranks of d2lpar.cluster"
        )


@contextmanager
def _names_of_torch(function: Callable) -> Iterator[None]:
    """Let torch's names know ranks: in its modules, and where `function` has imported them."""
    try:
        _patch()
        with _imported_names(function):
            yield
    finally:
        _undo.close()


OURS = (init_process_group, destroy_process_group, new_group)


def _patch() -> None:
    for ours in OURS:
        name = ours.__name__
        choose = _by_thread(getattr(c10d_private.dist, name), ours)
        for module in c10d_private.MODULES:
            _set(module, name, choose)
    theirs = getattr(*c10d_private.WORLD)
    _set(*c10d_private.WORLD, c10d_private.GroupsByThread(theirs, here))
    init = c10d_private.TorchDDP.__init__
    _set(c10d_private.TorchDDP, "__init__", _by_thread(init, _init_ddp))
    _undo.callback(register_module_module_registration_hook(_refuse_old_fsdp).remove)


def _set(owner: object, name: str, value: object) -> None:
    before = getattr(owner, name)
    _undo.callback(setattr, owner, name, before)
    setattr(owner, name, value)


@contextmanager
def _imported_names(function: Callable) -> Iterator[None]:
    """Put what takes the place of torch's functions also where the function's module has them."""
    while isinstance(function, functools.partial):
        function = function.func
    names = getattr(inspect.unwrap(function), "__globals__", {})
    ours = {c10d_private.dist.__dict__[f.__name__] for f in OURS}
    theirs = {choose.__wrapped__: choose for choose in ours}
    found = {
        name: value
        for name, value in names.items()
        if type(value) is FunctionType and value in theirs
    }
    names.update({name: theirs[value] for name, value in found.items()})
    try:
        yield
    finally:
        names.update(found)
