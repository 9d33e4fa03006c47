"""A plan as lines of at most 100 columns: does it fit, how long, how much."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ...timeline.formatting import seconds_text
from ..planner.messages import PARTS
from .figures import Figures

WIDTH, BAR = 100, 40
FULL, ROOM = "█", "·"


def text(plan: Figures) -> str:
    """All of it."""
    blocks = [_what(plan), _fits(plan)]
    if plan.fits:
        blocks += [_how_long(plan), _how_much(plan)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _wrapped(line: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


# --- what is planned ------------------------------------------------------------------------------


def _what(plan: Figures) -> list[str]:
    model, wanted = plan.model, plan.wanted
    line = f"{plan.config.name}: {plan.parameters:,} parameters"
    if plan.active_parameters != plan.parameters:
        line += f", {plan.active_parameters:,} of them active"
    sizes = f"{model.layers} layers, width {model.hidden:,}, {model.heads} heads"
    lines = [*_wrapped(f"{line}; {sizes}", "")]
    kind = "inference" if plan.serving else "training"
    card = wanted.accelerator.name
    where = f"{wanted.gpus} × {card} of {wanted.machine.name}, {wanted.precision}"
    lines += _wrapped(f"{kind} on {where}: {_work(plan)}")
    lines += _wrapped(_mix(plan))
    for note in plan.config.notes:
        lines += _wrapped(f"note: {note}")
    return lines


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


def _fits(plan: Figures) -> list[str]:
    card = plan.wanted.accelerator
    need, usable, whole = plan.memory_bytes, plan.capacity_bytes, card.memory_bytes
    parts = {name: nbytes for name, nbytes in plan.memory.items() if nbytes}
    room = f"a program can use {_gb(usable)} of a GPU's {_gb(whole)}"
    if plan.fits:
        lines = [f"Does it fit? Yes: it needs {_gb(need)}, and {room}"]
        free = _Row("free", _gb(usable - need), need, usable - need, ROOM)
        return [*lines, *_bars([*_stacked(parts, _gb), free], whole)]
    lines = [f"Does it fit? No: it needs {_gb(need)} at least, and {room}"]
    there = _Row("there is", _gb(usable), 0.0, usable, ROOM)
    lines += _bars([*_stacked(parts, _gb), there], need)
    lines += ["", "What would make it fit:"]
    found = plan.remedies
    for remedy in found:
        lines += _wrapped(f"- {remedy}")
    if not found:
        lines += _wrapped("- nothing that was tried: take a smaller model")
    opened = "tensor degree" if plan.serving else "mix, stage of ZeRO and recomputation"
    lines += _wrapped(f"(every {opened} that was left open has been tried)")
    return lines


def _gb(nbytes: float) -> str:
    if nbytes >= 5e7:
        return f"{nbytes / 1e9:,.1f} GB"
    return f"{nbytes / 1e6:,.2f} MB"


class _Row(NamedTuple):
    """A part in words, and where it lies in the whole."""

    name: str
    amount: str
    begin: float
    size: float
    fill: str = FULL


def _stacked(parts: Mapping[str, float], said: Callable[[float], str]) -> Iterator[_Row]:
    """One part after the other."""
    begin = 0.0
    for name, size in parts.items():
        yield _Row(name, said(size), begin, size)
        begin += size


def _bars(rows: Iterable[_Row], whole: float) -> Iterator[str]:
    rows = list(rows)
    name, amount = max(len(row.name) for row in rows), max(len(row.amount) for row in rows)
    for row in rows:
        begin, end = (round(BAR * at / whole) for at in (row.begin, row.begin + row.size))
        bar = " " * begin + row.fill * (end - begin)
        yield f"  {row.name:<{name}}  {row.amount:>{amount}}  |{bar:<{BAR}}|"


# --- how long -------------------------------------------------------------------------------------


def _how_long(plan: Figures) -> list[str]:
    return _of_step(plan) if plan.serving is None else _of_answers(plan)


def _rate(plan: Figures, what: str) -> str:
    rate, gpus = plan.units_per_s, plan.wanted.gpus
    each = f", {_figure(rate / gpus)} a GPU" if gpus > 1 else ""
    return f"{_figure(rate)} {what} a second{each}"


def _of_step(plan: Figures) -> list[str]:
    assert plan.training is not None
    step_s, off = plan.step_s, plan.uncertainty
    lines = [f"How long? {_time(step_s, off)} a step (simulated)"]
    counted = ", attention counted in full" if plan.model.causal else ""
    lines += _wrapped(
        f"{_rate(plan, plan.config.unit)}; {plan.utilisation:.0%} of the GPUs' peak{counted}"
    )
    parts = {PARTS[name]: s for name, s in plan.training.parts.items() if s > 0.0005 * step_s}
    lines += _bars(_stacked(parts, seconds_text), step_s)
    lines += _wrapped(f"bound by {plan.bound}")
    return lines


def _of_answers(plan: Figures) -> list[str]:
    one, off = plan.serving, plan.uncertainty
    assert one is not None
    if plan.config.encoder:
        lines = [f"How long? {_time(one.prompt_s, off)} for all {one.batch:,} (simulated)"]
        lines += _wrapped(_rate(plan, plan.config.unit))
    else:
        lines = [f"How long? {_time(one.token_s, off)} for each further token (simulated)"]
        per_text = 1 / one.token_s
        first = _time(one.prompt_s, off)
        prompts = f"{one.together} prompts" if one.together > 1 else "1 prompt"
        lines += _wrapped(f"{first} until all texts have their first token, {prompts} at once")
        lines += _wrapped(
            f"{_figure(per_text)} tokens a second for each reader; all together, prompts included, "
            f"{_rate(plan, plan.config.unit)}"
        )
    lines += _wrapped(f"bound by {plan.bound}")
    return lines


def _time(seconds: float, off: float) -> str:
    return f"{seconds_text(seconds)} (± {off:.0%})"


def _figure(number: float) -> str:
    """Three digits, as more are not known."""
    if number >= 1000:
        digits = len(str(int(number))) - 3
        return f"{round(number, -digits):,.0f}"
    return f"{number:.3g}"


# --- how much -------------------------------------------------------------------------------------


def _how_much(plan: Figures) -> list[str]:
    if plan.price is None or plan.usd_per_h is None or plan.usd_per_billion is None:
        card = plan.wanted.accelerator.name
        return [
            f"How much? No price of {card} is known",
            "  say what one costs an hour: --price 2.50",
        ]
    lines = [f"How much? ${plan.usd_per_h:,.2f} an hour"]
    what = "written tokens" if plan.serving and not plan.config.encoder else plan.config.unit
    dollars, off = _figure(plan.usd_per_billion), plan.uncertainty
    lines += _wrapped(f"${dollars} for a billion {what} (± {off:.0%})")
    price = plan.price
    gpu = f"${price.usd_per_gpu_h:.2f} a GPU"
    if price.source:
        lines += _wrapped(f"{gpu} on demand: {price.offer}; {price.date}, {price.source}")
    else:
        lines += _wrapped(f"{gpu}, {price.offer}")
    return lines
