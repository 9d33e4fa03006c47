"""Everything a reader sees, in one place for translators (but what timelines share: see there)."""

from ..timeline.traces.page.texts import KINDS as KINDS
from ..timeline.traces.page.texts import PASSES as PASSES

LIVE = "Curves of {curves} over {xlabel}"
PANELS = "{panels} of {names} over {xlabel}"
AND = " and "
NO_POINTS = "no points yet"
GRAPH = "Dependency graph of {operations} operations on {places}"
NODES = {
    "input": "input", "copy": "copy", "host": "on the host", "device": "on a device",
}  # fmt: skip
LONGEST_CHAIN = "longest chain"
GANTT = "Gantt chart of {rows}"
LIVE_GANTT = "Gantt chart of a run, drawn while it is recorded"
CRITICAL_PATH = "critical path"
MEMORY_OF = "memory · {device}"
SPANS = "{spans} spans in {length}"
SLIDERS = "Run this cell to move the sliders: {values}"
SLIDER_FIGURE = "Interactive figure"
ANSWER_COMES = "The answer is being computed …"
PREDICT = "Your prediction: {question}"
TYPE = "a number {unit}"
PREDICTED = "You predicted {value}. The answer is {answer}."
NOT_PREDICTED = "The answer is {answer}. (You made no prediction.)"
KEPT = "Kept: {value}"
REFUSED = "Not kept: “{entered}”. Type one number, such as 1.5 or 3/2."
REFUSED_IN_UNIT = (
    "Not kept: “{entered}”. Type one number and its unit, such as 1.5 {unit} or 3/2 {unit}."
)
TWO_READINGS = "Not kept: “{entered}” can be {a} or {b}. Type it in one of these ways."
STAYS = " {value} stays your prediction."
TIME = "time ({unit})"
ERROR_NO_PASSES = (
    "there is no pass of a micro-batch to draw: the timeline needs spans with names like 2F0"
)
ERROR_CURVE = "no curve is named {name!r}: the curves of this plot are {known}"
ERROR_FINITE = "x must be a finite number, not {x!r}"
ERROR_CURVES = "curves must be one or more different names, not {curves!r}"
ERROR_FPS = "max_fps must be positive, not {fps!r}"
ERROR_LIMITS = "{axis} must be two different finite numbers or None, not {limits!r}"
ERROR_SCALE = 'a scale is "linear" or "log", not {scale!r}'
ERROR_LOG = "on a log scale {axis} must be above zero, not {value!r}"
ERROR_CLOSED = "this plot is not open: use it inside `with LivePlot(...) as plot:`"
ERROR_RUN_CLOSED = "this run is not open: use it inside `with plot.run(...) as run:`"
ERROR_NO_RUN = "a training plot shows runs with names: `plot.run('1 GPU')`, not {name!r}"
STOPPED = "stopped in line {line} of the cell"
STOPPED_LATE = "stopped while the last picture was drawn"
ERROR_NO_SPANS = "there is no span to draw: run something on the timeline first, or widen window_s"
ERROR_NO_NODES = "there is no operation to draw: trace some first"
ERROR_MEMORY_AXES = "memory has axes of its own: leave out either memory=True or ax"
ERROR_CONTROL = "no control can be made for {name}={spec!r}: see ipywidgets.interact's table"


def joined(*parts: str) -> str:
    """The parts that are not empty, as one line."""
    return " · ".join(filter(None, parts))
