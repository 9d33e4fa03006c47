"""How the site's search orders what it has found: first the lesson that has most to say of a word,
and last the API reference.

Sphinx only counts whether a page has the word, so that every page that names a bubble would come
before or after lesson 07 by its title.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from d2lpar.command.course.notebook_file import read

WORD = re.compile(r"[a-z][a-z-]{2,}")
LEAST = 3  # times that the lesson has the word
# The weights are Sphinx's own, but for what `score` adds and takes away.
SCORER = """\
const MOST = {most};
const asked = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase();
const wanted = (asked.match(/[a-z][a-z-]{{2,}}/g) ?? []).map((word) => word.replace(/s$/, ""));
const pages = new Set(wanted.map((word) => MOST[word]));
var Scorer = {{
  score: ([page, , , , score]) =>
    score + (pages.has(page) ? 50 : 0) - (page.startsWith("{last}/") ? 100 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: {{ 0: 15, 1: 5, 2: -5 }}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
}};
"""


def words(text: str) -> Counter[str]:
    """How often a text has each word, in the singular."""
    return Counter(word.removesuffix("s") for word in WORD.findall(text.lower()))


def most_of(texts: dict[str, str]) -> dict[str, str]:
    """For each word the page, of these texts, that has it most often."""
    counts = {page: words(text) for page, text in texts.items()}
    known = {
        word for of_page in counts.values() for word, count in of_page.items() if count >= LEAST
    }
    return {word: max(counts, key=lambda page: counts[page][word]) for word in sorted(known)}


def text_of(path: Path) -> str:
    """What a lesson says."""
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def write_scorer(file: Path, lessons: Iterable[Path], root: Path, *, last: str) -> None:
    """Write the file that Sphinx takes its weights from; pages of the folder `last` come last."""
    pages = {path.relative_to(root).with_suffix("").as_posix(): text_of(path) for path in lessons}
    file.parent.mkdir(parents=True, exist_ok=True)
    text = SCORER.format(most=json.dumps(most_of(pages)), last=last)
    file.write_text(text, encoding="utf-8")
