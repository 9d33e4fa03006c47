"""The sentences of the package that a reader sees, as templates: found in its code.

Of an f-string the values are places, named after what they are: "expected {expected}, got {got!r}".
Docstrings are not among them, nor what goes into an error: errors stay English.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from d2lpar.locale.messages import JOINTS, LOOSE_JOINTS, MARKS, PLACE

PACKAGE = Path(__file__).resolve().parents[2] / "d2lpar"
# What speaks to readers of the course. The engine's errors and summaries are English.
SPEAKING = (
    *("checks", "trials", "command", "parallelism/pipeline", "parallelism/toy_machine"),
    *("plots/texts.py", "plots/widgets", "lesson", "timeline/kept.py"),
)
# Where the words of pictures stand, which may be one: in these files, and as such arguments.
PICTURES = (
    *("plots/texts.py", "plots/gantt_chart.py", "plots/schedule_chart.py", "plots/bar_panels.py"),
    *("plots/live/training_plot.py", "parallelism/scoreboard.py"),
    *("timeline/traces/page/texts.py", "timeline/host_processes.py"),
)
LABELLING = {"xlabel", "ylabel", "title", "label", "note", "summary"}
LABELS_OF = {"set_xlabel", "set_ylabel", "set_title", "suptitle", "supxlabel", "annotate", "text"}
LABELS_OF |= {"Fact", "Lesson", "LessonPlan"}  # of the lines that `doctor` prints
WORD = re.compile(r"[A-Za-z]{2,}")
TEXT, LABELS = ("TEXT_", "(TEXT_"), ("LABELS",)  # what names of such strings begin with
DOTTED = re.compile(r"\s*\.\S")  # a class of CSS
PLAIN = re.compile(r"[\w.()\[\], ]+")  # an expression that can name a place
SOURCE = re.compile(r"\b(import|def|return|lambda)\b.*\n", re.DOTALL)  # a program, not a sentence


@cache
def english() -> dict[str, str]:
    """All of them by names that say what they are: a change of a sentence makes another name."""
    return {name_of(text): text for text in (*JOINTS, *LOOSE_JOINTS, *found())}


def labels() -> dict[str, str]:
    """The words that the package writes in pictures, in the same way, which no message has."""
    names = {name_of(text): text for text in _labels() if WORD.search(PLACE.sub(" ", text))}
    return {name: text for name, text in names.items() if name not in english()}


def _labels() -> Iterator[str]:
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.relative_to(PACKAGE).parts[0] != "vgpu":
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from _named(tree, LABELS)
            if file.relative_to(PACKAGE).as_posix() in PICTURES:
                yield from of_node(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    yield from _of_call(node)


def _of_call(call: ast.Call) -> Iterator[str]:
    """The strings that a call writes in a picture."""
    name = ast.unparse(call.func).rpartition(".")[2]
    for given in call.args if name in LABELS_OF else ():
        yield from of_node(given)
    for keyword in call.keywords:
        if keyword.arg in LABELLING:
            yield from of_node(keyword.value)


def name_of(text: str) -> str:
    """The name of a sentence's unit."""
    return "m" + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def found() -> Iterator[str]:
    """Each sentence, in the order of the files and their lines."""
    for part in SPEAKING:
        path = PACKAGE / part
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            named = set(_named(tree, TEXT))
            for text in of_node(tree):
                if text in named or is_sentence(text):
                    yield text


def _named(tree: ast.Module, names: tuple[str, ...]) -> Iterator[str]:
    """The strings, of one word too, that have such names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith(names):
            yield from of_node(node.value)


def is_sentence(text: str) -> bool:
    words = WORD.findall(PLACE.sub(" ", text))
    markup = text.lstrip().startswith(("<", "from ", "import ", "def ")) or DOTTED.match(text)
    some = len(words) >= 2 or (len(words) == 1 and text.startswith(MARKS))
    return some and " " in text.strip() and not markup and not SOURCE.search(text)


def of_node(node: ast.AST) -> Iterator[str]:
    if _is_for_no_reader(node):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(map(_part, node.values, range(len(node.values))))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from of_node(value.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from of_node(child)


def _part(value: ast.expr, number: int) -> str:
    if isinstance(value, ast.FormattedValue):
        name = ast.unparse(value.value)
        return f"{{{name if PLAIN.fullmatch(name) else f'value{number}'}}}"
    assert isinstance(value, ast.Constant)
    return str(value.value).replace("{", "{{").replace("}", "}}")


def _is_for_no_reader(node: ast.AST) -> bool:
    """A docstring, a pattern, or what goes into an error that is no verdict."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    call = node.exc if isinstance(node, ast.Raise) else node
    if not isinstance(call, ast.Call):
        return False
    name = ast.unparse(call.func)
    return name == "re.compile" or (isinstance(node, ast.Raise) and name.endswith("Error"))
