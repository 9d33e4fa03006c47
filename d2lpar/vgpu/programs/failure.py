"""Why a program failed, in one message: the rank, the line of the program's, and the error."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from types import TracebackType

import torch

from ..cuda.own_kernels import remedy_for
from ..races.user_code import is_user_file
from .launch_plan import LaunchPlan

MOST_LINES = 40  # of an error and of what has caused it
_OF_DRIVER = frozenset({"pynvml", "amdsmi"})  # packages that ask the driver, not torch
_USAGE = 2  # argparse's exit status for arguments that it does not take
_NO_RANK_OF_ITS_OWN = re.compile(r"index must not be negative|cuda:-1|Duplicate GPU|ordinal")
_ATTENTION = "scaled_dot_product_attention"
_MIXED_WITH_DTENSORS = "got mixed torch.Tensor and DTensor"
_OF_TORCHRUN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})


def told(error: BaseException, rank: int, ranks: int, *, in_full: bool = False) -> str:
    """The message: who failed where, the line, the error; `in_full` with the whole traceback."""
    outer, error = error, root_of(error)
    place = _place(error.__traceback__) or _place(outer.__traceback__)
    who = "the program" if ranks == 1 else f"rank {rank} of {ranks}"
    lines = [f"{who} failed{place}"]
    if in_full:
        lines += "".join(traceback.format_exception(error)).splitlines()
    else:
        lines += _text(error)
        cause = error.__cause__
        while cause is not None and len(lines) < MOST_LINES:
            lines += ["because of", *_text(cause)]
            cause = cause.__cause__
    return "\n".join([*lines, *_remedies(error, ranks)])


def _remedies(error: BaseException, ranks: int) -> list[str]:
    """What to do about errors that say nothing of it themselves."""
    found = []
    if ranks == 1 and _lacks_torchrun(error):
        found.append(
            "torchrun sets this variable: let d2lpar start the ranks as it does, with "
            "`d2lpar run --nproc-per-node 4 …`"
        )
    if type(error).__module__.split(".")[0] in _OF_DRIVER:
        found.append(
            "virtual GPUs have no driver for it to ask: torch.cuda.mem_get_info(), "
            "memory_allocated() and get_device_properties() know them"
        )
    if _MIXED_WITH_DTENSORS in said(error) and _was_in(_ATTENTION, error):
        found.append(
            f"{_ATTENTION} computes DTensors by fused kernels only, and this GPU has none for "
            "these inputs (before A100, none for bfloat16): try `d2lpar run --machine "
            "8x-a100-nvswitch …`"
        )
    return [*found, *filter(None, [remedy_for(said(error))])]


def launch_remedy(error: BaseException, launch: LaunchPlan) -> list[str]:
    """How to start a script that asks for `--local_rank`, where that may be why it has failed."""
    if not (launch.lacks_local_rank and _is_of_local_rank(error)):
        return []
    ranks = f"--nproc-per-node {launch.per_node or max(2, launch.gpus)}"
    return [
        "the script takes --local_rank, by which torch.distributed.launch tells a rank its number, "
        "and torchrun does not: let d2lpar start the ranks as that does, with `d2lpar run -m "
        f"torch.distributed.launch {ranks} {launch.words}`"
    ]


def values_remedy(error: BaseException, unknown_reads: int) -> list[str]:
    """What to try where a program has read values that nobody has computed, and has then failed."""
    if not unknown_reads or isinstance(root_of(error), torch.OutOfMemoryError):
        return []
    return [
        "--shapes-only computes no values: what the program has read of a GPU's tensors was NaN, "
        "or 0 of integers. If it has failed by that, run it with values"
    ]


def _is_of_local_rank(error: BaseException) -> bool:
    """Whether it may come from an option that is missing, or a default that all ranks share."""
    if isinstance(error, SystemExit):
        return error.code == _USAGE
    return _NO_RANK_OF_ITS_OWN.search(said(error)) is not None


def _lacks_torchrun(error: BaseException) -> bool:
    """Whether the program has looked for a variable that only ranks of torchrun have."""
    return isinstance(error, KeyError) and bool(_OF_TORCHRUN.intersection(error.args))


def _was_in(name: str, error: BaseException) -> bool:
    """Whether a line of Python that the error went through names it."""
    return any(name in (frame.line or "") for frame in traceback.extract_tb(error.__traceback__))


def _text(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception_only(error)).rstrip().splitlines()


def root_of(error: BaseException) -> BaseException:
    """The error of a process that the program has started, if that is what it failed by."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.multiprocessing import ProcessRaisedException

    if isinstance(error, ProcessRaisedException | ChildFailedError) and error.__cause__ is not None:
        return error.__cause__
    return error


def said(error: BaseException) -> str:
    """What an error says, whose own code may fail at that."""
    try:
        return str(error)
    except Exception:
        return "".join(_text(error))


def _relative(file: str) -> str:
    try:
        return os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):  # the working folder is gone, or on another drive
        return file


def place(error: BaseException) -> str:
    """Where the program's own code was when an error came, in words."""
    return _place(error.__traceback__)


def _place(trace: TracebackType | None) -> str:
    """Where the program's own code was, the innermost line, with the line itself."""
    found = [frame for frame in traceback.extract_tb(trace) if is_user_file(frame.filename)]
    if not found:
        return ""
    last = found[-1]
    source = linecache.getline(last.filename, last.lineno or 0).strip()
    name = _relative(last.filename)
    within = "" if last.name == "<module>" else f", in {last.name}"
    return f" at {name}:{last.lineno}{within}:" + (f"\n    {source}" if source else "")
