"""Builds the site: lessons with their stored outputs, the validation table, the API reference.

    PYTHONPATH=tools python -m book

It lies in build/site. No cell of a notebook runs. A warning of Sphinx is an error, and so is a link
that leads nowhere within the site; links to other sites are listed, not followed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import build
from d2lpar.command.course import languages
from d2lpar.command.course.notebook_file import read

from . import court, front, links, pages, plan_page, search, validation
from .render import SETTINGS, refuse_without_sphinx, run_sphinx

ROOT, BUILD = build.ROOT, build.ROOT / "build"
SITE, SOURCE, EXTRA = (BUILD / name for name in ("site", "site-pages", "site-extra"))
DOCTREES, SCORER = BUILD / "site-doctrees", BUILD / "site-scorer.js"
REFERENCE = "reference"
STILL = (
    "{still} of {total} figures with sliders stand still: `make site-figures` has not drawn them, "
    "or their code has changed since"
)
SLIDERS = ", but {some} move: their pictures were drawn before"
# Minutes on a busy machine: each step says that it begins.
STEPS = (
    "1 of 3: pages, from stored outputs and docstrings",
    "2 of 3: Sphinx",
    "3 of 3: links",
)
BROKEN = "{page}: no such page or place: {address}"
FETCHED = "pages fetch from another host: {addresses}"
DONE = (
    "{index}: {pages} pages, {size_mb:.0f} MB; {links} links to other sites, none followed: {file}"
)


# Pages


def write_sources() -> None:
    """Write all that Sphinx reads, and the pictures that it only copies."""
    for folder in (SITE, SOURCE, EXTRA):
        shutil.rmtree(folder, ignore_errors=True)
    EXTRA.mkdir(parents=True)
    total, moving = pages.write_pages(SOURCE, EXTRA)
    if moving < total:
        print(STILL.format(still=total - moving, total=total))
    (SOURCE / "index.md").write_text(index(total, moving), encoding="utf-8")
    for language in languages.known(pages.NOTEBOOKS)[1:]:
        (SOURCE / f"{language}.md").write_text(front_in(language), encoding="utf-8")
    pages.write_guides(SOURCE)
    plan_page.write_page(SOURCE, EXTRA)
    from .reference.pages import write_pages  # needs griffe, which may be missing

    write_pages(SOURCE / REFERENCE)
    search.write_scorer(SCORER, build.lessons_in(pages.NOTEBOOKS), ROOT, last=REFERENCE)
    # They take minutes, so that they are kept from one build to the next.
    for name, made in (("validation.md", validation), ("court.md", court)):
        made.write_page(BUILD / name)
        shutil.copy(BUILD / name, SOURCE / name)


def index(total: int, moving: int) -> str:
    """The page with the table of contents; of `total` figures with sliders so many are `moving`."""
    folders = (pages.NOTEBOOKS / place for place in ("", build.DEEPER, build.MUSEUM))
    lessons, deeper, museum = (
        "\n".join(map(entry, found)) for found in map(build.lessons_in, folders)
    )
    text = (SETTINGS / "index.md").read_text(encoding="utf-8")
    sliders = SLIDERS.format(some="some sliders" if moving < total else "sliders") if moving else ""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = EXTRA / pages.FIGURES, f"{pages.FIGURES}/"
    return text.format(
        timeline=front.timeline(*pictures),
        cards=front.cards(readme, *pictures, more=plan_page.card()),
        get_the_course=_get_the_course(build.repository()),
        lessons=lessons,
        deeper=deeper,
        museum=museum,
        sliders=sliders,
        languages="\n".join(languages.known(pages.NOTEBOOKS)[1:]),
        others=" · ".join(
            f"[{pages.name_of(each)}]({each}.md)" for each in languages.known(pages.NOTEBOOKS)[1:]
        ),
    )


def front_in(language: str) -> str:
    """The first page of the course in a language: how its README begins, cards, and contents."""
    readme = (ROOT / f"README.{language}.md").read_text(encoding="utf-8")
    heading, said, *_ = (part for part in readme.split("\n\n") if not part.startswith("["))
    guides = (path.relative_to(ROOT).with_suffix("") for path in pages.guides(language))
    contents = "\n".join([*map(entry, pages.course(language)), *map(Path.as_posix, guides)])
    shown = front.cards(readme, EXTRA / pages.FIGURES, f"{pages.FIGURES}/")
    english = f"[{pages.name_of(languages.known(pages.NOTEBOOKS)[0])}](index.md)"
    tree = f"```{{toctree}}\n:maxdepth: 1\n\n{contents}\n```"
    return "\n\n".join((heading, english, said, shown, tree)) + "\n"


def entry(path: Path) -> str:
    """The line of a table of contents for the notebook at `path`: lessons go by their numbers."""
    place = path.relative_to(ROOT).with_suffix("").as_posix()
    if path.parent.name == build.MUSEUM:
        return place
    title = next(filter(pages.is_title, read(path).cells)).source.splitlines()[0].lstrip("# ")
    return f"{path.name[:2]} {title} <{place}>"


def _get_the_course(repository: str | None) -> str:
    if repository is None:
        return "get the course from whoever sent you here, and type `make lab`"
    elsewhere = "or open one on a machine of others: each lesson begins with the links"
    return f"[get the course]({repository}), {elsewhere}"


# Programs


def run() -> int:
    """Turn the sources into pages; a warning is an error."""
    return run_sphinx(SOURCE, SITE, DOCTREES, html_extra_path=EXTRA, html_search_scorer=SCORER)


def check() -> int:
    """Say which links lead nowhere, and what a reader's browser would fetch elsewhere: 1 if any."""
    broken = list(links.broken(SITE))
    for page, address in broken:
        print(BROKEN.format(page=page.relative_to(SITE), address=address), file=sys.stderr)
    fetched = links.fetched(SITE)
    if fetched:
        print(FETCHED.format(addresses=", ".join(fetched)), file=sys.stderr)
    return int(bool(broken or fetched))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site, and check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    refuse_without_sphinx(parser)
    for text, step in zip(STEPS, (write_sources, run, check), strict=True):
        print(text, flush=True)
        if step():
            return 1
    report()
    return 0


def report() -> None:
    """Say where the site is, and list the links that lead out of it."""
    listed = BUILD / "site-external-links.txt"
    outside = links.external(SITE)
    listed.write_text("\n".join(outside) + "\n", encoding="utf-8")
    files = [path for path in SITE.rglob("*") if path.is_file()]
    text = DONE.format(
        index=os.path.relpath(SITE / "index.html"),
        pages=sum(path.suffix == ".html" for path in files),
        size_mb=sum(path.stat().st_size for path in files) / 1e6,
        links=len(outside),
        file=os.path.relpath(listed),
    )
    print(text)


if __name__ == "__main__":
    sys.exit(main())
