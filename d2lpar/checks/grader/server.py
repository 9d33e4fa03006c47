"""The judge's process: it starts answers' processes, and compares what comes from them.

A line of JSON on stdin is an answer, a line on stdout what came of it. No answer runs here, and
answers come from a starter that was forked before any judge was loaded. The process ends with its
stdin.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import TextIO

from ...timeline.printing import write
from ...trials.confinement import Limits
from ...trials.starter import Starter
from . import remote


def main(starter: Starter) -> None:
    """Grade what comes until there is no more."""
    reports = _own_stdout()
    remote.start_with(starter)
    write(json.dumps({"ready": True}), stream=reports, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        report = _report(request) | {"number": request["number"]}
        write(json.dumps(report), stream=reports, flush=True)


def _report(request: dict) -> dict:
    limits = Limits(request["limit_s"], request["limit_bytes"])
    if not request["judge"]:
        return {"lacks": remote.lacks(limits)}
    judge = import_module(request["judge"])
    return judge.grade(request["name"], request["source"], limits, **request["more"])


def _own_stdout() -> TextIO:
    """A stream of our own to who asks: what libraries print, in C, too, is no report."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return reports
