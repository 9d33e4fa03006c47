"""Virtual devices for tests: those of this process, or a machine for one test, clock at zero."""

import os
import signal

import pytest
from hypothesis import settings
from tqdm import tqdm

os.environ.setdefault("D2LPAR_BACKING", "cpu")

# Behaviour is tested, not time: on a busy machine any example may take long.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# Its thread that looks after bars stumbles over one that ends meanwhile, and fails another test.
tqdm.monitor_interval = 0


@pytest.fixture
def gpus():
    """Four virtual devices of this process; their clock and memories go on from test to test."""
    import torch

    import d2lpar as par

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return par.devices(4, kind="virtual", machine="2x-v100-textbook", verbose=False)


@pytest.fixture
def fresh_gpus(gpus):
    """Four virtual devices of a machine of their own, which has done nothing yet."""
    import d2lpar as par

    with par.simulate("2x-v100-textbook", 4, with_values=True) as devices:
        yield devices


@pytest.fixture(scope="module")
def cluster():
    """Two ranks in processes of their own, for the tests of a module."""
    import d2lpar as par

    with par.cluster(2) as ranks:
        yield ranks


@pytest.fixture
def ranks(cluster):
    """The module's ranks, restarted if a test has ended them."""
    return cluster if cluster.is_running else cluster.restart()


@pytest.fixture(scope="module")
def browser():
    """Playwright's `Browser`; skips tests where Playwright is not installed."""
    from lab_in_browser import running_chromium

    with running_chromium() as chromium:
        yield chromium


@pytest.fixture
def page(browser):
    """A page of the browser, as large as a projector's."""
    from lab_in_browser import SCREEN

    page = browser.new_page(viewport=SCREEN)
    yield page
    page.close()


@pytest.fixture
def interrupts():
    """SIGINT interrupts, also where a shell that runs the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def hang_ups():
    """SIGHUP ends the processes that a test starts, also under `nohup`, which has it ignored."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # a process that is started has none
    yield
    signal.signal(signal.SIGHUP, before)
