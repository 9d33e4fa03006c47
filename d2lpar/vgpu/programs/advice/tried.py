"""`d2lpar run --try`: the same program, run again with one change, beside the run itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .... import machines
from ....machines import prices
from ....machines.prices import Price
from ....timeline.formatting import bytes_text, seconds_text, table
from ....timeline.printing import say
from ..launch_plan import LaunchPlan
from ..report import RunReport, Trial
from ..runs import RunOptions
from .changes import Change

AGAIN = "\nd2lpar: the program runs again, --try {change}"
HOUR_S = 3600.0
Run = Callable[[LaunchPlan, RunOptions], RunReport]


def check(changes: Sequence[Change]) -> None:
    """Raise ValueError for a machine that there is not."""
    for change in changes:
        machines.machine(change.machine)


def tried(
    report: RunReport, run: Run, launch: LaunchPlan, options: RunOptions, changes: Sequence[Change]
) -> Iterator[Trial]:
    """The run of a report, and one for each change; each prints what the program prints, behind a
    line that says which it is. Nothing if there is no change, or if the run has failed."""
    if not changes or report.status:
        return
    yield _trial("", report, report)
    for change in changes:
        say(AGAIN.format(change=change), stream=sys.stderr)
        yield _trial(
            str(change), run(replace(launch, logs=None), _changed(options, change)), report
        )


def _changed(options: RunOptions, change: Change) -> RunOptions:
    """The program alone is of interest: nothing is written or looked for."""
    return RunOptions(
        change.machine or options.machine,
        shapes_only=options.shapes_only,
        quiet=True,
        advises=False,
        compiled=change.machine is None,
    )


def _trial(change: str, report: RunReport, first: RunReport) -> Trial:
    price = price_of(report)
    usd_per_s = None if price is None else report.gpus * price.usd_per_gpu_h / HOUR_S
    return Trial(
        change,
        report.machine,
        report.status,
        report.error,
        report.of_one_s,
        first.of_one_s / report.of_one_s if report.of_one_s else 1.0,
        max((device.peak_memory_bytes for device in report.devices), default=0),
        None if usd_per_s is None else 1000 * usd_per_s * report.of_one_s,
    )


def price_of(report: RunReport) -> Price | None:
    """What a GPU of its machine costs an hour; None where no price is known."""
    try:
        return prices.price_of(machines.machine(report.machine))
    except ValueError:  # a machine of the program's own
        return None


def text(report: RunReport) -> str:
    """What was tried, a row each, to be read."""
    what = "run" if report.ms_per_step is None else "step"
    rows = [("the program", f"a {what}", "times as fast", "peak memory", f"1,000 {what}s")]
    for each in report.tried:
        name = f"--try {each.change}" if each.change else "as it is"
        if each.error is not None:
            rows.append((name, "failed", "", "", ""))
            continue
        dollars = "" if each.usd_per_1000 is None else f"${each.usd_per_1000:.4g}"
        figures = (seconds_text(each.seconds), f"{each.times:.2f}", bytes_text(each.peak_bytes))
        rows.append((name, *figures, dollars))
    failed = [f"--try {each.change}: {each.error}" for each in report.tried if each.error]
    return "\n".join([*table(rows), *failed])
