"""The command `d2lpar run [OPTIONS] SCRIPT ARGS…`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from ...timeline import whole_file
from ...timeline.inputs import Positive, option, whole
from ...timeline.printing import say
from ...timeline.traces import trace
from ..bounds import MOST_RANKS
from ..device_naming import MOST_DEVICES
from . import limits
from .advice.changes import change
from .launch_plan import Asked, LaunchPlan, described, plan
from .limits import Limits
from .report import RunReport

if TYPE_CHECKING:
    from .runs import RunOptions

EPILOG = """\
SCRIPT ARGS…              one process that sees all GPUs, as `python SCRIPT`
--nproc-per-node 4 SCRIPT  four ranks with torchrun's variables
torchrun --nproc-per-node 4 SCRIPT, -m torch.distributed.launch … SCRIPT: as these start ranks
-m MODULE                  a module instead of a file

exit status: the program's own (1 after an error); 2 for a wrong command line; if a limit was
broken, 16 and, added to it, 1 for --max-ms-per-step, 2 for --max-memory, 4 for --no-hazards and
8 for --no-syncs; 74 if all went well, but for a file that could not be written.
"""
TIMELINE = """write a trace: run.json for https://ui.perfetto.dev; a name without .json is a
folder for Holistic Trace Analysis, with a file a rank"""


def main(arguments: list[str], uncertainty_of: Callable[[RunReport], float]) -> int:
    """Run a program; returns the exit status. Its report says that it may be off by
    `uncertainty_of(report)`. Raises ValueError and OSError for wrong options."""
    options = _parser().parse_args(arguments)
    words = options.program[options.program[:1] == ["--"] :]  # which ends our own options
    if options.m:
        words.insert(0, "-m")
    launch = plan(Asked(options.gpus, options.nnodes, options.nproc_per_node, words))
    launch.require_program()
    wanted = Limits(
        options.max_ms_per_step,
        options.max_memory,
        options.no_hazards,
        options.no_syncs,
    )
    outputs = {
        "--report": options.report,
        "--share": options.share,
        "--timeline": options.timeline,
    }
    whole_file.require_apart(outputs, dict(_read_by(launch)), {"--timeline": trace.is_part})
    with whole_file.tried({"--report": options.report, "--share": options.share}) as files:
        report = _run(launch, options)
        if _is_read(options):
            report.uncertainty = uncertainty_of(report)
        if not report.status:
            report.status, report.broken_limits = wanted.broken_by(report)
        if report.unwritten:
            report.status = report.status or whole_file.NOT_WRITTEN
        for name, file in files.items():
            text = report.json if name == "--report" else _page_of(report)
            if (problem := file.write_or_rescue(text)) is not None:
                report.unwritten.append(problem)
                report.status = report.status or whole_file.NOT_WRITTEN
    _tell(report, launch, options)
    return report.status


def _page_of(report: RunReport) -> str:
    from .advice import shared  # which knows machines, and these torch

    return shared.page_of(report)


def _read_by(launch: LaunchPlan) -> Iterator[tuple[str, str]]:
    """The files that the program may read, as its command line names them, and what they are."""
    if not launch.is_module:
        yield launch.target, "the program"
    for word in launch.arguments:
        for text in (word, word.partition("=")[2]):
            if text and not os.path.isdir(text):
                yield text, "a file that the program is told"


def _run(launch: LaunchPlan, options: argparse.Namespace) -> RunReport:
    """Import what needs torch: what is mistaken in the words is said before."""
    from .advice import tried
    from .runner import run

    tried.check(options.changes)
    wanted = _run_options(options)
    report = run(launch, wanted)
    report.tried += tried.tried(report, run, launch, wanted, options.changes)
    return report


def _run_options(options: argparse.Namespace) -> RunOptions:
    from .runs import RunOptions

    return RunOptions(
        options.machine,
        options.timeline,
        options.share is not None,
        options.shapes_only,
        options.hazards or options.no_hazards,
        options.quiet,
        _is_read(options),
        options.traceback,
    )


def _is_read(options: argparse.Namespace) -> bool:
    """Whether anybody reads the report: a run that is quiet and leaves no file needs none."""
    return not options.quiet or options.report is not None or options.share is not None


def _tell(report: RunReport, launch: LaunchPlan, options: argparse.Namespace) -> None:
    """The summary on stdout; what went wrong on stderr."""
    if not options.quiet:
        say("\n" + " · ".join(described(launch)))
        say(report)
    if report.tried:
        from .advice import tried

        say(f"\n{tried.text(report)}")
    wrong = [*report.broken_limits, *([] if report.error is None else [report.error])]
    for text in [*wrong, *report.unwritten]:
        say(f"d2lpar: {text}", stream=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "d2lpar run",
        description="Run a program for CUDA, unchanged, on virtual GPUs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    gpus = "how many GPUs there are, on all machines; 0 for ranks over gloo"
    add("--gpus", type=option(Annotated[int, whole(0, MOST_DEVICES)]), metavar="N", help=gpus)
    add("--machine", metavar="NAME", help="what is simulated: see `d2lpar machines`")
    add("--nproc-per-node", "--nproc_per_node", metavar="N", help="ranks on each machine, or 'gpu'")
    ranks = Annotated[int, whole(1, MOST_RANKS)]
    add("--nnodes", type=option(ranks), metavar="N", help="machines")
    add("--timeline", metavar="PATH", help=TIMELINE)
    shared_file = "write the run as one HTML file: its timeline, what it waits for, what would help"
    add("--share", metavar="FILE", help=shared_file)
    again = "run it again with a change, and compare: compile (its modules), or machine=NAME"
    how: dict[str, Any] = {"action": "append", "type": change, "default": [], "metavar": "CHANGE"}
    add("--try", dest="changes", help=again, **how)
    add("--report", metavar="FILE", help="write what the run took, as JSON")
    add("--shapes-only", action="store_true", help="compute no values: full size in seconds")
    add("--shape-only", action="store_true", dest="shapes_only", help=argparse.SUPPRESS)
    add("--hazards", action="store_true", help="list uses of memory that nothing orders")
    step = "limit: simulated time of a step"
    add("--max-ms-per-step", type=option(Positive), metavar="MS", help=step)
    memory = "limit: tensors on each GPU, such as 16GB"
    add("--max-memory", type=limits.size, metavar="SIZE", help=memory)
    add("--no-hazards", action="store_true", help="limit: no hazards")
    add("--no-syncs", action="store_true", help="limit: no call makes a host wait for a device")
    add("--quiet", action="store_true", help="no progress, no summary")
    add("--traceback", action="store_true", help="if the program fails, print the whole traceback")
    add("-m", action="store_true", help="what follows is a module, not a file")
    add("program", nargs=argparse.REMAINDER, metavar="SCRIPT …", help="a file, with its arguments")
    return parser
