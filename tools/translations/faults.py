"""What a translation must have in common with its English, and how it must be written."""

from __future__ import annotations

import re
from calendar import month_name
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from operator import add
from pathlib import Path

from markdown_it import MarkdownIt

from d2lpar.locale.messages import PLACE, places

from .catalogues import COURSE

TERMS = "terms.md"
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
CODE_OR_PLACE = re.compile(rf"{CODE.pattern}|{PLACE.pattern.replace('(', '(?:')}")
ENDING = re.compile(r"(?<=[a-z])\{[^{}]*\}(?=\W|$)")
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TAG = re.compile(r"</?[a-z][a-z0-9]*\b")  # what a reader sees of attributes is translated
NUMBER = re.compile(r"(\d+(?:[.,]\d+)*)(?:[ -]?(million|billion|万|亿))?")
MONTHS = re.compile(rf"\b({'|'.join(month_name[1:])})(?= \d{{4}})")  # a number elsewhere
RANGE = re.compile(r"(\d[\d.,]*)( to | and | or )(?=\d[\d.,]* (million|billion))")
SCALES = {"million": 10**6, "billion": 10**9, "万": 10**4, "亿": 10**8}
HEADING = re.compile(r"^#+ ", re.MULTILINE)
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
HAN = "\u4e00-\u9fff"
# One space: with more of them columns of what is printed are aligned.
LATIN_SPACED = re.compile(rf"[{HAN}] [A-Za-z0-9`$]|[A-Za-z0-9`$] [{HAN}]")
NARROW = re.compile(
    rf"[{HAN}][,;:?!.](?=[\s{HAN}]|$)|[,;:?!][{HAN}]|[{HAN}]\(|\)[{HAN}]", re.MULTILINE
)


def faults(language: str, english: str, translated: str) -> list[str]:
    """What is wrong with a translation, each in a line."""
    found = [*_differences(english, translated), *_unrendered(translated)]
    if language == "zh":
        found += _chinese(translated)
    return found + list(_terms(language, translated))


def faults_of_message(language: str, english: str, translated: str) -> list[str]:
    """The same of what the package says: a place for a value counts as code. One that ends an
    English word ("rank{s}") may be lost, and what no reader sees may stay as it is."""
    if translated == english:
        return []
    kept = set(places(translated))
    bare = ENDING.sub(lambda end: end[0] if places(end[0])[0] in kept else "", english)
    return faults(language, _with_places(bare), _with_places(translated))


def _with_places(text: str) -> str:
    """The text with each place as a piece of code, if it is not in one; dollars are no formulas."""
    text = text.replace("$", "")
    parts = [part.group() for part in CODE_OR_PLACE.finditer(text)]
    rest = CODE_OR_PLACE.split(text)
    coded = [f"`{places(part)}`" if part[0] == "{" and places(part) else part for part in parts]
    return rest[0] + "".join(map(add, coded, rest[1:]))


def _differences(english: str, translated: str) -> Iterator[str]:
    """What both must have: links, code, formulas, numbers, headings, rows."""
    dated = MONTHS.sub(lambda month: str([*month_name].index(month[0])), english)
    without = (RANGE.sub(r"\1 \3\2", dated), translated)
    for name, pattern in (
        ("blocks of code", BLOCK),
        ("formulas", FORMULA),
        ("code", CODE),
        ("links", LINK),
        ("tags", TAG),
        ("headings", HEADING),
        ("numbers", NUMBER),
    ):
        before, after = (Counter(_found(pattern, text)) for text in without)
        if before != after:
            lost, new = before - after, after - before
            yield f"{name} differ: {_listed(lost)} lost, {_listed(new)} new"
        if name not in ("headings", "numbers"):
            without = tuple(pattern.sub(" ", text) for text in without)
    before, after = (len(ROW.findall(text)) for text in (english, translated))
    if before != after:
        yield f"{before} rows of tables, and {after} in the translation"


def _found(pattern: re.Pattern, text: str) -> list[str]:
    if pattern is NUMBER:
        return [_value(number, scale) for number, scale in NUMBER.findall(text)]
    return [match[0].strip() for match in pattern.finditer(text)]


def _value(number: str, scale: str) -> str:
    """A number in digits, without a scale and marks between thousands."""
    plain = number.replace(",", "")
    return f"{float(plain) * SCALES[scale]:.12g}" if scale else plain


def _listed(counted: Counter) -> str:
    return ", ".join(sorted(counted.elements())) or "nothing"


def _unrendered(text: str) -> Iterator[str]:
    """Marks of emphasis that stand where they do not open or close, by CommonMark's rules: such as
    one that closes after full-width punctuation, with a letter behind it."""
    for token in MarkdownIt().parse(text):
        for part in token.children or ():
            if part.type == "text" and "**" in part.content:
                yield f"emphasis is not rendered: {part.content!r}"


def _chinese(text: str) -> Iterator[str]:
    """The style of d2l-zh: no space between Chinese and Latin letters, wide punctuation."""
    bare = text
    for pattern, left in ((BLOCK, ""), (LINK, "]"), (FORMULA, "$"), (CODE, "`")):
        bare = pattern.sub(left, bare)
    for name, pattern in (("a space beside", LATIN_SPACED), ("narrow punctuation at", NARROW)):
        for match in pattern.finditer(bare):
            yield f"{name} {match[0]!r}: …{bare[max(0, match.start() - 8) : match.end() + 8]!r}…"


def _terms(language: str, text: str) -> Iterator[str]:
    words = _other_words(language)
    for wrong, right in words.items():
        # A wrong word may be part of a right one: that of batches, of the one for micro-batches.
        longer = (word for word in words.values() if wrong in word)
        if wrong in _without(text, longer):
            yield f"{wrong}: the course says {right}"


def _without(text: str, words: Iterable[str]) -> str:
    for word in words:
        text = text.replace(word, "")
    return text


@cache
def _other_words(language: str) -> dict[str, str]:
    """Words that stand for another one, in the third column of the table of terms."""
    file: Path = COURSE / language / TERMS
    found = {}
    for row in ROW.findall(file.read_text(encoding="utf-8")):
        english, right, wrong = (cell.strip() for cell in row.strip("|").split("|")[:3])
        if english and not english.startswith(("-", "English")):
            found |= dict.fromkeys(filter(None, map(str.strip, wrong.split("、"))), right)
    return found
