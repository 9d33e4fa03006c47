"""Each virtual rank has a number of its own as a process, which the program's own code reads."""

from __future__ import annotations

import io
import logging
import os
import sys
from os import getpid

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import d2lpar as par

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have numbers among those of processes on Linux alone"
)

OF_LIBRARIES = """
def read():
    return os.getpid()
"""


def of_a_library():
    """What code reads that is not the user's."""
    namespace = {"os": os}
    exec(compile(OF_LIBRARIES, logging.__file__, "exec"), namespace)
    return namespace["read"]()


def asked():
    return os.getpid(), getpid(), os.getppid(), of_a_library()


def test_the_program_reads_a_number_of_each_rank_and_libraries_that_of_the_process():
    real = os.getpid()
    found = par.run_ranks(asked, 3)
    numbers = [number for number, *_ in found]
    assert len({*numbers, real}) == 4
    assert found == [(number, number, real, real) for number in numbers]
    assert asked() == (real, real, os.getppid(), real)


def asked_of_the_system():
    """What the system says of a process of that number."""
    number = os.getpid()
    os.kill(number, 0)
    os.sched_getaffinity(number)
    with open(f"/proc/{number}/statm") as file:
        pages = int(file.read().split()[0])
    return os.getpgid(number), pages > 0


def test_the_system_knows_the_number():
    assert par.run_ranks(asked_of_the_system, 2) == [(os.getpgid(os.getpid()), True)] * 2


def measured_by_psutil():
    psutil = pytest.importorskip("psutil")
    process = psutil.Process(os.getpid())
    return process.is_running() and process.memory_info().rss > 0


def test_psutil_takes_the_number():
    pytest.importorskip("psutil")
    assert par.run_ranks(measured_by_psutil, 2) == [True, True]


def logged():
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(logging.Formatter("%(process)d"))
    logger = logging.getLogger("process numbers")
    logger.addHandler(handler)
    logger.warning("here")
    return lines.getvalue() == f"{os.getpid()}\n"


def test_records_of_logging_have_the_number():
    assert par.run_ranks(logged, 2) == [True, True]


class Numbers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor([os.getpid(), os.getppid(), of_a_library()])


def loaded_by_a_worker():
    (batch,) = DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    return batch.tolist(), os.getpid()


def test_a_loaders_worker_which_is_a_process_has_its_own():
    """It is forked from a rank's thread, and no rank."""
    (first, second), rank = par.run_ranks(loaded_by_a_worker, 1)[0]
    assert first == second
    worker, parent, of_process = first
    assert (worker, parent) == (of_process, os.getpid())
    assert rank == os.getpid()
    for (first, _), rank in par.run_ranks(loaded_by_a_worker, 2):
        assert first[0] == first[2] != rank
