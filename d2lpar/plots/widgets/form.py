"""A form with an answer below it, which follows what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...locale import translated
from .. import texts
from ..picture import drawing
from .sliders import CONTROL_WIDTH, align, with_fallback
from .subshells import answer_while_busy

if TYPE_CHECKING:
    from ipywidgets import Widget

NARROWEST = "300px"  # a control, with its name


@dataclass(frozen=True)
class Choice:
    """One of several, each a value by its label; `label` is chosen at first."""

    options: Mapping[str, Any]
    label: str

    def control(self) -> Widget:
        """A list of labels to pick from."""
        import ipywidgets

        return ipywidgets.Dropdown(options=tuple(self.options), value=self.label)

    def value(self, label: str) -> Any:
        """What is meant by it."""
        return self.options[label]


@dataclass(frozen=True)
class Typed:
    """A text, with names that may be meant; `hint` says what an empty one stands for."""

    text: str
    names: Sequence[str] = ()
    hint: str = ""

    def control(self) -> Widget:
        """A box to type into."""
        import ipywidgets

        # Half a name is another name: it is answered when the box is left, or with Enter.
        given = {"value": self.text, "placeholder": self.hint, "continuous_update": False}
        if self.names:
            return ipywidgets.Combobox(options=tuple(self.names), **given)
        return ipywidgets.Text(**given)

    def value(self, text: str) -> str:
        """What was typed, without spaces around it."""
        return text.strip()


class Form:
    """Controls over the HTML that `answer(**values)` makes of them, anew whenever one is changed.

    `first` is the answer to what is chosen at first. An error takes the answer's place, as
    `refused(error)` writes it, and the controls stay as they were set.
    """

    def __init__(
        self,
        fields: Mapping[str, Choice | Typed],
        answer: Callable[..., str],
        first: str,
        *,
        refused: Callable[[Exception], str],
    ) -> None:
        import ipywidgets

        self._fields = fields
        self.controls = {name: field.control() for name, field in fields.items()}
        for name, control in self.controls.items():
            control.description = name
        align(self.controls.values())
        for control in self.controls.values():
            control.layout.width = "auto"  # its margins lie within the column
        self.answer = ipywidgets.HTML(first, layout={"width": CONTROL_WIDTH})
        self._answer, self._refused, self._answered = answer, refused, self.values
        columns = {"grid_template_columns": f"repeat(auto-fit, minmax({NARROWEST}, 1fr))"}
        controls = ipywidgets.GridBox(list(self.controls.values()), layout=columns)
        self._box = ipywidgets.VBox([controls, self.answer])
        for control in self.controls.values():
            answer_while_busy(control)
            control.observe(lambda _: self.refresh(), names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {
            name: field.value(self.controls[name].value) for name, field in self._fields.items()
        }

    def refresh(self) -> None:
        """Answer again if a control was changed since."""
        with drawing:
            values = self.values
            if values == self._answered:
                return  # a call that waited here behind another may find its work done
            self._answered = values
            self.answer.value = translated(texts.ANSWER_COMES)
            try:
                self.answer.value = self._answer(**values)
            except Exception as error:  # a callback's errors are not shown anywhere else
                self.answer.value = self._refused(error)

    def show(self, text: str) -> None:
        """Show it in a notebook, and `text` where no kernel runs."""
        from IPython.display import display

        display(with_fallback(self._box, text), raw=True)
