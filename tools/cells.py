"""The functions that a lesson's cells define, for tests and benchmarks: there is no other copy."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat

LINE_MAGIC = re.compile(r"^(\s*)(?:!|%[a-z]).*$", flags=re.MULTILINE)  # for IPython, not Python
LESSONS = Path(__file__).resolve().parent.parent / "notebooks"


def functions(lesson: str, **names: object) -> SimpleNamespace:
    """All functions of the lesson `lesson` ("03") and of its deeper half, by their names.

    `names` are the modules and objects that the functions use. Nothing else of the cells is run.
    """
    (own,) = LESSONS.glob(f"{lesson}_*.ipynb")
    namespace = dict(names)
    for path in (*LESSONS.glob(f"deeper/{lesson}_*.ipynb"), own):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                exec(compile(_functions_of(cell.source), path.name, "exec"), namespace)
    return SimpleNamespace(**namespace)


def _functions_of(source: str) -> ast.Module:
    magic = source.lstrip().startswith("%")  # a program for another interpreter, or for ranks
    tree = ast.parse("" if magic else LINE_MAGIC.sub(r"\1pass", source))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return tree
