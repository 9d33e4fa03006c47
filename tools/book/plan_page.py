"""The page "Does it fit?": lists to choose from, and for each choice what `plans` has kept."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from d2lpar.parallelism.model_plan.shown.markup import STYLE
from d2lpar.timeline.traces.page.colors import BLUE, PALE

from . import plans
from .plans import Choice

OPENING = Path(__file__).parent / "sphinx" / "plan.md"
ANSWERS = "plans"  # in the site: a script for each model
FIRST = Choice("llama-3.1-8b", "8x-h100-nvswitch", 8, plans.TRAINING, 64)
COMMAND = "d2lpar plan {words}"

FORM = """\
<style>
{style}</style>
<form class="plan-choice" data-lists="{lists}" data-answers="{answers}" hidden>
{selects}
</form>
<p class="plan-note" role="alert"></p>
<p class="plan-said" role="status"></p>
<div class="plan-command" hidden>
<label for="plan-command">The same in a terminal</label>
<input id="plan-command" readonly> <button type="button">Copy</button>
</div>
<section class="model-plan" aria-label="The answer"></section>
<noscript><p>This page needs JavaScript to show what was computed.</p></noscript>
<script src="_static/plan.js" defer></script>"""
SELECT = '<label><span>{label}</span> <select name="{name}">{options}</select></label>'

CARD = """\
<a class="card" href="plan.html"><span class="picture">{picture}</span>\
<span class="title">Does it fit? How long? How much?</span>\
<span class="text">choose a model, a machine and a batch: memory, time and dollars, computed before\
</span></a>"""
ROW = 34  # pixels of a bar in the card's picture, which is 480 wide


def write_page(source: Path, extra: Path) -> None:
    """Write the page into the folder `source`, for Sphinx, and what was computed into `extra`."""
    kept = plans.load()
    (extra / ANSWERS).mkdir(parents=True)
    commands: dict[str, dict[str, str]] = {model: {} for model in plans.MODELS}
    for choice in plans.choices():
        commands[choice.model][choice.key] = COMMAND.format(words=" ".join(choice.words))
    for model, of_model in commands.items():
        answers = {key: [command, kept[model][key]] for key, command in of_model.items()}
        (extra / ANSWERS / f"{model}.js").write_text(_script(model, answers), encoding="utf-8")
    text = OPENING.read_text(encoding="utf-8").format(form=form())
    (source / "plan.md").write_text(text, encoding="utf-8")


def _script(model: str, answers: dict[str, object]) -> str:
    text = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'planAnswers({json.dumps(model)}, "{packed}");\n'


def form() -> str:
    """HTML of the lists, and of the places for what plan.js shows."""
    machines = "".join(
        f'<optgroup label="{escape(group)}">{_options(names, FIRST.machine)}</optgroup>'
        for group, names in plans.MACHINES.items()
    )
    selects = {
        "model": ("Model", _options(plans.MODELS, FIRST.model)),
        "machine": ("Machine", machines),
        "gpus": ("GPUs of it", ""),
        "for": ("For", _options(plans.BATCHES, FIRST.kind)),
        "batch": ("Batch: samples of a step, or texts at once", ""),
    }
    lists = {
        "gpus": {name: plans.gpus_of(name) for group in plans.MACHINES.values() for name in group},
        "batch": plans.BATCHES,
        "first": dict(zip(selects, map(str, FIRST), strict=True)),
    }
    return FORM.format(
        style=STYLE,
        lists=escape(json.dumps(lists)),
        answers=f"{ANSWERS}/",
        selects="\n".join(
            SELECT.format(name=name, label=label, options=options)
            for name, (label, options) in selects.items()
        ),
    )


def _options(names: Iterable[str], chosen: str) -> str:
    return "".join(
        f"<option{' selected' if name == chosen else ''}>{escape(name)}</option>" for name in names
    )


def card() -> str:
    """A card for the first page: with the memory of the choice that the page shows first."""
    parts = plans.load()[FIRST.model][FIRST.key]
    bars = next(bars for question, _, _, bars, _ in parts if question == "Does it fit?")
    rows = "".join(_row(i, *bar) for i, bar in enumerate(bars))
    picture = f'<svg viewBox="0 0 480 270" aria-hidden="true" font-size="17">{rows}</svg>'
    return CARD.format(picture=picture)


def _row(i: int, name: str, amount: str, begin: int, size: int, room: int) -> str:
    y, scale = 48 + i * ROW, 260 / plans.MILLI
    color = PALE if room else BLUE
    return (
        f'<text x="16" y="{y + 14}">{escape(name)} {escape(amount)}</text>'
        f'<rect x="{205 + begin * scale:.0f}" y="{y}" width="{size * scale:.0f}" height="18" '
        f'fill="{color}"/>'
    )
