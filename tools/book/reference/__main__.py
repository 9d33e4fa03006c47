"""Builds the API reference alone, in build/docs; in the site it is the folder reference/.

    PYTHONPATH=tools python -m book.reference

What is wrong in a docstring is an error: a parameter that a function does not have, a name `par.…`
that is not there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

import build

from ..render import refuse_without_sphinx, run_sphinx

BUILD = build.ROOT / "build"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the reference alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    refuse_without_sphinx(parser)
    pages, site = BUILD / "docs-pages", BUILD / "docs"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    from .pages import write_pages  # needs griffe, which may be missing

    try:
        count = write_pages(pages)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    status = run_sphinx(pages, site, BUILD / "docs-doctrees", html_title="d2lpar")
    if not status:
        print(f"{os.path.relpath(site / 'index.html')}: {count} pages")
    return status


if __name__ == "__main__":
    sys.exit(main())
