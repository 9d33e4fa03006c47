"""A plan in a notebook: what was asked, to be changed, and the answer below it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from .... import machines
from ....plots.widgets.form import Choice, Form, Typed
from ....timeline.inputs import Count, option
from ...planner.precision import PRECISIONS
from ..figures import Figures
from ..kinds import OF_INFERENCE, OF_TRAINING
from ..published import PUBLISHED
from ..wanted import Wanted, sequence_of, usual_precision
from . import markup
from .answer import answer

TRAINING, INFERENCE = "training", "inference"
KINDS = {TRAINING: False, INFERENCE: True}
ASKED = ("machine", "batch", "gpus", "sequence", "precision", "zero")  # by controls
OPEN = "left open"
USUAL = "what the GPU has"


def form(plan: Figures, plan_model: Callable[..., Figures]) -> Form:
    """Controls that stand at what a plan was asked for; what has none stays as it was given.
    `plan_model` makes the others."""
    wanted, inference = plan.wanted, plan.serving is not None
    usual = wanted.precision == usual_precision(wanted.accelerator)
    whole = wanted.gpus == len(wanted.machine.accelerators)
    default = wanted.sequence == sequence_of(plan.config, None, inference=inference)
    first = markup.html(answer(plan))
    zeros = {OPEN: None} | {str(stage): stage for stage in range(4)}
    precisions = {USUAL: None} | {name: name for name in PRECISIONS}
    controls: dict[str, Choice | Typed] = {
        "model": Typed(plan.config.name, tuple(PUBLISHED)),
        "machine": Typed(wanted.machine.name, tuple(machines.CATALOGUE)),
        "GPUs": Typed("" if whole else str(wanted.gpus), hint="all of the machine"),
        "for": Choice(KINDS, INFERENCE if inference else TRAINING),
        "batch": Typed(str(wanted.batch)),
        "sequence": Typed("" if default else str(wanted.sequence), hint="the usual tokens"),
        "precision": Choice(precisions, USUAL if usual else wanted.precision),
        "ZeRO stage": Choice(zeros, OPEN if wanted.zero is None else str(wanted.zero)),
    }
    return Form(controls, _Answers(plan, plan_model), first, refused=markup.refusal)


class _Answers:
    """Plans of what the controls say."""

    def __init__(self, plan: Figures, plan_model: Callable[..., Figures]) -> None:
        self._plan_model = plan_model
        self._models = {plan.config.name: plan.config}
        self._machines = {plan.wanted.machine.name: plan.wanted.machine}
        self._given = {
            field.name: getattr(plan.wanted, field.name)
            for field in fields(Wanted)
            if field.name not in ASKED
        }

    def __call__(self, **asked: Any) -> str:
        """HTML of the answer. Raises ValueError as `plan_model`, and for what is no number."""
        model, machine, inference = asked["model"], asked["machine"], asked["for"]
        foreign = OF_TRAINING if inference else OF_INFERENCE
        settings = self._given | {"zero": asked["ZeRO stage"]}
        plan = self._plan_model(
            self._models.get(model, model),
            self._machines.get(machine, machine),
            batch=_count("batch", asked["batch"]),
            inference=inference,
            gpus=_count_or_none("GPUs", asked["GPUs"]),
            sequence=_count_or_none("sequence", asked["sequence"]),
            precision=asked["precision"],
            **{name: value for name, value in settings.items() if name not in foreign},
        )
        return markup.html(answer(plan))


def _count(name: str, text: str) -> int:
    try:
        number: int = option(Count)(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name}: {error}") from None
    return number


def _count_or_none(name: str, text: str) -> int | None:
    return _count(name, text) if text else None
