"""What `d2lpar plan` says of all that the page "Does it fit?" lets one choose, kept in a file.

    PYTHONPATH=tools python -m book.plans [model ...]

It takes a quarter of an hour on two quiet cores, too long for a build. A test computes some of the
answers again, and so notices when the file is older than the simulator.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from d2lpar import machines
from d2lpar.parallelism.model_plan.naming import config_of
from d2lpar.parallelism.model_plan.published import PUBLISHED
from d2lpar.parallelism.model_plan.shown.answer import Part

MODELS = tuple(PUBLISHED)
KEPT = Path(__file__).with_name("plans.json.gz")

# By group, with the words for it: of each kind of GPU one machine that many have, or can rent.
MACHINES = {
    "At home, or free": (
        "1x-rtx-3060",
        "4x-rtx-3090",
        "4x-rtx-4090",
        "4x-rtx-5090",
        "2x-t4-kaggle",
    ),
    "Servers": (
        "1x-a10",
        "8x-l4-g6",
        "8x-l40s-g6e",
        "8x-a100-nvswitch",
        "8x-a100-80gb-nvswitch",
        "8x-h100-nvswitch",
        "8x-h200-nvswitch",
        "8x-b200-nvswitch",
    ),
    "Clusters": (
        "4x8x-a100-80gb-nvswitch-8xib-hdr",
        "2x8x-h100-nvswitch-8xib-ndr",
        "8x8x-h100-nvswitch-8xib-ndr",
        "64x8x-h100-nvswitch-8xib-ndr",
    ),
}
TRAINING, INFERENCE = "training", "inference"
BATCHES = {TRAINING: (8, 64, 512), INFERENCE: (1, 32)}
PROMPT, NEW = 1024, 256  # tokens, which `d2lpar plan` takes of itself
REFUSED = "No plan:"
MILLI = 1000  # bars are drawn to a thousandth of the whole


class Choice(NamedTuple):
    """One of each list."""

    model: str
    machine: str
    gpus: int
    kind: str
    batch: int

    @property
    def key(self) -> str:
        """Its name among those of its model."""
        return " ".join(map(str, self[1:]))

    @property
    def sequence(self) -> int | None:
        """Tokens of a prompt, where the usual ones and the new ones are more than a model reads."""
        longest = config_of(self.model).longest
        shorter = self.kind == INFERENCE and longest is not None and _writes(self.model)
        return longest - NEW if shorter and longest < PROMPT + NEW else None

    @property
    def words(self) -> list[str]:
        """What the command is called with."""
        words = [self.model, "--machine", self.machine, "--gpus", str(self.gpus)]
        words += ["--batch", str(self.batch)]
        words += ["--inference"] if self.kind == INFERENCE else []
        return words + (["--sequence", str(self.sequence)] if self.sequence else [])


def _writes(model: str) -> bool:
    return not config_of(model).encoder


def gpus_of(machine: str) -> list[int]:
    """The numbers of GPUs that one may choose: powers of two; of a cluster all."""
    whole = machines.machine(machine)
    count = len(whole.accelerators)
    return [count] if whole.nodes > 1 else [n for n in (1, 2, 4, 8) if n <= count]


def choices() -> Iterator[Choice]:
    """All of them; those of one model and one kind of GPU stand together."""
    named = [name for group in MACHINES.values() for name in group]
    named.sort(key=lambda name: machines.machine(name).accelerators[0].name)
    for model in MODELS:
        for machine in named:
            for kind, batches in BATCHES.items():
                for gpus in gpus_of(machine):
                    for batch in batches:
                        yield Choice(model, machine, gpus, kind, batch)


def answer(choice: Choice) -> list[Part]:
    """What `d2lpar plan` says of it; where it refuses, why."""
    from d2lpar.parallelism.model_plan import plan_model
    from d2lpar.parallelism.model_plan.shown.answer import answer as parts_of

    try:
        plan = plan_model(
            choice.model,
            choice.machine,
            batch=choice.batch,
            gpus=choice.gpus,
            inference=choice.kind == INFERENCE,
            sequence=choice.sequence,
        )
        return list(parts_of(plan))
    except ValueError as error:
        return [Part(REFUSED, str(error))]


def plain(parts: list[Part]) -> list[Any]:
    """The parts as JSON has them, bars in thousandths."""
    return [
        [part.question, part.short, part.above, [_bar(*bar) for bar in part.bars], part.below]
        for part in parts
    ]


def _bar(name: str, amount: str, begin: float, size: float, room: bool) -> list[Any]:
    first, last = round(MILLI * begin), round(MILLI * (begin + size))
    return [name, amount, first, last - first, int(room)]


# The file


def load() -> dict[str, dict[str, Any]]:
    """The answers by model and by key, as `plain` makes them."""
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress(KEPT.read_bytes()))
    return found


def save(answers: dict[str, dict[str, Any]]) -> None:
    """Keep them, without those of models that are shown no more."""
    known = {model: answers[model] for model in MODELS if model in answers}
    text = json.dumps(known, ensure_ascii=False, separators=(",", ":"))
    KEPT.write_bytes(gzip.compress(text.encode(), mtime=0))


def compute(models: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model's answers. One process computes what a model takes on a kind of GPU, as it meets
    the same layers again and again."""
    tasks = [list(some) for key, some in groupby(choices(), key=_layers) if key[0] in models]
    context = multiprocessing.get_context("spawn")
    with context.Pool(initializer=_with_one_thread) as pool:
        done = zip((task[0].model for task in tasks), pool.imap(_answers, tasks), strict=True)
        for model, found in groupby(done, key=itemgetter(0)):
            yield model, {key: parts for _, some in found for key, parts in some.items()}


def _layers(choice: Choice) -> tuple[str, str]:
    return choice.model, machines.machine(choice.machine).accelerators[0].name


def _answers(together: list[Choice]) -> dict[str, Any]:
    return {choice.key: plain(answer(choice)) for choice in together}


def _with_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def main(models: Sequence[str]) -> int:
    """Compute the answers for these models, or for all, and keep them."""
    answers = load() if KEPT.exists() else {}
    for model, found in compute(models or MODELS):
        answers[model] = found
        save(answers)
        print(f"{model}: {len(found)} choices", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
