"""Runs of notebooks in a language: what they print and draw has its words."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

from nbformat import NotebookNode

from build import BuildError, check_outputs, execute, normalise, report, serialise
from d2lpar import locale
from d2lpar.command.course import languages, notebook_file
from d2lpar.timeline import whole_file

from . import generate
from .catalogues import COURSE, INSTALL


def attempt(language: str, notebook: Path, *, check: bool) -> int:
    """Record a notebook, or with `check` only run it, and say what came of it. Returns 1 if a cell
    has failed or, with `check`, what is compared is not as it is stored."""
    begun_s = time.monotonic()
    stored = generate.translated(language, notebook)
    made = deepcopy(stored)
    try:
        _run(language, notebook, made)
        check_outputs(made)
        normalise(made).metadata = stored.metadata
        text = _serialised(notebook, made)
    except BuildError as error:
        print(f"{language}/{notebook}: not recorded: {error}", file=sys.stderr)
        return 1
    if not check:
        whole_file.write(COURSE / language / notebook, text)
    changed = notebook_file.changes(stored, made)
    seconds = time.monotonic() - begun_s
    report(Path(language, notebook), changed, seconds=seconds, size_bytes=len(text.encode()))
    return int(check and bool(changed))


def _serialised(notebook: Path, made: NotebookNode) -> str:
    """The text of the file: each cell says of which English one its outputs are."""
    english = {cell.id: cell for cell in notebook_file.read(COURSE / notebook).cells}
    for cell in notebook_file.code_cells(made):
        if INSTALL not in notebook_file.tags(cell):
            cell.metadata[generate.RUN] = generate.digest(english[cell.id])
    return serialise(made)


def _run(language: str, notebook: Path, made: NotebookNode) -> None:
    """Run it as it stands in a student's copy, beside the course's files."""
    was = os.environ.get(locale.VARIABLE)
    os.environ[locale.VARIABLE] = language
    try:
        with (
            languages.source_in(COURSE, language) as course,
            tempfile.TemporaryDirectory() as kept,
        ):
            execute(made, folder=course / notebook.parent, kept=kept)
    finally:
        if was is None:
            del os.environ[locale.VARIABLE]
        else:
            os.environ[locale.VARIABLE] = was
