"""How smoothly a timeline of 100,000 spans moves in a browser, and how long it takes to show it.

Headless Chromium draws on the processor, so a student's browser is faster. Frames are counted while
each of them zooms in or out, or moves along.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from machine import this_machine
from playwright.sync_api import sync_playwright

from d2lpar.timeline import Span, Timeline

GOAL = 30  # frames a second
ROWS = [("host", f"rank {i}") for i in range(8)] + [
    (f"cuda:{i}", j) for i in range(8) for j in (0, 1)
]
MOVE = """async seconds => {
    const canvas = document.querySelector("canvas"), {width} = canvas.getBoundingClientRect();
    canvas.focus();
    const end = performance.now() + 1000 * seconds;
    let frames = 0, longest = 0, last = performance.now();
    while (performance.now() < end) {
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
        frames += 1;
        const deltaY = frames % 120 < 60 ? -25 : 25, deltaX = frames % 3 ? 0 : 40;
        const at = {offsetX: width / 2, deltaX, deltaY: deltaX ? 0 : deltaY, cancelable: true};
        canvas.dispatchEvent(new WheelEvent("wheel", {...at, clientX: width / 2}));
    }
    return [frames / seconds, longest];
}"""


def timeline_of(count: int) -> Timeline:
    """So many spans, as dense as those of a long run."""
    timeline, now_s = Timeline("simulated"), dict.fromkeys(ROWS, 0.0)
    for i in range(count):
        row = ROWS[i % len(ROWS)]
        kind = "dispatch" if row[0] == "host" else ("compute", "collective")[row[1]]
        start_s = now_s[row]
        now_s[row] = start_s + 1e-6 * (5 + i * 7 % 23)
        timeline.add(Span(*row, kind, f"kernel {i % 97}", start_s, now_s[row] - 1e-6))
    return timeline


def main() -> None:
    """Print the frames a second; exit with 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium to measure in")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "run.html"
        begin_s = time.perf_counter()
        timeline_of(options.spans).save_page(path)
        written_s = time.perf_counter() - begin_s
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        begin_s = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("canvas")
        shown_s = time.perf_counter() - begin_s
        rate, longest_ms = page.evaluate(MOVE, options.seconds)
        browser.close()
        size_mb = path.stat().st_size / 1e6
    print(this_machine())
    print(f"{options.spans} spans: {size_mb:.1f} MB, written in {written_s:.1f} s")
    print(
        f"shown after {shown_s:.1f} s, {rate:.0f} frames a second, longest {longest_ms:.0f} ms; "
        f"goal: {GOAL}"
    )
    sys.exit(rate < GOAL)


if __name__ == "__main__":
    main()
