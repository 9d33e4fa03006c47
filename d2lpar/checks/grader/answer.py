"""One answer, run and judged in the process that this runs in: see `server`."""

from __future__ import annotations

import contextlib
import io
import linecache
import math
import random
import traceback
import types
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import d2lpar

from ... import machines
from ...vgpu.api.simulation import record, simulate
from ..verdict import WRONG, Wrong, advice
from . import source, tampering

MOST_PRINTED, MOST_SAID = 2000, 600  # characters
TEXT_RAISED = "your function raised {name}: {error}{where}"
TEXT_WHERE = " in line {number} (`{line}`)"
TEXT_NAME = ". A challenge sees only the cell in which it stands, and torch, nn, F, dist, math, par"
TEXT_MISSING = "the cell has no function {name}"
TEXT_MEMORY = "your function asked for more of this computer's memory than it may have"


def judged(
    name: str,
    text: str,
    judge: Callable[[Callable], dict],
    *,
    refuses: Mapping[str, str] | None = None,
    modules: tuple[str, ...] = source.MODULES,
) -> dict:
    """What `judge` says of the function `name` in `text`, as plain data with what was printed.

    `refuses` are attributes that the answer must not use, each with the reason; `modules` those
    that it may import. The status of an answer that does not count is "refused".
    """
    printed = _Printed()
    try:
        answer = _answer(name, text, refuses or {}, modules)
        _warm_up()
        before = tampering.state()
        torch.manual_seed(0)
        random.seed(0)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            report = judge(answer)
        tampering.check(before)
    except source.Refused as refused:
        report = {"status": source.REFUSED, "text": str(refused)}
    except Wrong as wrong:
        report = {"status": WRONG, "text": str(wrong)}
    except MemoryError:
        report = {"status": WRONG, "text": TEXT_MEMORY}
    except (Exception, SystemExit) as error:
        report = {"status": WRONG, "text": _blame(error)}
    return report | {"text": _shortened(report["text"]), "printed": printed.getvalue()}


class _Printed(io.StringIO):
    """The beginning of what is printed: no more is kept of an answer that prints for ever."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, MOST_PRINTED - self.tell())])
        return len(text)


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SAID else text[: MOST_SAID - 1] + "…"


def _answer(name: str, text: str, refuses: Mapping[str, str], modules: tuple[str, ...]) -> Callable:
    """The student's function, in a module of its own."""
    tree = source.graded_part(text, name)
    source.check(tree, refuses, modules)
    linecache.cache[source.FILENAME] = (
        len(text), None, text.splitlines(keepends=True), source.FILENAME,
    )  # fmt: skip
    module = types.ModuleType("answer")
    names = vars(module)
    names.update(torch=torch, nn=nn, F=F, dist=dist, math=math, par=d2lpar)
    for node in tree.body:
        part = type(tree)([node], [])
        code = compile(part, source.FILENAME, "exec")
        # A line of the cell that needs what other cells have made is none of the function's.
        with contextlib.suppress(NameError):
            exec(code, names)
    if not callable(names.get(name)):
        raise Wrong(TEXT_MISSING.format(name=name))
    return names[name]


def _warm_up() -> None:
    """Let the engine replace what it replaces of torch, before anybody looks."""
    with simulate(machines.DEFAULT, 1, with_values=True) as (gpu,), record():
        x = torch.rand(2, device=gpu, requires_grad=True)
        checkpoint(torch.sin, x, use_reentrant=False).sum().backward()


def _blame(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == source.FILENAME]
    where = TEXT_WHERE.format(number=own[-1].lineno, line=own[-1].line) if own else ""
    hint = TEXT_NAME if isinstance(error, NameError) else ""
    told = f"{error}".partition("\n")[0] + advice(error) if advice(error) else error
    return TEXT_RAISED.format(name=type(error).__name__, error=told, where=where) + hint
