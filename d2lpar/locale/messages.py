"""Sentences with values in them, found again when they have been filled in.

A message is a template such as "expected {expected}, got {got}"; the values in its places may be
messages themselves. Of all ways to read a text so, the one that leaves least English is taken, and
of those the one with most words of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
SPECIFIED = re.compile(r"(![rsa])?(:[^:\]\"')]*)?$")  # how a value is written: {x!r}, {x:.4g}
TAIL, HEAD = tuple(",.;:) "), " "
BETWEEN = ("\n", " · ")  # lines, and parts of a line
# Between messages, or a message and a name; those of the second row are part of many a message.
JOINTS = ("; ", ", and ")
LOOSE_JOINTS = (", ", ": ", ". ", " and ")
MARKS = tuple("✓✗○?⊘◐")  # what a verdict begins with
OPENING, CLOSING = "([{", ")]}"
FEW_LETTERS = 14
WORD = re.compile("[A-Za-z]{2,}")
# Of a sentence, and not of a name or a unit: two words, or one without any mark or digit.
WORDS = re.compile(r"\b[A-Za-z]{2,} [a-z]{2,}\b|^(?![mn]s$)[a-z]{2,}$", re.ASCII)
MOST_KNOWN = 10_000  # texts, and their parts
NAME = ".__name__"
REST = "…"  # what stands before or behind such a one


class _Template(NamedTuple):
    """Its `pieces` stand around the values of the `places`; `said` are those of the translation."""

    pieces: list[str]
    places: list[str]
    said: list[str]
    said_places: list[str]

    @property
    def letters(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def has_words(self) -> bool:
        return any(WORD.search(piece) or piece.startswith(MARKS) for piece in self.pieces)

    @property
    def is_weak(self) -> bool:
        """Whether it fits much by chance, so that the values must be known, too."""
        return self.letters < FEW_LETTERS


class Messages:
    """What is said in a language, by its English."""

    def __init__(self, by_english: Mapping[str, str]) -> None:
        parsed = [
            _template(english, said)
            for english, said in by_english.items()
            if said not in ("", english) and english not in JOINTS + LOOSE_JOINTS
        ]
        templates = sorted(parsed, key=lambda each: -each.letters)
        self._whole = {each.pieces[0]: each.said[0] for each in templates if not each.places}
        # What has no word of its own fits everything: it is found by itself, not yet filled in.
        self._whole |= {e: said for e, said in by_english.items() if said and PLACE.search(e)}
        self._templates = [each for each in templates if each.places and each.has_words]
        self._joints = {
            joint: by_english[joint] for joint in JOINTS + LOOSE_JOINTS if by_english.get(joint)
        }
        self._known: dict[str, str | None] = {}

    @classmethod
    def read(cls, *files: Path) -> Messages:
        """Those of catalogues of gettext."""
        from babel.messages.pofile import read_po  # takes a while, and English needs none

        found: dict[str, str] = {}
        for file in files:
            with file.open("rb") as text:
                found |= {str(each.id): str(each.string) for each in read_po(text) if each.id}
        return cls(found)

    def translated(self, text: str) -> str:
        """The text in the language: whole, or those of its lines and parts that are messages."""
        found = self._of(text)
        if found is not None:
            return found
        for between in BETWEEN:
            if between in text:
                return between.join(map(self.translated, text.split(between)))
        words = text.strip()
        return text if words == text else text.replace(words, self.translated(words))

    def _of(self, text: str) -> str | None:
        """The text as a message; None if it is none."""
        if text in self._whole:
            return self._whole[text]
        if text not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[text] = None  # a value that is all of the text is none
            self._known[text] = min(self._ways(text), key=_english_words, default=None)
        return self._known[text]

    def _ways(self, text: str) -> Iterator[str]:
        """All ways to read a text: as several messages, as one, and first those of most words; of
        these, last those whose values are cut within brackets."""
        if text.startswith(MARKS):
            yield from self._marked(text)
            return
        yield from self._joined(text, JOINTS)
        cut = []
        for template in self._templates:
            for values in _between(template.pieces, text):
                own = list(map(self._value, values, template.places))
                if not template.is_weak or _is_all_said(values, own):
                    said = "".join(_filled(template, values, own))
                    if all(map(_is_closed, values)):
                        yield said
                    else:
                        cut.append(said)
        yield from cut
        yield from self._joined(text, LOOSE_JOINTS)

    def _marked(self, text: str) -> Iterator[str]:
        """A verdict, which may have many lines."""
        for template in self._templates:
            begin = template.pieces[0]
            if begin.startswith(MARKS) and text.startswith(begin):
                value = text[len(begin) :]
                yield "".join(_filled(template, [value], [self.translated(value)]))
        mark, _, value = text.partition(" ")
        yield f"{mark} {self.translated(value)}"

    def _joined(self, text: str, joints: tuple[str, ...]) -> Iterator[str]:
        for joint in joints:
            parts = text.split(joint)
            own = [self._of(part) for part in parts] if all(map(_is_closed, parts)) else []
            if any(own) and _is_all_said(parts, own):
                yield self._joints.get(joint, joint).join(map(_either, own, parts))

    def _value(self, text: str, place: str) -> str | None:
        """The same of a value, which may have parts; a name of the program's is one in any
        language."""
        if place.endswith(NAME) and text.isidentifier():
            return text
        found = self._of(text)
        if found is None and any(between in text for between in BETWEEN):
            found = self.translated(text)
        return found if found != text else None


def _is_all_said(values: list[str], own: list[str | None]) -> bool:
    """Whether each is in the language, or no sentence: a name, a number."""
    pairs = zip(values, own, strict=True)
    return all(said or not WORDS.search(value) for value, said in pairs)


def _is_closed(text: str) -> bool:
    """Whether each bracket in it has its other half."""
    open_ones: list[str] = []
    for character in text:
        if character in OPENING:
            open_ones.append(CLOSING[OPENING.index(character)])
        elif character in CLOSING and (not open_ones or open_ones.pop() != character):
            return False
    return not open_ones


def _english_words(text: str) -> int:
    return len(WORD.findall(text))


def _either(own: str | None, text: str) -> str:
    return text if own is None else own


def _filled(template: _Template, values: list[str], own: list[str | None]) -> Iterator[str]:
    by_place: dict[str, str] = {}
    for place, value, said in zip(template.places, values, own, strict=True):
        by_place.setdefault(place, _either(said, value))
    for piece, place in zip(template.said, [*template.said_places, ""], strict=True):
        yield piece
        yield by_place.get(place, "")


def places(text: str) -> list[str]:
    """The names of a template's places, in their order."""
    return _split(text)[1]


def _template(english: str, said: str) -> _Template:
    """What begins or ends in the middle of a sentence stands behind or before something else."""
    if english.startswith(TAIL):
        english, said = f"{{{REST}}}{english}", f"{{{REST}}}{said}"
    if english.endswith(HEAD):
        english, said = f"{english}{{{REST}{REST}}}", f"{said}{{{REST}{REST}}}"
    return _Template(*_split(english), *_split(said))


def _split(text: str) -> tuple[list[str], list[str]]:
    """The pieces of a template, and the places between them."""
    pieces, begin = [""], 0
    names: list[str] = []
    for found in PLACE.finditer(text):
        pieces[-1] += text[begin : found.start()]
        begin = found.end()
        if found[1] is None:
            pieces[-1] += found[0][0]
        else:
            names.append(SPECIFIED.sub("", found[1]) or str(len(names)))
            pieces.append("")
    pieces[-1] += text[begin:]
    return pieces, names


def _between(pieces: list[str], text: str) -> Iterator[list[str]]:
    """What may stand between these pieces, which are all of the text: as little as possible at
    first, or else at last. Values of one line, where the pieces are."""
    first, *middle, last = pieces
    end = len(text) - len(last)
    if not (text.startswith(first) and text.endswith(last)) or len(first) > end:
        return
    if "\n" in text and not any("\n" in piece for piece in pieces):
        return
    found = []
    for find, those in ((str.find, middle), (str.rfind, middle[::-1])):
        begin, stop, places = len(first), end, []
        for piece in those:
            at = find(text, piece, begin, stop)
            if at < 0:
                return
            places.append((at, at + len(piece)))
            begin, stop = (at + len(piece), stop) if find is str.find else (begin, at)
        places = [(0, len(first)), *sorted(places), (end, len(text))]
        found.append([text[a:b] for (_, a), (b, _) in pairwise(places)])
    yield found[0]
    if found[1] != found[0]:
        yield found[1]
