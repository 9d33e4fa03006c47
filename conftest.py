"""What every test run needs before its first import of torch, and what makes nbval strict."""

import os
import tempfile
import tomllib

import pytest

NOT_RECORDED = "no recorded run to compare with: `make notebooks` records one"


def pytest_configure(config):
    """Gives notebooks the world that they were recorded in, and parallel workers a core each."""
    if config.getoption("nbval", default=False) or config.getoption("nbval_lax", default=False):
        project = tomllib.loads((config.rootpath / "pyproject.toml").read_text(encoding="utf-8"))
        os.environ.update(project["tool"]["d2lpar"]["recorded-world"])
        # nbval kills its kernels, which then leave their temporary files.
        folder = tempfile.TemporaryDirectory(prefix="d2lpar-nbval-", ignore_cleanup_errors=True)
        os.environ["TMPDIR"] = folder.name
        config.add_cleanup(folder.cleanup)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_runtest_setup(item):
    """Fails a notebook cell that was never run; nbval would pass it without comparing."""
    cell = getattr(item, "cell", None)
    if cell is not None and cell.source.strip() and cell.execution_count is None:
        pytest.fail(NOT_RECORDED)
