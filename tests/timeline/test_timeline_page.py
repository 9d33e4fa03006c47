"""The view of a timeline: its data against the spans, and the page against the timeline's sums."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import webbrowser

import pytest
import torch
from lab_in_browser import in_chromium, running_chromium

import d2lpar as par
from d2lpar.timeline import MemorySample, Span, Timeline
from d2lpar.timeline.spans import rows_of
from d2lpar.timeline.traces.page import page_data

PS = 1e12
CLOCK = "simulated on a test"


def unpacked(packed: str) -> dict:
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def spans_in(data: dict) -> list[tuple]:
    """The spans of a page's data, in seconds from the first."""
    columns, found, last = data["spans"], [], (-1, 0)
    for i, row in enumerate(columns["row"]):
        start = columns["start"][i] + (last[1] if last[0] == row else 0)
        last = row, start
        device, _ = data["rows"][row]
        kind = data["kinds"][columns["kind"][i]]["kind"]
        end = start + columns["duration"][i]
        name = data["names"][columns["name"][i]]
        found.append((device, kind, name, start / PS, end / PS, columns["bytes"][i]))
    return found


def random_timeline(count: int, seed: int = 0) -> Timeline:
    """Spans one after the other on three rows, with gaps, and a curve of memory."""
    draw, timeline = random.Random(seed), Timeline(CLOCK)
    now_s = dict.fromkeys((("host", "main"), ("vgpu:0", 0), ("vgpu:1", 0)), 2.5)
    for i in range(count):
        row = draw.choice(list(now_s))
        start_s = now_s[row] + draw.choice((0.0, 1e-6, 3e-5))
        end_s = now_s[row] = start_s + draw.uniform(1e-7, 4e-5)
        kind = "dispatch" if row[0] == "host" else draw.choice(("compute", "copy"))
        timeline.add(Span(*row, kind, f"op {i % 7}", start_s, end_s, bytes=draw.randrange(10**9)))
    for i in range(50):
        timeline.add_memory(MemorySample("vgpu:0", 2.5 + i * 1e-5, draw.randrange(10**8)))
    return timeline


def test_the_data_are_the_spans_to_a_picosecond():
    timeline = random_timeline(500)
    data = unpacked(page_data.packed(timeline.clock, timeline.spans, timeline.memory))
    order = {row: i for i, row in enumerate(rows_of(timeline.spans))}
    expected = sorted(timeline, key=lambda s: (order[s.device, s.stream], s.start_s, s.end_s))
    found = spans_in(data)
    assert [(f[0], f[1], f[2], f[5]) for f in found] == [
        (s.device, s.kind, s.name, s.bytes) for s in expected
    ]
    for span, (*_, start_s, end_s, _) in zip(expected, found, strict=True):
        assert start_s == pytest.approx(span.start_s - timeline.start_s, abs=2e-12)
        assert end_s == pytest.approx(span.end_s - timeline.start_s, abs=2e-12)
    (curve,) = data["memory"]
    assert curve["bytes"] == [sample.bytes for sample in timeline.memory]


def test_a_digest_tells_timelines_apart():
    timeline, same, other = random_timeline(40), random_timeline(40), random_timeline(40, seed=1)
    assert page_data.digest(timeline) == page_data.digest(same)
    assert page_data.digest(timeline) != page_data.digest(other)
    assert page_data.digest(timeline) != page_data.digest(timeline.spans[:-1])


# What each span waits for, and why: a kernel for its dispatch, for its stream, or for an event, and
# the host for the last of them.
EXPLAINED = [
    (Span("host", "main", "dispatch", "late", 0, 1, correlation=1), None),
    (Span("host", "main", "dispatch", "first", 1, 2, correlation=2), None),
    (Span("host", "main", "dispatch", "second", 2, 3, correlation=3), None),
    (Span("host", "main", "dispatch", "other", 3, 4, correlation=4), None),
    (Span("host", "main", "wait", "synchronize", 4, 14, after=(4,)), ("other", page_data.AWAITED)),
    (Span("g:0", 0, "compute", "late", 1, 1.5, correlation=1), ("late", page_data.HOST)),
    (Span("g:0", 0, "compute", "first", 2, 6, correlation=2), ("first", page_data.HOST)),
    (Span("g:0", 0, "compute", "second", 6, 9, correlation=3), ("first", page_data.STREAM)),
    (
        Span("g:0", 1, "compute", "other", 9, 14, correlation=4, after=(3,)),
        ("second", page_data.EVENT),
    ),
]


def test_each_span_is_told_what_it_waited_for():
    data = unpacked(page_data.packed(CLOCK, [span for span, _ in EXPLAINED]))
    columns = data["spans"]
    names = [data["names"][name] for name in columns["name"]]
    found = [
        None if cause < 0 else (names[cause], why)
        for cause, why in zip(columns["cause"], columns["why"], strict=True)
    ]
    assert found == [reason for _, reason in EXPLAINED]


def test_a_recorded_span_knows_the_line_that_asked_for_it():
    with par.simulate("2x-v100-textbook", 1, with_values=True) as (gpu,), par.record() as timeline:
        w = torch.ones(64, 64, device=gpu, requires_grad=True)
        product = w @ w
        product.sum().backward()  # asked for in this line
    source = __file__.rpartition("/")[2]
    lines = {span.line.partition(":")[0] for span in timeline.on("host", "dispatch")}
    assert lines == {source}
    code = test_a_recorded_span_knows_the_line_that_asked_for_it.__code__
    forward, backward = code.co_firstlineno + 3, code.co_firstlineno + 4
    of = {
        name: {s.line for s in timeline.on("host", "dispatch") if s.name == name}
        for name in ("mm", "sum")
    }
    assert of["mm"] == {f"{source}:{forward}", f"{source}:{backward}"}
    assert of["sum"] == {f"{source}:{backward}"}


def test_the_page_is_one_file_that_fetches_nothing(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    timeline = random_timeline(20)
    path = timeline.open(tmp_path / "run.html")
    assert opened == [path.as_uri()]
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(?!data:)\w""", text)
    assert "http" not in text.replace("http-equiv", "")


def test_an_empty_timeline_has_no_page(tmp_path):
    with pytest.raises(ValueError, match="no span"):
        Timeline(CLOCK).save_page(tmp_path / "run.html")
    assert not list(tmp_path.iterdir())


@in_chromium
def test_keys_go_from_span_to_span_and_a_range_has_the_timelines_sums(tmp_path):
    timeline = random_timeline(400)
    timeline.save_page(tmp_path / "run.html")
    with running_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1000, "height": 700})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "run.html").as_uri())
        canvas, said = page.locator("canvas"), page.locator("[role=status]")
        canvas.focus()
        first, *_ = timeline.on("host")
        page.keyboard.press("ArrowRight")
        assert first.name in said.inner_text()
        page.keyboard.press("ArrowDown")
        assert "vgpu:0" in said.inner_text()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 700, box["y"] + 40, steps=3)
        page.mouse.up()
        rows = [line.split("\t") for line in said.inner_text().splitlines()[1:-1]]
        window = re.search(r"from ([\d.]+ \S+) to ([\d.]+ \S+)", said.inner_text())
        page.close()
    assert not errors
    low_s, high_s = (seconds(text) + timeline.start_s for text in window.groups())
    of_gpu = next(row for row in rows if row[0] == "vgpu:0")
    for title, kind in (("compute", "compute"), ("copies", "copy")):
        shown = of_gpu[rows[0].index(title)].partition(" (")[0]
        pieces = [min(high_s, s.end_s) - max(low_s, s.start_s) for s in timeline.on("vgpu:0", kind)]
        expected_s = sum(piece for piece in pieces if piece > 0)
        assert seconds(shown) == pytest.approx(expected_s, rel=5e-3)


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
