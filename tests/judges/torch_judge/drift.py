"""What fails on torch's own devices, too, says nothing about virtual GPUs.

Tests of an older checkout expect what torch was then. Where such a test runs without any GPU (most
of those about ranks do, on gloo; see `processor_words`), it is run so as well, in real processes or
threads. If it ends there in the same words and at the same statement, then the installed torch is
not what the test expects, and not the virtual GPU. An assertion about what processors do not have
proves nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch_judge.older_names import OLDER_BASE
from torch_judge.verdicts import FAILED, Verdict

REASON = "fails in the same words without virtual GPUs, in real processes on gloo"
# What differs without a reason: devices, and where objects lie.
_DEVICE = re.compile(r"\b(cuda|cpu)(:\d+)?\b|0x[0-9a-f]+", re.IGNORECASE)
_PRINTED_DEVICE = re.compile(r", device='cuda(:\d+)?'")  # which a tensor of the host leaves out
# Assertions that ask for what only GPUs have: there processors fail for a reason of their own.
_OF_GPUS = re.compile(
    r"is_(cuda|cpu|pinned)|pin_memory|\.device\b|device_type|streams?\b|elapsed_time|memory|allocated"
    r"|torch\.cuda|nccl|autocast|scaler",
    re.IGNORECASE,
)


def use_forks() -> None:
    """Let torch's test bases fork their processes, which then know what the file has imported."""
    import torch
    from torch.testing._internal import common_distributed as bases

    process = torch.multiprocessing.get_context("fork").Process
    bases.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(process)
    if not hasattr(bases, OLDER_BASE):
        from torch_judge.ranks import TestOnRanks

        processes = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
        in_processes = {"start": staticmethod(lambda life, count: processes(life, nprocs=count))}
        setattr(bases, OLDER_BASE, type(TestOnRanks.__name__, (TestOnRanks,), in_processes))


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
    """Whether two failures have the same words, but for devices, at the same statement, and that
    asserts nothing about GPUs."""
    if other is None or one.place != other.place:
        return False
    if "assert" in one.place and _OF_GPUS.search(one.place):
        return False
    return _words(one.why) == _words(other.why)


def _words(text: str) -> str:
    return _DEVICE.sub("device", _PRINTED_DEVICE.sub("", text))


def statement_at(file: str, line: int) -> str:
    """The statement of a file that has this line, with its number; of one that holds others, the
    line alone."""
    source = Path(file).read_text(encoding="utf-8")
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)
    simple = inner is not None and not hasattr(inner, "body")
    text = ast.get_source_segment(source, inner) if simple else source.splitlines()[line - 1]
    return f"line {inner.lineno if simple else line}: {' '.join((text or '').split())}"
