"""Tests with known outcomes, for the test of the judge: each says which in its name."""

from __future__ import annotations

import os
import threading
import unittest

import torch
import torch.distributed as dist
from torch.distributed._tensor.debug import CommDebugMode  # it has moved since
from torch.distributed.was_there_once import some_mode, some_switch  # and these are gone
from torch.testing._internal.common_distributed import (
    MultiProcContinousTest,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    skip_if_lt_x_gpu,
    spawn_threads_and_init_comms,
)
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
)

lives = 0
SomeType = dist.SomeTypeThatIsGone  # an attribute that is gone, in the body of the file


def need_a_gpu():
    """Without any, the test ends here, in other words than with a virtual one."""
    torch.cuda.current_stream().synchronize()


def leave_a_process_behind():
    if os.fork() == 0:
        threading.Event().wait(300)


class TestOne(unittest.TestCase):
    def test_passes(self):
        x = torch.ones(3, device="cuda:1", requires_grad=True)
        (2 * x).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0, 2.0]

    def test_fails(self):
        need_a_gpu()
        print("this belongs to the test, not to the report")
        raise ValueError("a reason\nin two lines")

    def test_fails_in_a_subtest(self):
        need_a_gpu()
        for n in range(3):
            with self.subTest(n=n):
                assert n != 1, "one"

    @unittest.skip("for a reason of its own")
    def test_skipped(self):
        raise AssertionError

    def test_crashed(self):
        os.abort()

    def test_crashed_quietly(self):
        os._exit(0)

    def test_hung(self):
        os.fork()  # what it leaves behind ends with it
        threading.Event().wait(300)  # `time.sleep` is simulated

    def test_passes_and_leaves_a_process_behind(self):
        leave_a_process_behind()

    def test_hung_at_work(self):
        while True:
            pass

    def test_too_slow(self):
        x = torch.ones(500, 500, device="cuda")
        while True:
            x @ x

    def test_fails_for_want_of_memory(self):
        need_a_gpu()
        bytearray(20 * 2**30)

    def test_not_applicable(self):
        self._helper()

    def _helper(self):
        torch.cuda.cudart()

    def test_passes_with_a_name_that_has_moved(self):
        assert CommDebugMode().get_total_counts() == 0

    def test_not_applicable_with_a_name_that_is_gone(self):
        with some_mode():
            raise AssertionError

    def test_not_applicable_with_a_function_that_is_gone(self):
        dist.some_function()

    @some_switch
    def test_not_applicable_with_a_decorator_that_is_gone(self):
        raise AssertionError

    def test_not_applicable_with_an_attribute_that_is_gone(self):
        torch.nn.Linear(1, 1).was_there_once()

    def test_fails_for_want_of_an_attribute_of_no_object_of_torch(self):
        need_a_gpu()
        torch.nn.Linear(1, 1).in_features.was_there_once()


class TestProcesses(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _sum(self):
        where = f"file://{self.file_name}"
        dist.init_process_group("nccl", init_method=where, rank=self.rank, world_size=2)
        x = torch.full((2,), self.rank + 1.0, device=f"cuda:{self.rank}")
        dist.all_reduce(x)
        return x.tolist()

    def test_passes(self):
        assert self._sum() == [3.0, 3.0]

    def test_fails(self):
        need_a_gpu()
        assert self._sum() == [float(self.rank), 0.0], f"rank {self.rank}"

    def test_passes_where_each_rank_assigns_to_a_global_variable(self):
        global lives
        lives += 1
        self._sum()
        assert lives == 1

    def test_not_applicable_as_it_fails_without_virtual_gpus(self):
        total = sum(self._sum())
        where = str(torch.ones(1).cuda().device)
        try:
            raise LookupError("before")
        except LookupError:
            assert total == 5, f"{total} on {where}"

    @skip_if_lt_x_gpu(2)
    def test_fails_at_a_statement_about_gpus(self):
        x = torch.ones(1, device=torch.device("cuda", self.rank))
        assert x.device.type == "xpu", "what fails on a processor, too"

    def test_skipped(self):
        raise unittest.SkipTest("ranks skip, too")

    def test_passes_where_each_rank_wraps_a_method(self):
        forward = torch.nn.Identity.forward
        torch.nn.Identity.forward = lambda module, x: 2 * forward(module, x)
        assert self._sum() == [3.0, 3.0]  # after which all have
        assert torch.nn.Identity()(1) == 2


class TestThreads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_passes(self):
        x = torch.full((2,), self.rank + 1.0, device=f"cuda:{self.rank}")
        dist.all_reduce(x)
        assert x.tolist() == [3.0, 3.0]

    def test_not_applicable_as_it_fails_in_real_threads(self):
        assert dist.get_world_size() == 4, f"{torch.ones(1).cuda().tolist()}"


class TestWithADecorator(TestCase):
    @spawn_threads_and_init_comms(world_size=2)
    def test_passes(self):
        x = torch.full((2,), dist.get_rank() + 1.0)
        dist.all_reduce(x)
        assert x.tolist() == [3.0, 3.0]

    @spawn_threads_and_init_comms(world_size=2)
    def test_fails(self):
        need_a_gpu()
        raise AssertionError(f"rank {dist.get_rank()}")


class TestForEachBackend(TestCase):
    def test_passes(self):
        assert os.environ["BACKEND"] == "nccl"
        assert int(os.environ["WORLD_SIZE"]) == torch.cuda.device_count()


class TestWithASetUpOfItsOwn(TestCase):
    def setUp(self):  # without that of the base, as some of torch's
        self.expected = 4

    def test_passes(self):
        assert self.expected == 4


@instantiate_parametrized_tests
class TestContinuousProcesses(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known_to_the_main_process_alone = True

    @classmethod
    def backend_str(cls):
        return "nccl"

    @parametrize("value", [1.0, 2.0])
    def test_passes(self, value):
        assert not hasattr(self, "known_to_the_main_process_alone")
        x = torch.full((2,), self.rank + value, device=f"cuda:{self.rank}")
        dist.all_reduce(x)
        assert x.tolist() == [2 * value + 1] * 2


class TestClassOnEachRank(MultiProcContinousTest):
    @classmethod
    def backend_str(cls):
        return "nccl"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.device = torch.device(f"cuda:{cls.rank % torch.cuda.device_count()}")

    def test_passes(self):
        assert self.device.index == self.rank
        x = torch.full((2,), self.rank + 1.0, device=self.device)
        self.pg.allreduce([x]).wait()
        assert x.tolist() == [10.0, 10.0]

    def test_fails(self):
        need_a_gpu()
        raise AssertionError(f"rank {self.rank}")
