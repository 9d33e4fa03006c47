"""`make torch-tests`: judge, print a table and what failed, and write a report."""

from __future__ import annotations

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_judge import drift, verdicts
from torch_judge.suites import Suite, suites
from torch_judge.verdicts import CRASHED, FAILED, Verdict

TESTS = Path(__file__).resolve().parents[1]
SAME_ORDER = {"PYTHONHASHSEED": "0"}  # of sets that errors print, with virtual GPUs and without


def main() -> int:
    """The exit status is 0 if the goal is met, 1 if not, and 2 for a wrong argument."""
    options = _arguments()
    try:
        chosen = suites(options.pytorch, options.files)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found: list[Verdict] = []
    not_loaded: dict[str, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for suite, (of_file, why) in zip(
            chosen, pool.map(lambda suite: judge_file(suite, options), chosen), strict=True
        ):
            found += of_file
            not_loaded |= {suite.name: why} if why else {}
            print(_progress(suite, of_file, why), file=sys.stderr, flush=True)
    print(verdicts.table(found, not_loaded))
    if options.report:
        text = json.dumps(verdicts.as_json(found, not_loaded), indent=1)
        Path(options.report).write_text(text + "\n", encoding="utf-8")
    return 0 if verdicts.met(found) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torch_judge", description="PyTorch's own tests as the judge of virtual GPUs."
    )
    parser.add_argument("files", nargs="*", help="only files with such words in their names")
    parser.add_argument("--pytorch", type=Path, help="a checkout of PyTorch; its tests are judged")
    parser.add_argument("--only", nargs="+", default=[], help="only such tests: '*stream*'")
    parser.add_argument("--every", type=int, default=1, help="one test in so many")
    parser.add_argument("--gpus", type=int, default=4, help="virtual GPUs, and ranks (default: 4)")
    parser.add_argument("--limit-s", type=float, default=240, help="of one test (default: 240)")
    parser.add_argument("--limit-gib", type=float, default=8, help="of one test (default: 8)")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default: 2)")
    parser.add_argument("--verbose", action="store_true", help="a line for each test, at once")
    parser.add_argument("--report", help="a JSON file to write, with each test and its traceback")
    return parser.parse_args()


def judge_file(suite: Suite, options: argparse.Namespace) -> tuple[list[Verdict], str]:
    """The verdicts on a file's tests, and why it could not be loaded ("": it could).

    What fails of a checkout, whose version may be another, is tried without virtual GPUs as well.
    """
    found, why = _judged(suite, options)
    failed = [f"*.{glob.escape(v.test)}" for v in found if v.column == FAILED and suite.folders]
    if failed:
        plain = argparse.Namespace(**{**vars(options), "only": failed, "every": 1})
        found = drift.marked(found, _judged(suite, plain, "--plain")[0])
    return found, why


def _judged(suite: Suite, options: argparse.Namespace, *flags: str) -> tuple[list[Verdict], str]:
    command = [
        sys.executable, "-m", "torch_judge.worker", str(suite.path), "--name", suite.name,
        "--gpus", str(options.gpus), "--limit-s", str(options.limit_s),
        "--limit-gib", str(options.limit_gib), "--every", str(options.every), *flags,
    ]  # fmt: skip
    command += ["--folders", *map(str, suite.folders)] if suite.folders else []
    command += ["--only", *options.only] if options.only else []
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "D2LPAR_BACKING": "cpu", **SAME_ORDER},
        )
        found, why = _read(process, suite, verbose=options.verbose)
        status = process.wait()
        errors.seek(0)
        text = errors.read().strip()
    if status:  # outside of any test, so nothing says how many are missing
        words = f"exit status {status} after {len(found)} tests: {text[-300:].splitlines()[-1:]}"
        found.append(Verdict(suite.name, "(the file)", CRASHED, words, traceback=text[-4000:]))
    return found, why


def _read(process: subprocess.Popen, suite: Suite, *, verbose: bool) -> tuple[list[Verdict], str]:
    found, why = [], ""
    for line in process.stdout:
        record = json.loads(line)
        if "not_loaded" in record:
            why = record["not_loaded"]
            continue
        found.append(Verdict(**record))
        if verbose:
            print(verdicts.line(found[-1]), file=sys.stderr, flush=True)
    return found, why


def _progress(suite: Suite, found: list[Verdict], why: str) -> str:
    numbers = verdicts.counts(found)
    words = ", ".join(f"{numbers[column]} {column}" for column in verdicts.OUTCOMES)
    return f"{suite.name}: {'not loaded: ' + why if why else words}"


if __name__ == "__main__":
    sys.exit(main())
