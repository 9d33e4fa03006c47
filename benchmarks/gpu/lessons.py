"""Run a lesson on virtual GPUs from top to bottom, and compare what its cells print.

`lessons.py 03` runs lesson 03 in an IPython of its own: Jupyter is not needed. The clock of virtual
GPUs is simulated, so what is printed must be what is stored, whichever device does the arithmetic.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
import time
import tomllib
import warnings
from pathlib import Path

from children import answer
from figures import Row

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = REPOSITORY / "notebooks"
# What lessons import, with the name of the wheel where it is another one.
ALL_NEED = ("IPython", "ipywidgets", "matplotlib", "pooch", "platformdirs", "psutil")
ALSO_NEED = {
    "03": ("d2l",),
    "04": ("d2l", "torchvision"),
    "05": ("d2l", "torchvision"),
    "06": ("ipyparallel", "torchvision"),
}
WHEELS = {"IPython": "ipython"}
NOT_COMPARED = "nbval-ignore-output"
INSTALLS = "install"
PROMPT = re.compile(r"^Out\[\d+\]: ?\n?", re.MULTILINE)  # of IPython, before a last value


def row(name: str) -> Row:
    """The row of a lesson. What is foreseen are cells that print what is stored."""
    return {
        "id": f"lesson-{name}",
        "workload": "lesson",
        "table": "lessons",
        "unit": "cells",
        "predicted": str(sum(map(_is_compared, cells(name)))),
        "no_figure": "not run yet",
    }


def recorded_world() -> dict[str, str]:
    """The settings with which stored outputs were recorded."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["d2lpar"]["recorded-world"]


def cells(name: str) -> list[dict]:
    """The cells of a lesson that hold code, but for those that install."""
    (path,) = NOTEBOOKS.glob(f"{name}_*.ipynb")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in code if INSTALLS not in _tags(cell)]


def missing(name: str) -> list[str]:
    """The wheels that a lesson needs and this Python has not."""
    wanted = (*ALL_NEED, *ALSO_NEED.get(name, ()))
    return [WHEELS.get(module, module) for module in wanted if not importlib.util.find_spec(module)]


def _tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def stored(cell: dict) -> str:
    """What the cell printed, and its last value as text, when it was recorded."""
    found = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            found.append("".join(output["text"]))
        elif output["output_type"] == "execute_result":
            found.append("".join(output["data"].get("text/plain", "")) + "\n")
    return "".join(found)


def _is_compared(cell: dict) -> bool:
    return bool(stored(cell)) and NOT_COMPARED not in _tags(cell)


def run(name: str) -> dict[str, str]:
    """Run all cells; what the row of the lesson gets. A cell that fails ends it."""
    import matplotlib as mpl
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    mpl.use("agg")
    shell = InteractiveShell.instance(colors="nocolor")
    begin_s, same, other = time.monotonic(), 0, []
    for number, cell in enumerate(cells(name)):
        with capture_output() as captured:  # figures, too
            result = shell.run_cell("".join(cell["source"]), store_history=True)
        if not result.success:
            error = result.error_in_exec or result.error_before_exec
            return {"no_figure": f"failed in cell {number}: {type(error).__name__}: {error}"[:300]}
        if _is_compared(cell):
            printed = PROMPT.sub("", captured.stdout)
            alike = printed.strip() == stored(cell).strip()
            same += alike
            other += [] if alike else [number]
            if not alike:
                print(f"{name}, cell {number}, stored:\n{stored(cell)}", file=sys.stderr)
                print(f"and now:\n{printed}", file=sys.stderr)
    where = f"; other outputs in cells {other}" if other else ""
    told = f"a lesson: {time.monotonic() - begin_s:.0f} s{where}"
    return {"published": str(same), "no_figure": told}


def main() -> None:
    """See above."""
    (name,) = sys.argv[1:]
    if wheels := missing(name):
        answer(
            no_figure=f"failed: lesson {name} needs {', '.join(wheels)}: install them for this "
            "Python, or put a folder with them on PYTHONPATH, and say `make gpu` again"
        )
        return
    os.chdir(NOTEBOOKS)
    sys.path.insert(0, str(NOTEBOOKS))
    with warnings.catch_warnings(), contextlib.suppress(SystemExit):
        warnings.simplefilter("ignore")
        told = run(name)
    answer(**told)
    sys.stdout.flush()
    os._exit(0)  # ranks and threads of the lesson are ended with this process's group


if __name__ == "__main__":
    main()
