"""Writes the text that the course's GPT learns: the prose of the lessons, a sentence on each line.

    python tools/course_text.py

It is a snapshot, written again only on purpose: with every new text, all losses and samples that
the lessons show would change.
"""

import html
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "d2lpar" / "lesson" / "course_text.txt"

NO_PROSE = ("|", "#", ">")  # rows of tables, headings, quotations
SHORTEST = 4  # words: what has fewer is a label


def sentences(markdown: str) -> list[str]:
    """Whole sentences without formulas, marks, links and code blocks."""
    bare = re.sub(r"```.*?```|\$\$.*?\$\$|<[^>]+>|!\[[^\]]*\]\([^)]*\)", "", markdown, flags=re.S)
    bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", bare)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] )", bare):
        lines = (line.strip() for line in paragraph.splitlines())
        plain = " ".join(line for line in lines if line and not line.startswith(NO_PROSE))
        plain = html.unescape(re.sub(r"^[-*] |\*|`", "", plain))
        found += re.split(r'(?<=[.!?]) (?=[A-Z"(])', plain)
    return [s for s in found if s[-1:] in (".", "!", "?") and "$" not in s and long_enough(s)]


def long_enough(sentence: str) -> bool:
    """Whether it has more words than a label."""
    return len(sentence.split()) >= SHORTEST


def main() -> None:
    """Write the text of all lessons and deeper halves."""
    folder = ROOT / "notebooks"
    found: dict[str, None] = {}  # in order, each once
    for file in sorted([*folder.glob("*.ipynb"), *folder.glob("deeper/*.ipynb")]):
        for cell in nbformat.read(file, as_version=4).cells:
            if cell.cell_type == "markdown":
                found |= dict.fromkeys(sentences(cell.source))
    TEXT.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
