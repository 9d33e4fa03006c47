"""The judge of `make torch-tests`, on tests with known outcomes, and a part of those of torch."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

import pytest
from torch_judge import applicability, drift, processor_words, suites, verdicts, worker
from torch_judge.limited_process import Limits, run_limited
from torch_judge.verdicts import (
    CRASHED,
    FAILED,
    HUNG,
    NOT_APPLICABLE,
    PASSED,
    SKIPPED,
    Verdict,
)

TESTS = Path(__file__).parent
COLUMNS = {column[:4]: column for column in verdicts.OUTCOMES}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the judge forks"),
    pytest.mark.timeout(900),  # it starts interpreters that import much of torch
]


def judged(tmp_path, *arguments):
    """The report of a run, and what it printed."""
    report = tmp_path / "report.json"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    run = subprocess.run(
        [sys.executable, "-m", "torch_judge", *arguments, "--jobs", "2", "--report", str(report)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert report.exists(), run.stdout + run.stderr
    return json.loads(report.read_text()), run.stdout


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The report on the sample, as if it lay in a checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "test").mkdir()
    source = (TESTS / "torch_judge" / "sample_tests.py").read_text(encoding="utf-8")
    (folder / "test" / "test_cuda.py").write_text(source, encoding="utf-8")
    (folder / "test" / "test_streams.py").write_text("import no_such_module\n", encoding="utf-8")
    return judged(folder, "--pytorch", str(folder), "--limit-s", "5", "test_")


def test_temporary_files_of_a_test_go_with_its_process():
    def leave_a_file():
        with tempfile.NamedTemporaryFile(delete=False) as file:
            return file.name

    end = run_limited(leave_a_file, Limits(seconds=60, gib=4))
    assert end.result is not None, end.output
    assert not Path(end.result).exists()


@pytest.mark.slow
def test_each_test_of_the_sample_has_the_outcome_that_it_names(sample):
    report, _ = sample
    found = {test["test"]: test["column"] for test in report["tests"]}
    assert len(found) == 35, found
    for name, column in found.items():
        said = name.rsplit("test_", 1)[1]
        assert column == COLUMNS[said[:4].replace("_", " ")], (name, column)


@pytest.mark.slow
def test_failures_have_their_last_line_and_hangs_their_place(sample):
    report, printed = sample
    why = {test["test"]: test["why"] for test in report["tests"]}
    assert why["TestOne.test_fails"] == "ValueError: a reason in two lines"
    assert why["TestOne.test_fails_in_a_subtest"] == "AssertionError: one"
    assert why["TestOne.test_skipped"] == "for a reason of its own"
    assert why["TestOne.test_crashed"].startswith("the process ended: SIGABRT")
    assert "MemoryError" in why["TestOne.test_fails_for_want_of_memory"]
    assert "threading.py" in why["TestOne.test_hung"]
    assert "in test_hung_at_work" in why["TestOne.test_hung_at_work"]
    assert why["TestProcesses.test_fails"] == "AssertionError: rank 0"
    assert why["TestClassOnEachRank.test_fails"] == "AssertionError: rank 0"
    assert why["TestProcesses.test_skipped"] == "ranks skip, too"
    assert "failed  test_cuda.py: TestOne.test_fails: ValueError" in printed
    assert "this belongs to the test" not in printed


@pytest.mark.slow
def test_what_cannot_be_imported_is_said(sample):
    report, printed = sample
    assert "test_cuda.py" not in report["not_loaded"]
    assert report["not_loaded"]["test_streams.py"].startswith("ModuleNotFoundError")
    assert "not loaded: test_streams.py" in printed
    assert not report["goal_met"]


@pytest.mark.slow
def test_what_is_gone_of_torch_is_named(sample):
    report, _ = sample
    gone = {
        t["test"]: t["why"] for t in report["tests"] if t["not_applicable"] == applicability.GONE
    }
    attribute = gone.pop("TestOne.test_not_applicable_with_an_attribute_that_is_gone")
    assert attribute.startswith("AttributeError: 'Linear' object has no attribute")
    function = gone.pop("TestOne.test_not_applicable_with_a_function_that_is_gone")
    assert function == "AttributeError: module 'torch.distributed' has no attribute 'some_function'"
    assert sorted(gone) == [
        "TestOne.test_not_applicable_with_a_decorator_that_is_gone",
        "TestOne.test_not_applicable_with_a_name_that_is_gone",
    ]
    for why in gone.values():
        assert re.search(r"^Gone: torch \S+ has no torch\.distributed\.was_there_once\.some_", why)


@pytest.mark.slow
def test_what_fails_in_real_processes_too_is_no_failure_of_virtual_gpus(sample):
    report, _ = sample
    alike = [test for test in report["tests"] if test["not_applicable"] == drift.REASON]
    assert [test["test"] for test in alike] == [
        "TestProcesses.test_not_applicable_as_it_fails_without_virtual_gpus",
        "TestThreads.test_not_applicable_as_it_fails_in_real_threads",
    ]
    assert re.search(r"^AssertionError: 6.0 on cuda:\d$", alike[0]["why"]), alike
    assert re.search(r"^line \d+: assert total == 5, f", alike[0]["place"]), alike


def test_a_part_of_torchs_own_tests_passes(tmp_path):
    names = ["*SyncBatchNorm_No_Affine", "*all_to_all_cuda*", "*coalescing_manager", "*get_backend"]
    report, printed = judged(tmp_path, "wheel", "--only", *names)
    assert report["goal_met"], printed
    assert report["counts"][PASSED] >= 4, printed


# --- its parts ------------------------------------------------------------------------------------


class Texts(unittest.TestCase):
    """Test methods to be read, not run."""

    __test__ = False  # it is read, not run

    def test_pools(self):
        torch.cuda.graph_pool_handle()  # noqa: F821

    def test_works(self):
        from torch.cuda._utils import _get_device_index

        torch.cuda.CUDAGraph()  # noqa: F821
        assert torch._C._get_cublas_allow_tf32()  # noqa: F821
        torch.cuda.caching_allocator_alloc(_get_device_index(0))  # noqa: F821

    def test_helper(self):
        self._draw()

    def _draw(self):
        load_inline("x")  # noqa: F821

    def test_settings(self):
        torch._inductor.config.triton.store_cubin = True  # noqa: F821

    def test_comment(self):
        """A torch.cuda.graph_pool_handle is not used here."""
        # and neither is torch.compile


def test_what_a_test_uses_says_whether_it_applies():
    def reason(name):
        return applicability.why_not_applicable(Texts(name))

    assert reason("test_pools").startswith("counts segments of CUDA's allocator, or what graphs")
    assert reason("test_works") is None
    assert reason("test_helper") == "compiles an extension"
    assert reason("test_settings") is None
    assert reason("test_comment") is None


def verdict(outcome, *, reason=None, file="a.py"):
    return Verdict(file, "Test.test_x", outcome, "why", reason)


def test_rates_count_what_applies():
    found = [verdict(PASSED)] * 19 + [verdict(FAILED), verdict(SKIPPED)]
    found += [verdict(FAILED, reason="compiles an extension")] * 5
    found += [verdict(PASSED, reason="compiles an extension")]
    numbers = verdicts.counts(found)
    assert numbers == {PASSED: 19, FAILED: 1, SKIPPED: 1, NOT_APPLICABLE: 6}
    assert verdicts.rate(numbers) == 0.95
    assert verdicts.met(found)
    assert not verdicts.met([*found, verdict(FAILED)])
    assert not verdicts.met([])


@pytest.mark.parametrize("outcome", [CRASHED, HUNG])
def test_no_reason_excuses_a_crash_or_a_hang(outcome):
    found = [verdict(PASSED)] * 99 + [verdict(outcome, reason="compiles an extension")]
    assert verdicts.counts(found)[outcome] == 1
    assert not verdicts.met(found)


def test_only_what_fails_in_the_same_words_counts_as_drift():
    def failed(test, why, reason=None, place="line 1: assert x == y"):
        return Verdict("a.py", test, FAILED, why, reason, place=place)

    of_gpus = "line 1: assert x.is_pinned()"
    found = [
        failed("a", "AssertionError: 3 on cuda:0: tensor(3, device='cuda:0')"),
        failed("b", "AssertionError: x is None"),
        failed("c", "ValueError: x"),
        failed("d", "ValueError: x", "compiles an extension"),
        Verdict("a.py", "e", CRASHED, "ValueError: x"),
        failed("f", "AssertionError: 3 is not 4"),
        failed("g", "ValueError: x"),
        failed("h", "AssertionError: False is not true", place=of_gpus),
    ]
    plain = [
        failed("a", "AssertionError: 3 on cpu: tensor(3)"),
        failed("b", "AssertionError: y is None"),
        Verdict("a.py", "c", SKIPPED, "ValueError: x"),
        failed("d", "ValueError: x"),
        failed("e", "ValueError: x"),
        failed("f", "AssertionError: 5 is not 4"),
        failed("g", "ValueError: x", place="line 2: assert y == x"),
        failed("h", "AssertionError: False is not true", place=of_gpus),
    ]
    reasons = [v.not_applicable for v in drift.marked(found, plain)]
    assert reasons == [drift.REASON, None, None, "compiles an extension", None, None, None, None]


def test_of_several_ranks_the_lowest_is_quoted():
    told = "Thread {} exited with exception:\n  File 'a'\n    x\nValueError: rank {}\n\n"
    error = RuntimeError(told.format(2, 2) + told.format(0, 0) + told.format(1, 1))
    assert worker._last_line(error) == "ValueError: rank 0"
    lost = told.format(0, "0: [gloo/transport/tcp/pair.cc:561] Connection closed by peer")
    assert worker._last_line(RuntimeError(lost + told.format(1, 1))) == "ValueError: rank 1"
    assert "Connection closed" in worker._last_line(RuntimeError(lost))


def test_the_statement_of_a_line_is_told(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("with x:\n    f(\n        a,\n    )\n")
    assert drift.statement_at(str(file), 3) == "line 2: f( a, )"
    assert drift.statement_at(str(file), 1) == "line 1: with x:"


def test_a_file_for_gpus_is_read_in_the_words_of_processors(tmp_path):
    file = tmp_path / "words.py"
    file.write_text(
        "import torch\n"
        "class Mesh:\n"
        "    cuda = 'other words: cuda, nccl'\n"
        "def words(rank):\n"
        "    where = ['cuda', 'cuda:1', f'cuda:{rank}', 'nccl', f'{rank}', Mesh.cuda]\n"
        "    where += ['rank:1/cuda:1', f'rank:{rank}/cuda:{rank}']\n"
        "    devices = [torch.device('cuda', rank), torch.device('meta', 0)]\n"
        "    torch.cuda.set_device(rank)\n"
        "    x = torch.ones(1, device=rank)\n"
        "    devices += [x.cuda(rank).device, x.to(rank).device]\n"
        "    return where, devices, torch.cuda.device_count(), torch.cuda.current_device()\n"
    )
    loader = processor_words.Loader("words", str(file))
    module = ModuleType("words")
    loader.exec_module(module)
    where, devices, count, current = module.words(1)
    assert where[:6] == ["cpu", "cpu", "cpu", "gloo", "1", "other words: cuda, nccl"]
    assert where[6:] == ["rank:1/cpu", "rank:1/cpu"]
    assert {str(device) for device in devices} == {"cpu", "meta:0"}
    assert (count, str(current)) == (4, "cpu")
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_table_has_a_line_for_each_file_and_each_failure():
    found = [verdict(PASSED), verdict(FAILED, file="b.py"), verdict(PASSED, reason="graphs")]
    lines = verdicts.table(found, {"c.py": "ImportError: x"}).splitlines()
    assert lines[1].split() == ["a.py", "1", "0", "0", "0", "0", "1", "0", "100.0%"]
    assert lines[2].split() == ["b.py", "0", "1", "0", "0", "0", "0", "0", "0.0%"]
    assert lines[3].split() == ["all", "1", "1", "0", "0", "0", "1", "0", "50.0%"]
    assert "not applicable (1 of them pass all the same):" in lines
    assert lines[-1] == "failed  b.py: Test.test_x: why"


def test_suites_of_a_checkout(tmp_path):
    for name in ("test_cuda.py", "distributed/tensor/parallel/test_tp.py", "test_nn.py"):
        path = tmp_path / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [suite.name for suite in suites.suites(tmp_path)]
    assert found == [
        "torch.testing (wheel)",
        "test_cuda.py",
        "distributed/tensor/parallel/test_tp.py",
    ]
    assert [suite.name for suite in suites.suites(tmp_path, ["tensor"])] == [found[2]]
    with pytest.raises(ValueError, match=r"no folder `test`.*PYTORCH=path"):
        suites.suites(tmp_path / "test")
    with pytest.raises(ValueError, match="no test file has a name with x; there are: torch"):
        suites.suites(None, ["x"])
