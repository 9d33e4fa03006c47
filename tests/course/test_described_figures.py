"""What pyplot shows in a notebook has a text, made of its labels; what has one keeps it."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib.figure import Figure

from d2lpar.lesson import described_figures


@pytest.fixture
def shell():
    """A shell that shows figures as the inline backend does, which comes after the package."""
    shell = InteractiveShell()
    described_figures.describe(shell)
    described_figures.describe(shell)
    select_figure_formats(shell, "png")
    return shell


def curves():
    figure = Figure()
    ax = figure.subplots()
    ax.plot([1, 2], label="train loss")
    ax.plot([2, 1], label="test acc")
    ax.set(xlabel="epoch", title="LeNet")
    ax.legend()
    return figure


def alt_of(shell, shown):
    data, metadata = shell.display_formatter.format(shown)
    return metadata.get("image/png", {}).get("alt") if "image/png" in data else None


def test_a_figure_is_told_by_its_labels(shell):
    assert alt_of(shell, curves()) == "Plot of LeNet: train loss, test acc against epoch"


def test_without_a_legend_it_is_what_the_axes_say(shell):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.set(xlabel="epoch", ylabel="loss")
    right.set(ylabel="acc")
    assert alt_of(shell, figure) == "Plot of loss against epoch; acc"


def test_a_figure_without_labels_has_a_text_too(shell):
    figure = Figure()
    figure.subplots().plot([1, 2])
    assert alt_of(shell, figure)


def test_a_text_that_is_there_stays(shell):
    png = shell.display_formatter.formatters["image/png"]
    png.for_type(Figure, lambda figure: ("iVBOR", {"alt": "its own"}))
    assert alt_of(shell, curves()) == "its own"


def test_what_is_no_figure_is_shown_as_before(shell):
    assert shell.display_formatter.format(3) == ({"text/plain": "3"}, {})
