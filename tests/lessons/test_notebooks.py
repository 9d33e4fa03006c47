"""What every notebook of the course keeps to; and that each rule catches a notebook that does not.

A rule takes a notebook and the folder it lies in and yields what is wrong, in words.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import mistune
import nbformat
import pytest
from cell_names import bound_anew, bound_twice, left_by_loops, spoiled_by_a_run
from computed import Names
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
DEEPER, MUSEUM = FOLDER / "deeper", FOLDER / "museum"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
DEEPER_HALVES = sorted(DEEPER.glob("[0-9]*.ipynb"))
ROOMS = sorted(MUSEUM.glob("[0-9]*.ipynb"))
FRONT_PAGE, LAST_PAGE, CHALLENGES = "00", "11", "10"  # no lessons
LESSONS = ("01", "02", "03", "04", "05", "06", "07", "08", "09")
PROMISES = FOLDER / "PROMISES.md"
PROMISES_HEADING = "What each lesson must teach"
PLANNED = "planned"

MAX_BYTES = 400_000
MAX_LINES = 15
MAX_LINE = 70
WORDS_A_MINUTE = 100  # of technical English, which is not the reader's own language
SECONDS_A_LINE, SECONDS_AN_OUTPUT = 7, 40
MINUTES_AN_EXERCISE, ROUNDED_TO = 12, 5
SLIDE_TYPES = {"slide", "subslide", "fragment", "skip", "notes", "-"}
SECTIONS = ("Questions students ask", "Summary")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IGNORED, SKIPPED = "nbval-ignore-output", "nbval-skip"
NAVIGATION, INSTALL = "navigation", "install"
NBVAL_COMMENT = re.compile(r"#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)")
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<~])/[\w.-]+/[\w.-]|\b[A-Z]:\\\w")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def taught_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells of a lesson but for the one that installs the course."""
    return [cell for cell in code_cells(notebook) if INSTALL not in tags(cell)]


def markdown_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def start(cell: NotebookNode) -> str:
    """How a message names a cell."""
    return repr((cell.source.strip().splitlines() or [""])[0])


def texts(cell: NotebookNode) -> Iterator[str]:
    """All text that a code cell has put out."""
    for output in cell.outputs:
        yield output.get("text", "")
        yield output.get("evalue", "")
        yield from output.get("traceback", ())
        for kind, data in output.get("data", {}).items():
            if not kind.startswith("image/"):
                yield str(data)


def headings(notebook: NotebookNode) -> list[str]:
    """The texts of all headings, as they are written."""
    found = []
    for cell in markdown_cells(notebook):
        outside_fences = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.M | re.S)
        found += re.findall(r"^#{1,6} +(.+?) *#* *$", outside_fences, flags=re.M)
    return found


class Targets(HTMLParser):
    """The images (address, alternative text) and links of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.images, self.links = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append((attributes.get("src") or "", attributes.get("alt") or ""))
        elif tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


# Rules for every notebook


def is_recorded(notebook, folder):
    """Stored with the outputs of one run from top to bottom."""
    cells = code_cells(notebook)
    counts = [cell.execution_count for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        yield f"execution counts are {counts}"
    if cells and not any(cell.outputs for cell in cells):
        yield "no cell has an output"


def names_its_kernel(notebook, folder):
    """Or JupyterLab begins with a question."""
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "metadata.kernelspec.name is not python3"


def has_no_errors(notebook, folder):
    for cell in code_cells(notebook):
        yield from (f"{start(cell)}: {o.evalue}" for o in cell.outputs if o.output_type == "error")


def has_no_stderr(notebook, folder):
    for cell in code_cells(notebook):
        yield from (f"{start(cell)}: {o.text}" for o in cell.outputs if o.get("name") == "stderr")


def is_small(notebook, folder):
    size_bytes = len(nbformat.writes(notebook).encode())
    if size_bytes > MAX_BYTES:
        yield f"{size_bytes} bytes"


def has_no_widget_state(notebook, folder):
    if "widgets" in notebook.metadata:
        yield "metadata.widgets"
    for cell in code_cells(notebook):
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell.outputs):
            yield f"{start(cell)} refers to a widget"


def is_the_same_on_every_machine(notebook, folder):
    """No absolute paths and no object addresses in outputs."""
    for cell in code_cells(notebook):
        for text in texts(cell):
            for pattern in (ADDRESS, ABSOLUTE_PATH):
                if found := pattern.search(text):
                    yield f"{start(cell)} prints {found.group()!r}"


def has_pictures_that_are_shown_before_it_is_run(notebook, folder):
    """JupyterLab draws no SVG in a notebook that it does not trust yet."""
    for cell in code_cells(notebook):
        for kinds in (output.get("data", {}) for output in cell.outputs):
            if "image/svg+xml" in kinds and "image/png" not in kinds:
                yield f"{start(cell)} shows a picture as SVG alone"


def has_short_cells(notebook, folder):
    for cell in code_cells(notebook):
        if (lines := len(cell.source.strip().splitlines())) > MAX_LINES:
            yield f"{start(cell)} has {lines} lines"


def is_a_slide_show(notebook, folder):
    for cell in notebook.cells:
        if cell.metadata.get("slideshow", {}).get("slide_type") not in SLIDE_TYPES:
            yield f"{start(cell)} has no slide type"


def begins_with_its_title(notebook, folder):
    content = [cell for cell in notebook.cells if not {NAVIGATION, INSTALL} & set(tags(cell))]
    if not content or not re.match(r"# \S", content[0].source):
        yield "the first cell with content does not begin with `# `"


def installs_itself_where_it_is_opened_by_a_link(notebook, folder):
    """The first code cell installs the course where it is not, as on Colab."""
    cells = code_cells(notebook)
    if cells and INSTALL not in tags(cells[0]):
        yield f"{start(cells[0])} comes before the course is installed"


def has_images_and_links_that_lead_somewhere(notebook, folder):
    """Alternative text for every image, and a file behind every relative address."""
    for cell in markdown_cells(notebook):
        page = Targets(mistune.html(cell.source))
        yield from (f"{source} has no alternative text" for source, alt in page.images if not alt)
        for address in (*page.links, *(source for source, _ in page.images)):
            is_relative = not re.match(r"[a-z]+:|#", address)
            if is_relative and not (folder / address.partition("#")[0]).exists():
                yield f"{address} does not exist"


def is_compared_or_claims_what_it_computed(notebook, folder):
    """A cell whose output nbval ignores asserts something in its place, or only draws."""
    names = Names()
    for cell in code_cells(notebook):
        asserts = names.read(cell.source)
        if IGNORED in tags(cell) and not any(asserts) and not only_draws(cell):
            yield f"{start(cell)} asserts nothing that it computed"


def only_draws(cell: NotebookNode) -> bool:
    kinds = [list(output.get("data", {})) for output in cell.outputs]
    return bool(kinds) and all(any(kind.startswith("image/") for kind in each) for each in kinds)


def leaves_nothing_out(notebook, folder):
    """No cell that nbval skips, nor one that tells it so by a comment, where no rule sees it."""
    for cell in code_cells(notebook):
        if SKIPPED in tags(cell) or NBVAL_COMMENT.search(cell.source):
            yield f"{start(cell)} is not compared"


# Rules for lessons


def has_an_answer_folded_under_each_core(notebook, folder):
    """What students write for the lesson's later cells, which Run all has to do without."""
    cells = code_cells(notebook)
    for cell, after in pairwise([*cells, None]):
        if "core" in tags(cell):
            stub = ast.parse(cell.source).body[0]
            folded = after is not None and "answer" in tags(after) and is_folded(after)
            if not folded or stub.name not in names_of_functions(after):
                yield f"{start(cell)}: no cell with the tag `answer` folded under it defines it"
            elif after.outputs:
                yield f"{start(after)} is folded and puts something out"


def names_of_functions(cell: NotebookNode) -> set[str]:
    return {node.name for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef)}


def has_links_at_both_ends(notebook, folder):
    for cell in (notebook.cells[0], notebook.cells[-1]):
        if NAVIGATION not in tags(cell):
            yield f"{start(cell)} is not tagged `{NAVIGATION}`"


def answers_and_sums_up(notebook, folder):
    found = headings(notebook)
    yield from (f"no heading {section!r}" for section in SECTIONS if section not in found)


def has_exercises_with_checks(notebook, folder):
    """A stub raises NotImplementedError, and the next statement hands it to par.check."""
    checked = 0
    for cell in code_cells(notebook):
        if "NotImplementedError" not in cell.source:
            continue
        stub, *after = ast.parse(cell.source).body
        if is_stub(stub) and after and is_check(after[0], of=stub.name):
            checked += 1
        else:
            yield f"{start(cell)} is no stub followed by its check"
    if not checked:
        yield "has nothing for the student to write"


def is_stub(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(body=[*_, ast.Raise(exc=ast.Name(id="NotImplementedError"))]):
            return True
    return False


def is_check(node: ast.stmt, *, of: str) -> bool:
    """Whether it is `par.check(of)`."""
    match node:
        case ast.Expr(value=ast.Call(func=function, args=[ast.Name(id=name), *_])):
            return name == of and ast.unparse(function) == "par.check"
    return False


def minutes_to_work_through(notebook) -> int:
    """Of somebody who reads all, understands each output and does each exercise, rounded to five.

    An exercise takes twelve minutes, or as many as the metadata of its cell say ("minutes").
    """
    exercises = [cell for cell in code_cells(notebook) if "NotImplementedError" in cell.source]
    prose = sum(len(cell.source.split()) for cell in markdown_cells(notebook) if is_read(cell))
    code = [cell for cell in taught_cells(notebook) if not is_folded(cell)]
    lines = sum(bool(line.strip()) for cell in code for line in cell.source.splitlines())
    outputs = sum(bool(cell.outputs) for cell in code if cell not in exercises)
    writing = sum(cell.metadata.get("minutes", MINUTES_AN_EXERCISE) for cell in exercises)
    looking = (SECONDS_A_LINE * lines + SECONDS_AN_OUTPUT * outputs) / 60
    return ROUNDED_TO * round((prose / WORDS_A_MINUTE + looking + writing) / ROUNDED_TO)


def is_read(cell: NotebookNode) -> bool:
    return NAVIGATION not in tags(cell)


def is_folded(cell: NotebookNode) -> bool:
    """Whether JupyterLab hides the code until somebody asks for it."""
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def says_how_long_it_takes(notebook, folder):
    minutes = minutes_to_work_through(notebook)
    page = "\n".join(cell.source for cell in markdown_cells(notebook))
    said = [int(number) for number in re.findall(r"About (\d+) minutes", page)]
    if said != [minutes]:
        yield f"takes about {minutes} minutes, and says {said}"


def has_lines_that_fit_on_a_slide(notebook, folder):
    for cell in code_cells(notebook):
        for line in cell.source.splitlines():
            if len(line) > MAX_LINE:
                yield f"{line!r} has {len(line)} characters"


def is_formatted_by_the_tool_alone(notebook, folder):
    for cell in code_cells(notebook):
        if re.search(r"#\s*fmt:", cell.source):
            yield f"{start(cell)} holds the formatter off"


def has_sliders_that_still_work_at_the_end(notebook, folder):
    for function, name in bound_anew(notebook):
        yield f"{function} draws with {name}, which a later cell binds anew"


def has_cells_that_can_run_again(notebook, folder):
    """After themselves and after later ones: names that they share have one meaning."""
    for line, why in spoiled_by_a_run(notebook):
        yield f"{line!r} {why}"


def has_no_use_for_what_a_loop_left(notebook, folder):
    """A cell says itself which of a loop's values it means, or a reader has to look for it."""
    for line, name in left_by_loops(notebook):
        yield f"{line!r} reads {name}, of which an earlier loop has left its last value"


RULES = (
    is_recorded,
    names_its_kernel,
    has_no_errors,
    has_no_stderr,
    is_small,
    has_no_widget_state,
    is_the_same_on_every_machine,
    has_pictures_that_are_shown_before_it_is_run,
    has_short_cells,
    is_a_slide_show,
    begins_with_its_title,
    installs_itself_where_it_is_opened_by_a_link,
    has_images_and_links_that_lead_somewhere,
    is_compared_or_claims_what_it_computed,
    leaves_nothing_out,
    has_sliders_that_still_work_at_the_end,
    has_cells_that_can_run_again,
    has_no_use_for_what_a_loop_left,
    has_an_answer_folded_under_each_core,
)
LESSON_RULES = (
    has_links_at_both_ends,
    answers_and_sums_up,
    has_exercises_with_checks,
    says_how_long_it_takes,
    has_lines_that_fit_on_a_slide,
    is_formatted_by_the_tool_alone,
)


ROOM_RULES = (
    has_links_at_both_ends,
    has_lines_that_fit_on_a_slide,
    is_formatted_by_the_tool_alone,
)


def rules_for(path: Path) -> tuple:
    if path.name.startswith(FRONT_PAGE):
        return RULES
    if path.parent == MUSEUM:
        return (*RULES, *ROOM_RULES)
    if path.parent == DEEPER or path.name.startswith((LAST_PAGE, CHALLENGES)):
        return (*RULES, has_links_at_both_ends)
    return RULES + LESSON_RULES


def name(argument) -> str:
    if isinstance(argument, Path):
        return str(argument.relative_to(FOLDER).with_suffix(""))
    return argument.__name__


COURSE = [*NOTEBOOKS, *DEEPER_HALVES]
ALL = [*COURSE, *ROOMS]


@pytest.mark.parametrize(
    ("rule", "path"), [(rule, path) for path in ALL for rule in rules_for(path)], ids=name
)
def test_a_notebook_keeps_to_the_rules(rule, path):
    assert list(rule(nbformat.read(path, as_version=4), path.parent)) == []


MEASURED_HERE = [path for path in COURSE if path.name.startswith(("01", "02", "03"))]


@pytest.mark.parametrize("path", MEASURED_HERE, ids=name)
def test_no_cell_prints_figures_of_another_machine_when_an_earlier_one_ran_again(path):
    assert list(bound_twice(nbformat.read(path, as_version=4))) == []


def test_a_name_of_two_cells_that_a_third_reads_is_found():
    sources = ("peak = 1", "peak = 2\nprint(peak)", "slope = 3", "print(peak, slope)")
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    assert list(bound_twice(notebook)) == [("print(peak, slope)", "peak")]


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS][:1] == [FRONT_PAGE]
    assert {path.name[:2] for path in NOTEBOOKS} <= {FRONT_PAGE, *LESSONS, LAST_PAGE, CHALLENGES}


def test_the_first_page_says_how_long_each_lesson_and_its_deeper_half_take():
    page = NOTEBOOKS[0].read_text(encoding="utf-8")
    row = re.compile(r"\((0[1-9]_\w+\.ipynb)\) \|[^|]*\| (\d+) \| \[(\d+)\]\(deeper/\1\)")
    said = {name: (int(own), int(deeper)) for name, own, deeper in row.findall(page)}
    assert said == {
        path.name: tuple(
            minutes_to_work_through(nbformat.read(half, as_version=4))
            for half in (path, DEEPER / path.name)
        )
        for path in NOTEBOOKS
        if path.name[:2] in LESSONS
    }


def test_a_deeper_half_has_the_name_of_its_lesson():
    lessons = {path.name for path in NOTEBOOKS if path.name[:2] in LESSONS}
    assert {path.name for path in DEEPER_HALVES} <= lessons


# Each rule catches a notebook that breaks it, and that one only


STUB = """def {name}(x):
    raise NotImplementedError


par.check({name})"""


def shown(text: str, **data: str) -> NotebookNode:
    return new_output("display_data", {"text/plain": text, **data})


def cell_of(kind, source: str, *cell_tags: str, **more) -> NotebookNode:
    metadata = {"slideshow": {"slide_type": "slide"}, "tags": list(cell_tags)}
    return kind(source, metadata=metadata, **more)


def code(source: str, *cell_tags: str, outputs=()) -> NotebookNode:
    return cell_of(new_code_cell, source, *cell_tags, outputs=list(outputs))


def text(source: str, *cell_tags: str) -> NotebookNode:
    return cell_of(new_markdown_cell, source, *cell_tags)


def numbered(notebook: NotebookNode) -> NotebookNode:
    for number, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = number
    return notebook


@pytest.fixture
def good(tmp_path):
    """A lesson that keeps to all rules."""
    (tmp_path / "ring.png").touch()
    cells = [
        text("[next](04.ipynb)", NAVIGATION),
        text(
            "# Title\n\nAbout 25 minutes.\n\n"
            "![A ring](ring.png) and [a page](https://example.org/a/b)"
        ),
        code("install()", INSTALL),
        code("net = train()", IGNORED, outputs=[shown("Curves", **{"image/png": "iVBOR"})]),
        code("assert net.accuracy > 0.6\nprint(3)", IGNORED),
        code("rate", outputs=[shown("12 GB/s over 3 m/s, 1/2, <b>a</b>, https://a.org/b/c")]),
        code(STUB.format(name="shares")),
        code(STUB.format(name="bucket")),
        text("## Questions students ask\n\n## Summary"),
        text("[next](04.ipynb)", NAVIGATION),
    ]
    (tmp_path / "04.ipynb").touch()
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return numbered(new_notebook(cells=cells, metadata=metadata))


def broken(notebook: NotebookNode, folder: Path) -> set:
    return {rule for rule in RULES + LESSON_RULES if list(rule(notebook, folder))}


def with_output(notebook, output) -> None:
    code_cells(notebook)[3].outputs.append(output)


def with_cell(notebook, cell) -> None:
    notebook.cells.insert(3, cell)
    with_its_minutes(notebook)


def with_its_minutes(notebook) -> None:
    """The title says how long it takes as it is now."""
    title, minutes = notebook.cells[1], minutes_to_work_through(notebook)
    title.source = re.sub(r"About \d+", f"About {minutes}", title.source)
    numbered(notebook)


def with_slider(notebook, value) -> None:
    """A slider's picture shows `value`; a later cell binds `rate` anew."""
    with_cell(notebook, code("rate = 1\n%matplotlib inline"))
    notebook.cells[-3:-3] = [
        code("def step(n):\n    return [rate for _ in range(n)]"),
        code(f"def draw(ax, n):\n    ax.plot({value})\n\n\npar.plots.slider_figure(draw, n=[1])"),
        code("rate = 2"),
    ]
    with_its_minutes(notebook)


CORE_STUB = "def add(a):\n    raise NotImplementedError\n\npar.check(add)"


def with_core(notebook, answer, *tagged, source_hidden=True):
    folded = code(answer, *tagged)
    folded.metadata["jupyter"] = {"source_hidden": source_hidden}
    notebook.cells[3:3] = [code(CORE_STUB, "core"), folded]
    with_its_minutes(notebook)


def without_exercises(notebook) -> None:
    notebook.cells = [c for c in notebook.cells if "NotImplementedError" not in c.source]
    with_its_minutes(notebook)


def more_code(notebook, *sources) -> None:
    """Cells of code after all others, and the time that they take."""
    notebook.cells[-2:-2] = [code(source) for source in sources]
    with_its_minutes(notebook)


IMPLIED = {
    has_sliders_that_still_work_at_the_end: {has_cells_that_can_run_again},
}
SPOILED = [
    (is_recorded, lambda n: code_cells(n)[0].update(execution_count=7)),
    (is_recorded, lambda n: [cell.update(execution_count=None) for cell in code_cells(n)]),
    (names_its_kernel, lambda n: n.metadata.pop("kernelspec")),
    (has_no_errors, lambda n: with_output(n, new_output("error", ename="E", evalue="e"))),
    (has_no_stderr, lambda n: with_output(n, new_output("stream", name="stderr", text="w"))),
    (is_small, lambda n: with_cell(n, text("a" * MAX_BYTES))),
    (has_no_widget_state, lambda n: n.metadata.update(widgets={})),
    (has_no_widget_state, lambda n: with_output(n, shown("Box", **{WIDGET_VIEW: "{}"}))),
    (is_the_same_on_every_machine, lambda n: with_output(n, shown("<Box at 0x7f1234abcd>"))),
    (is_the_same_on_every_machine, lambda n: with_output(n, shown("saved in /home/me/a.pt"))),
    (is_the_same_on_every_machine, lambda n: with_output(n, shown("File '/opt/a.py'"))),
    (is_the_same_on_every_machine, lambda n: with_output(n, shown(r"in C:\Users"))),
    (
        is_the_same_on_every_machine,
        lambda n: with_output(n, new_output("stream", name="stdout", text="/tmp/a")),
    ),
    (
        has_pictures_that_are_shown_before_it_is_run,
        lambda n: with_output(n, shown("Figure", **{"image/svg+xml": "<svg/>"})),
    ),
    (has_short_cells, lambda n: with_cell(n, code("a = 1\n" * (MAX_LINES + 1)))),
    (is_a_slide_show, lambda n: n.cells[1].metadata.pop("slideshow")),
    (is_a_slide_show, lambda n: n.cells[1].metadata.slideshow.update(slide_type="slid")),
    (begins_with_its_title, lambda n: n.cells.insert(1, text("Hello"))),
    (installs_itself_where_it_is_opened_by_a_link, lambda n: n.cells.pop(2)),
    (has_images_and_links_that_lead_somewhere, lambda n: with_cell(n, text("![](ring.png)"))),
    (has_images_and_links_that_lead_somewhere, lambda n: with_cell(n, text("![A](no.png)"))),
    (
        has_images_and_links_that_lead_somewhere,
        lambda n: with_cell(n, text('<img src="ring.png">')),
    ),
    (has_images_and_links_that_lead_somewhere, lambda n: with_cell(n, text("[x](09.ipynb#a)"))),
    (is_compared_or_claims_what_it_computed, lambda n: with_cell(n, code("print(3)", IGNORED))),
    (
        is_compared_or_claims_what_it_computed,
        lambda n: with_cell(n, code("a = 3\nassert a > 2", IGNORED)),
    ),
    (
        is_compared_or_claims_what_it_computed,
        lambda n: code_cells(n)[1].outputs.append(shown("3 s")),
    ),
    (leaves_nothing_out, lambda n: with_cell(n, code("a", SKIPPED))),
    (leaves_nothing_out, lambda n: with_cell(n, code("# NBVAL_IGNORE_OUTPUT\na"))),
    (leaves_nothing_out, lambda n: with_cell(n, code("#NBVAL_SKIP\na"))),
    (has_sliders_that_still_work_at_the_end, lambda n: with_slider(n, "rate")),
    (has_sliders_that_still_work_at_the_end, lambda n: with_slider(n, "step(1)")),
    (has_cells_that_can_run_again, lambda n: more_code(n, "a = 1", "print(a)", "a = 2")),
    (has_cells_that_can_run_again, lambda n: more_code(n, "a = 1", "[a for _ in b]", "a = 2")),
    (
        has_cells_that_can_run_again,
        lambda n: more_code(n, "a = 1", "def f():\n    return a", "f()", "a = 2"),
    ),
    (
        has_cells_that_can_run_again,
        lambda n: more_code(n, "a = 1", "%%emulate_cuda 2\nprint(a)", "for a in b:\n    pass"),
    ),
    (has_cells_that_can_run_again, lambda n: more_code(n, "a = 1", "a += 1")),
    (has_cells_that_can_run_again, lambda n: more_code(n, "a = {1: 2}", "del a[1]")),
    (
        has_no_use_for_what_a_loop_left,
        lambda n: more_code(n, "for a in (1, 2):\n    b = a", "c = 3", "print(b)"),
    ),
    (
        has_no_use_for_what_a_loop_left,
        lambda n: more_code(n, "for a in b:\n    with a as run:\n        pass", "run"),
    ),
    (has_links_at_both_ends, lambda n: n.cells.pop(0)),
    (has_links_at_both_ends, lambda n: n.cells.append(text("The end"))),
    (answers_and_sums_up, lambda n: n.cells[-2].update(source="## Questions students ask")),
    (answers_and_sums_up, lambda n: n.cells[-2].update(source="## Summary")),
    (answers_and_sums_up, lambda n: n.cells[-2].update(source=f"```\n{n.cells[-2].source}\n```")),
    (says_how_long_it_takes, lambda n: n.cells.insert(3, text("word " * 10 * WORDS_A_MINUTE))),
    (says_how_long_it_takes, lambda n: n.cells[1].update(source="# Title\n\nAbout 10 minutes.")),
    (says_how_long_it_takes, lambda n: n.cells[1].update(source="# Title")),
    (has_lines_that_fit_on_a_slide, lambda n: with_cell(n, code(f"x = {'1' * MAX_LINE}"))),
    (is_formatted_by_the_tool_alone, lambda n: with_cell(n, code("x = 1  # fmt: skip"))),
    (has_exercises_with_checks, without_exercises),
    (has_an_answer_folded_under_each_core, lambda n: with_cell(n, code(CORE_STUB, "core"))),
    (
        has_an_answer_folded_under_each_core,
        lambda n: with_core(n, "def add(a):\n    return a", "answer", source_hidden=False),
    ),
    (has_an_answer_folded_under_each_core, lambda n: with_core(n, "a = 1", "answer")),
    (has_an_answer_folded_under_each_core, lambda n: with_core(n, "def add(a):\n    return a")),
    (
        has_exercises_with_checks,
        lambda n: n.cells[7].update(source=STUB.format(name="a").partition("par.")[0]),
    ),
    (
        has_exercises_with_checks,
        lambda n: n.cells[7].update(source=STUB.format(name="a").replace("(a)", "(b)")),
    ),
]


def test_a_good_lesson_breaks_no_rule(good, tmp_path):
    assert broken(good, tmp_path) == set()


@pytest.mark.parametrize(
    ("rule", "spoil"), SPOILED, ids=[f"{i}-{rule.__name__}" for i, (rule, _) in enumerate(SPOILED)]
)
def test_a_rule_catches_what_it_is_for(rule, spoil, good, tmp_path):
    spoiled = deepcopy(good)
    spoil(spoiled)
    if rule is not is_recorded:
        numbered(spoiled)
    assert broken(spoiled, tmp_path) == {rule, *IMPLIED.get(rule, ())}


@pytest.mark.parametrize(
    "sources",
    [
        ("import torch", "print(torch)", "import torch"),
        ("a = 1", "a = 2\nprint(a)", "a = 3"),
        ("a = 1", "def f(a):\n    return a\n\nf(2)", "a = 2"),
        ("a = 1", "%%px\nprint(a)", "a = 2"),
        ("a = 1", "b = [a for a in range(3)]", "a = 2"),
        ("def f():\n    return a", "a = 1\nf()", "a = 2\nf()"),
        ("a['b'] = 1\ndel a['b']", "def f(a):\n    del a[0]"),
    ],
)
def test_cells_that_make_what_they_read_can_run_again(sources):
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    assert list(spoiled_by_a_run(notebook)) == []


@pytest.mark.parametrize(
    "sources",
    [
        ("a = 1\nfor a in (a, 2):\n    print(a)", "a"),
        ("for a in (1, 2):\n    b = a", "b = 3", "b"),
        ("for a in (1, 2):\n    b = a", "for b in (3, 4):\n    print(b)"),
        ("found = []\nfor a in (1, 2):\n    found.append(a)", "found"),
        ("for a in (1, 2):\n    b = a", "def f(b):\n    return b"),
    ],
)
def test_what_is_bound_outside_a_loop_may_be_read(sources):
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    assert list(left_by_loops(notebook)) == []


def test_every_rule_has_been_seen_to_catch():
    assert {rule for rule, _ in SPOILED} == {*RULES, *LESSON_RULES}


# Asserts


CLAIMS = [
    "x = measure()\nassert x > 2",
    "x = measure()\ny = 2 * x\nassert 1 < y < 3",
    "x, y = 3, measure()\nassert y > x",
    "x = [1, 2]\nx.append(measure())\nassert sum(x) > 3",
    "x = {}\nx['a'] = measure()\nassert x['a'] > 3",
    "x = 0\nfor _ in range(3):\n    x += measure()\nassert x > 3",
    "for x in measure():\n    assert x > 3",
    "with measure() as x:\n    assert x > 3",
    "print(x := measure())\nassert x > 3",
    "x = measure()\nassert not x > 2",
    "x = measure()\nassert x > 2 and True",
    "x = measure()\nassert torch.allclose(x, torch.zeros(2))",
    "def rate(n):\n    return n\n\nassert rate(3) > 2",
    "x = %timeit -o f()\nassert x.average > 0",
]
NO_CLAIMS = [
    "",
    "assert True",
    "assert 1 < 2",
    "x = 3\nassert x > 2",
    "x = 3\ny = x + 1\nassert y > 2",
    "x: int = 3\nassert x > 2",
    "x = [1, 2]\nassert sum(x) == 3",
    "x = float('3')\nassert x > 2",
    "import torch\nassert torch.__version__ > '2'",
    "import torch\nassert torch.rand(1) < 2",
    "x = measure()\nassert x",
    "x = measure()\nassert x == x",
    "x = measure()\nassert x is not None",
    "x = measure()\nassert x > 2 or True",
    "x = measure()\nassert (x > 2, 'never false')",
    "x = measure()\nx = 3\nassert x > 2",
    "x, y = 3, measure()\nassert x > 2",
    "x = measure()\nif False:\n    assert x > 2",
    "x = measure()\ntry:\n    assert x > 2\nexcept AssertionError:\n    pass",
    "x = measure()\ndef never():\n    assert x > 2",
    "for x in range(3):\n    assert x < 3",
    "def rate(n):\n    return n\n\nassert rate != 2",
]


@pytest.mark.parametrize("source", CLAIMS)
def test_an_assert_about_a_computed_value_counts(source):
    assert Names().read(source) == [True]


@pytest.mark.parametrize("source", NO_CLAIMS)
def test_an_assert_that_cannot_fail_or_says_nothing_does_not_count(source):
    assert not any(Names().read(source))


def test_names_are_known_from_earlier_cells():
    names = Names()
    assert names.read("assert x > 2") == [False]
    assert names.read("x = measure()") == []
    assert names.read("assert x > 2") == [True]
    assert names.read("x = 3") == []
    assert names.read("assert x > 2") == [False]


# What was promised


def promises(page: str) -> list[list[str]]:
    """The rows (lesson, promise, taught under) of the table in PROMISES.md."""
    section = re.search(rf"^## {PROMISES_HEADING}$(.*?)(?=^## |\Z)", page, flags=re.M | re.S)
    lines = [line for line in section.group(1).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


def unkept(rows: list[list[str]], taught: dict[str, list[str]]) -> Iterator[str]:
    """What is wrong with the table, given the headings of the lessons that exist."""
    for row in rows:
        if len(row) != 3 or not all(row):
            yield f"{row} is not lesson, promise, heading"
            continue
        lesson, promise, heading = row
        if lesson not in LESSONS:
            yield f"{lesson} is no lesson"
        elif lesson not in taught:
            if heading != PLANNED:
                yield f"{lesson} is not written, so {promise!r} is {PLANNED}"
        elif heading not in taught[lesson]:
            yield f"{lesson} has no heading {heading!r}, which is to teach {promise!r}"
    without = sorted(set(LESSONS) - {row[0] for row in rows})
    yield from (f"nothing is promised of lesson {lesson}" for lesson in without)


def test_every_promise_is_kept_under_its_heading():
    taught = defaultdict(list)
    for path in COURSE:
        taught[path.name[:2]] += headings(nbformat.read(path, as_version=4))
    rows = promises(PROMISES.read_text(encoding="utf-8"))
    assert list(unkept(rows, taught)) == []


PAGE = f"""# What the lessons promise

## {PROMISES_HEADING}

| lesson | promise | taught under |
|---|---|---|
| 04 | a ring | The ring |
""" + "\n".join(f"| {lesson} | more | planned |" for lesson in LESSONS if lesson != "04")
TAUGHT = {"04": ["Title", "The ring"]}


def test_a_kept_table_passes():
    assert list(unkept(promises(PAGE), TAUGHT)) == []
    assert len(promises(PAGE + "\n\n## Another section\n\n| 04 | a | b |")) == len(LESSONS)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("The ring", "A ring", "no heading 'A ring'"),
        ("The ring", PLANNED, "no heading 'planned'"),
        ("The ring", "", "is not lesson"),
        ("a ring", "", "is not lesson"),
        ("| more | planned", "| more | Title", "is not written"),
        ("| 08 |", "| 11 |", "11 is no lesson"),
        ("| 08 |", "| 07 |", "nothing is promised of lesson 08"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(old, new, told):
    assert told in " ".join(unkept(promises(PAGE.replace(old, new)), TAUGHT))


def test_headings_are_those_of_the_text():
    cells = [text("# A `b` title\n\n```\n# a comment\n```\n\n### Deep #\n#hashtag"), code("# no")]
    assert headings(new_notebook(cells=cells)) == ["A `b` title", "Deep"]
