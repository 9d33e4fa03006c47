"""All mixes of data, pipeline and tensor parallelism for a model and a machine, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

from ... import machines
from ...machines.hardware import Machine
from ...timeline.inputs import beyond, checked, is_count
from . import explanation, messages
from .costs.memory_model import Memory, memory
from .costs.steps import step_on
from .layout import RECOMPUTE, ZERO, Layout
from .mesh import Mesh, Wiring
from .models import model as named
from .plan import Plan
from .precision import product_rate
from .search_space import Choices, layouts, meshes
from .transformer import Transformer
from .uncertainty import relative_uncertainty

MICRO_BATCHES = (1, 2, 4, 8, 16)
CHUNKS = (1, 2, 4)
# Assumed: the rest is for CUDA, NCCL's buffers and what is lost in fragments.
USABLE = 0.9


@checked
def plans(
    model: str | Transformer,
    machine: machines.Named,
    *,
    batch: int,
    gpus: int | None = None,
    zero: int | None = 0,
    recompute: str | None = None,
    micro_batch: int | None = None,
    chunks: int | None = None,
    sequence_parallel: bool = False,
    overlap: bool = True,
    attention: str = "scores",
    gradient_bytes: int = 2,
    precision: str = "fp16",
    compiled: bool = False,
    optimizer: str = "adam",
) -> list[Plan]:
    """One plan for each mix that divides everything evenly: those that fit first, by step time.

    `batch` is the samples of a step over all of `gpus` GPUs (default: all of the machine). Of the
    settings of a mix the fastest that fit are taken; those given are left as they are: `zero`
    (None: stages 0 to 3 are tried), `recompute` (None: as little as fits), `micro_batch` (None: 1
    to 16), `chunks` (None: 1F1B, and interleaved with 2 and 4). For the others see `Layout`.

    Raises ValueError for a model, machine or number that is not there, and if nothing divides.
    """
    Layout(  # names a setting that is wrong wherever it is used
        Mesh(),
        1 if micro_batch is None else micro_batch,
        chunks=1 if chunks is None else chunks,
    )
    search = _Search.of(
        model,
        machine,
        batch=batch,
        gpus=gpus,
        zeros=ZERO if zero is None else (zero,),
        recompute=RECOMPUTE if recompute is None else (recompute,),
        micro_batches=MICRO_BATCHES if micro_batch is None else (micro_batch,),
        chunks=CHUNKS if chunks is None else (chunks,),
        settings={
            "sequence_parallel": sequence_parallel,
            "overlap": overlap,
            "attention": attention,
            "gradient_bytes": gradient_bytes,
            "precision": precision,
            "compiled": compiled,
            "optimizer": optimizer,
        },
    )
    found = [search.best_of(layouts) for layouts in search.mixes()]
    if not found:
        raise ValueError(explanation.none_divides(search.model, search.gpus, batch))
    return sorted(found, key=lambda plan: (not plan.fits, plan.step_s))


@checked
def best(found: Sequence[Plan]) -> Plan:
    """The first of `plans(…)`. Raises ValueError if it does not fit, with what would."""
    if not found:
        raise ValueError(messages.ERROR_NO_PLANS)
    first = found[0]
    if not first.fits:
        raise ValueError(explanation.none_fits(found))
    return first


@checked
def explain(found: Sequence[Plan]) -> str:
    """Why the first of `plans(…)` is the first, a line a reason, each with its number.

    Raises ValueError if it does not fit.
    """
    return explanation.reasons(best(found), found)


@dataclass(frozen=True)
class _Search:
    model: Transformer
    machine: str
    wiring: Wiring
    capacity_bytes: float
    batch: int
    gpus: int
    choices: Choices

    @classmethod
    def of(
        cls,
        model: str | Transformer,
        machine: machines.Named,
        *,
        batch: int,
        gpus: int | None,
        **choices: Unpack[Choices],
    ) -> _Search:
        chosen, whole = named(model), machines.machine(machine)
        count = len(whole.accelerators)
        gpus = count if gpus is None else gpus
        _check(whole, gpus, batch)
        return cls(
            chosen,
            whole.name,
            Wiring.of(whole),
            USABLE * whole.accelerators[0].memory_bytes,
            batch,
            gpus,
            choices,
        )

    def mixes(self) -> Iterator[list[Layout]]:
        """The settings that each mesh allows, where it allows any."""
        for mesh in meshes(self.model, self.gpus, self.wiring.node_size):
            if found := list(layouts(self.model, mesh, self.batch, **self.choices)):
                yield found

    def best_of(self, found: Iterable[Layout]) -> Plan:
        """The fastest that fits; if none does, that which needs the least memory.

        Of layouts that differ in what is computed again only the first that fits is timed: the
        others are slower.
        """
        needs = [(layout, memory(self.model, layout)) for layout in found]
        fitting: dict[object, tuple[Layout, Memory]] = {}
        for layout, need in needs:
            if need.total_bytes <= self.capacity_bytes:
                same = (layout.micro_batch, layout.chunks, layout.zero)
                fitting.setdefault(same, (layout, need))
        smallest = min(needs, key=lambda pair: pair[1].total_bytes)
        timed = [self._plan(*pair) for pair in fitting.values() or (smallest,)]
        return min(timed, key=lambda plan: plan.step_s)

    def _plan(self, layout: Layout, need: Memory) -> Plan:
        return Plan(
            self.model,
            self.machine,
            self.wiring.node_size,
            layout,
            step_on(self.model, layout, self.wiring),
            need,
            self.capacity_bytes,
            product_rate(self.wiring.accelerator, layout.precision),
            relative_uncertainty(self.wiring.accelerator),
        )


def _check(machine: Machine, gpus: int, batch: int) -> None:
    count = len(machine.accelerators)
    if type(gpus) is not int or not is_count(gpus):
        raise ValueError(messages.ERROR_FEW.format(beyond=beyond(gpus), gpus=gpus))
    if gpus > count:
        raise ValueError(
            messages.ERROR_GPUS.format(
                machine=machine.name,
                count=count,
                gpus=gpus,
                example="64x8x-h100-nvswitch-8xib-ndr",
            )
        )
    if type(batch) is not int or not is_count(batch):
        raise ValueError(messages.ERROR_BATCH.format(beyond=beyond(batch), batch=batch))
