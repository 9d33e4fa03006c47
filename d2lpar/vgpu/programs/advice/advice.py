"""What a report says at its end: what the GPUs wait for, and what would help, simulated."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

from ....machines import Machine
from ....timeline import Span
from ....timeline.dependencies import TINY_S
from ..report import RunReport
from ..watched.kernel_prices import KernelPrice, KernelPrices
from .elsewhere import cheaper
from .recent import RecentTimeline, blocks
from .replay import Change, Replay
from .what_ifs import (
    GRAPHS,
    LINKS,
    OFFLOADED,
    PINNED,
    TWICE,
    WhatIf,
    compiled,
    gains,
    in_tf32,
    is_of_copies,
    without_call,
    without_numbers,
)

MOST_SHOWN = 8  # GPUs with a row of blocks
REPLAYED = 20_000  # spans: some steps, in seconds
NOT_KEPT = (
    "no advice: the last step is not wholly among the {kept:,} spans (work of hosts and GPUs) that "
    "are kept of a run; --try shows what a change gives"
)
Window = tuple[float, float]


def advise(
    report: RunReport,
    recent: RecentTimeline,
    ends_s: Sequence[float],
    machine: Machine,
    found: Sequence[KernelPrice],
) -> None:
    """Fill in a report's `advice` and rows of blocks: of those of the second half of the steps, by
    the ends of these, that were kept as a whole, or of what was kept of a run without steps. A run
    that has failed gets none."""
    spans = list(recent.spans)
    if report.status or not any(span.device != "host" for span in spans):
        return
    since_s = recent.whole_since_s
    kept_s = [end_s for end_s in ends_s if end_s > since_s]  # each ends a step, but for the first
    if ends_s and len(kept_s) < 2:
        report.no_advice = NOT_KEPT.format(kept=len(spans))
        return
    begin_s = max(recent.dropped_s, min(span.start_s for span in spans))
    _show(report, spans, kept_s or [begin_s, max(span.end_s for span in spans)])
    report.blocks_of = _in_words(len(ends_s), len(kept_s))
    spans, window_s = _latest(spans, kept_s)
    prices = KernelPrices(found, machine.accelerators[0])
    compiles = [] if _is_compiled(spans) else [compiled(spans, prices, machine.host)]
    replayed = _replayed(Replay(spans), window_s)
    tried = [*_what_ifs(spans, report), in_tf32(prices), *compiles]
    report.advice = gains(replayed, tried)
    if window_s is not None and machine.nodes == 1:
        report.advice += cheaper(report, machine, spans, window_s[0], prices, replayed)


def _show(report: RunReport, spans: Sequence[Span], times_s: Sequence[float]) -> None:
    """Fill in the rows of blocks, from the first to the last of these times."""
    shown_s = times_s[0], times_s[-1]
    names = [device.device for device in report.devices if device.was_used]
    for name in names[:MOST_SHOWN]:
        computing = [s for s in spans if s.device == name and s.kind == "compute"]
        report.blocks[name] = blocks(computing, shown_s)
    report.blocks_s = shown_s[1] - shown_s[0]


def _in_words(wanted: int, kept: int) -> str:
    """What the rows of blocks show, by how many ends of steps there are, and were kept."""
    if not wanted:
        return "the last of the run"
    if kept == wanted:
        return "the second half of the steps"
    return "the last step" if kept == 2 else f"the last {kept - 1} steps"


def _latest(spans: list[Span], ends_s: Sequence[float]) -> tuple[list[Span], Window | None]:
    """What is replayed, and when: as many of these steps, the latest ones, as have so many spans
    together that it takes seconds, but at least one. What came before goes with it, as far as there
    is room: a host that is ahead has a lead."""
    room = max(0, len(spans) - REPLAYED)
    if not ends_s:
        return spans[room:], None
    begins_s = ends_s[:-1]
    firsts = _firsts(spans, begins_s)
    chosen = min(bisect_left(firsts, room), len(firsts) - 1)
    return spans[min(firsts[chosen], room) :], (begins_s[chosen], ends_s[-1])


def _firsts(spans: Sequence[Span], times_s: Sequence[float]) -> list[int]:
    """Where that begins in a recording, for each of these times, which hosts and devices did since
    then: with the last that devices had done before, and with what has queued it all."""
    done_s: defaultdict[int, float] = defaultdict(float)  # by correlation
    for span in spans:
        if span.device != "host":
            done_s[span.correlation] = max(done_s[span.correlation], span.end_s)
    over_s = list(accumulate((max(s.end_s, done_s.get(s.correlation, 0.0)) for s in spans), max))
    in_order_s = sorted(span.end_s for span in spans if span.device != "host")
    before = (max(0, bisect_right(in_order_s, time_s + TINY_S) - 1) for time_s in times_s)
    return [bisect_left(over_s, in_order_s[number]) for number in before]


def _replayed(replay: Replay, window_s: Window | None) -> Callable[[Change], float]:
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
    wanted = [PINNED, OFFLOADED]
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
