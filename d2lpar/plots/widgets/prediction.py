"""A prediction that a reader makes before the answer is known, and meets again beside it."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from ...locale import label, translated
from ...timeline import kept
from ...timeline.inputs import checked
from ...timeline.printing import is_watched, say
from .. import texts
from ..picture import in_notebook
from .progress import PREDICTIONS, line_with
from .sliders import with_fallback
from .subshells import answer_while_busy
from .typed_number import number_in, two_readings

if TYPE_CHECKING:
    from ipywidgets import Text, Widget

SHOWN_CHARACTERS = 40
Answer = float | str


class Prediction:
    """A reader's prediction. `value` is the number in `unit` that was entered last; None before
    that. What says none is refused, and changes nothing."""

    def __init__(self, question: str, entered: Answer | None, unit: str) -> None:
        self.question, self.unit = question, unit
        self.value: float | None = None
        self._entered: Answer | None = None  # as it was typed, with its unit
        if entered is not None:
            self.enter(entered)
        elif self._read(before := kept.read(PREDICTIONS).get(question)) is not None:
            self._take(before)

    def enter(self, entered: Answer | None) -> None:
        """Take what a reader has entered, and keep it; nothing takes the prediction back.

        Raises ValueError, in words for the reader, for what is no number in this unit.
        """
        if isinstance(entered, str) and not entered.strip():
            entered = None
        if entered is not None and self._read(entered) is None:
            raise ValueError(self._refusal(entered))
        self._take(entered)
        kept.write(PREDICTIONS, self.question, entered)

    def _take(self, entered: Answer | None) -> None:
        self.value, self._entered = self._read(entered), entered

    def _read(self, entered: object) -> float | None:
        """The value that something entered, or kept, stands for."""
        if isinstance(entered, str):
            return number_in(self.unit, entered)
        if isinstance(entered, int | float) and not isinstance(entered, bool):
            return entered if math.isfinite(entered) else None
        return None

    def _refusal(self, entered: Answer) -> str:
        words = {"entered": str(entered).strip()[:SHOWN_CHARACTERS], "unit": self.unit}
        example = texts.REFUSED_IN_UNIT if self.unit else texts.REFUSED
        if both := two_readings(str(entered)):
            example, words = texts.TWO_READINGS, words | dict(zip("ab", both, strict=True))
        stays = "" if self.value is None else texts.STAYS.format(value=self._said())
        return example.format(**words) + stays

    def beside(self, answer: float) -> None:
        """Print the prediction beside the answer, a number in the same unit; while somebody looks
        on, also how much of the lesson is done."""
        told = f"{answer:.3g} {self.unit}".strip()
        if self.value is None:
            say(texts.NOT_PREDICTED.format(answer=told))
            return
        say(texts.PREDICTED.format(value=self._said(), answer=told))
        if is_watched() and (line := line_with(self.question)):
            say(line)

    def show(self) -> None:
        """Show the question with something to type into."""
        from IPython.display import display

        display(with_fallback(self.control(), self.text()), raw=True)

    def text(self) -> str:
        """The question, for a page where nothing can be typed."""
        return texts.PREDICT.format(question=self.question)

    def control(self) -> Widget:
        """A box to type into, with what was made of that beside it."""
        import ipywidgets

        style = {"description_width": "initial"}
        layout = ipywidgets.Layout(width="100%", max_width="700px")
        box = ipywidgets.Text(
            value=self._entered if isinstance(self._entered, str) else self._said(),
            placeholder=label(texts.TYPE.format(unit=self.unit).strip()), description=self.question,
            continuous_update=False,  # half a number is another number
            style=style, layout=layout,
        )  # fmt: skip
        layout.height, layout.flex_flow = "auto", "row wrap"  # in a narrow page it goes below
        note = ipywidgets.HTML(self._note())
        box.observe(lambda _: self._answer(box, note), names="value")
        answer_while_busy(box)
        return ipywidgets.VBox([box, note])

    def _answer(self, box: Text, note: Widget) -> None:
        try:
            self.enter(box.value)
        except ValueError as error:
            note.value = html.escape(translated(str(error)))
        else:
            note.value = self._note()

    def _said(self) -> str:
        """The prediction in its unit: no other number than the one that was typed."""
        if self.value is None:
            return ""
        digits = 15 if float(self.value).is_integer() else 6
        return f"{self.value:.{digits}g} {self.unit}".strip()

    def _note(self) -> str:
        if self.value is None:
            return ""
        return html.escape(label(texts.KEPT.format(value=self._said())))


@checked
def predict(question: str, value: Answer | None = None, *, unit: str = "") -> Prediction:
    """Ask for a prediction, which `beside` later shows beside the answer.

        guess = par.predict("Two GPUs: how many times as fast?", unit="times")
        guess.beside(1.79)

    It is typed into the box under the cell, or written as `value`: a number in `unit`, or text with
    a unit that can be converted to it, such as "460 ms". It is kept from run to run, in `.d2lpar`
    beside the notebook. A lesson runs as well without any.

    Raises ValueError for a value that is no finite number in `unit`.
    """
    prediction = Prediction(question, value, unit)
    if in_notebook():
        prediction.show()
    else:
        say(prediction.text())
    return prediction
