"""Pictures of a lesson: live curves, Gantt charts, image grids and figures with sliders."""

from .gantt_chart import gantt
from .graph_chart import graph
from .image_grid import images
from .live import LivePlot
from .live_gantt import LiveGantt
from .picture import Picture, axes
from .prediction import Prediction, predict
from .schedule_chart import schedule
from .sliders import SliderFigure, slider_figure
from .style import BLUE, FONT_PT, GREEN, INK, ORANGE, PALE, VERMILION
from .training_plot import TrainingPlot

__all__ = [
    "BLUE", "FONT_PT", "GREEN", "INK", "ORANGE", "PALE", "VERMILION",
    "LiveGantt", "LivePlot", "Picture", "Prediction", "SliderFigure",
    "TrainingPlot",
    "axes", "gantt", "graph", "images", "predict", "schedule", "slider_figure",
]  # fmt: skip
