"""A button under an error that cells above would have prevented: it runs those, and then the cell.

JupyterLab and Jupyter Notebook execute the commands of theirs that an element names, here: select
all cells from the first to this one, and run them. So each cell's outputs stand under it, and they
can be interrupted, as if the reader had run them. Other front ends get no button.
"""

from __future__ import annotations

import html
import json

from ..locale import translated
from ..timeline.printing import said_of_cell

COMMAND = "apputils:run-all-enabled"  # of JupyterLab: executes those that it is given
COMMANDS = {"commands": ["notebook:extend-marked-cells-top", "notebook:run-cell"]}
LABEL = "Run all cells above, then this one"
BUTTON = (
    '<button class="jp-mod-styled jp-mod-accept" style="margin-top: 8px" '
    'data-commandlinker-command="{command}" data-commandlinker-args="{arguments}">{label}</button>'
)
OF_JUPYTER = "deletedCells"  # what its front ends, and no others, say with a cell


def offer() -> None:
    """Show the button under the cell that runs, where it works and somebody looks on."""
    if OF_JUPYTER not in said_of_cell():
        return
    from IPython.display import display

    arguments = html.escape(json.dumps(COMMANDS))
    button = BUTTON.format(command=COMMAND, arguments=arguments, label=translated(LABEL))
    display({"text/html": button, "text/plain": f"[{LABEL}]"}, raw=True)
