"""A prediction that a reader makes before the answer is known, and meets again beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..timeline import kept
from ..timeline.inputs import checked
from ..timeline.printing import say
from . import texts
from .picture import in_notebook
from .sliders import with_fallback
from .subshells import answer_while_busy

if TYPE_CHECKING:
    from ipywidgets import Widget

KEPT = "predictions"
Answer = float | str


class Prediction:
    """A reader's prediction. `value` is what was typed or chosen last, None before that."""

    def __init__(self, question: str, value: Answer | None, choices: list[str], unit: str) -> None:
        self.question, self.choices, self.unit = question, choices, unit
        self.value = kept.read(KEPT).get(question) if value is None else value
        if self.choices and self.value not in self.choices:
            self.value = None
        if value is not None:
            self._keep(value)

    def beside(self, answer: Answer) -> None:
        """Print the prediction beside the answer, a number in the same unit or a choice."""
        if self.value is None:
            say(texts.NOT_PREDICTED.format(answer=self._text(answer)))
        else:
            words = {"value": self._text(self.value), "answer": self._text(answer)}
            say(texts.PREDICTED.format(**words))

    def _text(self, answer: Answer) -> str:
        text = answer if isinstance(answer, str) else f"{answer:.3g}"
        return f"{text} {self.unit}".strip()

    def _keep(self, value: Answer) -> None:
        self.value = value
        kept.write(KEPT, self.question, value)

    def show(self) -> None:
        """Show the question with something to type into or to choose from."""
        from IPython.display import display

        control = self._control()
        answer_while_busy(control)
        control.observe(lambda change: self._typed(change["new"]), names="value")
        display(with_fallback(control, self.text()), raw=True)

    def text(self) -> str:
        """The question, for a page where nothing can be typed."""
        among = texts.OR.join(self.choices)
        return texts.PREDICT.format(question=texts.joined(self.question, among))

    def _typed(self, new: Answer | None) -> None:
        number = not self.choices and isinstance(new, str)
        value = _number(new) if number else new
        if value is not None:
            self._keep(value)

    def _control(self) -> Widget:
        import ipywidgets

        style = {"description_width": "initial"}
        layout = ipywidgets.Layout(width="100%", max_width="700px")
        if self.choices:
            options = [(texts.CHOOSE, None), *((choice, choice) for choice in self.choices)]
            return ipywidgets.Dropdown(
                options=options, value=self.value, description=self.question,
                style=style, layout=layout,
            )  # fmt: skip
        hint = texts.TYPE.format(unit=self.unit).strip()
        shown = "" if self.value is None else f"{self.value:g}"
        return ipywidgets.Text(
            value=shown, placeholder=hint, description=self.question, style=style, layout=layout
        )


@checked
def predict(
    question: str, value: Answer | None = None, *, choices: Sequence[str] = (), unit: str = ""
) -> Prediction:
    """Ask for a prediction, which `beside` later shows beside the answer.

        guess = par.predict("Two GPUs: how many times as fast?", unit="times")
        guess.beside(1.79)

    It is typed into the box under the cell, chosen from `choices`, or written as `value`. It is
    kept from run to run, in `.d2lpar` beside the notebook. A lesson runs as well without any.

    Raises ValueError for a value that is none of the choices, or no finite number.
    """
    options = list(choices)
    if options and value is not None and value not in options:
        raise ValueError(texts.ERROR_CHOICE.format(value=value, choices=", ".join(options)))
    if not options and value is not None and _number(value) is None:
        raise ValueError(texts.ERROR_NUMBER.format(value=value))
    prediction = Prediction(question, value, options, unit)
    if in_notebook():
        prediction.show()
    else:
        say(prediction.text())
    return prediction


def _number(text: object) -> float | None:
    try:
        number = float(str(text).replace(",", ".").strip())
    except ValueError:
        return None
    return number if math.isfinite(number) else None
