"""The pages of the reference, one for each room of the package."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from pathlib import Path

import griffe

import build

from .docstrings import docstring, entry, summary
from .names import LOG, Names, load, modules, public

PACKAGE = build.ROOT / "d2lpar"
# `<machine>` in a docstring is no HTML.
HEAD = """\
---
myst:
  enable_extensions: [fieldlist]
  disable_syntax: [html_inline, html_block]
---
# {title}
"""
FACE = """\
`import d2lpar as par` gives a lesson these names. The index has {{ref}}`all names <genindex>` of
the package.

| name | what it is |
|---|---|
{rows}
"""
TOCTREE = "```{{toctree}}\n:maxdepth: 1\n{hidden}\n\n{pages}\n```\n"
# In the README of a room: a link, a row about a room, a stop of a journey.
LINK = re.compile(r"\[`?([^]`]+)`?\]\(([^):]+)\)")
ROOM = re.compile(r"(?<=^\| )`([\w/]+/)`", re.MULTILINE)
STOP = re.compile(r"`([\w/]+)\.py` `([\w.]+)`")


def file_of(room: griffe.Module) -> str:
    """The name of a room's page, without what it ends in."""
    return room.path if room.parent else "index"


def write_pages(into: Path, package: Path = PACKAGE) -> int:
    """Write the reference's pages for Sphinx into a folder; returns how many.

    Raises:
        ValueError: something is wrong in docstrings; says what, and where.

    """
    complaints = BufferingHandler(sys.maxsize)
    complaints.setLevel("WARNING")
    LOG.addHandler(complaints)
    try:
        names = Names(load(package.name, package.parent))
        rooms = [module for module in modules(names.package) if module.is_init_module]
        into.mkdir(parents=True, exist_ok=True)
        for room in rooms:
            text = "\n".join(_page(room, names))
            (into / f"{file_of(room)}.md").write_text(text, encoding="utf-8")
    finally:
        LOG.removeHandler(complaints)
    if complaints.buffer:
        raise ValueError("\n".join(record.getMessage() for record in complaints.buffer))
    return len(rooms)


def _page(room: griffe.Module, names: Names) -> Iterator[str]:
    within = [module for module in modules(room) if module.parent is room]
    pages = [f"{m.name} <{file_of(m)}>" for m in within if m.is_init_module]
    yield HEAD.format(title=f"`{room.path}`" if room.parent else f"The package {room.name}")
    if not room.parent and names.face:
        yield _face(names)
    if text := _map(room, names):
        yield text + "\n## `__init__`\n"
    if pages:
        yield TOCTREE.format(pages="\n".join(pages), hidden=":hidden:" if text else "")
    yield from _module(room, names)
    for module in within:
        if not module.is_init_module:
            yield f"## `{module.name}`\n"
            yield from _module(module, names)


def _module(module: griffe.Module, names: Names) -> Iterator[str]:
    yield f"```{{py:module}} {module.path}\n```\n"
    yield docstring(module, names)
    for member in public(module):
        yield entry(member, names)


def _face(names: Names) -> str:
    """The names that the package gives by itself, each with a sentence."""
    rows = []
    for name in names.face:
        if target := names.at(f"{names.package.name}.{name}"):
            text = names.linked(summary(names.known[target]), names.known[target])
            rows.append(f"| {{py:obj}}`par.{name} <{target}>` | {text} |")
    return FACE.format(rows="\n".join(rows))


def _map(room: griffe.Module, names: Names) -> str:
    """A room's README, in which rooms and the stops of its journeys lead to their pages."""
    readme = Path(str(room.filepath)).with_name("README.md")
    if not readme.exists():
        return ""

    def dotted(place: str) -> str:
        path = Path(os.path.normpath(Path(*room.path.split(".")) / place)).with_suffix("")
        return ".".join(path.parts).removesuffix(".README").removesuffix(".__init__")

    def linked(match: re.Match[str]) -> str:
        return f"{{py:mod}}`{match[1]} <{dotted(match[match.lastindex or 1])}>`"

    def stop(match: re.Match[str]) -> str:
        target = names.at(f"{dotted(match[1])}.{match[2]}")
        return f"`{match[1]}.py` {{py:obj}}`{match[2]} <{target}>`" if target else match[0]

    text = re.sub(r"^#", "##", readme.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return STOP.sub(stop, ROOM.sub(linked, LINK.sub(linked, text)))
