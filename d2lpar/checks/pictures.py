"""Pictures of an answer's run, alone or beside par's, from the plain data of `trials.evidence`."""

from __future__ import annotations

from itertools import groupby
from typing import cast

from .. import plots
from ..plots import Picture
from ..timeline import MemorySample, Span, Timeline

MINE, PAR = "my run", "par"


def drawn(run: dict, title: str) -> Picture | None:
    """The picture of a run; None if there is nothing to draw."""
    return _drawn({"": run}, title) if run else None


def beside(mine: dict, par: dict | None, title: str) -> Picture | None:
    """The picture of a run beside that of par; None if there is nothing to draw."""
    alike = par if par and par.get("kind") == mine.get("kind") else None
    return _drawn({MINE: mine} | ({PAR: alike} if alike else {}), title)


def _drawn(runs: dict[str, dict], title: str) -> Picture | None:
    """Of runs of one kind, by whose they are; "" if there is only one."""
    kinds = {"gantt": _gantt, "schedule": _schedule, "memory": _memory, "bars": _bars, "toy": _toy}
    draw = kinds.get(_any(runs).get("kind", ""))
    return draw(runs, title) if draw else None


def _any(runs: dict[str, dict]) -> dict:
    return next(iter(runs.values()))


def _whose(who: str, name: str) -> str:
    return f"{who}, {name}" if who else name


def _gantt(runs: dict[str, dict], title: str) -> Picture | None:
    both = Timeline(_any(runs)["clock"])
    for who, run in runs.items():
        for device, stream, kind, start_us, end_us in run["spans"]:
            name = _whose(who, device)
            both.add(Span(name, stream, kind, "", start_us / 1e6, end_us / 1e6))
    return cast(Picture, plots.gantt(both, title=title)) if len(both) else None


def _schedule(runs: dict[str, dict], title: str) -> Picture:
    both = Timeline(_any(runs)["clock"])
    for who, run in runs.items():
        for device, name, start_us, end_us in run["spans"]:
            row = _whose(who, device)
            both.add(Span(row, 0, "compute", name, start_us / 1e6, end_us / 1e6))
    note = _any(runs).get("note", "")
    return cast(Picture, plots.schedule(both, title=f"{title}, {note}" if note else title))


def _memory(runs: dict[str, dict], title: str) -> Picture:
    summary = f"memory of {' and '.join(filter(None, runs)) or 'the run'}"
    ax = plots.axes(summary=summary, note=_any(runs)["clock"], size_px=(720, 320))
    for (who, run), style in zip(runs.items(), ("-", "--"), strict=False):
        held = [nbytes / 1e9 for nbytes in run["points"]]
        ax.plot(held, style, marker="", linewidth=2, drawstyle="steps-post", label=who)
    ax.axhline(_any(runs)["limit"] / 1e9, color=plots.INK, linewidth=1, linestyle=":", marker="")
    ax.set(xlabel="tensors made and freed, in the program's order", ylabel="memory (GB)")
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="x", integer=True)
    ax.set_title(title, loc="left", size=plots.FONT_PT)
    if all(runs):
        ax.legend(frameon=False, loc="lower center")
    return cast(Picture, ax.figure)


def _toy(runs: dict[str, dict], title: str) -> Picture | None:
    """What the ranks of the toy machine did, and under it what they held, and may hold."""
    run = _any(runs)
    rows = {rank: [*each] for rank, each in groupby(sorted(run["spans"]), lambda span: span[0])}
    alike = len(rows) > 1 and len({str([row[1:] for row in each]) for each in rows.values()}) == 1
    both = Timeline(run["clock"])
    for rank, each in rows.items() if not alike else [*rows.items()][:1]:
        who = "each rank" if alike else f"rank {rank}"
        for _, lane, verb, name, start_ms, end_ms in each:
            stream = "" if lane == "computes" else lane
            both.add(Span(who, stream, verb, name, start_ms / 1e3, end_ms / 1e3))
        both.memory.extend(
            MemorySample(who, ms / 1e3, round(1e9 * gb)) for ms, gb in run["memory"][rank]
        )
    if not len(both):
        return None
    drawn = plots.gantt(both, title=f"{title}, {run['note']}", width_px=720, memory=True)
    picture = cast(Picture, drawn)
    most = max(gb for points in run["memory"] for _, gb in points)
    picture.alt = (
        f"{picture.alt}; under it the memory, of which {most:g} GB are taken at most, and "
        f"{run['limit']:g} GB are there"
    )
    held = drawn.axes[-1]
    held.axhline(run["limit"], color=plots.INK, linewidth=1, linestyle=":")
    held.annotate(
        f"{run['limit']:g} GB", (1, run["limit"]), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", size=plots.FONT_PT - 3, color=plots.INK,
    )  # fmt: skip
    _, top = held.get_ylim()
    held.set_ylim(0, max(top, 1.5 * run["limit"]))
    return picture


def _bars(runs: dict[str, dict], title: str) -> Picture:
    rows = {
        f"{name}, {who}" if who else name: parts
        for who, run in runs.items()
        for name, parts in run["bars"].items()
    }
    names = sorted(rows, reverse=True)
    summary = f"parts of {' and '.join(filter(None, runs)) or 'the run'}"
    ax = plots.axes(summary=summary, size_px=(720, 150 + 44 * len(rows)))
    left = [0.0] * len(names)
    hatches = ("", "//", "xx", "..", "\\\\", "--", "++", "oo", "**")
    colors = (plots.BLUE, plots.GREEN, plots.ORANGE, plots.VERMILION, plots.PALE)
    parts = [p for p in next(iter(rows.values())) if any(row.get(p) for row in rows.values())]
    for i, part in enumerate(parts):
        widths = [rows[name].get(part, 0.0) for name in names]
        ax.barh(
            names, widths, left=left, color=colors[i % len(colors)], hatch=hatches[i % 9],
            edgecolor="white", label=part,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    if all(isinstance(value, int) for row in rows.values() for value in row.values()):
        ax.locator_params(axis="x", integer=True)
    ax.set(xlabel=_any(runs)["unit"])
    ax.set_title(title, loc="left", size=plots.FONT_PT)
    ax.figure.legend(frameon=False, ncols=3, loc="outside lower center")
    return cast(Picture, ax.figure)
