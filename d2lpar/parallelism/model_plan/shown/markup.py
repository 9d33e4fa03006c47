"""The answer as HTML, in the colours of the page that it stands on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from ....timeline.traces.page.colors import BLUE, VERMILION
from .answer import Bar, Part

# The page of the site makes the same elements, and takes the same style.
STYLE = f"""\
.model-plan {{ line-height: 1.45; max-width: 52rem; overflow-wrap: anywhere; }}
.model-plan section {{ margin: 0 0 1em; }}
.model-plan p {{ margin: 0.2em 0; }}
.model-plan ul {{ list-style: none; margin: 0.3em 0; padding: 0; }}
.model-plan li {{
  align-items: center; display: grid; gap: 0 0.8em;
  grid-template-columns: minmax(6em, 13em) 5em minmax(3em, 1fr); margin: 0.15em 0;
}}
.model-plan li i {{ background: rgba(128, 128, 128, 0.2); display: block; height: 0.9em; }}
@media (max-width: 34em) {{
  .model-plan li {{ grid-template-columns: 1fr auto; }}
  .model-plan li i {{ grid-column: 1 / 3; height: 0.6em; }}
}}
.model-plan li b {{ font-weight: inherit; text-align: right; }}
.model-plan li u {{ background: var(--plan-bar, {BLUE}); display: block; height: 100%; }}
.model-plan .refused {{ border-left: 0.25em solid {VERMILION}; padding-left: 0.6em; }}
.model-plan li.room u {{
  background: repeating-linear-gradient(135deg, currentColor 0 1px, transparent 1px 5px);
}}
"""


def html(parts: Iterable[Part]) -> str:
    """All of it, with its style."""
    return _styled("\n".join("\n".join(_section(part)) for part in parts))


def refusal(error: Exception) -> str:
    """Why there is no answer."""
    return _styled(f'<p class="refused">{escape(str(error))}</p>')


def _styled(content: str) -> str:
    """What a screen reader says when it has changed."""
    return f'<style>\n{STYLE}</style>\n<div class="model-plan" role="status">\n{content}\n</div>'


def _section(part: Part) -> Iterator[str]:
    yield "<section>"
    yield f"<p><strong>{escape(part.question)}</strong> {escape(part.short)}</p>"
    yield from map(_line, part.above)
    if part.bars:
        yield "<ul>"
        yield from map(_bar, part.bars)
        yield "</ul>"
    yield from map(_line, part.below)
    yield "</section>"


def _line(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _bar(bar: Bar) -> str:
    at = f"margin-left: {bar.begin:.1%}; width: {bar.size:.1%}"
    kind = ' class="room"' if bar.room else ""
    words = f"<span>{escape(bar.name)}</span><b>{escape(bar.amount)}</b>"
    return f'<li{kind}>{words}<i aria-hidden="true"><u style="{at}"></u></i></li>'
