"""What every test run needs: the world of the notebooks, limits, and an end that leaves nothing.

A test run starts this file as a program, too: what clears up after it, however it ends.
"""

import contextlib
import faulthandler
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

import psutil
import pytest

NOT_RECORDED = "no recorded run to compare with: `make notebooks` records one"
NO_HOME = "the tests need a home folder to write to; {home} is none: set HOME=/some/folder"
RUN = "D2LPAR_TEST_RUN"  # to all that a test run starts: the run's folder for temporary files
SLOW_S = 1800
START_S = 100  # of a kernel, on a busy machine
PATIENCE = 2
LOOK_S, GONE_S = 0.5, 4

# Those that take 15 s and more come first, so that parallel workers end at about the same time.
LONGEST = (
    *("test_validation.py", "test_challenges.py", "test_virtual_fsdp.py", "test_plots.py"),
    *("test_opinfo.py", "test_homework.py", "test_scripts.py", "test_virtual_pipelining.py"),
    *("test_torch_judge.py", "test_data.py", "test_equivalence.py", "test_cluster.py"),
    *("test_cluster_faults.py", "test_virtual_ddp.py", "test_setup_interrupted.py"),
    *("test_checks.py", "test_checks_multi_gpu_concise.py", "test_portable.py"),
    "test_vgpu_processes.py",
)
SETTINGS, STDERR = pytest.StashKey(), pytest.StashKey()


def pytest_configure(config):
    """Gives notebooks the world that they were recorded in, and parallel workers a core each."""
    if not hasattr(config, "workerinput"):
        require_home()
        keep_bytecode()
        start_clearing_up(config)
    config.stash[STDERR] = os.dup(2)  # not captured yet
    if config.getoption("nbval", default=False) or config.getoption("nbval_lax", default=False):
        text = (config.rootpath / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["tool"]["d2lpar"]
        os.environ.update(project["recorded-world"])
        config.option.nbval_cell_timeout = min(
            config.option.nbval_cell_timeout, project["cell-limit-s"]
        )
        start_kernels_again()
    elif "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def start_kernels_again():
    """A kernel is told free ports, which another program may have taken before it starts."""
    from nbval import kernel

    start = kernel.start_new_kernel

    def start_twice(*args, **kwargs):
        try:
            return start(*args, **kwargs)
        except RuntimeError:
            return start(*args, **kwargs)

    kernel.start_new_kernel = start_twice


def require_home():
    """Or IPython and matplotlib warn wherever they are first needed, also in compared outputs."""
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        raise pytest.UsageError(NO_HOME.format(home=home))


def keep_bytecode():
    """Tests start some two hundred interpreters: each would compile the package anew."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_runtest_setup(item):
    """Fails a notebook cell that was never run; nbval would pass it without comparing."""
    cell = getattr(item, "cell", None)
    if cell is not None and cell.source.strip() and cell.execution_count is None:
        pytest.fail(NOT_RECORDED)


def pytest_collection_finish():
    """Lets the collector of garbage leave alone what has been imported: else it goes through all of
    torch again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # or libraries in C++ report at the end what they find still there


# Limits


def pytest_collection_modifyitems(config, items):
    """Puts long files first; gives slow tests more time, and cells enough for nbval's limit."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))
    for item in items:
        if hasattr(item, "cell"):
            item.add_marker(pytest.mark.timeout(config.option.nbval_cell_timeout + START_S))
        elif item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    """Ends the process, too, somewhat later: in C no test can be failed, for no handler runs."""
    item.stash[SETTINGS] = settings
    seconds = PATIENCE * settings.timeout
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer():
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Limits what clears up after a test, too: where the test failed, its limit was cancelled."""
    if SETTINGS in item.stash:
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[SETTINGS])
    return (yield)


# The end of a test run


def start_clearing_up(config):
    """Starts the process that will, and marks for it all that this run starts from now on."""
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()  # pytest keeps tmp_path for a while
    folder = tempfile.mkdtemp(prefix="d2lpar-")
    config.clears_up = subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )
    os.environ[RUN] = os.environ["TMPDIR"] = tempfile.tempdir = folder


def clear_up(run, folder):
    """When the process `run` has ended: ends what it left behind, and removes its folder."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(run)
        while process.status() != psutil.STATUS_ZOMBIE:  # nobody need have asked for its exit code
            time.sleep(LOOK_S)
    # Asked first, they remove what they share; nobody is spared, nor who was started meanwhile.
    for end in (psutil.Process.terminate, psutil.Process.kill, psutil.Process.kill):
        left = [process for process in psutil.process_iter() if belongs(process, folder)]
        for process in left:
            with contextlib.suppress(psutil.Error):
                end(process)
        psutil.wait_procs(left, timeout=GONE_S)
    shutil.rmtree(folder, ignore_errors=True)


def belongs(process, folder):
    """Whether a run with this folder, or a run inside that run, has started the process."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(RUN, "").startswith(folder)
    return False


if __name__ == "__main__":
    clear_up(int(sys.argv[1]), sys.argv[2])
