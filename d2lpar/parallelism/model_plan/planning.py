"""The plan of a model on a machine, from all that may be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import machines
from ...machines.hardware import Machine
from ...machines.prices import Price, price_of
from ...timeline.inputs import Count, Positive, require
from ...timeline.printing import say
from .figures import Figures
from .inference import serve
from .naming import config_of, transformer_of
from .shown import report
from .shown.answer import answer
from .training import train
from .wanted import Wanted, sequence_of, usual_precision

if TYPE_CHECKING:
    from .naming import Model


@dataclass(frozen=True)
class ModelPlan(Figures):
    """What a model takes on a machine; printed, it is what `d2lpar plan` says.

    A notebook shows it with controls that ask for other plans, and as text where no kernel runs.
    """

    def __str__(self) -> str:
        return report.text(answer(self))

    def _ipython_display_(self) -> None:
        from ...plots.picture import in_notebook

        if not in_notebook():
            say(self)
            return
        from .shown.form import form

        form(self, plan_model).show(str(self))


def plan_model(
    model: Model,
    machine: machines.Named,
    *,
    batch: int,
    inference: bool = False,
    gpus: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    price: float | None = None,
    **settings: Any,
) -> ModelPlan:
    """Whether a model fits a machine, how long it takes there, and what that costs.

    `model` is the path of a `config.json`, a name, the fields of a config.json, or a
    `planner.Transformer`; nothing is downloaded. `batch` are the samples of a training step over
    all GPUs, or the texts that are answered at once. `sequence` are the tokens of a sample (None:
    4096, or as many as it reads), or of a prompt (None: 1024). `precision` None is bf16, fp16 or
    fp32, the first that the card is fast in. `price` are dollars of a GPU an hour (None: a
    published one). `settings` are fields of `Wanted`: what is left out, the planner chooses.

    Times are simulated. Raises ValueError for what is not there, and what does not divide.
    """
    require("plan_model", Count, batch=batch)
    require("plan_model", Count | None, gpus=gpus, sequence=sequence)
    require("plan_model", Positive | None, price=price)
    require("plan_model", bool, inference=inference)
    config = config_of(model)
    whole = machines.machine(machine)
    wanted = Wanted(
        machine=whole,
        batch=batch,
        gpus=_gpus(whole, gpus),
        sequence=sequence_of(config, sequence, inference=inference),
        precision=precision or usual_precision(whole.accelerators[0]),
        price=price,
        **settings,
    )
    transformer = transformer_of(config, wanted.sequence)
    paid = _price(whole, price)
    if inference:
        served = serve(config, transformer, wanted)
        return ModelPlan(config, transformer, wanted, paid, serving=served)
    return ModelPlan(config, transformer, wanted, paid, training=train(transformer, wanted))


def _gpus(machine: Machine, wanted: int | None) -> int:
    """As many as are asked for, of those there are."""
    there = len(machine.accelerators)
    if wanted is not None and wanted > there:
        raise ValueError(
            f"{machine.name} has {there} GPUs, not {wanted}: name a cluster, such as "
            "8x8x-h100-nvswitch-8xib-ndr, or leave gpus out"
        )
    return there if wanted is None else wanted


def _price(machine: Machine, given: float | None) -> Price | None:
    return price_of(machine) if given is None else Price(given, "as given", "", "")
