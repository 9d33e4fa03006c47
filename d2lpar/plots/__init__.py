"""Pictures of a lesson: live curves, Gantt charts and figures with sliders."""

from .gantt_chart import gantt
from .graph_chart import graph
from .live.live import LivePlot
from .live.live_gantt import LiveGantt
from .live.training_plot import TrainingPlot
from .picture import Picture, axes
from .schedule_chart import schedule
from .style import BLUE, FONT_PT, GREEN, INK, ORANGE, PALE, VERMILION
from .widgets.prediction import Prediction, predict
from .widgets.sliders import SliderFigure, slider_figure

__all__ = [
    "BLUE", "FONT_PT", "GREEN", "INK", "ORANGE", "PALE", "VERMILION",
    "LiveGantt", "LivePlot", "Picture", "Prediction", "SliderFigure",
    "TrainingPlot",
    "axes", "gantt", "graph", "predict", "schedule", "slider_figure",
]  # fmt: skip
