"""Pictures of a run beside par's, from the plain data of `evidence`."""

from __future__ import annotations

from typing import cast

from ... import plots
from ...plots import Picture
from ...timeline import Span, Timeline

MINE, PAR = "my run", "par"


def beside(mine: dict, par: dict | None, title: str) -> Picture | None:
    """The picture of a run beside that of par; None if there is nothing to draw."""
    draw = {
        "gantt": _gantt, "schedule": _schedule, "memory": _memory, "bars": _bars,
    }.get(mine.get("kind", ""))  # fmt: skip
    if draw is None:
        return None
    runs = {MINE: mine} | ({PAR: par} if par and par.get("kind") == mine["kind"] else {})
    return draw(runs, title)


def _gantt(runs: dict[str, dict], title: str) -> Picture | None:
    both = Timeline(runs[MINE]["clock"])
    for who, run in runs.items():
        for device, stream, kind, start_us, end_us in run["spans"]:
            name = f"{who}, {device}"
            both.add(Span(name, stream, kind, "", start_us / 1e6, end_us / 1e6))
    return cast(Picture, plots.gantt(both, title=title)) if len(both) else None


def _schedule(runs: dict[str, dict], title: str) -> Picture:
    both = Timeline(runs[MINE]["clock"])
    for who, run in runs.items():
        for device, name, start_us, end_us in run["spans"]:
            both.add(Span(f"{who}, {device}", 0, "compute", name, start_us / 1e6, end_us / 1e6))
    return cast(Picture, plots.schedule(both, title=title))


def _memory(runs: dict[str, dict], title: str) -> Picture:
    ax = plots.axes(
        summary="memory of my run and par", note=runs[MINE]["clock"], size_px=(720, 320)
    )
    for (who, run), style in zip(runs.items(), ("-", "--"), strict=False):
        held = [nbytes / 1e9 for nbytes in run["points"]]
        ax.plot(held, style, marker="", linewidth=2, drawstyle="steps-post", label=who)
    ax.axhline(runs[MINE]["limit"] / 1e9, color=plots.INK, linewidth=1, linestyle=":", marker="")
    ax.set(xlabel="tensors made and freed, in the program's order", ylabel="memory (GB)")
    ax.set_title(title, loc="left", size=plots.FONT_PT)
    ax.legend(frameon=False, loc="lower center")
    return cast(Picture, ax.figure)


def _bars(runs: dict[str, dict], title: str) -> Picture:
    rows = {
        f"{name}, {who}": parts for who, run in runs.items() for name, parts in run["bars"].items()
    }
    names = sorted(rows, reverse=True)
    ax = plots.axes(summary="parts of my run and par", size_px=(720, 130 + 44 * len(rows)))
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
    ax.set(xlabel=runs[MINE]["unit"])
    ax.set_title(title, loc="left", size=plots.FONT_PT)
    ax.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return cast(Picture, ax.figure)
