"""What the package says, in the reader's language: English, unless `D2LPAR_LANG` or the copy of the
course that the reader works in has another one (`d2lpar course lang zh`).

The code speaks English alone. Whatever leaves it for a reader's eyes passes by here, and a sentence
that the catalogue knows is put in the other language, its values in their places. What it does not
know stays as it is.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from unicodedata import east_asian_width

from .messages import Messages

ENGLISH = "en"
VARIABLE = "D2LPAR_LANG"
COPY, HIDDEN = "my", ".course"  # a student's copy of the course, and a folder in it
CHOSEN = "language"  # a file in that folder
MESSAGES, LABELS = "messages.po", "labels.po"

WIDE = "FW"  # full and wide, in the words of Unicode

_HERE = Path(__file__).parent


def translated(text: str) -> str:
    """A text as the reader has it: whole if the catalogue has it so, or else line by line."""
    return _said((MESSAGES,), text)


def label(text: str) -> str:
    """The same of what is written in a picture or a table, where single words are known, too."""
    return _said((MESSAGES, LABELS), text)


def chosen() -> str:
    """The language, as of `D2LPAR_LANG`, or of the copy in which this process runs."""
    if named := os.environ.get(VARIABLE, "")[:2]:
        return named
    try:
        return _of_copy(os.getcwd())
    except FileNotFoundError:  # the folder has been removed
        return ENGLISH


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: a Chinese character takes two."""
    return sum(2 if east_asian_width(character) in WIDE else 1 for character in text)


def _said(files: tuple[str, ...], text: str) -> str:
    language = chosen()
    if language == ENGLISH or not text:
        return text
    return _messages(files, language).translated(text)


@cache
def _of_copy(folder: str) -> str:
    """Of the copy that the folder is in, or that is beside the course in it."""
    for above in (Path(folder), *Path(folder).parents):
        for copy in (above, above / COPY):
            file = copy / HIDDEN / CHOSEN
            if file.is_file():
                return file.read_text(encoding="utf-8").strip()
    return ENGLISH


@cache
def _messages(files: tuple[str, ...], language: str) -> Messages:
    return Messages.read(*filter(Path.is_file, (_HERE / language / file for file in files)))
