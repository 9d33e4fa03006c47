"""Test runs in a stand-in of the project: they keep their limits, and leave nothing behind."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
RUN = "D2LPAR_TEST_RUN"
WITHOUT_PLUGINS = ("-p", "no:xdist", "-p", "no:nbval")  # importing nbval takes seconds
START_S, GONE_S = 600, 120  # on a very busy machine; on a quiet one 5 and 3

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="make and its signals"),
    pytest.mark.timeout(START_S + 2 * GONE_S),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """What a test run of the project consists of, with one test and a home, set up already."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tests" / "helpers").mkdir(parents=True)
    for name in ("conftest.py", "pyproject.toml", "Makefile", "tests/helpers/attempts.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "setup_env.py").touch()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "tests" / "test_fine.py").write_text("def test_fine():\n    pass\n")
    return tmp_path


def with_notebook(project, *sources):
    cells = [new_code_cell(source, execution_count=1) for source in sources]
    nbformat.write(new_notebook(cells=cells), project / "notebooks" / "00_blocks.ipynb")


def pytest_in(project, *options):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip


# Limits


def test_a_test_that_never_ends_fails_and_the_next_is_run(project, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (project / "tests" / "test_blocks.py").write_text(
        "import os, sys, time, pytest\n"
        "@pytest.mark.timeout(3)\n"
        "def test_sleeps():\n    time.sleep(600)\n"
        "def test_next_and_its_children_keep_bytecode():\n"
        "    assert not sys.dont_write_bytecode\n"
        "    assert 'PYTHONDONTWRITEBYTECODE' not in os.environ\n"
    )
    run = pytest_in(project, *WITHOUT_PLUGINS, "tests/test_blocks.py")
    assert "Failed: Timeout (>3.0s)" in run.stdout
    assert "1 failed, 1 passed" in run.stdout


@pytest.mark.slow
def test_a_test_that_blocks_in_c_ends_its_worker_and_the_next_is_run(project):
    """Without a look at signals, so that no handler runs."""
    (project / "tests" / "test_blocks.py").write_text(
        "import itertools, pytest\n"
        "@pytest.mark.timeout(2)\n"
        "def test_holds_the_lock():\n    all(itertools.repeat(1))\n"
        "def test_next():\n    pass\n"
    )
    run = pytest_in(project, "-n", "1", "tests/test_blocks.py")
    assert "crashed while running 'tests/test_blocks.py::test_holds_the_lock'" in run.stdout
    assert "1 failed, 1 passed" in run.stdout
    assert re.search("Timeout .*!", run.stderr)
    assert "in test_holds_the_lock" in run.stderr


@pytest.mark.slow
def test_what_clears_up_for_ever_after_a_failure_is_ended_too(project):
    (project / "tests" / "test_blocks.py").write_text(
        "import time, pytest\n"
        "@pytest.fixture\n"
        "def stubborn():\n    yield\n    time.sleep(600)\n"
        "@pytest.mark.timeout(3)\n"
        "def test_fails(stubborn):\n    assert 0\n"
    )
    run = pytest_in(project, "-n", "1", "tests/test_blocks.py")
    assert re.search(r"Timeout \(>3.0s\)|crashed while running", run.stdout)


@pytest.fixture
def impatient(project):
    """The same, with a limit of 2 s for a cell, and a cell that never ends."""
    settings = project / "pyproject.toml"
    text, changes = re.subn(r"cell-limit-s = \d+", "cell-limit-s = 2", settings.read_text())
    assert changes == 1
    settings.write_text(text)
    with_notebook(project, "import time\ntime.sleep(600)")
    return project


def test_a_cell_that_never_ends_fails(impatient):
    run = pytest_in(impatient, "-p", "no:xdist", "--nbval", "--nbval-current-env", "notebooks")
    assert "Timeout of 2 seconds exceeded" in run.stdout
    assert "1 failed" in run.stdout


def test_a_cell_that_never_ends_is_not_recorded(impatient):
    (impatient / "tools").mkdir()
    for name in ("build.py", "addresses.py"):
        shutil.copy(ROOT / "tools" / name, impatient / "tools")
    run = subprocess.run(
        [sys.executable, "tools/build.py"], cwd=impatient, capture_output=True, text=True
    )
    assert re.search("not recorded: .*timed out .*after 2 seconds", run.stderr, re.DOTALL)
    assert run.returncode == 1


def test_without_a_home_it_says_so(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project / "none"))
    run = pytest_in(project, *WITHOUT_PLUGINS, "tests/test_fine.py")
    assert f"{project / 'none'} is none: set HOME=" in run.stderr
    assert run.returncode == pytest.ExitCode.USAGE_ERROR


# Nothing stays behind


BLOCKS = """
import os, pathlib, subprocess, tempfile, time
tempfile.mkdtemp()
subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("begun.tmp").write_text(os.environ["{run}"])
pathlib.Path("begun.tmp").rename("begun")
time.sleep(600)
"""


@pytest.fixture
def begun(project):
    """Starts a command there; returns it, and its folder once a cell of a notebook blocks."""
    with_notebook(project, BLOCKS.format(run=RUN))
    begun = project / "notebooks" / "begun"
    started = []

    def start(*command):
        process = subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL)
        started.append(process)
        deadline_s = time.monotonic() + START_S
        while not begun.exists() and time.monotonic() < deadline_s:
            assert process.poll() is None
            time.sleep(0.1)
        return process, Path(begun.read_text())

    yield start
    for process in started:
        process.kill()
        process.wait()


def started_in(folder):
    """All processes of the run with this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN) == str(folder):
                found.append(process)
    return found


def check_nothing_stays(process, folder):
    left = started_in(folder)
    deadline_s = time.monotonic() + GONE_S
    while (left or folder.exists()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
        left = started_in(folder)
    assert process.wait(GONE_S) != 0
    assert not left
    assert not folder.exists()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, id="ended"),
        pytest.param(signal.SIGINT, id="interrupted", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("interrupts")
def test_pytest_leaves_nothing_behind(begun, how):
    options = ("-p", "no:cacheprovider", "-n", "1", "--nbval", "--nbval-current-env", "notebooks")
    process, folder = begun(sys.executable, "-m", "pytest", *options)
    assert len(started_in(folder)) >= 3  # worker, kernel, and what that started
    process.send_signal(how)
    check_nothing_stays(process, folder)


@pytest.mark.slow
def test_make_leaves_nothing_behind(begun):
    process, folder = begun("make", "test", "workers=1")
    process.terminate()
    check_nothing_stays(process, folder)


def test_all_attempts_are_made_and_the_failed_ones_named(project):
    attempts = [
        sys.executable,
        "tests/helpers/attempts.py",
        "one",
        "false",
        "two",
        "true",
        "three",
        "false",
    ]
    run = subprocess.run(attempts, cwd=project, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "FAILED: one, three"
    assert run.returncode == 1
    run = subprocess.run(attempts[:2] + attempts[4:6], cwd=project, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "PASSED: two"
    assert run.returncode == 0


def test_one_attempt_may_run_beside_the_others_and_speaks_when_it_has_ended(project):
    wait = "sh -c 'while [ ! -e {there} ]; do sleep 0.05; done; echo {word}; touch {own}; {end}'"
    run = subprocess.run(
        [
            *(sys.executable, "tests/helpers/attempts.py", "--beside", "long"),
            wait.format(there="one", word="hears", own="two", end="false"),
            *("short", "touch one", "next"),
            wait.format(there="two", word="answers", own="three", end="true"),
        ],
        cwd=project, capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    words = [line for line in run.stdout.splitlines() if line]
    assert words == [
        *("=== short", "=== next", "answers", "=== long", "hears"),
        "FAILED: long",
    ]
    assert run.returncode == 1


def test_the_end_reaches_all_attempts_that_run(project):
    own = "sh -c 'echo $$ > {0}.tmp; mv {0}.tmp {0}; exec sleep 600'"
    process = subprocess.Popen(
        [
            *(sys.executable, "tests/helpers/attempts.py"),
            *("--beside", "one", own.format("one"), "two", own.format("two"), "three", "true"),
        ],
        cwd=project, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    files = [project / "one", project / "two"]
    deadline_s = time.monotonic() + START_S
    while not all(map(Path.exists, files)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(GONE_S) == 128 + signal.SIGTERM
    assert not any(psutil.pid_exists(int(file.read_text())) for file in files)


@pytest.mark.parametrize("jobs", [[], ["-j4"], ["-j"]], ids=str)
def test_make_within_make_is_silent_and_keeps_its_variables(tmp_path, jobs):
    attempts = ROOT / "tests" / "helpers" / "attempts.py"
    (tmp_path / "Makefile").write_text(
        f"test:\n\t@'{sys.executable}' '{attempts}' inner '$(MAKE) inner'\n"
        "inner:\n\t@echo PYTHON is $(PYTHON)\n"
    )
    command = ["make", "--no-print-directory", *jobs, "PYTHON=three", "test"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "PYTHON is three" in run.stdout
