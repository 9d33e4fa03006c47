"""`mpi4py`'s world on virtual ranks, by a package that stands for it where it is not installed."""

from __future__ import annotations

import importlib.util
import operator
import sys
from pathlib import Path

import pytest
import virtual_ranks

import d2lpar as par


class Alone:
    """MPI's own world: of one process."""

    rank, size = 0, 1

    def Get_size(self):  # noqa: N802
        return 1


class FinderOfMPI:
    """Finds the module built for this machine's MPI, as the package has one for each."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name == "mpi4py.MPI":
            return importlib.util.spec_from_file_location(name, Path(path[0]) / "MPI.mpich.py")
        return None


@pytest.fixture(autouse=True, params=["MPI.py", "MPI.mpich.py"])
def mpi(request, tmp_path, monkeypatch):
    """A package of that name, which is imported anew."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    text = "from test_mpi_world import Alone\nCOMM_WORLD = Alone()\nMAX = max\n"
    (tmp_path / "mpi4py" / request.param).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, FinderOfMPI])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
        del sys.modules[name]


def world():
    from mpi4py import MPI

    return MPI.COMM_WORLD


def exchange():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    comm.Barrier()
    return [
        (comm.rank, comm.size, comm.Get_size()),
        comm.bcast({"port": 29500} if rank == 1 else None, root=1),
        comm.allgather(rank * rank),
        comm.gather(rank, root=2),
        comm.scatter(["a", "b", "c"] if rank == 0 else None),
        comm.allreduce(rank + 1),
        comm.allreduce(rank, op=MPI.MAX),
        comm.reduce(rank + 2, op=operator.mul, root=1),
    ]


def test_ranks_exchange_objects():
    found = virtual_ranks.run(exchange, n=3)
    told, objects, gathered, scattered, sums, largest, product = zip(
        *([one[0], one[1:3], one[3], one[4], one[5], one[6], one[7]] for one in found), strict=True
    )
    assert told == ((0, 3, 3), (1, 3, 3), (2, 3, 3))
    assert objects == ([{"port": 29500}, [0, 1, 4]],) * 3
    assert gathered == (None, None, [0, 1, 2])
    assert scattered == ("a", "b", "c")
    assert (sums, largest, product) == ((6,) * 3, (2,) * 3, (None, 24, None))


def test_of_one_rank_and_outside_it_is_mpis_own():
    assert virtual_ranks.run(lambda: world().Get_size(), n=1) == [1]
    with par.simulate("2x-v100-textbook", 2):
        assert world().Get_size() == 1


def test_what_virtual_ranks_do_not_have_is_refused_by_name():
    def rank():
        with pytest.raises(NotImplementedError, match=r"COMM_WORLD\.Alltoallv is not"):
            world().Alltoallv()

    virtual_ranks.run(rank, n=2)
