"""Exports lessons as slides: one HTML file each in build/slides, which needs no network.

    python tools/slides.py [--language zh] [03 ...]

Cells of the slide type `notes` become the speaker's notes (press S). The answer to a prediction
stays hidden until the next key. A timeline that `make site-figures` has kept can be zoomed: click
its picture. What is higher than a screen is cut when the page is opened.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from book import states, timelines
from nbconvert.exporters import SlidesExporter

from d2lpar.command.course.languages import folder_of, known
from d2lpar.command.course.merging import LANGUAGE
from d2lpar.command.course.notebook_file import read, without_widget_views
from d2lpar.locale import ENGLISH
from d2lpar.timeline import whole_file
from d2lpar.timeline.traces.page import page as timeline_page

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, BUILD, PARTS = ROOT / "notebooks", ROOT / "build", Path(__file__).with_suffix("")
REVEAL_RELEASE = PARTS / "reveal.txt"
REVEAL = BUILD / "reveal"
REVEAL_FILES = REVEAL / "sphinx_revealjs" / "_static" / "revealjs"
OUT = BUILD / "slides"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^][]*)\]\((?P<target>[^()\s]+)\)")
ADDRESS = re.compile(r"[a-z]+:")
ASKS, TELLS = "par.predict(", ".beside("
ANSWERS = "answers_prediction"  # what the template looks for


def reveal_files():
    """The folder of reveal.js, fetched once and kept in build/."""
    wanted, kept = REVEAL_RELEASE.read_text(encoding="utf-8"), REVEAL / REVEAL_RELEASE.name
    if not kept.exists() or kept.read_text(encoding="utf-8") != wanted:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--target", REVEAL, "--requirement", REVEAL_RELEASE]
        subprocess.run(command, check=True)
        kept.write_text(wanted, encoding="utf-8")
    return REVEAL_FILES


def prepared(path, exported):
    """The notebook at `path` as it is to be shown, and which cells answer a prediction."""
    notebook = without_widget_views(read(path))
    keys = states.keys(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(lambda link: relinked(link, path, exported), cell.source)
        elif cell.id in keys:
            packed = timelines.load(states.folder_of(path, cell.id), keys[cell.id])
            cell.outputs = list(timelines.touchable(cell.outputs, packed))
    for cell in answers(notebook):
        cell.metadata[ANSWERS] = True
    return notebook


def answers(notebook):
    """The cells whose outputs tell what a prediction asks for.

    They stand between the cell that asks and the one that prints both, or on the same slide.
    """
    asked = False
    for cell in notebook.cells:
        asked = asked and cell.metadata.get("slideshow", {}).get("slide_type") != "slide"
        if cell.cell_type == "code":
            if asked and cell.outputs:
                yield cell
            asked = ASKS in cell.source or (asked and TELLS not in cell.source)


def relinked(link, path, exported):
    """A Markdown link of the notebook at `path` as its slides can follow it.

    One to a lesson leads to the slides of that, one to another file nowhere; a picture's path
    begins at the course, outside of which the exporter embeds nothing.
    """
    text, target = link["text"], link["target"]
    if ADDRESS.match(target):
        return link[0]
    if link["image"]:
        return f"![{text}]({(path.parent / target).resolve().relative_to(ROOT).as_posix()})"
    file = Path(target.partition("#")[0])
    known = file.stem in exported and file.parent == Path()
    return f"[{text}]({file.stem}.html)" if known else text


def title(notebook, path):
    """The text of the notebook's first heading, or its file's name."""
    headings = re.findall(r"^# (.+)", "\n".join(cell.source for cell in notebook.cells), re.M)
    return headings[0] if headings else path.stem


def exporter(language):
    """nbconvert's exporter of slides, with our own template around it."""
    return SlidesExporter(
        language_code=language,
        extra_template_basedirs=[str(PARTS.parent)], template_name=PARTS.name, embed_images=True,
        exclude_input_prompt=True, exclude_output_prompt=True, exclude_anchor_links=True,
    )  # fmt: skip


def script(text):
    """JavaScript as it can stand inside of a page: nothing in it ends its element."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE)


def page(path, exported):
    """The slides of the notebook at `path`, as one HTML page."""
    reveal = reveal_files()
    notebook = prepared(path, exported)
    parts = {
        "title": title(notebook, path),
        "reveal_css": (reveal / "dist" / "reveal.css").read_text(encoding="utf-8"),
        "reveal_js": script((reveal / "dist" / "reveal.js").read_text(encoding="utf-8")),
        "notes_js": script((reveal / "plugin/notes/notes.js").read_text(encoding="utf-8")),
        "own_css": (PARTS / "slides.css").read_text(encoding="utf-8")
        + timeline_page.STYLE.read_text(encoding="utf-8"),
        "timelines_js": script(
            timeline_page.SCRIPT.read_text(encoding="utf-8")
            + (PARTS / "timelines.js").read_text(encoding="utf-8")
        ),
        "own_js": script((PARTS / "slides.js").read_text(encoding="utf-8")),
    }
    resources = {"metadata": {"name": path.stem, "path": str(ROOT)}, "slides": parts}
    text, _ = exporter(notebook.metadata.get(LANGUAGE, ENGLISH)).from_notebook_node(
        notebook, resources
    )
    return text


def export(path, exported, out):
    """Write the slides of one lesson into a folder; returns their file."""
    file = out / f"{path.stem}.html"
    whole_file.write(file, page(path, exported))
    return file


def chosen(numbers, folder=NOTEBOOKS):
    """The notebooks of the lessons with these numbers; all for none."""
    lessons = sorted(folder.glob("[0-9]*.ipynb"))
    wanted = {number.zfill(2) for number in numbers} or {path.name[:2] for path in lessons}
    missing = wanted - {path.name[:2] for path in lessons}
    if missing:
        there = ", ".join(path.name[:2] for path in lessons)
        raise SystemExit(f"no lesson {', '.join(sorted(missing))}: there are {there}")
    return [path for path in lessons if path.name[:2] in wanted]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", help="their numbers: 03; default: all")
    parser.add_argument("--language", default=ENGLISH, choices=known(NOTEBOOKS))
    given = parser.parse_args(arguments)
    folder = folder_of(NOTEBOOKS, given.language)
    paths, out = chosen(given.lessons, folder), OUT / folder.relative_to(NOTEBOOKS)
    out.mkdir(parents=True, exist_ok=True)
    exported = {path.stem for path in chosen([], folder)}
    for path in paths:
        file = export(path, exported, out)
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
