"""The capstone: a small GPT on eight virtual ranks, its timeline, its mix, and its price."""

from __future__ import annotations

import random

import torch
from torch import nn

from ...lesson.models import next_word_loss
from ...timeline import Timeline
from ...trials import small_gpt as gpt
from ...trials import timelines, training
from ...trials.calling import Called
from ...trials.evidence import bars_of
from ...trials.laboratory import laboratory
from ...trials.plain import Seen
from ...trials.small_gpt import parts  # also for the notebook
from ..verdict import Refused, Wrong, is_number
from .evidence import TEXT_NOTHING, TEXT_OTHER, Evidence, kind, listed, same
from .of_plans import BATCHES, NAMED, SIZES, asked, cluster, reference, timed
from .puzzle import Outcome

TEXT_STEP = (
    "step {i}: your loss is {got:.5g}, and that is not the mean of the whole batch on one device"
)
FURTHER, FURTHER_RATE = 100, 0.01  # steps on one device before the network writes
TEXT_WRITES = (
    "loss {first:.2f} to {last:.2f}, as on one device. After {further} more steps, on this "
    "processor, your network writes: “{sentence}”"
)
TEXT_WEIGHTS = "after training, rank {rank} differs from one device by up to {gap:.2g} ({name})"
TEXT_SILENT = (
    "the ranks exchanged {sent:.2f} MB, and the gradients of a step alone have {takes:.2f}"
)
TEXT_WHOLE = (
    "the GPUs did {did:.2f} GFLOP in all, and shares of the batch take {most:.2f} at most: train "
    "with an eighth of each batch"
)
TEXT_NO_SHARE = "expected a share from 0 to 1, got {got}"
TEXT_SHARE = "for a timeline of {count} spans, {got:.4f} is too {much}"
TEXT_RENT = "{got} is not the choice where {case}: {why}"
RENT_OTHER = "it is neither None nor one of the numbers of GPUs"
RENT_NONE = "some number of GPUs is allowed"
RENT_HOUR = "it costs ${cost:,.0f} an hour, and ${most:,.0f} may be spent"
RENT_LONG = "it takes {takes:,.0f} hours, and {most:,.0f} are allowed"
RENT_DEAR = "it costs ${dollars:,.0f} in all, and another that is allowed costs less, or is faster"


def small_gpt(answer: Called, seed: int) -> Outcome:
    """`small_gpt(tokens, parts)`: scores [samples, tokens, words], by the modules given."""
    source = random.Random(seed)
    for _ in range(2):
        most, samples = source.randint(8, 16), source.randint(2, 4)
        sizes = {
            "words": source.randint(20, 40), "width": 8 * source.randint(2, 6), "tokens": most,
            "layers": source.randint(1, 4),
        }  # fmt: skip
        weights = source.randrange(10**6)
        shape = (samples, source.randint(5, most))
        tokens = torch.randint(
            0, sizes["words"], shape, generator=torch.Generator().manual_seed(weights)
        )
        expected = training.scores(tokens, parts(weights, **sizes)).detach()
        same(
            answer.tried(gpt.small_gpt, tokens, weights, sizes),
            expected,
            "",
            "the tensor of scores",
        )
    return Outcome(0.0, "a GPT in six lines; the matrix of words is used twice")


# --- training -------------------------------------------------------------------------------------


def train_on_ranks(answer: Called, seed: int) -> Outcome:
    """`train_on_ranks(net, loss, batches, optimizer)` on each of eight ranks: the losses.

    All ranks get the same network and the same whole batches. Equal to one device.
    """
    seen = Evidence(answer.tried(training.train_on_ranks, seed), training.BOX)
    net, steps = training.network(seed), training.STEPS
    expected = _alone(net, seed)
    for got in listed(seen.result, training.RANKS, "ranks' losses"):
        _check_losses(got, expected)
    named = [*net.named_parameters()]
    for rank, own in enumerate(listed(seen.seen("weights"), training.RANKS, "ranks' weights")):
        for (name, right), got in zip(named, listed(own, len(named), "weights"), strict=True):
            gap = (got.values - right.detach()).abs().max().item()
            if not gap <= 1e-4:
                raise Wrong(TEXT_WEIGHTS.format(rank=rank, gap=gap, name=name))
    sent = seen.sent_bytes / training.RANKS
    takes = sum(4 * p.numel() for p in net.parameters())
    if sent < 0.9 * steps * takes:
        raise Refused(TEXT_SILENT.format(sent=sent / 1e6, takes=takes / 1e6))
    flops = steps * _flops_of_a_step(seed)
    if seen.flops > 1.5 * flops:
        raise Wrong(TEXT_WHOLE.format(did=seen.flops / 1e9, most=1.5 * flops / 1e9))
    seen.require_work(flops, training.RANKS)
    seen.require_bytes(steps * takes * (1 - 1 / training.RANKS))
    praise = TEXT_WRITES.format(
        first=expected[0],
        last=expected[-1],
        further=FURTHER,
        sentence=_sentence(seen.seen("weights")[0], seed),
    )
    return Outcome(1e3 * seen.seconds, praise, seen.picture)


def _sentence(weights: list[Seen], seed: int) -> str:
    """What the network writes that began on the ranks, and has learnt on, here, for a while."""
    text, net = training.text(seed), training.network(seed)
    with torch.no_grad():
        for own, got in zip(net.parameters(), weights, strict=True):
            own.copy_(got.values)
    optimizer = torch.optim.Adam(net.parameters(), lr=FURTHER_RATE)
    for step in range(training.STEPS, training.STEPS + FURTHER):
        optimizer.zero_grad()
        pieces, following = text.batch(training.SAMPLES, training.TOKENS, step=step)
        next_word_loss(net(pieces), following).backward()
        optimizer.step()
    first = text.vocabulary[text.tokens[0]]
    return text.written_by(net, first, length=training.TOKENS, seed=seed)


def _flops_of_a_step(seed: int) -> int:
    """Those of the whole batch on one device."""
    with laboratory(training.BOX, 1) as lab:
        net = training.network(seed).to(lab.devices[0])
        batch = training.batches(seed)[0].to(lab.devices[0])
        return lab.run(lambda: training.mean_loss(net, batch).backward()).flops


def _alone(net: nn.Module, seed: int) -> list[float]:
    """The losses of training on one device, in place."""
    optimizer = training.optimizer_of(net)
    losses = []
    for batch in training.batches(seed):
        optimizer.zero_grad()
        loss = training.mean_loss(net, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_losses(got: object, expected: list[float]) -> None:
    losses = listed(got, len(expected), "losses")
    for i, (loss, right) in enumerate(zip(losses, expected, strict=True)):
        if not isinstance(loss, float):
            raise Wrong(TEXT_OTHER.format(what="losses as numbers of Python", got=kind(loss)))
        if not abs(loss - right) <= 1e-3 * right:
            raise Wrong(TEXT_STEP.format(i=i, got=loss))


# --- its timeline ---------------------------------------------------------------------------------


def spans(source: random.Random) -> list[tuple[str, str, float, float]]:
    """Device, kind, start and end in milliseconds: GPU 0 computes, copies and exchanges, partly at
    the same time, and others do, too."""
    found = [("host", "dispatch", 0.0, 1.0)]
    for device, count in (("vgpu:0", 7), ("vgpu:1", 4)):
        for _ in range(count):
            start = source.uniform(0, 8)
            kind = source.choice(("compute", "compute", "copy", "collective"))
            found.append((device, kind, start, start + source.uniform(0.5, 3)))
    end = max(span[3] for span in found)
    return [*found, ("vgpu:0", "collective", end - 1, end), ("vgpu:0", "compute", end, end + 1)]


def read_timeline(answer: Called, seed: int) -> Outcome:
    """`read_timeline(timeline)`: the share in which GPU 0 exchanges and does not compute."""
    source = random.Random(seed)
    for _ in range(3):
        drawn = spans(source)
        right = _exposed(timelines.timeline_of(drawn))
        got = answer.tried(timelines.read_timeline, drawn)
        if got is None:
            raise Wrong(TEXT_NOTHING.format(what="…"))
        if not is_number(got):
            raise Wrong(TEXT_NO_SHARE.format(got=kind(got)))
        if not abs(got - right) <= 2e-3:
            much = "large" if got > right else "small"
            raise Wrong(TEXT_SHARE.format(count=len(drawn), got=got, much=much))
    return Outcome(0.0, "that share is what overlapping could win")


def _exposed(timeline: Timeline) -> float:
    """Counted in a thousand moments: another way than the answer's."""
    own = [s for s in timeline if s.device == "vgpu:0"]
    start_s, end_s = timeline.start_s, timeline.end_s
    count, moments = 0, 9000
    for i in range(moments):
        now_s = start_s + (end_s - start_s) * (i + 0.5) / moments
        kinds = {s.kind for s in own if s.start_s <= now_s < s.end_s}
        count += bool(kinds & {"copy", "collective"}) and "compute" not in kinds
    return count / moments


# --- the mix, and the price -----------------------------------------------------------------------


def mixes(answer: Called, seed: int) -> Outcome:
    """`mixes(model, machine, batch)`: a layout of a network for each of three numbers of H100.

    The figure is the mean of what a step costs in GPU-seconds, in percent of the planner's best.
    """
    source = random.Random(seed)
    model, batch = source.choice(NAMED), source.choice(BATCHES)
    mine: dict = {}
    others: dict = {}
    ratios = []
    for sizes in SIZES:
        gpus = source.choice(sizes)
        box = cluster(gpus)
        time = timed(asked(answer, model, box, batch), model, box, gpus, batch)
        found = reference(model, box, batch)
        ratios.append(time.step_s / found.step_s)
        for bars, one in ((mine, time), (others, found)):
            bars[f"{gpus} GPUs"] = {part: gpus * s for part, s in one.parts.items()}
    unit = f"GPU-seconds of a step of {model} (predicted)"
    text = f"{model}, {batch} samples: a layout for each size, and each fits"
    percent = 100 * sum(ratios) / len(ratios)
    return Outcome(percent, text, bars_of(mine, unit), bars_of(others, unit))


Case = tuple[dict[int, float], float, float, float]


def rent_case(source: random.Random) -> Case:
    """Hours by GPUs, price of a GPU and hour, most dollars an hour, most hours."""
    efficiency, hours = 1.0, {}
    work = source.uniform(1000, 40_000)  # hours of one GPU
    for gpus in (8, 32, 64, 256, 512):
        efficiency *= source.choice((1.05, 1.0, 0.9, 0.8))
        hours[gpus] = round(work / gpus / efficiency, 1)
    price = source.choice((1.5, 2.0, 2.5, 4.0))
    dollars = price * source.choice([*hours]) * source.choice((1.0, 1.5))
    most_hours = source.choice([*hours.values()]) * source.choice((1.0, 1.5))
    return hours, price, dollars, most_hours


def rent_cases(seed: int) -> list[Case]:
    """Some that are drawn, one that allows nothing, and one in which two cost the same."""
    source = random.Random(seed)
    found = [rent_case(source) for _ in range(8)]
    hours, price, _, _ = rent_case(source)
    found.append((hours, price, 0.9 * min(hours) * price, max(hours.values())))
    twice = source.randint(1, 9) * 8.0
    same_cost = {8: 8 * twice, 64: twice, 512: twice / 4}
    return [*found, (same_cost, price, 1000 * price, 9 * twice)]


def rent(answer: Called, seed: int) -> Outcome:
    """`rent(hours, price, most_per_hour, most_hours)`: the cheapest that a budget allows, or None.

    `hours` are those of each number of GPUs; of two that cost the same, the faster.
    """
    for case in rent_cases(seed):
        hours, price, most_per_hour, most_hours = case
        allowed = [
            gpus for gpus in hours if gpus * price <= most_per_hour and hours[gpus] <= most_hours
        ]
        right = min(
            allowed, key=lambda gpus: (gpus * hours[gpus], hours[gpus]), default=None
        )  # the price is the same for all
        got = answer(dict(hours), price, most_per_hour, most_hours)
        if type(got) is bool or got != right:
            said = f"hours={hours}, price={price:g}, most_per_hour={most_per_hour:g}, "
            said += f"most_hours={most_hours:g}"
            raise Wrong(TEXT_RENT.format(case=said, got=kind(got), why=_against(got, case)))
    return Outcome(0.0, "dollars an hour rule out the large, hours the small")


def _against(got: object, case: Case) -> str:
    """What is wrong with a choice; not what would be right."""
    hours, price, most_per_hour, most_hours = case
    if got is None:
        return RENT_NONE
    if not is_number(got) or got not in hours:
        return RENT_OTHER
    takes = hours[int(got)]
    if got * price > most_per_hour:
        return RENT_HOUR.format(cost=got * price, most=most_per_hour)
    if takes > most_hours:
        return RENT_LONG.format(takes=takes, most=most_hours)
    return RENT_DEAR.format(dollars=got * price * takes)
