"""The capstone: a small GPT on eight virtual ranks, its timeline, its mix, and its price."""

from __future__ import annotations

import torch
from torch import nn

from ...timeline import Timeline
from ...trials import small_gpt as gpt
from ...trials import timelines, training
from ...trials.calling import Called
from ...trials.evidence import bars_of
from ...trials.laboratory import laboratory
from ...trials.small_gpt import parts  # also for the notebook
from ..verdict import Refused, Wrong, is_number
from .evidence import TEXT_NOTHING, TEXT_OTHER, Evidence, kind, listed, same
from .of_plans import CAPSTONE, SIZES, asked, cluster, timed
from .puzzle import Outcome

TEXT_STEP = "step {i}: the mean loss of the whole batch is {expected:.5g} on one device, not {got}"
TEXT_WEIGHTS = "after training, rank {rank} differs from one device by up to {gap:.2g} ({name})"
TEXT_SILENT = (
    "the ranks exchanged {sent:.2f} MB, and the gradients of a step alone have {takes:.2f}"
)
TEXT_WHOLE = (
    "the GPUs did {did:.2f} GFLOP in all, and shares of the batch take {most:.2f} at most: train "
    "with an eighth of each batch"
)
TEXT_SHARE = "expected {expected:.4f} for a timeline of {count} spans, got {got}"
TEXT_RENT = "{case}: expected {expected}, got {got}: {why}"


def small_gpt(answer: Called) -> Outcome:
    """`small_gpt(tokens, parts)`: scores [samples, tokens, words], by the modules given."""
    for seed, sizes in ((1, {}), (2, {"words": 20, "width": 32, "tokens": 9, "layers": 3})):
        tokens = torch.randint(0, 20, (3, 8), generator=torch.Generator().manual_seed(seed))
        expected = training.scores(tokens, parts(seed, **sizes)).detach()
        same(answer.tried(gpt.small_gpt, tokens, seed, sizes), expected, "", "the scores")
    return Outcome(0.0, "a GPT in six lines; the matrix of words is used twice")


# --- training -------------------------------------------------------------------------------------


def train_on_ranks(answer: Called) -> Outcome:
    """`train_on_ranks(net, loss, batches, optimizer)` on each of eight ranks: the losses.

    All ranks get the same network and the same whole batches. Equal to one device.
    """
    seen = Evidence(answer.tried(training.train_on_ranks), training.BOX)
    net, steps = training.Gpt(3), training.STEPS
    expected = _alone(net)
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
    flops = steps * _flops_of_a_step()
    if seen.flops > 1.5 * flops:
        raise Wrong(TEXT_WHOLE.format(did=seen.flops / 1e9, most=1.5 * flops / 1e9))
    seen.require_work(flops, training.RANKS)
    seen.require_bytes(steps * takes * (1 - 1 / training.RANKS))
    fell = f"loss {expected[0]:.2f} to {expected[-1]:.2f}, as on one device"
    return Outcome(1e3 * seen.seconds, fell, seen.picture)


def _flops_of_a_step() -> int:
    """Those of the whole batch on one device."""
    with laboratory(training.BOX, 1) as lab:
        net = training.Gpt(3).to(lab.devices[0])
        batch = training.text(1).to(lab.devices[0])
        return lab.run(lambda: training.mean_loss(net, batch).backward()).flops


def _alone(net: nn.Module) -> list[float]:
    """The losses of training on one device, in place."""
    optimizer = torch.optim.SGD(net.parameters(), lr=training.RATE)
    losses = []
    for batch in training.batches():
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
            raise Wrong(TEXT_STEP.format(i=i, expected=right, got=f"{loss:.5g}"))


# --- its timeline ---------------------------------------------------------------------------------


SPANS = (  # device, kind, start and end in milliseconds
    (("vgpu:0", "compute", 0, 4), ("vgpu:0", "collective", 3, 7), ("vgpu:1", "compute", 0, 9)),
    (
        ("vgpu:0", "compute", 0, 2), ("vgpu:0", "compute", 1, 3), ("vgpu:0", "copy", 2, 6),
        ("vgpu:0", "collective", 5, 8), ("host", "dispatch", 0, 1), ("vgpu:0", "compute", 7, 9),
        ("vgpu:1", "collective", 8, 10),
    ),
)  # fmt: skip


def read_timeline(answer: Called) -> Outcome:
    """`read_timeline(timeline)`: the share in which GPU 0 exchanges and does not compute."""
    for spans in SPANS:
        expected = _exposed(timelines.timeline_of(spans))
        got = answer.tried(timelines.read_timeline, spans)
        if got is None:
            raise Wrong(TEXT_NOTHING.format(what="…"))
        if not is_number(got) or not abs(got - expected) <= 1e-3:
            raise Wrong(TEXT_SHARE.format(expected=expected, count=len(spans), got=kind(got)))
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


def mixes(answer: Called) -> Outcome:
    """`mixes(gpus)`: a layout of llama-2-13b, 1,024 samples a step, for 8, 64 and 512 H100."""
    model, batch = CAPSTONE
    bars, total_s = {}, 0.0
    for gpus in SIZES:
        time = timed(asked(answer, gpus), model, cluster(gpus), gpus, batch)
        bars[f"{gpus} GPUs"] = {part: gpus * s for part, s in time.parts.items()}
        total_s += gpus * time.step_s
    picture = bars_of(bars, "GPU-seconds of a step (predicted)")
    return Outcome(total_s, "a layout for each size, and each fits", picture)


CASES = (  # hours by GPUs, price of a GPU and hour, most dollars an hour, most hours
    ({8: 4000.0, 64: 520.0, 512: 75.0}, 2.5, 300.0, 720.0),
    ({8: 4000.0, 64: 520.0, 512: 75.0}, 2.5, 2000.0, 100.0),
    ({8: 4000.0, 64: 520.0, 512: 75.0}, 2.5, 1000.0, 100.0),
    ({8: 900.0, 64: 100.0, 512: 20.0}, 4.0, 5000.0, 1000.0),
    ({8: 160.0, 64: 20.0, 512: 2.5}, 2.0, 2000.0, 200.0),
)


def rent(answer: Called) -> Outcome:
    """`rent(hours, price, most_per_hour, most_hours)`: the cheapest that a budget allows, or None.

    `hours` are those of each number of GPUs; of two that cost the same, the faster.
    """
    for hours, price, most_per_hour, most_hours in CASES:
        allowed = [
            gpus for gpus in hours if gpus * price <= most_per_hour and hours[gpus] <= most_hours
        ]
        expected = min(
            allowed, key=lambda gpus: (gpus * hours[gpus], hours[gpus]), default=None
        )  # the price is the same for all
        got = answer(dict(hours), price, most_per_hour, most_hours)
        if not (got is None or is_number(got)) or got != expected:
            dollars = {gpus: round(gpus * price * hours[gpus]) for gpus in hours}
            case = f"{hours} hours, ${price} each, ${most_per_hour:g} an hour, {most_hours:g} hours"
            why = f"allowed are {allowed or 'none'}, and they cost {dollars} dollars in all"
            raise Wrong(TEXT_RENT.format(case=case, expected=expected, got=repr(got), why=why))
    return Outcome(0.0, "dollars an hour rule out the large, hours the small")
