"""Figures with sliders that draw them again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from ...locale import translated
from .. import texts
from ..picture import SIZE_PX, Picture, PictureSlot, drawing, view_data
from ..style import FONT_PT, VERMILION, dress
from .subshells import answer_while_busy

if TYPE_CHECKING:
    from ipywidgets import Widget

CONTROL_WIDTH, WIDEST = "100%", "480px"  # narrower where the page is

Draw = Callable[..., object]  # draw(ax, **values)


class SliderFigure:
    """A picture drawn by `draw(ax, **values)` over controls that draw it again when moved.

    The picture is an output of its own, updated in place, and the controls are a second one, so
    the picture stays when the kernel is gone; in place of the controls a line then tells how to
    get them. Nothing of the widgets' state needs to be stored.
    """

    def __init__(
        self,
        draw: Draw,
        controls: Mapping[str, object],
        *,
        note: str,
        summary: str,
        size_px: tuple[int, int],
    ) -> None:
        self.controls = {name: _control(draw, name, spec) for name, spec in controls.items()}
        align(self.controls.values())
        self._draw, self._note, self._summary, self._size_px = draw, note, summary, size_px
        self._slot = PictureSlot()
        self._box: Widget | None = None
        self.picture = self._drawn(self.values)
        self.png = self.picture.png()
        self._shown = self._first = self.values
        for control in self.controls.values():
            answer_while_busy(control)
            control.observe(lambda _: self.refresh(), names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def refresh(self) -> None:
        """Draw again if the controls have moved since, and show that wherever this is shown."""
        with drawing:
            values = self.values
            if values == self._shown:
                return  # a call that waited here behind another may find its work done
            try:
                self.picture = self._drawn(values)
                self.png = self.picture.png()
            except Exception as error:  # a callback's errors are not shown anywhere else
                self.picture = self._failed(error)
                self.png = self.picture.png()
            self._shown = values
            if self._box is not None:
                self._slot.update(self.picture, self.png)

    def _blank(self) -> Picture:
        return Picture(summary=self._summary, note=self._note, size_px=self._size_px)

    def _drawn(self, values: dict[str, Any]) -> Picture:
        picture = self._blank()
        picture.alt = texts.joined(picture.summary, _spoken(values))
        self._draw(dress(picture.add_subplot()), **values)
        return picture

    def _failed(self, error: Exception) -> Picture:
        picture = self._blank()
        picture.alt = text = f"{type(error).__name__}: {error}"
        picture.text(0.5, 0.5, text, ha="center", color=VERMILION, size=FONT_PT, wrap=True)
        return picture

    def _ipython_display_(self) -> None:
        import ipywidgets
        from IPython.display import display

        if self._box is None:
            self._box = ipywidgets.VBox(list(self.controls.values()))
        fallback = texts.SLIDERS.format(values=_spoken(self._first))
        display(with_fallback(self._box, fallback), raw=True)
        self._slot.open(self.picture, self.png)


def with_fallback(widget: Widget, text: str) -> dict[str, object]:
    """The data of an output that shows a widget, and `text` where no kernel runs."""
    return {**view_data(widget), "text/plain": translated(text)}


def slider_figure(
    draw: Draw,
    *,
    note: str = "",
    summary: str = "",
    size_px: tuple[int, int] = SIZE_PX,
    **controls: object,
) -> SliderFigure:
    """An interactive figure: `draw(ax, **values)` with a control for each of its parameters.

        slider_figure(draw, batch=(16, 1024, 16), link=["PCIe", "NVLink"], note="model")

    A control is an ipywidgets widget or what `interact` takes for one: (low, high, step) is a
    slider, a list a choice, a bool a check box; a list of numbers in order is a slider, too. Each
    starts at the default that `draw` gives its parameter. `draw` runs again at each change, in
    another thread: it must not touch the cell's clock. `summary` is the picture's text (default:
    the first line of draw's docstring).
    """
    first_line = (draw.__doc__ or texts.SLIDER_FIGURE).strip().splitlines()[0]
    return SliderFigure(draw, controls, note=note, summary=summary or first_line, size_px=size_px)


def _spoken(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _control(draw: Draw, name: str, spec: object) -> Widget:
    """The ipywidgets control of one parameter, starting at the parameter's default."""
    import ipywidgets

    parameter = inspect.signature(draw).parameters.get(name)
    default = inspect.Parameter.empty if parameter is None else parameter.default
    if _is_scale(spec):
        start = default if default in spec else spec[0]
        spec = ipywidgets.SelectionSlider(options=spec, value=start)
    control = ipywidgets.interactive.widget_from_abbrev(spec, default)
    if control is None:
        raise ValueError(texts.ERROR_CONTROL.format(name=name, spec=spec))
    control.description = control.description or name.replace("_", " ")
    return control


def align(controls: Collection[Widget]) -> None:
    """Room for the longest description beside every control, and long tracks to slide on."""
    longest = max((len(control.description) for control in controls), default=0)
    for control in controls:
        control.style.description_width = f"{longest + 1}ch"
        control.layout.width, control.layout.max_width = CONTROL_WIDTH, WIDEST


def _is_scale(spec: object) -> TypeGuard[list[float]]:
    """Whether it is a list of numbers in order: one slides along it, and need not pick."""
    return (
        isinstance(spec, list)
        and len(spec) > 0
        and all(type(value) in (int, float) for value in spec)
        and spec == sorted(spec)
    )
