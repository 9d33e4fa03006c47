"""Records the notebooks: runs them in order, stores their outputs, links them to each other.

    python tools/build.py [--check] [notebook ...]

Every notebook runs on a kernel of its own in the world that pyproject.toml fixes, and is written
only when all its cells passed. What changed against the stored outputs is listed, so recording
anew after an upgrade is this one command and a look at its list.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.reader import NotJSONError

from addresses import repository
from d2lpar.command.course.notebook_file import (
    changes,
    code_cells,
    read,
    serialised,
    tags,
    without_widget_views,
)
from d2lpar.timeline import whole_file

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"

SCOREBOARD = ROOT / "d2lpar" / "parallelism" / "scoreboard.json"
KEEP = "D2LPAR_KEEP"  # where a kernel keeps what later ones may want
DEEPER = "deeper"  # the folder with the second half of each lesson
MUSEUM = "museum"  # and that with the rooms of the museum of bugs
MAX_BYTES = 400_000

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
# What editors and runs leave in a cell's metadata, and no reader needs.
VOLATILE_METADATA = ("execution", "ExecuteTime", "collapsed", "scrolled", "trusted")

PREVIOUS, CONTENTS, NEXT = "← {title}", "Contents", "{title} →"
PLAN = f"[{MUSEUM.capitalize()}](README.md)"
INSTALL_TAG = "install"
MISSING = """\
import importlib.util

if not importlib.util.find_spec("d2lpar"):
    raise ImportError("no d2lpar here: open the course by make lab")"""
INSTALL = """\
import importlib.util

if not importlib.util.find_spec("d2lpar"):  # as on Colab or Kaggle
    !git clone -q --depth 1 {repository}
    %cd {name}/{folder}
    %pip install -q "{up}[lessons]"
    %pip install -q --no-deps d2l"""
NOT_ONLY_LINKS = (
    "{name}: cell {number} is tagged `navigation`, so its text is replaced by links; "
    "move the other lines into a cell of their own"
)


class BuildError(Exception):
    """A notebook that cannot be recorded as it is; the text names the cell and the remedy."""


# Links


def title(path):
    """The text of a notebook's first heading, or its file name where there is none."""
    for cell in read(path).cells:
        for line in cell.source.splitlines():
            if cell.cell_type == "markdown" and line.startswith("# "):
                return line.removeprefix("# ").strip()
    return path.stem


def navigation(path, lessons):
    """Markdown links to the notebooks before, first and after `path` in the list `lessons`;
    from a deeper half, to its lesson and to the first; from a room, to those beside it."""
    if path.parent.name == MUSEUM:
        rooms = lessons_in(path.parent)
        here = rooms.index(path)
        links = [f"[{PREVIOUS.format(title=title(r))}]({r.name})" for r in rooms[:here][-1:]]
        links += [PLAN, f"[{CONTENTS}](../{lessons[0].name})"]
        links += [f"[{NEXT.format(title=title(r))}]({r.name})" for r in rooms[here + 1 :][:1]]
        return " | ".join(links)
    if path.parent.name == DEEPER:
        number = path.name.split("_")[0]
        own = [lesson for lesson in lessons if lesson.name.split("_")[0] == number]
        links = [(PREVIOUS.format(title=title(lesson)), lesson) for lesson in own]
        links.append((CONTENTS, lessons[0]))
        return " | ".join(f"[{text}](../{target.name})" for text, target in links)
    here = lessons.index(path)
    links = []
    if here > 1:
        links.append((PREVIOUS.format(title=title(lessons[here - 1])), lessons[here - 1]))
    if here > 0:
        links.append((CONTENTS, lessons[0]))
    if here + 1 < len(lessons):
        links.append((NEXT.format(title=title(lessons[here + 1])), lessons[here + 1]))
    return " | ".join(f"[{text}]({target.name})" for text, target in links)


def hosted(path):
    """Markdown links that open the notebook at `path` on machines of others, if it has one."""
    if repository() is None:
        return ""
    page = f"{repository()}/blob/main/{path.relative_to(course_of(path).parent).as_posix()}"
    colab = page.replace("https://github.com", "https://colab.research.google.com/github")
    return f"Open in [Colab]({colab}), [Kaggle](https://kaggle.com/kernels/welcome?src={page})"


def link(notebook, path, lessons):
    """Writes links into the cells tagged `navigation`, which hold nothing else; in the first they
    lead to other hosts, too."""
    line, elsewhere = navigation(path, lessons), hosted(path)
    more = elsewhere and f" | {elsewhere}"
    for number, cell in enumerate(notebook.cells, 1):
        if "navigation" not in tags(cell):
            continue
        if cell.source.count("\n"):
            raise BuildError(NOT_ONLY_LINKS.format(name=path.name, number=number))
        cell.source, more = line + more, ""


def let_install(notebook, path):
    """Writes the cell that installs the course where it is not, as the first of code; without an
    address it says what to do. JupyterLab folds it: who sees the page there has the course."""
    folders, address = (course_of(path).parent, path.parent), repository()
    source = MISSING
    if address is not None:
        source = INSTALL.format(
            repository=address, name=address.rpartition("/")[2],
            up=Path(os.path.relpath(*folders)).as_posix(),
            folder=folders[1].relative_to(folders[0]).as_posix(),
        )  # fmt: skip
    metadata = {
        "tags": [INSTALL_TAG],
        "slideshow": {"slide_type": "skip"},
        "jupyter": {"source_hidden": True},
    }
    found = [cell for cell in notebook.cells if INSTALL_TAG in tags(cell)]
    if found:
        found[0].update(source=source, metadata=nbformat.from_dict(metadata))
    elif any("navigation" in tags(cell) for cell in notebook.cells) and code_cells(notebook):
        cell = nbformat.v4.new_code_cell(source, id="install", metadata=metadata)
        notebook.cells.insert("navigation" in tags(notebook.cells[0]), cell)


def relink(folder):
    """Brings the links of all notebooks in `folder` up to date, without running them."""
    lessons = lessons_in(folder)
    for path in course(folder):
        notebook = read(path)
        before = deepcopy(notebook)
        link(notebook, path, lessons)
        let_install(notebook, path)
        if notebook != before:
            whole_file.write(path, serialise(notebook))


# Running


def project():
    """What pyproject.toml says of notebooks: the environment variables, and the limit of a cell."""
    return tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["d2lpar"]


def execute(notebook, *, folder, kept, widgets=False):
    """Runs all cells on a new kernel, in place; the first that fails raises `BuildError`.

    What the notebook keeps for later ones is in the folder `kept` then; with `widgets`, what its
    widgets show is in its metadata.
    """
    client = NotebookClient(
        notebook,
        timeout=project()["cell-limit-s"],
        kernel_name=METADATA["kernelspec"]["name"],
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # or every kernel warns of its local sockets
        record_timing=False,
        store_widget_state=widgets,
        coalesce_streams=True,
    )
    try:
        client.execute(env=os.environ | project()["recorded-world"] | {KEEP: str(kept)})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise BuildError(f"In [{client.code_cells_executed}] failed\n{error}") from None


def check_sources(notebook):
    """Refuses a final semicolon, which hides a value here but not from nbval."""
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.source.rstrip().endswith(";"):
            raise BuildError(f"In [{number}] ends in `;`, which nbval ignores; write `_ = …`")


def check_outputs(notebook):
    """Refuses outputs that a reader should not meet: warnings, and errors that did not come."""
    for number, cell in enumerate(code_cells(notebook), 1):
        kinds = {output.output_type for output in cell.outputs}
        stderr = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        if stderr:
            raise BuildError(f"In [{number}] writes to stderr; mend the cause:\n{stderr[0]}")
        if "raises-exception" in tags(cell) and "error" not in kinds:
            raise BuildError(f"In [{number}] is tagged `raises-exception` and raises nothing")


# Normal form


def normalise(notebook):
    """Removes, in place, what differs from run to run or from editor to editor."""
    notebook.metadata = nbformat.from_dict(METADATA)
    without_widget_views(notebook)
    for cell in notebook.cells:
        for key in VOLATILE_METADATA:
            cell.metadata.pop(key, None)
        if cell.cell_type == "code" and not cell.source.strip():
            cell.update(execution_count=None, outputs=[])
    for number, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = number
        for output in cell.outputs:
            normalise_output(output, number)
    return notebook


def normalise_output(output, number):
    if output.output_type == "execute_result":
        output.execution_count = number
    if output.output_type == "error":  # the full traceback holds paths of this machine
        output.traceback = [f"{output.ename}: {output.evalue}"]


# Files


def lessons_in(folder):
    """The notebooks in a folder, in order: their names begin with a number."""
    return sorted(folder.glob("[0-9]*.ipynb"))


def course(folder):
    """All notebooks of the course: lessons, then what goes deeper, then the museum."""
    places = folder, folder / DEEPER, folder / MUSEUM
    return [path for place in places for path in lessons_in(place)]


def course_of(path):
    """The folder of the course that a notebook belongs to."""
    return path.parent.parent if path.parent.name in (DEEPER, MUSEUM) else path.parent


def serialise(notebook):
    """The text of a notebook file; raises `BuildError` above the size that a code host shows."""
    text = serialised(notebook)
    size_bytes = len(text.encode())
    if size_bytes > MAX_BYTES:
        raise BuildError(
            f"{size_bytes / 1e3:.0f} kB is more than {MAX_BYTES / 1e3:.0f} kB; "
            "store fewer or smaller figures"
        )
    return text


# The command


def build(path, *, check=False):
    """Runs and records one notebook, and what it adds to the scoreboard; returns whether an output
    that is compared changed."""
    start_s = time.monotonic()
    old = read(path)
    notebook = deepcopy(old)
    check_sources(notebook)
    with tempfile.TemporaryDirectory() as kept:
        execute(notebook, folder=path.parent, kept=kept)
        rows = Path(kept) / SCOREBOARD.name
        added = json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else {}
    check_outputs(notebook)
    text = serialise(normalise(notebook))
    if not check:
        whole_file.write(path, text)
        add_to_scoreboard(added)
    changed = changes(old, notebook)
    report(path, changed, seconds=time.monotonic() - start_s, size_bytes=len(text.encode()))
    return bool(changed)


def add_to_scoreboard(rows):
    """Adds a lesson's rows to those that come with the package, where later lessons find them."""
    before = json.loads(SCOREBOARD.read_text(encoding="utf-8"))
    after = dict(sorted((before | rows).items()))
    if after != before:
        whole_file.write(SCOREBOARD, json.dumps(after, indent=1, ensure_ascii=False) + "\n")


def attempt(path, *, check):
    """Builds one notebook and says what came of it; returns whether all is well."""
    try:
        changed = build(path, check=check)
    except (BuildError, OSError, NotJSONError) as error:
        print(f"{path.name}: not recorded: {error}", file=sys.stderr)
        return False
    return not (check and changed)


def report(path, changed, *, seconds, size_bytes):
    what = f"{len(changed)} changed" if changed else "no change"
    print(f"{path.name}: {what}  ({seconds:.0f} s, {size_bytes / 1e3:.0f} kB)", flush=True)
    for number, lines in changed:
        for line in lines:
            print(f"    In [{number}]  {line}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of the course")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a compared output changed"
    )
    options = parser.parse_args(arguments)

    chosen = [path.resolve() for path in options.notebooks] or course(ROOT / "notebooks")
    try:
        for folder in {course_of(path) for path in chosen} if not options.check else ():
            relink(folder)
    except (BuildError, NotJSONError) as error:
        parser.exit(1, f"{error}\n")
    passed = [attempt(path, check=options.check) for path in chosen]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
