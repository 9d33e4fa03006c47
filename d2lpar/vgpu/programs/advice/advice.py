"""What a report says at its end: what the GPUs wait for, and what would help, simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....machines import Machine
from ....timeline import Span
from ..report import RunReport
from ..watched.kernel_prices import KernelPrice, KernelPrices
from .elsewhere import cheaper
from .recent import RecentTimeline, blocks
from .replay import Change, Replay
from .what_ifs import (
    GRAPHS,
    LINKS,
    PINNED,
    TWICE,
    WhatIf,
    compiled,
    gains,
    is_of_copies,
    without_call,
    without_numbers,
)

MOST_SHOWN = 8  # GPUs with a row of blocks


def advise(
    report: RunReport,
    recent: RecentTimeline,
    window_s: tuple[float, float] | None,
    machine: Machine,
    found: Sequence[KernelPrice],
) -> None:
    """Fill in a report's `advice` and rows of blocks: of the second half of the steps, as far as it
    was kept, or of what was kept of a run without steps. A run that has failed gets none."""
    spans = list(recent.spans)
    if report.status or not any(span.device != "host" for span in spans):
        return
    begin_s = min(span.start_s for span in spans)
    shown_s = (begin_s, max(span.end_s for span in spans))
    if window_s is not None:
        shown_s = window_s = max(begin_s, window_s[0]), window_s[1]
    names = [device.device for device in report.devices if device.was_used]
    for name in names[:MOST_SHOWN]:
        computing = [s for s in spans if s.device == name and s.kind == "compute"]
        report.blocks[name] = blocks(computing, shown_s)
    report.blocks_s = shown_s[1] - shown_s[0]
    prices = KernelPrices(found, machine.accelerators[0])
    compiles = [] if _is_compiled(spans) else [compiled(spans, prices, machine.host)]
    replayed = _replayed(Replay(spans), window_s)
    report.advice = gains(replayed, [*_what_ifs(spans, report), *compiles])
    if window_s is not None and machine.nodes == 1:
        report.advice += cheaper(report, machine, spans, prices, replayed)


def _replayed(replay: Replay, window_s: tuple[float, float] | None) -> Callable[[Change], float]:
    """What says how many times as fast a recording is with a change, in a window of its time."""
    seconds = replay.seconds(window_s=window_s)

    def times(change: Change) -> float:
        changed_s = replay.seconds(change, window_s=window_s)
        return seconds / changed_s if changed_s else 1.0

    return times


def _is_compiled(spans: Sequence[Span]) -> bool:
    return any(span.kind == "compute" and span.name.startswith("fused_") for span in spans)


def _what_ifs(spans: Sequence[Span], report: RunReport) -> list[WhatIf]:
    """Those that may be of use. What has no steps has no batch that is known of, a larger one must
    fit, and no capture has the work of several GPUs of one process."""
    wanted = [PINNED]
    if report.ms_per_step is not None and all(d.holds_twice_the_batch for d in report.devices):
        wanted.insert(0, TWICE)
    if sum(device.was_used for device in report.devices) <= report.ranks:
        wanted.insert(0, GRAPHS)
    if any(span.kind == "collective" for span in spans):
        wanted.append(LINKS)
    waits = {span.name for span in spans if span.kind == "wait"}
    for sync in sorted(report.syncs, key=lambda sync: -sync.seconds):
        names = {name for name in waits if without_numbers(name) == without_numbers(sync.call)}
        if names and not is_of_copies(sync.call):
            return [*wanted, without_call(sync.call, sync.place, names)]
    return wanted
