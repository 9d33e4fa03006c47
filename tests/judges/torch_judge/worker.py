"""One test file, in a process that emulates CUDA and forks another for each test.

Importing torch takes seconds, forking milliseconds. A line of JSON for each test goes to standard
output; whatever tests print does not.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gc
import importlib.util
import inspect
import json
import os
import re
import sys
import threading
import traceback
import unittest
from collections.abc import Iterator
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from torch_judge import drift, older_names, processor_words
from torch_judge.applicability import GONE
from torch_judge.limited_process import Limits, RealTime, run_limited
from torch_judge.older_names import RANKS, is_gone
from torch_judge.verdicts import CRASHED, FAILED, HUNG, PASSED, SKIPPED, SLOW, Verdict

# How torch's bases tell of ranks that failed, and the lines of their tracebacks.
_OF_PROCESS = re.compile(
    r"(?:Process|Thread) (\d+) (?:exited with (?:error code \d+ and )?exception"
    r"|terminated with the following error):\n(.*?)(?=^(?:Process|Thread) \d+ exited|\Z)",
    re.DOTALL | re.MULTILINE,
)
_LOST = "gloo/transport/"  # in the words of a rank whose connection another rank has closed
_A_THIRD = 1 / 3  # of the time or more went into values: who hangs computes none
_PLACES = re.compile(r"^  File .*\n(?:    .*\n)*", re.MULTILINE)
# In files that PyTorch's own script runs once for each backend, and gives so many ranks.
_RUN_FOR_EACH_BACKEND = 'os.environ["BACKEND"]'
# How many ranks a file starts that is run as a script, and starts them itself.
_RANKS_OF_SCRIPT = re.compile(r"os\.getenv\(\"WORLD_SIZE\", (\d+)\)")


def main(arguments: list[str] | None = None) -> None:
    """Judge the tests of a file; see the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", required=True, help="what the report calls the file")
    parser.add_argument("--folders", nargs="*", default=[], help="to import modules from")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--limit-s", type=float, default=240)
    parser.add_argument("--limit-gib", type=float, default=8)
    parser.add_argument("--every", type=int, default=1, help="one test in so many")
    parser.add_argument("--only", nargs="*", default=[], help="only such tests: *stream*")
    parser.add_argument("--plain", action="store_true", help="no virtual GPUs: torch's own devices")
    options = parser.parse_args(arguments)
    results = _own_standard_output()
    _prepare(options)
    import torch._dynamo

    with contextlib.nullcontext() if options.plain else _virtual_gpus(options.gpus):
        try:
            tests = _load(options)
        except BaseException as error:
            print(json.dumps({"not_loaded": _last_line(error)}), file=results, flush=True)
            return
        torch._dynamo.reset()  # as torch's `TestCase` does before a test: it imports a lot
        gc.collect()
        gc.freeze()  # else each fork's collector would write to, and so copy, all that it shares
        for test in _chosen(tests, options):
            limits = Limits(options.limit_s, options.limit_gib)
            verdict = judge(test, options.name, limits, plain=options.plain)
            print(json.dumps(asdict(verdict)), file=results, flush=True)


def _own_standard_output() -> object:
    """Standard output for results; what anything else prints goes nowhere."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return results


def _prepare(options: argparse.Namespace) -> None:
    """What torch's test modules read when they are imported."""
    os.environ.update(
        PYTORCH_TESTING_DEVICE_ONLY_FOR="cuda",
        OMP_NUM_THREADS="1",  # forking copies no other threads
        PYTORCH_TEST_WITH_SLOW="0",
        PYTORCH_PRINT_REPRO_ON_FAILURE="0",
    )
    text = options.file.read_text(encoding="utf-8")
    own = _RANKS_OF_SCRIPT.search(text)
    os.environ[RANKS] = str(min(options.gpus, int(own[1])) if own else options.gpus)
    if _RUN_FOR_EACH_BACKEND in text:
        os.environ.update(BACKEND="nccl", WORLD_SIZE=str(options.gpus))
    sys.path[:0] = options.folders
    sys.argv = [str(options.file)]
    import torch

    torch.set_num_threads(1)


def _virtual_gpus(count: int) -> contextlib.AbstractContextManager:
    import d2lpar as par

    return par.emulate_cuda(count, verbose=False)


def _load(options: argparse.Namespace) -> list[unittest.TestCase]:
    """The tests of the file, as `unittest` finds them."""
    if options.plain:
        drift.use_forks()
        processor_words.let_tests_run(options.gpus)
        processor_words.Loader.gpus = options.gpus
        module = older_names.load(lambda: _import(options.file, processor_words.Loader))
    else:
        from torch_judge import ranks

        ranks.install()
        module = older_names.load(lambda: _import(options.file))
        ranks.use_their_barrier()
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))


def _import(file: Path, loader: type[SourceFileLoader] = SourceFileLoader) -> ModuleType:
    spec = importlib.util.spec_from_loader(file.stem, loader(file.stem, str(file)))
    assert spec is not None, f"{file} is a Python file"
    assert spec.loader is not None, f"{file} is no folder"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _chosen(tests: list[unittest.TestCase], options: argparse.Namespace) -> list[unittest.TestCase]:
    words = options.only
    found = [t for t in tests if not words or any(fnmatch.fnmatch(t.id(), w) for w in words)]
    return found[:: options.every]


def judge(test: unittest.TestCase, file: str, limits: Limits, *, plain: bool = False) -> Verdict:
    """Run a test in a process of its own. The environment must be that of its rank or program."""
    from torch_judge.applicability import why_not_applicable

    name = test.id().split(".", 1)[-1]
    reason = why_not_applicable(test)
    start_s = RealTime.monotonic()
    end = run_limited(lambda: _run(test, plain=plain), limits, _computing_s)
    seconds = round(RealTime.monotonic() - start_s, 2)
    place = ""
    if end.result is not None:
        outcome, why, text, gone, place = end.result
        reason = reason or gone
    elif end.timed_out:
        why = f"not over ({end.status}), at {_where(end.output)}"
        outcome, text = SLOW if end.at_work_s > _A_THIRD * end.used_s else HUNG, end.output
    else:
        outcome, why, text = CRASHED, f"the process ended: {end.status}", end.output
    return Verdict(file, name, outcome, why, reason, seconds, text[-4000:], place)


def _computing_s() -> float:
    """The seconds that values have taken to compute, which hangs do not."""
    from d2lpar.vgpu.torch_backend.machine.runtime import current_runtime

    return current_runtime().values_s


def _run(test: unittest.TestCase, *, plain: bool) -> list[str | None]:
    """[outcome, last line, traceback, why it does not apply: that showed only now, the statement
    that failed] of a test, fixtures of its class and module included."""
    if not plain:
        _go_on_after_fork()
    result = _Errors()
    unittest.TestSuite([test]).run(result)
    if result.failed:
        error = result.failed[0]
        text = "".join(traceback.format_exception(error))
        gone = GONE if is_gone(_of_rank(error)) else None
        return [FAILED, _last_line(error), text, gone, _place(error, test)]
    if result.unexpectedSuccesses:
        return [FAILED, "passes, which its author did not expect", "", None, ""]
    if result.skipped:
        return [SKIPPED, _one_line(result.skipped[0][1]), "", None, ""]
    return [PASSED, "", "", None, ""]


def _go_on_after_fork() -> None:
    """Let the virtual GPUs that this process got from its parent be its own.

    They refuse to work in a fork, as CUDA does, for threads and the locks they hold are not there.
    This process's parent had no other threads, and does nothing but wait for it.
    """
    from d2lpar.vgpu.torch_backend.machine import runtime

    assert threading.active_count() == 1, "the parent had no other threads"
    runtime._has_forked = False


class _Errors(unittest.TestResult):
    """A result that keeps errors themselves, and not their texts."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[BaseException] = []

    def addError(self, test: unittest.TestCase, err: tuple) -> None:  # noqa: N802
        self.failed.append(err[1])

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: object, subtest: object, err: tuple | None) -> None:  # noqa: N802
        if err is not None:
            self.failed.append(err[1])


def _last_line(error: BaseException) -> str:
    """The type and the first words of an error; of a failed rank's, those of its own error."""
    error = _of_rank(error)
    of_process = _of_lowest_process(error)
    if of_process is None:
        return _one_line(f"{type(error).__name__}: {error}")
    full_name, _, words = _PLACES.split(of_process)[-1].partition(":")
    return _one_line(f"{full_name.rpartition('.')[2]}:{words}")


def _place(error: BaseException, test: unittest.TestCase) -> str:
    """The statement of the test's file that was the last of it to run; "" if there is none."""
    error = _of_rank(error)
    text = _of_lowest_process(error) or "".join(traceback.format_exception(error))
    file = inspect.getfile(type(test))
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', text)
    return drift.statement_at(file, int(lines[-1])) if lines else ""


def _of_lowest_process(error: BaseException) -> str | None:
    """What torch's bases tell of the lowest rank that failed: real ones end in any order. One that
    only lost its connection to another tells nothing, if others do."""
    told = {int(number): text for number, text in _OF_PROCESS.findall(str(error))}
    causes = [number for number, text in told.items() if _LOST not in text]
    return told[min(causes or told)] if told else None


def _of_rank(error: BaseException) -> BaseException:
    """The error itself, or that of the rank which has failed."""
    while type(error).__name__ == "ProcessRaisedException" and error.__cause__ is not None:
        error = error.__cause__
    return error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _where(output: str) -> str:
    """The innermost lines of a hung process's threads, as `faulthandler` has written them."""
    lines = [line.strip() for line in output.splitlines() if line.lstrip().startswith("File ")]
    return _one_line(lines[0]) if lines else "an unknown line"


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever the tests' modules would do at the end
