"""What fails on torch's own devices, too, says nothing about virtual GPUs.

Tests of an older checkout expect what torch was then. Where such a test runs without any GPU (most
of those about ranks do, on gloo), it is run so as well, in real processes. If it ends there in the
same words, then the installed torch is not what the test expects, and not the virtual GPU.
"""

from __future__ import annotations

import re
import unittest
from collections.abc import Sequence
from dataclasses import replace

from torch_judge.older_names import OLDER_BASE
from torch_judge.verdicts import FAILED, Verdict

REASON = "fails in the same words without virtual GPUs, in real processes on gloo"
_DEVICE = re.compile(r"\b(cuda|cpu)(:\d+)?\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def use_forks() -> None:
    """Let torch's test bases fork their processes, which then know what the file has imported."""
    import torch
    from torch.testing._internal import common_distributed as bases

    process = torch.multiprocessing.get_context("fork").Process
    bases.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(process)
    if not hasattr(bases, OLDER_BASE):
        setattr(bases, OLDER_BASE, _Skipped)


class _Skipped(unittest.TestCase):
    """The base of tests for GPUs only."""

    def setUp(self) -> None:
        self.skipTest("needs GPUs")


def marked(found: Sequence[Verdict], plain: Sequence[Verdict]) -> list[Verdict]:
    """`found`, where what has failed alike in `plain` does not apply."""
    elsewhere = {verdict.test: verdict for verdict in plain if verdict.outcome == FAILED}
    return [
        replace(verdict, not_applicable=REASON)
        if verdict.column == FAILED and _alike(verdict, elsewhere.get(verdict.test))
        else verdict
        for verdict in found
    ]


def _alike(one: Verdict, other: Verdict | None) -> bool:
    """Whether two failures have the same words, but for the devices and numbers in them."""
    return other is not None and _words(one.why) == _words(other.why)


def _words(text: str) -> str:
    return _NUMBER.sub("#", _DEVICE.sub("device", text))
