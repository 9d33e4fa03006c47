"""The notebooks as pages: what a reader can use without a kernel, and links that lead somewhere."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import babel
import nbformat
from nbformat import NotebookNode

import build
from d2lpar.command.course import languages
from d2lpar.command.course.notebook_file import read, tags
from d2lpar.locale import ENGLISH

from . import states, timelines

ROOT, NOTEBOOKS = build.ROOT, build.ROOT / "notebooks"
IMAGES, GUIDES = ROOT / "imgs", ROOT / "docs"
FIGURES = "figures"  # in the site: the pictures of figures with sliders
PLACE = re.compile(r"(?<=\]\()([^)\s:#]*)#([^)\s]+)")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
WHOLE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
# What the site has on a page of its own; on a code host the file itself is shown.
PAGES = {
    ROOT / "d2lpar" / "README.md": ROOT / "reference" / "index.md",
    ROOT / "d2lpar" / "vgpu" / "README.md": ROOT / "reference" / "d2lpar.vgpu.md",
    ROOT / "d2lpar" / "validation" / "published.csv": ROOT / "validation.md",
    ROOT / "d2lpar" / "validation" / "court.csv": ROOT / "court.md",
    ROOT / "tools" / "book" / "sphinx" / "plan.md": ROOT / "plan.md",
}
ON_HOSTS = "{hosted}, or [read it on its code host]({page})."
NO_STATES = "Where the course runs, sliders stand here ({values})."
ONE_AT_A_TIME = (
    "These pictures were drawn before, each with one slider moved. "
    "So another slider goes back to its start when you move this one."
)
DRAWN_BEFORE = "These pictures were drawn before. Where the course runs, you can set any value."


def write_pages(source: Path, extra: Path) -> tuple[int, int]:
    """Write all notebooks, in each language, and what they show into the folder `source`, for
    Sphinx, and the pictures of figures with sliders into `extra`.

    Returns how many figures with sliders there are, and how many of them move.
    """
    total = moving = 0
    for path in [path for language in languages.known(NOTEBOOKS) for path in course(language)]:
        notebook, found = page(path)
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        total += sum(map(states.has_sliders, read(path).cells))
        moving += len(found)
        for folder in found:
            shutil.copytree(folder, extra / FIGURES, dirs_exist_ok=True, ignore=_only_pictures)
    shutil.copytree(IMAGES, source / IMAGES.name, dirs_exist_ok=True, ignore=_only_pictures)
    return total, moving


def course(language: str) -> list[Path]:
    """The notebooks in a language, with those that go deeper and the museum."""
    return build.course(languages.folder_of(NOTEBOOKS, language))


def write_guides(source: Path) -> None:
    """Write the pages of docs/, in each language, into the folder `source`, for Sphinx."""
    for path in guides():
        heading, _, text = path.read_text(encoding="utf-8").partition("\n")
        others = " · ".join(other_languages(path))
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        linked = with_links("\n".join((heading, *([f"\n{others}"] if others else []), text)), path)
        target.write_text(linked, encoding="utf-8")


def guides(language: str | None = None) -> list[Path]:
    """The pages of docs/, in a language or in all of them."""
    known = languages.known(NOTEBOOKS) if language is None else [language]
    return [
        path
        for each in known
        for path in sorted((GUIDES / ("" if each == ENGLISH else each)).glob("*.md"))
    ]


def _only_pictures(_: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".png", ".svg", ".webp", ".gif"))]


def page(path: Path) -> tuple[NotebookNode, list[Path]]:
    """The notebook at `path` as its page shows it, and the folders of its figures' states."""
    notebook = read(path)
    notebook.metadata = nbformat.from_dict(build.METADATA)
    keys, found = states.keys(notebook), []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_links(cell.source, path)
        elif cell.id in keys:
            folder = states.folder_of(path, cell.id)
            known = load_states(path, cell.id, keys[cell.id])
            if known:
                found.append(folder)
            outputs = timelines.touchable(cell.outputs, timelines.load(folder, keys[cell.id]))
            cell.outputs = list(still_or_moving(list(outputs), known, up_from(path)))
    notebook.cells = [c for c in notebook.cells if not {"navigation", "install"} & set(tags(c))]
    after_title = 1 + next((i for i, c in enumerate(notebook.cells) if is_title(c)), -1)
    if build.repository() is not None and language_of(path) == ENGLISH:
        notebook.cells.insert(after_title, hosts(path))
    others = nbformat.v4.new_markdown_cell(" · ".join(other_languages(path)), id="languages")
    notebook.cells.insert(after_title, others)
    return notebook, found


def language_of(path: Path) -> str:
    """The language of a notebook or guide, by the folder that it is in."""
    first = path.relative_to(_top(path)).parts[0]
    return first if first in languages.known(NOTEBOOKS) else ENGLISH


def _top(path: Path) -> Path:
    return GUIDES if path.is_relative_to(GUIDES) else NOTEBOOKS


def other_languages(path: Path) -> Iterator[str]:
    """Links to the same page in the other languages, each by its own name."""
    own, top = language_of(path), _top(path)
    place = path.relative_to(top / ("" if own == ENGLISH else own))
    for language in languages.known(NOTEBOOKS):
        there = top / ("" if language == ENGLISH else language) / place
        if language != own and there.exists():
            yield f"[{name_of(language)}]({Path(os.path.relpath(there, path.parent)).as_posix()})"


def name_of(language: str) -> str:
    """What a language calls itself."""
    return str(babel.Locale.parse(language).get_display_name()).capitalize()


def is_title(cell: NotebookNode) -> bool:
    """Whether a cell holds the page's heading."""
    return cell.cell_type == "markdown" and cell.source.startswith("# ")


def hosts(path: Path) -> NotebookNode:
    """The cell that says where else the notebook at `path` can be opened."""
    text = ON_HOSTS.format(hosted=build.hosted(path), page=address(path))
    return nbformat.v4.new_markdown_cell(text, id="hosts")


def address(path: Path) -> str:
    """Where the repository's host shows a file or folder."""
    kind = "tree" if path.is_dir() else "blob"
    return f"{build.repository()}/{kind}/main/{path.relative_to(ROOT).as_posix()}"


def with_links(text: str, path: Path) -> str:
    """The text of the file at `path`, or of a cell of it, in which links lead to pages of the site,
    and those to files that are no pages to the repository; if it has no address, they are text."""

    def replaced(match: re.Match[str]) -> str:
        kind, words, place, part = match[1], match[2], match[3], match[4] or ""
        target = Path(os.path.normpath(path.parent / place))
        if target in PAGES:
            place = Path(os.path.relpath(PAGES[target], path.parent)).as_posix()
        elif target.exists() and not _is_page(target):
            if build.repository() is None:
                return words
            place = address(target)
        return f"{kind}[{words}]({place}{part})"

    return PLACE.sub(_slug, WHOLE_LINK.sub(replaced, text))


def _is_page(target: Path) -> bool:
    is_guide = target.suffix == ".md" and target.is_relative_to(GUIDES)
    return target.suffix == ".ipynb" or is_guide or target.parent == IMAGES


def _slug(match: re.Match[str]) -> str:
    """A link to a heading, as JupyterLab calls it (`#Why-so?`), by its name on the site."""
    name = re.sub(r"[^\w-]", "", match[2].lower())
    return f"{match[1]}#{name}"


# Figures with sliders


def up_from(path: Path) -> str:
    """The way from a notebook's page to the top of the site."""
    return "../" * len(path.relative_to(ROOT).parents[0].parts)


def load_states(path: Path, cell_id: str, key: str) -> dict[str, Any] | None:
    """The states of a figure; None if there are none, or of code that has changed since."""
    file = states.folder_of(path, cell_id) / "states.json"
    if not file.exists():
        return None
    known = json.loads(file.read_text(encoding="utf-8"))
    return known if known["key"] == key else None


def still_or_moving(
    outputs: list[NotebookNode], known: dict[str, Any] | None, up: str
) -> Iterator[NotebookNode]:
    """The outputs of a cell, with a figure that moves in place of its still one if its states
    are known, and otherwise with a line that says what is missing."""
    for output in deepcopy(outputs):
        if states.is_fallback(output):
            if known:
                yield _output("text/html", figure(known, up))
            else:
                values = output["data"]["text/plain"].partition(": ")[2]
                yield _output("text/plain", NO_STATES.format(values=values))
        elif not (known and "image/png" in output.get("data", {})):
            yield output


def _output(kind: str, text: str) -> NotebookNode:
    return nbformat.v4.new_output("display_data", {kind: text})


def figure(known: dict[str, Any], up: str) -> str:
    """The HTML of a figure with sliders: its picture at the start, and controls that are hidden
    until sliders.js moves them."""
    starts = [control["start"] for control in known["controls"]]
    first = known["states"][" ".join(map(str, starts))]
    pictures = {
        place: {"src": f"{up}{FIGURES}/{state['file']}", "alt": state["alt"]}
        for place, state in known["states"].items()
    }
    combinations = 1
    for control in known["controls"]:
        combinations *= len(control["options"])
    note = DRAWN_BEFORE if len(pictures) == combinations else ONE_AT_A_TIME
    data = json.dumps(pictures, ensure_ascii=False)
    return "\n".join(
        [
            f'<figure class="drawn-before" data-pictures="{html.escape(data)}">',
            f'<img src="{up}{FIGURES}/{first["file"]}" alt="{html.escape(first["alt"])}" '
            f'width="{known["width"]}" height="{known["height"]}">',
            '<div class="controls" hidden>',
            *map(control_html, known["controls"]),
            "</div>",
            f"<figcaption>{note}</figcaption>",
            "</figure>",
        ]
    )


def control_html(control: dict[str, Any]) -> str:
    """One control, with its name beside it: a slider, or a list to pick from."""
    label, start = html.escape(control["label"]), control["start"]
    names = [html.escape(option) for option in control["options"]]
    if control["slides"]:
        listed = html.escape(json.dumps(control["options"], ensure_ascii=False))
        return (
            f'<label><span>{label}</span> <input type="range" min="0" max="{len(names) - 1}" '
            f'value="{start}" aria-valuetext="{names[start]}" data-start="{start}" '
            f'data-options="{listed}"> <output>{names[start]}</output></label>'
        )
    options = "".join(
        f'<option value="{i}"{" selected" if i == start else ""}>{name}</option>'
        for i, name in enumerate(names)
    )
    return f"<label><span>{label}</span> <select>{options}</select></label>"
