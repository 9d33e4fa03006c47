"""The capstone: a small GPT on eight virtual ranks, its timeline, its mix, and its price."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...timeline import Span, Timeline
from ...vgpu.ranks import run_ranks
from ..grader.source import Refused
from ..verdict import Wrong, is_number
from .evidence import bars_of, gantt_of
from .laboratory import TEXT_NOTHING, TEXT_OTHER, kind, laboratory, listed, same, values
from .of_plans import CAPSTONE, SIZES, cluster, timed
from .puzzle import Outcome

BOX, RANKS = "8x-h100-nvswitch", 8
WORDS, WIDTH, TOKENS, LAYERS, SAMPLES, STEPS, RATE = 32, 48, 16, 2, 64, 10, 1.0
PACE, SCALE = 3, 0.2
SHOWN, SHARE = ("vgpu:0", "vgpu:7"), 0.2  # of the picture: ranks and steps are alike
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


class Block(nn.Module):
    """Attention to the tokens before, then a perceptron, each beside a short cut."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[samples, tokens, width] to the same."""
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(later, -1e9).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def parts(seed: int = 0, *, words: int = WORDS, width: int = WIDTH, tokens: int = TOKENS,
          layers: int = LAYERS) -> SimpleNamespace:  # fmt: skip
    """The modules of a small GPT: `words`, `places`, `blocks`, `norm`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SimpleNamespace(
            words=nn.Embedding(words, width),
            places=nn.Embedding(tokens, width),
            blocks=nn.ModuleList(Block(width) for _ in range(layers)),
            norm=nn.LayerNorm(width),
        )


class Gpt(nn.Module):
    """The same modules as one network: tokens [samples, tokens] to scores of the next words."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        made = parts(seed)
        self.words, self.places, self.blocks = made.words, made.places, made.blocks
        self.norm = made.norm
        self.words.weight.data.mul_(SCALE)  # they are the last layer's matrix, too

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of all words, for each token."""
        return _scores(tokens, self)


def _scores(tokens: torch.Tensor, made: SimpleNamespace | Gpt) -> torch.Tensor:
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = made.words(tokens) + made.places(places)
    for block in made.blocks:
        x = block(x)
    return made.norm(x) @ made.words.weight.T


def small_gpt(answer: Callable) -> Outcome:
    """`small_gpt(tokens, parts)`: scores [samples, tokens, words], by the modules given."""
    for seed, sizes in ((1, {}), (2, {"words": 20, "width": 32, "tokens": 9, "layers": 3})):
        made = parts(seed, **sizes)
        tokens = torch.randint(0, 20, (3, 8), generator=torch.Generator().manual_seed(seed))
        same(answer(tokens, made), _scores(tokens, made).detach(), None, "the scores")
    return Outcome(0.0, "a GPT in six lines; the matrix of words is used twice")


# --- training -------------------------------------------------------------------------------------


def text(seed: int) -> torch.Tensor:
    """Synthetic sentences [samples, tokens + 1]: each word is a fixed step after the last."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, WORDS, (SAMPLES, 1), generator=generator)
    return (first + PACE * torch.arange(TOKENS + 1)) % WORDS


def mean_loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next words."""
    return F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train_on_ranks(answer: Callable) -> Outcome:
    """`train_on_ranks(net, loss, batches, optimizer)` on each of eight ranks: the losses.

    All ranks get the same network and the same whole batches. Equal to one device.
    """
    batches = [text(100 + i) for i in range(STEPS)]
    net = Gpt(3)
    alone = deepcopy(net)
    expected = _alone(alone, batches)
    with laboratory(BOX, RANKS) as lab:
        nets = [deepcopy(net).to(device) for device in lab.devices]
        data = [[batch.to(device) for batch in batches] for device in lab.devices]

        def on_rank() -> object:
            rank = dist.get_rank()
            own = nets[rank]
            optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
            return answer(own, mean_loss, [*data[rank]], optimizer)

        trial = lab.run(lambda: run_ranks(on_rank, lab.devices))
        assert isinstance(trial.result, list)
        for got in trial.result:
            _check_losses(got, expected)
        for rank, own in enumerate(nets):
            for (name, got), right in zip(own.named_parameters(), alone.parameters(), strict=True):
                gap = (values(got) - right.detach()).abs().max().item()
                if not gap <= 1e-4:
                    raise Wrong(TEXT_WEIGHTS.format(rank=rank, gap=gap, name=name))
        sent = sum(s.bytes for s in trial.timeline if s.kind == "collective") / RANKS
        takes = sum(4 * p.numel() for p in net.parameters())
        if sent < 0.9 * STEPS * takes:
            raise Refused(TEXT_SILENT.format(sent=sent / 1e6, takes=takes / 1e6))
        most = 1.5 * STEPS * _flops_of_a_step()
        if trial.flops > most:
            raise Wrong(TEXT_WHOLE.format(did=trial.flops / 1e9, most=most / 1e9))
        fell = f"loss {expected[0]:.2f} to {expected[-1]:.2f}, as on one device"
        return Outcome(
            1e3 * trial.seconds, fell, gantt_of(trial.timeline, devices=SHOWN, share=SHARE)
        )


def _flops_of_a_step() -> int:
    """Those of the whole batch on one device."""
    with laboratory(BOX, 1) as lab:
        net, batch = Gpt(3).to(lab.devices[0]), text(1).to(lab.devices[0])
        return lab.run(lambda: mean_loss(net, batch).backward()).flops


def _alone(net: nn.Module, batches: list[torch.Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = mean_loss(net, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_losses(got: object, expected: list[float]) -> None:
    for i, (loss, right) in enumerate(zip(listed(got, STEPS, "losses"), expected, strict=True)):
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


def read_timeline(answer: Callable) -> Outcome:
    """`read_timeline(timeline)`: the share in which GPU 0 exchanges and does not compute."""
    for timeline in _timelines():
        expected = _exposed(timeline)
        got = answer(timeline)
        if got is None:
            raise Wrong(TEXT_NOTHING.format(what="…"))
        if not isinstance(got, int | float) or not abs(got - expected) <= 1e-3:
            raise Wrong(TEXT_SHARE.format(expected=expected, count=len(timeline), got=kind(got)))
    return Outcome(0.0, "that share is what overlapping could win")


def _timelines() -> list[Timeline]:
    return [
        Timeline("simulated", [Span(d, k, k, "", 1e-3 * a, 1e-3 * b) for d, k, a, b in spans])
        for spans in SPANS
    ]


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


def mixes(answer: Callable) -> Outcome:
    """`mixes(gpus)`: a layout of llama-2-13b, 1,024 samples a step, for 8, 64 and 512 H100."""
    model, batch = CAPSTONE
    bars, total_s = {}, 0.0
    for gpus in SIZES:
        time = timed(answer(gpus), model, cluster(gpus), gpus, batch)
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


def rent(answer: Callable) -> Outcome:
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
        if got != expected or not (got is None or is_number(got)):
            dollars = {gpus: round(gpus * price * hours[gpus]) for gpus in hours}
            case = f"{hours} hours, ${price} each, ${most_per_hour:g} an hour, {most_hours:g} hours"
            why = f"allowed are {allowed or 'none'}, and they cost {dollars} dollars in all"
            raise Wrong(TEXT_RENT.format(case=case, expected=expected, got=repr(got), why=why))
    return Outcome(0.0, "dollars an hour rule out the large, hours the small")
