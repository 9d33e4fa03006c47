"""Reading prompts and writing tokens: the tensor degree, memory with the KV cache, and times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import nan

from ...machines import collective_cost
from ...machines.variability import slowest_of
from ...timeline.formatting import bytes_text
from .. import planner
from ..planner.choice import USABLE
from ..planner.costs.layers import GpuAndHost
from ..planner.costs.memory_model import parameters_of_stage
from ..planner.costs.share import Share, share_of
from ..planner.layout import Layout
from ..planner.mesh import Wiring
from ..planner.precision import PRECISIONS, product_rate
from .config import ModelConfig
from .decoding import Pass, met_experts, reading, writing
from .training import with_room
from .wanted import Wanted

# The median error, without its sign, of published figures of decoding, and of forward passes of one
# text or image (`make validate`, the group "inference"), most of them of eager programs.
UNCERTAINTY = 0.19
TOGETHER = 8192  # tokens of prompts that are read in one pass
WITHOUT_SCALES = ("bf16", "fp16", "tf32", "fp32")  # precisions whose weights are as they are
LEAST_TOKENS = 128
MOST_NUMBERS = 10**12  # of one tensor


@dataclass(frozen=True)
class Serving:
    """`replicas` of the model on `tensor` GPUs each, which share `batch` samples evenly.

    Prompts are read `together` at once; `prompt_s` is the time until all texts have their first
    token (of an encoder: until all samples are read), `token_s` that of each further one of all
    texts, half way through; both are nan where it does not fit. `memory` are bytes of a GPU by what
    they are for.
    """

    tensor: int
    replicas: int
    batch: int
    prompt: int
    new: int
    together: int
    prompt_s: float
    token_s: float
    memory: dict[str, float]
    capacity_bytes: float
    bound: str

    @property
    def memory_bytes(self) -> float:
        """Of a GPU."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether a GPU can hold it."""
        return self.memory_bytes <= self.capacity_bytes

    @property
    def total_s(self) -> float:
        """Seconds until all texts are written."""
        return self.prompt_s + max(self.new - 1, 0) * self.token_s

    @property
    def units_per_s(self) -> float:
        """Tokens that are written a second, over all replicas; of an encoder samples read."""
        return self.batch * max(self.new, 1) / self.total_s


def serve(config: ModelConfig, model: planner.Transformer, wanted: Wanted) -> Serving:
    """The tensor degree that answers fastest and fits, or that which needs the least memory.

    Raises ValueError for a precision or mix that inference is not planned with.
    """
    _check(config, wanted)
    tried = [_Trial(config, model, wanted, tensor) for tensor in _degrees(model, wanted)]
    if not tried:
        raise ValueError(_none_divides(model, wanted))
    fitting = [trial for trial in tried if trial.fits]
    if not fitting:
        return min(tried, key=lambda trial: trial.memory_bytes).untimed()
    return max((trial.served() for trial in fitting), key=lambda found: found.units_per_s)


def _check(config: ModelConfig, wanted: Wanted) -> None:
    if wanted.precision not in WITHOUT_SCALES:
        raise ValueError(
            f"inference is planned in {', '.join(WITHOUT_SCALES)}, not in {wanted.precision}"
        )
    if wanted.pipeline not in (None, 1):
        raise ValueError(
            f"inference is planned with data and tensor parallelism, not with pipeline "
            f"{wanted.pipeline}: leave it out"
        )
    tokens = wanted.sequence + (0 if config.encoder else wanted.new)
    if (
        config.sizes.get("positions") == "learned"
        and config.longest is not None
        and tokens > config.longest
    ):
        raise ValueError(
            f"{config.name} has learned {config.longest:,} positions, and prompt and new tokens "
            f"are {tokens:,}: take --sequence {max(config.longest - wanted.new, 1)}, or fewer new"
        )


def _degrees(model: planner.Transformer, wanted: Wanted) -> Iterator[int]:
    node = wanted.machine.node_size or len(wanted.machine.accelerators)
    for tensor in range(1, min(node, wanted.gpus) + 1):
        replicas, rest = divmod(wanted.gpus, tensor)
        if rest or model.heads % tensor or wanted.batch % replicas:
            continue
        if wanted.is_mesh(replicas, 1, tensor):
            yield tensor


def _none_divides(model: planner.Transformer, wanted: Wanted) -> str:
    return (
        f"no mix of {wanted.gpus} GPUs answers {wanted.batch} at once with data "
        f"{wanted.data or 'open'} and tensor {wanted.tensor or 'open'}: tensor must divide the "
        f"{model.heads} heads and stay within a node, data × tensor be "
        f"{wanted.gpus}, and data divide the batch; take a batch that is a multiple of "
        f"{wanted.gpus}, or fewer --gpus"
    )


class _Trial:
    """One tensor degree: what a GPU of it needs and takes."""

    def __init__(
        self, config: ModelConfig, model: planner.Transformer, wanted: Wanted, tensor: int
    ) -> None:
        self.config, self.wanted, self.tensor = config, wanted, tensor
        self.model = replace(model, dropout=0.0)
        self.replicas = wanted.gpus // tensor
        self.texts = wanted.batch // self.replicas
        self.mesh = planner.Mesh(self.replicas, 1, tensor)
        self.wiring = Wiring.of(wanted.machine)
        self.gpu = GpuAndHost.of(wanted.accelerator, wanted.machine.host)
        most = wanted.micro_batch or max(TOGETHER // model.sequence, 1)
        self.together = min(most, self.texts)
        self._check_sizes()
        self.memory = self._memory()

    def _check_sizes(self) -> None:
        model, tokens = self.model, self.together * self.model.sequence
        columns = max(model.inner * (2 if model.gated else 1), model.width, model.hidden)
        if tokens * columns > MOST_NUMBERS:
            raise ValueError(
                f"{self.together:,} samples of {model.sequence:,} tokens make tensors of "
                f"{tokens * columns:.1e} numbers, more than any GPU holds ({MOST_NUMBERS:.0e}): "
                "take shorter ones, or a smaller --micro-batch"
            )

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= USABLE * self.wanted.accelerator.memory_bytes

    def served(self) -> Serving:
        prompt_s = self._prompt_s()
        if self.config.encoder:
            return self._served(prompt_s, 0.0, self._reading_bound(prompt_s))
        token_s = self._token_s(graph=not self.wanted.eager)
        return self._served(prompt_s, token_s, self._bound(token_s))

    def untimed(self) -> Serving:
        return self._served(nan, nan, "")

    def _served(self, prompt_s: float, token_s: float, bound: str) -> Serving:
        return Serving(
            tensor=self.tensor,
            replicas=self.replicas,
            batch=self.wanted.batch,
            prompt=self.model.sequence,
            new=0 if self.config.encoder else self.wanted.new,
            together=self.together,
            prompt_s=prompt_s,
            token_s=token_s,
            memory=self.memory,
            capacity_bytes=USABLE * self.wanted.accelerator.memory_bytes,
            bound=bound,
        )

    # --- memory

    def _memory(self) -> dict[str, float]:
        layout = self._layout()
        number = layout.number_bytes
        weights = number * parameters_of_stage(self.model, layout, 0)
        cache = 0.0 if self.config.encoder else self._cache_numbers(self._longest) * number
        working = float(self._read(self.together).working_bytes)
        return {"weights": weights, "KV cache": cache, "work in progress": working}

    @property
    def _longest(self) -> int:
        return self.model.sequence + self.wanted.new

    def _cache_numbers(self, tokens: int) -> float:
        """Keys and values of all layers and texts, each of so many tokens, on one GPU."""
        heads = self.model.key_heads_per_rank(self.tensor)
        return 2 * self.model.layers * self.texts * tokens * heads * self.model.head_size

    # --- times

    def _layout(self) -> Layout:
        return Layout(
            self.mesh,
            self.together,
            attention=self.wanted.attention,
            precision=self.wanted.precision,
            compiled=not self.wanted.eager,
        )

    def _share(self, texts: int) -> Share:
        share = share_of(self.model, self._layout())
        return replace(share, micro_batch=texts)

    def _read(self, texts: int) -> Pass:
        writes = not self.config.encoder
        graph = self.config.encoder and not self.wanted.eager
        share = self._share(texts)
        return reading(self.gpu, share, self.model.layers, writes=writes, graph=graph)

    def _prompt_s(self) -> float:
        """All texts of a replica, so many at once."""
        full, rest = divmod(self.texts, self.together)
        seconds = 0.0
        for count, texts in ((full, self.together), (1, rest)):
            if texts and count:
                tokens = texts * self.model.sequence
                one_s = self._slowest * self._read(texts).seconds + self._sums_s(tokens, texts)
                seconds += count * one_s
        return seconds

    def _token_s(self, *, graph: bool) -> float:
        past = self.model.sequence + self.wanted.new // 2
        share = self._share(self.texts)
        one = writing(self.gpu, share, self.model.layers, past, graph=graph)
        return self._slowest * one.seconds + self._sums_s(self.texts, self.texts)

    @property
    def _slowest(self) -> float:
        return slowest_of(self.tensor)

    def _sums_s(self, tokens: int, texts: int) -> float:
        """Sums over tensor ranks, two a layer, and the scores brought together."""
        if self.tensor == 1:
            return 0.0
        fabric, number = self.wiring.fabric(self.mesh, "tensor"), self._layout().number_bytes
        one_s = collective_cost.all_reduce_s(tokens * self.model.hidden * number, fabric)
        scores = texts * self.model.words_per_rank(self.tensor) * self.tensor * number
        gathered_s = 0.0 if self.config.encoder else collective_cost.all_gather_s(scores, fabric)
        return 2 * self.model.layers * one_s + gathered_s

    # --- what bounds it

    def _bound(self, token_s: float) -> str:
        """Of a new token: the largest of what memory, arithmetic, exchanges and the host take."""
        moved, flops = self._read_bytes(), self._flops(self.texts)
        card = self.wanted.accelerator
        rate = product_rate(card, self.wanted.precision)
        times = {
            f"memory: weights and cache of {bytes_text(moved)} are read for each token, at "
            f"{moved / token_s / card.memory_bytes_per_s:.0%} of its rate": moved
            / card.memory_bytes_per_s,
            f"arithmetic, at {flops / token_s / rate:.0%} of its peak": flops / rate,
            "sums over tensor ranks": self._sums_s(self.texts, self.texts),
        }
        if self.wanted.eager:
            waiting_s = token_s - self._token_s(graph=True)
            times[f"the host, which queues kernels: {waiting_s / token_s:.0%} of the time"] = (
                waiting_s
            )
        return max(times, key=times.__getitem__)

    def _reading_bound(self, prompt_s: float) -> str:
        flops = self._flops(self.texts * self.model.sequence)
        rate = product_rate(self.wanted.accelerator, self.wanted.precision)
        share = flops / prompt_s / rate
        what = "arithmetic" if share >= 0.3 else "memory and launches"
        return f"{what}: products run at {share:.0%} of the peak"

    def _read_bytes(self) -> float:
        """Bytes that a new token of each text reads on one GPU: the weights of the layers and of
        the scores (of experts those that are chosen), and the cache half way through."""
        model, number = self.model, self._layout().number_bytes
        layers = float(model.layers * model.layer_parameters(self.tensor))
        if model.experts is not None:
            idle = 1 - met_experts(model.experts, self.texts) / model.experts.count
            layers -= model.layers * idle * model.expert_parameters(self.tensor)
        cache = self._cache_numbers(model.sequence + self.wanted.new // 2)
        return number * (layers + model.word_parameters(self.tensor) + cache)

    def _flops(self, tokens: int) -> float:
        """FLOP of products with weights, on one GPU."""
        model = self.model
        layers = model.active_parameters - model.position_parameters - model.extra
        words = model.word_parameters() * (1 if model.tied else 2)
        scored = 0 if self.config.encoder else model.word_parameters()
        return 2.0 * tokens * (layers - words + scored) / self.tensor


def remedies(config: ModelConfig, model: planner.Transformer, wanted: Wanted) -> list[str]:
    """Changes by which it fits, each tried: what a GPU then needs."""
    return [*_changed(config, model, wanted), *_moved(config, model, wanted)]


def _moved(config: ModelConfig, model: planner.Transformer, wanted: Wanted) -> Iterator[str]:
    """The machine of the catalogue with the least memory that has the room: of the same GPUs, or
    else of any."""
    weights = PRECISIONS[wanted.precision].dtype.itemsize * model.parameters
    for machine in with_room(weights, wanted):
        gpus = len(machine.accelerators)
        there = replace(wanted, machine=machine, gpus=gpus, tensor=None, data=None)
        if fit := _fitting(config, model, there):
            yield f"--machine {machine.name}: {fit}"
            return


def _changed(config: ModelConfig, model: planner.Transformer, wanted: Wanted) -> Iterator[str]:
    for name in ("tensor", "data"):
        if getattr(wanted, name) is not None and (
            fit := _fitting(config, model, wanted.opened(name))
        ):
            yield f"without --{name}: {fit}"
    most = len(wanted.machine.accelerators)
    for gpus in (2**n for n in range(most.bit_length()) if wanted.gpus < 2**n <= most):
        if fit := _fitting(config, model, replace(wanted, gpus=gpus, tensor=None, data=None)):
            yield f"--gpus {gpus}: {fit}"
            break
    batch = wanted.batch // 2
    while batch:
        if fit := _fitting(config, model, replace(wanted, batch=batch)):
            yield f"--batch {batch}: {fit}"
            break
        batch //= 2
    tokens = 0 if config.fixed else model.sequence // 2
    while tokens >= LEAST_TOKENS:
        places = model.places or model.sequence
        if fit := _fitting(config, replace(model, sequence=tokens, places=places), wanted):
            yield f"--sequence {tokens}: {fit}"
            break
        tokens //= 2


def _fitting(config: ModelConfig, model: planner.Transformer, wanted: Wanted) -> str:
    """What a GPU then needs, in words; "" if it does not fit."""
    trials = [_Trial(config, model, wanted, tensor) for tensor in _degrees(model, wanted)]
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        return ""
    best = min(fitting, key=lambda trial: trial.memory_bytes)
    return f"{bytes_text(best.memory_bytes)} with data {best.replicas} × tensor {best.tensor}"
