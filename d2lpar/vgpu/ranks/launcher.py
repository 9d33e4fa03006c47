"""Running functions on virtual ranks: threads that take turns."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

from ... import machines
from ...timeline.inputs import require
from ..bounds import MOST_RANKS
from ..device_naming import device
from ..signals import raise_in
from ..sim.clock import HostThread
from ..torch_backend.machine.runtime import current_runtime, instead, running
from ..torch_backend.register import register_backend
from .groups.own_groups import make_world_group
from .state.host_values import left_unset
from .state.process_state import ProcessState
from .torch_names import names_of_torch
from .world.alike import Alike, Key, one_kind
from .world.garbage import older_objects_apart
from .world.rank import Rank, World, here
from .world.rank_devices import RankDevices, numbers_of
from .world.rank_output import lines_by_rank
from .world.rank_scheduler import Ended

HOSTS_MACHINE = "2x-v100-textbook"  # whose host they have; its GPUs stay idle
LOOKS_UP_S = 0.5  # after which who waits for ranks looks whether a signal has come
PATIENCE_S = 0.1  # to interrupt a rank where it leaves nothing half done
LAST_WORDS_S = 0.5  # what a rank has, after an interrupt, to come out of what it does

_running = threading.Lock()


def run_ranks(
    function: Callable[..., object], devices: int | Sequence[RankDevices], *args: object
) -> list[object]:
    """Call `function(*args)` on a virtual rank for each device; returns the results by rank.

    In place of a device there may be several, `[gpus[:2], gpus[2:]]`: they are that rank's, and it
    exchanges tensors of any of them. `run_ranks(function, 4)` runs 4 ranks without GPUs, which
    exchange tensors of the host, as over gloo. Within `shape_only` large weights that ranks make on
    the host, before they move to their GPUs, are left unset.

    A rank stands for a process: its device is the current one, its host has a time of its own, and
    it has its own random numbers (which start as the caller's), and torchrun's variables RANK,
    LOCAL_RANK (the number of its device), WORLD_SIZE, …, which `d2lpar.launch.place` reads. In it
    `torch.distributed` works as it does over NCCL, device meshes, DTensor and what is built on them
    (tensor, sequence and context parallelism) too, and `DistributedDataParallel` as torch's; groups
    are there from the start, and exchange tensors of GPUs and of the host; `init_process_group`
    only sets their backend, so that with "nccl" they refuse tensors of the host. Ranks take turns,
    always the same way.

    Times are those of `machines.collective_cost`; that NCCL's kernels slow computing down, the
    start of processes and their Python, and memory for NCCL's buffers are left out. Objects and
    tensors of the host are exchanged in no time. Modules and global variables are shared, unlike
    those of processes; `no_grad` and `autocast` of the caller do not reach into ranks.

    An error of one rank ends all and is raised here, with a note that names the rank. An interrupt
    ends all, too; a rank in a call that Python cannot break off, such as `time.sleep`, ends when
    that returns, and a note names it. Raises RuntimeError if no rank can go on, if they call
    different collectives, or while another thread runs ranks; ValueError for devices that are not
    virtual, or not different.
    """
    if isinstance(devices, (int, float)):
        require("run_ranks", int, devices=devices)
        return _run_on_host(function, int(devices), args)
    world = World(current_runtime(), numbers_of(devices))
    return _run(world, [partial(function, *args)] * len(devices))


def _run_on_host(
    function: Callable[..., object], ranks: int, args: tuple[object, ...]
) -> list[object]:
    """Ranks without devices; where nobody has asked for a virtual machine, on a clock of theirs."""
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(
            f"run_ranks starts a thread for each rank, 1 to {MOST_RANKS} at most, not {ranks}: ask "
            "for fewer, or for par.run_alike, which runs only those that differ"
        )
    register_backend()
    with nullcontext() if running() is not None else instead(machines.machine(HOSTS_MACHINE)):
        world = World(current_runtime(), [()] * ranks)
        return _run(world, [partial(function, *args)] * ranks)


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
    with instead(kinds.simulated_machine()) as rt:
        rt.shape_only = True
        devices = [device(i) for i in range(rt.device_count)]
        world = World(rt, numbers_of(devices), alike=kinds)
        results = _run(world, [partial(function, *args)] * len(devices))
    return dict(zip(kinds.simulated, results, strict=True))


def host_time_s() -> float:
    """The simulated time of the host here: that of a rank, or of the program's main thread."""
    rank: Rank | None = getattr(here, "rank", None)
    return current_runtime().clock.host.now_s if rank is None else rank.host_thread.now_s


def _run(world: World, functions: Sequence[Callable[[], object]]) -> list[object]:
    parent: Rank | None = getattr(here, "rank", None)
    if parent is None:
        with _alone():
            return _run_alone(world, functions, ProcessState(world.rt, library=world.library))
    if not (parent.is_process and parent.is_alone):
        raise RuntimeError(
            f"rank {parent.number} cannot run ranks of its own: start a program that spawns its "
            "processes itself once, without torchrun or --nproc-per-node"
        )
    return _run_alone(world, functions, parent.process)


@contextmanager
def _alone() -> Iterator[None]:
    """Ranks of two runs would exchange one process's state. Waiting for the other run could be for
    ever: a rank may wait for the thread that asks."""
    if not _running.acquire(blocking=False):
        raise RuntimeError(
            "another thread is in run_ranks, and a process runs one set of ranks at a time: wait "
            "for that thread, or hold a threading.Lock around both calls"
        )
    try:
        yield
    finally:
        _running.release()


def _run_alone(
    world: World,
    functions: Sequence[Callable[[], object]],
    before: ProcessState,
) -> list[object]:
    rt, outcome = world.rt, _Outcome(world)
    rt.host_threads.flush()
    threads = outcome.threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(outcome.run, rank, function),
            name=f"rank {rank.number}",
            daemon=True,
        )
        for rank, function in zip(world.ranks, functions, strict=True)
    ]
    with ExitStack() as stack:
        stack.enter_context(names_of_torch())
        stack.enter_context(lines_by_rank(len(threads)))
        stack.enter_context(older_objects_apart(rt))
        stack.enter_context(_memories_that_wait(world))
        if rt.shape_only and any(world.devices):
            stack.enter_context(left_unset())
        others, rt.clock.others = rt.clock.others, let_others_go_on
        before.save()
        try:
            for thread in threads:
                thread.start()
            world.scheduler.start()
            outcome.wait()
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt, or threads that the system refuses
            for thread in outcome.interrupt():
                error.add_note(
                    f"{thread.name} goes on until the call that it is in (time.sleep, a large "
                    "product, …) returns, and ends then"
                )
            raise
        finally:
            rt.clock.others = others
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
        # Not the threads say when they have ended: Python 3.11 believes so of one for whose end an
        # interrupt has kept somebody from waiting.
        self._over = [threading.Event() for _ in world.ranks]
        self.threads: list[threading.Thread] = []

    def run(self, rank: Rank, function: Callable[[], object]) -> None:
        """The life of a rank's thread."""
        try:
            with suppress(Ended):  # it may come twice
                self._live(rank, function)
        finally:
            self._over[rank.index].set()

    def wait(self) -> None:
        """Wait until all ranks have ended.

        A signal that comes when this thread is about to wait does not wake it, but is seen when it
        wakes by itself.
        """
        for over in self._over:
            while not over.wait(LOOKS_UP_S):
                pass

    def _live(self, rank: Rank, function: Callable[[], object]) -> None:
        scheduler, rt = self._world.scheduler, self._world.rt
        here.rank = rank
        try:
            make_world_group(rank)
            scheduler.begin(rank.index)
            rt.current_device = rank.current
            if not rank.is_alone:
                rt.own_devices = list(rank.devices)
            with rt.host_threads.rank(rank.host_thread):
                self._results[rank.index] = function()
        except Ended:
            pass
        except BaseException as error:
            if not scheduler.ended:
                error.add_note(f"raised by rank {rank.number} of {self._world.size}, on {rank.at}")
                self._error = error
                scheduler.end()
        finally:
            rank.groups.remove_all()
            rank.unwaited.close()
            rank.is_over = True
            here.rank = None
            scheduler.finish(rank.index)

    def results(self) -> list[object]:
        """By rank. Raises the first error."""
        error = self._error or self._world.scheduler.error
        if error is not None:
            raise error
        return self._results

    def interrupt(self) -> list[threading.Thread]:
        """End all ranks: those that wait for their turn, and the one that has it. Returns those
        that cannot end yet."""
        scheduler, threads = self._world.scheduler, self.threads
        scheduler.end()
        if scheduler.holder is not None:
            raise_in(threads[scheduler.holder], Ended, PATIENCE_S)
        until_s = time.monotonic() + LAST_WORDS_S
        started = {
            thread: over
            for thread, over in zip(threads, self._over, strict=True)
            if thread.ident is not None
        }
        for over in started.values():
            over.wait(max(0.0, until_s - time.monotonic()))
        late = {thread: over for thread, over in started.items() if not over.is_set()}
        if late:
            scheduler.abandon(leave=threads[scheduler.holder or 0] in late)
        for ending in late.items():
            threading.Thread(target=_end_later, args=ending, daemon=True).start()
        return [*late]


def _end_later(thread: threading.Thread, over: threading.Event) -> None:
    """See to it that a rank ends, also one that has caught the first Ended."""
    while not over.wait(LAST_WORDS_S):
        raise_in(thread, Ended, PATIENCE_S)


def let_others_go_on(known: Callable[[], bool]) -> None:
    """A host waits for something that may follow a collective to which others have yet to come."""
    rank = getattr(here, "rank", None)
    if rank is not None:
        rank.wait(lambda: True, "", polite=True)
        if not known():
            rank.wait(known, "a wait of its host for work that follows a collective")


@contextmanager
def _memories_that_wait(world: World) -> Iterator[None]:
    """A rank whose GPU is full waits for the others to come to its collectives, which hold their
    tensors until then. Its host is ahead of its GPU, as with CUDA; it is not out of memory."""
    rt = world.rt
    used = {index for of_rank in world.devices for index in of_rank}
    before = {index: rt.memories[index].catch_up for index in used}
    for index in used:
        rt.memories[index].catch_up = partial(wait_for_exchanges, world, index)
    try:
        yield
    finally:
        for index, catch_up in before.items():
            rt.memories[index].catch_up = catch_up


def wait_for_exchanges(world: World, index: int) -> None:
    """Let the host wait for what holds memory of a device until other ranks come."""
    if world.has_open_exchange(index):
        wait = world.rt.clock.wait_for_device
        world.rt.host_threads.submit(index, wait, index, "wait for freed memory")
    for rank in world.ranks:
        if index in rank.devices:
            rank.unwaited.wait()


def _catch_up(host_thread: HostThread, world: World) -> None:
    host_thread.now_s = max(host_thread.now_s, *(rank.host_thread.now_s for rank in world.ranks))
