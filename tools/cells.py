"""The functions that a lesson's cells define, for tests and benchmarks: there is no other copy."""

import ast
from pathlib import Path
from types import SimpleNamespace

import nbformat

LESSONS = Path(__file__).resolve().parent.parent / "notebooks"


def functions(lesson: str, **names: object) -> SimpleNamespace:
    """All functions of the notebook whose name begins with `lesson` ("03"), by their names.

    `names` are the modules and objects that the functions use. Nothing else of the cells is run.
    """
    (path,) = LESSONS.glob(f"{lesson}_*.ipynb")
    namespace = dict(names)
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            exec(compile(tree, path.name, "exec"), namespace)
    return SimpleNamespace(**namespace)
