"""A run as one HTML file that can be sent to others: see `timeline.traces.page`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ....timeline.formatting import bytes_text, seconds_text
from ....timeline.traces.page import page, page_data
from ..report import RunReport
from .recent import RecentTimeline
from .tried import price_of

STYLE = """<style>
table.run { border-collapse: collapse; margin: 8px 0 16px; display: block; overflow-x: auto; }
table.run th, table.run td { text-align: right; padding: 2px 14px 2px 0; white-space: nowrap; }
table.run th:first-child, table.run td:first-child { text-align: left; }
table.run th { font-weight: 600; } h2 { font-size: 1.1em; margin: 20px 0 4px; }
.advice { border-left: 4px solid #d55e00; padding: 2px 0 2px 12px; }
</style>"""
PART = "The timeline holds the last {kept} of {all} spans."
PRICE = "{gpus} ${usd} an hour on demand ({offer}; {date}, {source})."
NO_SPANS = "Nothing ran on a GPU, so there is no timeline."


def page_of(report: RunReport) -> str:
    """The page of a run that was to be shared."""
    timeline = report.timeline
    above, below = "\n".join(_above(report)), "\n".join(_below(report))
    title = " ".join([report.program, *report.arguments])
    note = f"{report.ranks} ranks · " * (report.ranks > 1) + f"simulated on {report.machine}"
    if not isinstance(timeline, RecentTimeline) or not timeline.spans:
        return page.without_timeline(title=title, note=note, text=NO_SPANS, below=below)
    if timeline.added > len(timeline.spans):
        kept = {"kept": f"{len(timeline.spans):,}", "all": f"{timeline.added:,}"}
        above += f"\n<p>{PART.format(**kept)}</p>"
    packed = page_data.packed(timeline.clock, timeline.spans, timeline.memory)
    return page.page(packed, title=title, note=note, above=STYLE + above, below=below)


def _above(report: RunReport) -> Iterable[str]:
    """What is to be read first: how long it took, and what would help."""
    line = f"{report.took} of simulated time"
    if report.ms_per_step is not None:
        line += f", {report.steps} steps of {report.ms_per_step:.3f} ms"
    yield _paragraph(f"{line}. {_price(report)}".strip())
    if report.error is not None:
        yield f"<pre>{html.escape(report.error)}</pre>"
    advised = report.advised if report.blocks else report.no_advice
    if advised:
        yield f'<p class="advice">{html.escape(advised)}</p>'


def _price(report: RunReport) -> str:
    """What its GPUs cost an hour, where a price is known; with whose it is, and since when."""
    price = price_of(report)
    if price is None:
        return ""
    words = {
        "gpus": "One GPU costs" if report.gpus == 1 else f"{report.gpus} GPUs cost",
        "usd": f"{report.gpus * price.usd_per_gpu_h:.2f}",
        "source": price.source.replace("https://", ""),  # to be read: the page leads nowhere
    }
    return PRICE.format(**words, offer=price.offer, date=price.date)


def _below(report: RunReport) -> Iterable[str]:
    shares = report.simulated_s or 1.0
    rows = [
        (
            device.device,
            f"{device.busy_s / shares:.1%}",
            f"{device.communicating_s / shares:.1%}",
            f"{device.exposed_communication_s / shares:.1%}",
            f"{device.waiting_for_host_s / shares:.1%}",
            f"{device.waiting_for_others_s / shares:.1%}",
            f"{report.peak_of(device)} of {bytes_text(device.memory_bytes)}".lstrip(),
        )
        for device in report.devices
        if device.was_used
    ]
    head = (
        *("GPU", "computes", "communicates", "only communicates", "waits for the host"),
        *("waits for others", "peak memory"),
    )
    yield from _section("GPUs", head, rows)
    waits = [
        (sync.place, sync.call, str(sync.count), seconds_text(sync.seconds))
        for sync in report.syncs
    ]
    of_waits = ("line", "call", "times", "in all")
    yield from _section("Calls that made a host wait for a device", of_waits, waits)
    yield from _section(
        "Hazards", ("uses of memory that nothing orders",), zip(report.hazards or ())
    )


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """A table with a title; nothing where it has no row."""
    lines = ["<tr>" + "".join(map("<td>{}</td>".format, map(html.escape, row))) for row in rows]
    if lines:
        yield f"<h2>{html.escape(title)}</h2>"
        names = "".join(map("<th>{}</th>".format, map(html.escape, head)))
        yield "\n".join(['<table class="run">', f"<tr>{names}", *lines, "</table>"])


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
