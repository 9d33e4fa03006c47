"""A timeline as one HTML file that needs nothing else: no kernel, no other file, no network."""

from __future__ import annotations

import html
import json
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT, STYLE = HERE / "view.js", HERE / "view.css"
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 0 auto; padding: 16px; max-width: 1400px; font: 15px/1.5 system-ui, sans-serif;
  background: Canvas; color: CanvasText; }}
h1 {{ font-size: 1.4em; margin: 0 0 4px; }}
{style}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{note}</p>
{content}
</main>
</body>
</html>
"""


TIMELINE = """\
<div id="timeline"></div>"""
SCRIPTED = """\
<script type="module">
{script}
show(document.getElementById("timeline"), {packed});
</script>"""


def page(packed: str, *, title: str, note: str, above: str = "", below: str = "") -> str:
    """The page of what `page_data.packed` made; `above` and `below` are HTML beside it."""
    script = SCRIPTED.format(script=SCRIPT.read_text(encoding="utf-8"), packed=json.dumps(packed))
    return _filled(title, note, [above, TIMELINE, below, script])


def without_timeline(*, title: str, note: str, text: str, below: str = "") -> str:
    """The page of a run of which there is nothing to show, and why."""
    return _filled(title, note, [f"<p>{html.escape(text)}</p>", below])


def _filled(title: str, note: str, parts: list[str]) -> str:
    return PAGE.format(
        title=html.escape(title),
        note=html.escape(note),
        style=STYLE.read_text(encoding="utf-8"),
        content="\n".join(parts),
    )
