"""What a plan says, question by question; how that looks is for others to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ....timeline.formatting import seconds_text
from ...planner.messages import PARTS
from ..figures import Figures


class Bar(NamedTuple):
    """A part of a whole in words, and where it lies in it: shares from 0 to 1. `room` is what may
    be filled, not what is."""

    name: str
    amount: str
    begin: float
    size: float
    room: bool = False


class Part(NamedTuple):
    """A question and the short answer to it, with bars, and with lines above and below them."""

    question: str
    short: str
    above: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    below: tuple[str, ...] = ()


def answer(plan: Figures) -> Iterator[Part]:
    """All of it: what is planned, whether it fits; then how long and how much, or what would."""
    yield _what(plan)
    if plan.fits:
        yield from (_fits(plan), _how_long(plan), _how_much(plan))
    else:
        yield from (_fits_not(plan), _would_fit(plan))


# --- what is planned ------------------------------------------------------------------------------


def _what(plan: Figures) -> Part:
    model, wanted = plan.model, plan.wanted
    counts = f"{plan.parameters:,} parameters"
    if plan.active_parameters != plan.parameters:
        counts += f", {plan.active_parameters:,} of them active"
    sizes = f"{model.layers} layers, width {model.hidden:,}, {model.heads} heads"
    kind = "inference" if plan.serving else "training"
    where = f"{wanted.gpus} × {wanted.accelerator.name} of {wanted.machine.name}"
    work = f"{kind} on {where}, {wanted.precision}: {_work(plan)}"
    notes = (f"note: {note}" for note in plan.config.notes)
    return Part(f"{plan.config.name}:", f"{counts}; {sizes}", (work, _mix(plan), *notes))


def _work(plan: Figures) -> str:
    wanted, tokens = plan.wanted, plan.model.sequence
    batch = f"{wanted.batch:,}"
    if plan.config.fixed:
        return f"{batch} images of {tokens} patches at once"
    if plan.serving is None or plan.config.encoder:
        once = "a step" if plan.serving is None else "at once"
        return f"{batch} samples of {tokens:,} tokens {once}"
    prompts = "prompt" if wanted.batch == 1 else "prompts"
    return f"{batch} {prompts} of {tokens:,} tokens at once, {wanted.new:,} new tokens for each"


def _mix(plan: Figures) -> str:
    if plan.training is not None:
        compiled = ", compiled" if plan.wanted.compiled else ""
        return f"{plan.training.mesh}, {plan.training.settings}, {plan.wanted.optimizer}{compiled}"
    assert plan.serving is not None
    how = "eager PyTorch" if plan.wanted.eager else "fused kernels, launched as CUDA graphs"
    one = plan.serving
    return f"data {one.replicas} × tensor {one.tensor}, {how}"


# --- does it fit ----------------------------------------------------------------------------------


def _fits(plan: Figures) -> Part:
    need, usable, whole = plan.memory_bytes, plan.capacity_bytes, _card_bytes(plan)
    free = Bar("free", _gb(usable - need), need / whole, (usable - need) / whole, room=True)
    bars = (*_stacked(_needs(plan), whole, _gb), free)
    return Part("Does it fit?", f"Yes: it needs {_gb(need)}, and {_room(plan)}", bars=bars)


def _fits_not(plan: Figures) -> Part:
    need, usable = plan.memory_bytes, plan.capacity_bytes
    there = Bar("there is", _gb(usable), 0.0, usable / need, room=True)
    bars = (*_stacked(_needs(plan), need, _gb), there)
    return Part("Does it fit?", f"No: it needs {_gb(need)} at least, and {_room(plan)}", bars=bars)


def _would_fit(plan: Figures) -> Part:
    remedies = plan.remedies or ["nothing that was tried: take a smaller model"]
    opened = "tensor degree" if plan.serving else "mix, stage of ZeRO and recomputation"
    tried = f"(every {opened} that was left open has been tried)"
    return Part("What would make it fit:", "", (*(f"- {one}" for one in remedies), tried))


def _room(plan: Figures) -> str:
    usable, there = plan.capacity_bytes / 1e9, _gb(_card_bytes(plan))
    return f"a program can use {usable:.1f} of the GPU's {there}"


def _card_bytes(plan: Figures) -> int:
    return plan.wanted.accelerator.memory_bytes


def _needs(plan: Figures) -> dict[str, float]:
    return {name: nbytes for name, nbytes in plan.memory.items() if nbytes}


def _gb(nbytes: float) -> str:
    if nbytes >= 5e7:
        return f"{nbytes / 1e9:,.1f} GB"
    return f"{nbytes / 1e6:,.2f} MB"


def _stacked(
    parts: Mapping[str, float], whole: float, said: Callable[[float], str]
) -> Iterator[Bar]:
    """One part after the other."""
    begin = 0.0
    for name, size in parts.items():
        yield Bar(name, said(size), begin / whole, size / whole)
        begin += size


# --- how long -------------------------------------------------------------------------------------


def _how_long(plan: Figures) -> Part:
    return _of_step(plan) if plan.serving is None else _of_answers(plan)


def _rate(plan: Figures, what: str) -> str:
    rate, gpus = plan.units_per_s, plan.wanted.gpus
    each = f", {_figure(rate / gpus)} a GPU" if gpus > 1 else ""
    return f"{_figure(rate)} {what} a second{each}"


def _of_step(plan: Figures) -> Part:
    assert plan.training is not None
    step_s = plan.step_s
    counted = ", attention counted in full" if plan.model.causal else ""
    rate = f"{_rate(plan, plan.config.unit)}; {plan.utilisation:.0%} of the GPUs' peak{counted}"
    parts = {PARTS[name]: s for name, s in plan.training.parts.items() if s > 0.0005 * step_s}
    return Part(
        "How long?",
        f"{_time(step_s, plan.uncertainty)} a step (simulated)",
        (rate,),
        tuple(_stacked(parts, step_s, seconds_text)),
        (f"bound by {plan.bound}",),
    )


def _of_answers(plan: Figures) -> Part:
    one, off = plan.serving, plan.uncertainty
    assert one is not None
    bound = f"bound by {plan.bound}"
    if plan.config.encoder:
        short = f"{_time(one.prompt_s, off)} for all {one.batch:,} (simulated)"
        return Part("How long?", short, (_rate(plan, plan.config.unit), bound))
    prompts = f"{one.together} prompts" if one.together > 1 else "1 prompt"
    first = f"{_time(one.prompt_s, off)} until all texts have their first token, {prompts} at once"
    rates = (
        f"{_figure(1 / one.token_s)} tokens a second for each reader; all together, prompts "
        f"included, {_rate(plan, plan.config.unit)}"
    )
    short = f"{_time(one.token_s, off)} for each further token (simulated)"
    return Part("How long?", short, (first, rates, bound))


def _time(seconds: float, off: float) -> str:
    return f"{seconds_text(seconds)} (± {off:.0%})"


def _figure(number: float) -> str:
    """Three digits, as more are not known."""
    if number >= 1000:
        digits = len(str(int(number))) - 3
        return f"{round(number, -digits):,.0f}"
    return f"{number:.3g}"


# --- how much -------------------------------------------------------------------------------------


def _how_much(plan: Figures) -> Part:
    price = plan.price
    if price is None or plan.usd_per_h is None or plan.usd_per_billion is None:
        none = f"No price of {plan.wanted.accelerator.name} is known"
        return Part("How much?", none, ("say what one costs an hour: --price 2.50",))
    what = "written tokens" if plan.serving and not plan.config.encoder else plan.config.unit
    dollars, off = _figure(plan.usd_per_billion), plan.uncertainty
    billion = f"${dollars} for a billion {what} (± {off:.0%})"
    whose = f", {price.offer}"
    if price.source:
        whose = f" on demand: {price.offer}; {price.date}, {price.source}"
    gpu = f"${price.usd_per_gpu_h:.2f} a GPU{whose}"
    return Part("How much?", f"${plan.usd_per_h:,.2f} an hour", (billion, gpu))
