"""Tests that start processes or threads run their bodies on forks of this process instead.

torch's test bases start an interpreter for each rank, which imports the test file anew; there
nothing would be emulated. So the part that starts and joins them is replaced, and only it: how
ranks find one another, and what each does, stays as the bases have it.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import unittest
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed as bases
from torch.testing._internal import common_utils

from d2lpar.vgpu.cuda import lazy_init
from torch_judge.older_names import OLDER_BASE, RANKS

Life = Callable[[int], object]


def install() -> None:
    """Replace it, for the rest of this process."""
    # What tests compare with that do not call their base's `setUp`.
    common_utils.TestCase._prev_torch_function_mode_stack_len = torch._C._len_torch_function_stack()
    _for_processes()
    _for_threads()
    if hasattr(bases, "MultiProcContinuousTest"):
        _for_continuous_processes()
    if not hasattr(bases, OLDER_BASE):
        setattr(bases, OLDER_BASE, TestOnRanks)


def on_ranks(life: Life, count: int) -> None:
    """Call `life(rank)` on that many virtual ranks, each a process to the program.

    Raises SkipTest if a rank wants to skip the test, the error of the first that failed otherwise,
    and SkipTest where there are too few devices.
    """
    if count > torch.cuda.device_count():
        raise unittest.SkipTest(f"needs {count} GPUs")
    skips = torch.multiprocessing.get_context("fork").SimpleQueue()

    def rank(number: int) -> None:
        try:
            life(number)
        except unittest.SkipTest as skip:
            skips.put(str(skip))
        except SystemExit as end:
            for reason in _skip_of(end):
                skips.put(reason)

    lazy_init._reset()  # tests' modules have asked whether there is CUDA; this process uses none
    torch.multiprocessing.start_processes(rank, nprocs=count, start_method="fork")
    if not skips.empty():
        raise unittest.SkipTest(skips.get())


def on_threads(life: Life, count: int) -> None:
    """The same on ranks that are threads, and share what the test has made."""
    import d2lpar as par

    devices = [torch.device("cuda", i) for i in range(min(count, torch.cuda.device_count()))]
    if len(devices) < count:
        raise unittest.SkipTest(f"needs {count} GPUs")
    par.run_ranks(lambda: life(dist.get_rank()), devices)


def _skip_of(end: SystemExit) -> list[str]:
    """Why a process that ends so wants its test skipped; nothing for exit code 0."""
    if end.code in (None, 0):
        return []
    for skip in bases.TEST_SKIPS.values():
        if skip.exit_code == end.code:
            return [skip.message]
    raise AssertionError(f"the rank called sys.exit({end.code!r})") from end


def _for_processes() -> None:
    base = bases.MultiProcessTestCase

    def run_test(self: unittest.TestCase, name: str, *_: object, **__: object) -> None:
        common_utils.set_rng_seed()
        getattr(self, name)()
        if self.destroy_pg_upon_exit:
            _destroy_groups()

    def join(self: unittest.TestCase, function: Callable) -> None:
        cls, name = type(self), self._current_test_name()

        def life(rank: int) -> None:
            cls._run(rank, name, self.file_name, None, fake_pg=getattr(self, "fake_pg", False))

        on_ranks(life, int(self.world_size))

    base._spawn_processes = base._fork_processes = lambda self: None
    base.run_test = run_test
    base._join_processes = join


def use_their_barrier() -> None:
    """If `DistributedTest` was imported: it waits by files, and counts its barriers in a global
    variable of torch's, which processes have each for themselves and virtual ranks share."""
    distributed_test = sys.modules.get("torch.testing._internal.distributed.distributed_test")
    if distributed_test is None:
        return

    def sync(cls: type, wait_for: int | None = None, timeout: int = 10) -> None:
        if dist.is_initialized():
            dist.barrier()

    distributed_test.Barrier.sync = classmethod(sync)


def _for_threads() -> None:
    """torch's own "threaded" group has no clock. Ranks of such tests have gloo's, which takes
    tensors of the host and of GPUs, as that does; they may share a GPU, as all do at first."""
    base = bases.MultiThreadedTestCase

    def run_test(self: unittest.TestCase, name: str, rank: int, world_size: int) -> None:
        _make_groups(rank, world_size, type(self).global_store)
        self.perThreadSetUp()
        try:
            getattr(self, name)()
        finally:
            self.perThreadTearDown()
        _destroy_groups()

    def spawn(self: unittest.TestCase) -> None:
        type(self).global_store = dist.HashStore()

    def join(cls: type, threads: list, function: Callable) -> None:
        test = function.__self__
        name, count = test._testMethodName, test.world_size  # a parametrized one has another name
        on_threads(lambda rank: cls._run(name, rank, count), count)

    base.run_test_with_threaded_pg = run_test
    base._spawn_threads = spawn
    base._join_threads = classmethod(join)
    bases.spawn_threads_and_init_comms = _each_on_ranks


def _each_on_ranks(
    function: Callable | None = None, timeout: float = 0.0, world_size: int = 4
) -> Callable:
    """The decorator for a test, or a part of one, whose ranks are threads."""
    if function is None:
        return functools.partial(_each_on_ranks, world_size=world_size)

    @functools.wraps(function)
    def test(*args: object, **kwargs: object) -> None:
        store = dist.HashStore()

        def life(rank: int) -> None:
            _make_groups(rank, world_size, store)
            function(*args, **kwargs)
            _destroy_groups()

        try:
            on_threads(life, world_size)
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return test


def _for_continuous_processes() -> None:
    """Tests whose processes go from test to test: here each test has ranks of its own."""
    base = bases.MultiProcContinuousTest

    def ensure(cls: type) -> None:
        cls.world_size = _world_size_of(cls)
        cls.task_queues, cls.processes, cls.completion_queues = [], [], []

    def run_main(self: unittest.TestCase, function: Callable) -> Callable[[], None]:
        cls, name = type(self), self._testMethodName  # a parametrized one has its function's
        imported = _attributes(cls, base)

        def life(rank: int, file: str) -> None:
            of_rank = _class_of_rank(cls, rank, cls.world_size)
            of_rank._init_pg(rank, cls.world_size, file)
            worker = of_rank(name)
            worker.rank, worker.world_size = rank, cls.world_size
            common_utils.set_rng_seed()
            getattr(worker, name)()
            _destroy_groups()

        def call() -> None:
            if self.rank != base.MAIN_PROCESS_RANK:
                return function()
            file, count = _rendezvous_file(), cls.world_size
            _restore(imported)
            cls.world_size = count
            return on_ranks(lambda rank: life(rank, file), count)

        return call

    base._ensure_processes_spawned = classmethod(ensure)
    base._worker_run_main_wait = run_main


def _attributes(cls: type, base: type) -> list[tuple[type, dict[str, object]]]:
    """What a class and those between it and its base have."""
    return [(each, dict(vars(each))) for each in cls.__mro__ if issubclass(each, base)]


def _restore(imported: list[tuple[type, dict[str, object]]]) -> None:
    """Let classes be as they were imported: what the main process's `setUpClass` has set, those of
    processes that import the file anew do not have."""
    for cls, before in imported:
        for name, value in list(vars(cls).items()):
            if name not in before:
                delattr(cls, name)
            elif before[name] is not value:
                setattr(cls, name, before[name])


def _class_of_rank(cls: type, rank: int, count: int) -> type:
    """The class as a rank has it, which sets attributes of it for itself."""
    words = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), {**words, "rank": rank, "world_size": count})


def _rendezvous_file() -> str:
    return os.path.join(tempfile.mkdtemp(), "rendezvous")


class TestOnRanks(common_utils.TestCase):
    """What `MultiProcContinuousTest` was before: each rank runs the whole class, fixtures included.

    There are as many ranks as devices, or as the file's own script starts. `backend_str()` is the
    backend of their groups, `opts()` its options.
    """

    start = staticmethod(on_ranks)

    world_size = -1
    rank = -1  # in the process that starts the ranks
    rdvz_file: str | None = None

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> object:
        """The options of the group of all."""
        return None

    @classmethod
    def setUpClass(cls) -> None:
        """Let a rank join the others."""
        super().setUpClass()
        if cls.rank < 0:
            return
        dist.init_process_group(
            backend=cls.backend_str(),
            world_size=cls.world_size,
            rank=cls.rank,
            store=dist.FileStore(cls.rdvz_file, cls.world_size),
            pg_options=cls.opts(),
        )
        cls.pg = dist.group.WORLD

    @classmethod
    def tearDownClass(cls) -> None:
        """Let a rank leave."""
        _destroy_groups()
        super().tearDownClass()

    def run(self, result: unittest.TestResult | None = None) -> object:
        """Of the process that starts ranks: run the test on each."""
        if self.rank >= 0:
            return super().run(result)
        assert result is not None, "the judge has one"
        result.startTest(self)
        try:
            self._on_ranks()
        except unittest.SkipTest as skip:
            result.addSkip(self, str(skip))
        except BaseException:
            result.addError(self, sys.exc_info())
        finally:
            result.stopTest(self)
        return result

    def _on_ranks(self) -> None:
        cls, file = type(self), _rendezvous_file()
        count = int(os.environ[RANKS])

        def life(rank: int) -> None:
            of_rank = _class_of_rank(cls, rank, count)
            of_rank.rdvz_file = file
            of_rank.setUpClass()
            test = of_rank(self._testMethodName)
            test.setUp()
            getattr(test, test._testMethodName)()
            test.tearDown()
            of_rank.tearDownClass()

        cls.start(life, count)


def _world_size_of(cls: type) -> int:
    """What `MultiProcContinuousTest` makes of `world_size`: by default, all devices."""
    value = getattr(cls, "world_size", -2)
    if isinstance(value, property):
        value = value.fget(object.__new__(cls))
    return torch.cuda.device_count() if value == -2 else int(value)


def _make_groups(rank: int, world_size: int, store: object) -> None:
    torch.cuda.init()  # threads find it begun, so no mesh gives them devices of their own
    dist.init_process_group(backend="gloo", rank=rank, world_size=world_size, store=store)


def _destroy_groups() -> None:
    """As the bases do: a test may have done so itself."""
    if dist.is_initialized():
        dist.destroy_process_group()


assert sys.platform != "win32", "tests run in forked processes, which Windows lacks"
