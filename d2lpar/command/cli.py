"""The command `d2lpar COMMAND`: doctor, calibrate, machines, and those of other modules."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from .. import __version__
from ..timeline import printing, whole_file
from ..timeline.inputs import Seconds, option
from ..timeline.printing import say
from ..timeline.whole_file import NOT_WRITTEN

Command = Callable[[list[str]], int | None]  # takes what follows its name; None counts as 0

USER_ERROR, INTERRUPTED = 2, 130
NOWHERE = "d2lpar: {folder} has been removed, or made anew: call `cd` with a folder that is there"
STREAMS = ("stdin", "stdout", "stderr")  # by their numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status: 2, and a line on stderr, for a user's mistake.

    130, and a line, where it is interrupted; 74 if all went well, but what it printed is lost, as
    on a full disk (a pipe whose reader had enough is no loss).
    """
    _open_streams()
    printing.lost.clear()
    try:
        status = _run(arguments)
    except SystemExit as end:  # argparse's way to end
        end.code = _flushed(end.code if isinstance(end.code, int) else 0)
        raise
    return _flushed(status)


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        "d2lpar",
        description="Parallel deep learning on as many GPUs as you like.",
        epilog="commands:\n" + "\n".join(f"  {n:<10} {what}" for n, (what, _) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"d2lpar {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    options = parser.parse_args(arguments)
    if not _is_somewhere():
        say(NOWHERE.format(folder=os.environ.get("PWD") or "this folder"), stream=sys.stderr)
        return USER_ERROR
    run = COMMANDS[options.command][1]
    if isinstance(run, str):
        run = importlib.import_module(run).main
    try:
        return run(options.rest) or 0
    except KeyboardInterrupt:
        say("d2lpar: interrupted", stream=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        say(f"d2lpar: {error}", stream=sys.stderr)
        return USER_ERROR


def _is_somewhere() -> bool:
    """Whether the current folder is still there: libraries end a process that is nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _open_streams() -> None:
    """Streams that the shell has closed lead nowhere: else the next file that is opened would get
    their numbers, and what C code prints."""
    for number, name in enumerate(STREAMS):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _flushed(status: int) -> int:
    """The exit status when all that was printed has gone out, or cannot."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python flushes again
            printing.lost[:] = [error]
    for why in printing.lost:
        if not isinstance(why, BrokenPipeError):
            say(f"d2lpar: what was printed is lost: {why.strerror}", stream=sys.stderr)
            status = status or NOT_WRITTEN
    return status


def entry() -> NoReturn:
    """The command itself."""
    sys.exit(main())


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(f"d2lpar {command}", description=COMMANDS[command][0])


def _doctor(arguments: list[str]) -> None:
    _parser("doctor").parse_args(arguments)
    from .diagnosis import doctor

    say(doctor())


def _calibrate(arguments: list[str]) -> int:
    from ..machines.measuring import calibrating, calibration

    parser = _parser("calibrate")
    parser.add_argument(
        "--seconds", type=option(Seconds), default=calibrating.BUDGET_S, help="how long to measure"
    )
    parser.add_argument("--device", help="cpu or cuda:0; default: the CPU and the first GPU")
    parser.add_argument("--output", metavar="FILE", help="default: where 'this machine' is found")
    options = parser.parse_args(arguments)
    if options.output is None:
        options.output = calibration.default_path()
        options.output.parent.mkdir(parents=True, exist_ok=True)
    with whole_file.tried({"--output": options.output}) as files:
        found = calibrating.calibrate(budget_s=options.seconds, device=options.device)
        say(found)
        problem = files["--output"].write_or_rescue(found.json)
    if problem is not None:
        say(f"d2lpar: {problem}", stream=sys.stderr)
        return NOT_WRITTEN
    say(f"\nsaved as {options.output}")
    return 0


def _machines(arguments: list[str]) -> None:
    from .. import machines
    from ..machines import lookup
    from ..machines.measuring import report

    parser = _parser("machines")
    parser.add_argument("name", nargs="?", help="a machine or a file: show it with its sources")
    name = parser.parse_args(arguments).name
    if name is not None:
        say("\n".join(report.machine_lines(machines.machine(name))))
        return
    say("\n".join(report.catalogue_lines(machines.CATALOGUE.values())))
    say(f"\nFewer accelerators: 1x-k80. Clusters: {lookup.EXAMPLE_CLUSTER}; networks are")
    say(textwrap.fill(f"{', '.join(machines.NETWORKS)}.", 78, break_on_hyphens=False))


# What a command does, and its function or a module whose `main(arguments)` it is.
COMMANDS: dict[str, tuple[str, Command | str]] = {
    "course": (
        "lessons as a class works on them: update, reset, progress, rehearse, assignment, grade",
        "d2lpar.command.course.command",
    ),
    "bug": ("famous bugs of multi-GPU programs, run on virtual GPUs", "d2lpar.command.museum"),
    "run": ("run a program for CUDA, unchanged, on virtual GPUs", "d2lpar.command.run"),
    "plan": (
        "does a model fit, how long does it take, what does it cost: from its config.json",
        "d2lpar.parallelism.model_plan.command",
    ),
    "doctor": ("what this machine has, and which lessons it will measure or simulate", _doctor),
    "calibrate": ("measure this machine, print a report and save it", _calibrate),
    "machines": ("the machines that can be simulated; with a name, its figures", _machines),
    "validate": ("compare simulated times with published ones", "d2lpar.validation"),
}
