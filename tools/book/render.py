"""Sphinx with the course's settings, of the folder beside this file: one theme for all pages."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

SETTINGS = Path(__file__).with_name("sphinx")
NEEDED = ("sphinx", "myst_nb", "furo", "griffe")
LACKING = "this needs {names}: install the extra `site` of pyproject.toml"


def refuse_without_sphinx(parser: argparse.ArgumentParser) -> None:
    """End the program, with what to install, where something is missing."""
    lacking = [name for name in NEEDED if not importlib.util.find_spec(name)]
    if lacking:
        parser.exit(1, LACKING.format(names=", ".join(lacking)) + "\n")


def run_sphinx(source: Path, site: Path, doctrees: Path, **settings: object) -> int:
    """Turn a folder of sources into pages, with some settings changed; a warning is an error."""
    options = ["-q", "-b", "html", "-W", "--keep-going", "-d", doctrees, "-c", SETTINGS]
    for name, value in settings.items():
        options += ["-D", f"{name}={value}"]
    return subprocess.call([sys.executable, "-m", "sphinx", *options, source, site])
