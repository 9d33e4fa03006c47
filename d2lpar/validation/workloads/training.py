"""Steps of training and of inference on one GPU: real torch programs on the virtual one.

They are eager programs. The published figures are also of frameworks that fuse batch norm with what
follows it or whole graphs (XLA): rows whose source shows that say `compiled=true`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ...machines.hardware import Machine
from ...machines.measuring.microbenchmarks import matmul_precision
from ..groups import READ_WORDS
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import (
    device_type,
    filled,
    flops_of,
    gpus,
    graphed,
    mean_s,
    peak_bytes,
    seconds,
)
from .nets.networks import PREDICT_FIELDS, network

TrainingStep = Callable[[], object]
Batch = tuple[torch.Tensor, torch.Tensor]
Precision = Callable[[], AbstractContextManager]
Update = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

TF32 = ("tf32", "tfloat32")  # products, too: convolutions may round to it by default
DTYPES: dict[str, tuple[torch.dtype, Precision]] = {
    "float32": (torch.float32, nullcontext),
    "float16": (torch.float16, nullcontext),
    "bfloat16": (torch.bfloat16, nullcontext),
    **dict.fromkeys(TF32, (torch.float32, nullcontext)),
    "float16-amp": (torch.float32, lambda: torch.autocast(device_type(), dtype=torch.float16)),
    "bfloat16-amp": (torch.float32, lambda: torch.autocast(device_type(), dtype=torch.bfloat16)),
    # Parameters in half precision, and the context besides.
    "float16-half-amp": (torch.float16, lambda: torch.autocast(device_type(), dtype=torch.float16)),
}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
UPDATES: dict[str, Update] = {
    "sgd": SGD,
    "sgd-loop": partial(SGD, foreach=False),
    "sgd-plain": partial(torch.optim.SGD, lr=0.1),
    "adam": torch.optim.Adam,
    "adam-fused": partial(torch.optim.Adam, fused=True),
    "adamw-loop": partial(torch.optim.AdamW, foreach=False),
    "adamw": torch.optim.AdamW,
    "adamw-fused": partial(torch.optim.AdamW, fused=True),
}
OPTIMIZERS: dict[str, Update | None] = {**UPDATES, "none": None}


def train(p: Parameters, machine: Machine) -> SimulatedRun:
    """A step of forward, loss, backward and an update.

    The update is SGD's with momentum, or that of `optimizer`. BERT accumulates the gradients of
    many batches and updates rarely, unless `optimizer` is given. Seconds are those of the step, or
    of `epochs` over `epoch` samples, each with a forward pass of `validated` others after it.
    """
    batch = p.integer("batch")
    with ExitStack() as stack:
        net, inputs, precision = on_gpu(Job.of(p, batch), machine, stack)
        program = Program.of(p)
        step = _step_of(p, net, inputs, precision, program)
        run = _measured(step, p, machine, batch * program.accumulate)
        return in_epochs(p, run, lambda: _validation_s(p, net, inputs, precision))


def peak_memory(p: Parameters, machine: Machine) -> SimulatedRun:
    """The most that tensors take in such a step, the second one, as torch's allocator counts it."""
    with ExitStack() as stack:
        net, inputs, precision = on_gpu(Job.of(p, p.integer("batch")), machine, stack)
        step = _step_of(p, net, inputs, precision, Program.of(p))
        device = next(net.parameters()).device
        return SimulatedRun(memory_bytes=peak_bytes(step, device))


def _step_of(
    p: Parameters, net: nn.Module, inputs: Images | Words, precision: Precision, program: Program
) -> TrainingStep:
    default = "none" if isinstance(inputs, Words) else "sgd"
    update = p.choice("optimizer", OPTIMIZERS, default)
    optimizer = update and update(list(net.parameters()))
    return training_step(net, inputs, optimizer, precision, program)


def infer(p: Parameters, machine: Machine) -> SimulatedRun:
    """A forward pass without gradients, batch norm with its running statistics; or so many of them
    as an `epoch` takes. `graph=true` replays it as a CUDA graph."""
    batch = p.integer("batch")
    with ExitStack() as stack:
        net, inputs, precision = on_gpu(Job.of(p, batch), machine, stack)
        net.eval()
        step = _forward(net, inputs, precision)
        if p.flag("graph", False):
            step = graphed(step)
        return in_epochs(p, _measured(step, p, machine, batch))


def _forward(net: nn.Module, inputs: Images | Words, precision: Precision) -> TrainingStep:
    x = inputs.make()[0]

    @torch.no_grad()
    def step() -> None:
        with precision():
            net(x)

    return step


def _validation_s(
    p: Parameters, net: nn.Module, inputs: Images | Words, precision: Precision
) -> float:
    """Seconds of the forward passes that validate after an epoch, if there are any."""
    validated = p.integer("validated", 0)
    if not validated:
        return 0.0
    net.eval()
    passes = math.ceil(validated / p.integer("batch"))
    return passes * seconds(_forward(net, inputs, precision))


def in_epochs(
    p: Parameters, step: SimulatedRun, validation_s: Callable[[], float] = float
) -> SimulatedRun:
    """The step as often as a row's epochs have it, and what validates after each; or the step."""
    samples = p.integer("epoch", None)
    if samples is None or step.samples is None:
        return step
    epochs, steps = p.integer("epochs", 1), math.ceil(samples / step.samples)
    return step.repeated(epochs * steps, beside_s=epochs * validation_s())


def _measured(step: TrainingStep, p: Parameters, machine: Machine, batch: int) -> SimulatedRun:
    """The step when it is warm, and what it would take if its arithmetic ran at the peak rate."""
    flops = flops_of(step)
    dtype = p.text("dtype").removesuffix("-amp").removesuffix("-half")
    dtype = "tfloat32" if dtype == "tf32" else dtype
    naive = Naive(flops / machine.accelerators[0].rate(dtype))
    return SimulatedRun(
        seconds(step, warm_up=_nothing),
        samples=batch,
        flops=flops,
        tokens=batch * p.integer("sequence", 1),
        naive=naive,
    )


def _nothing() -> None:
    """The step has run once, while its FLOP were counted."""


@dataclass(frozen=True)
class Program:
    """What a script does in a step besides computing.

    Its batches come from `pageable` or `pinned` memory of the host, or are on the device already;
    it may read the loss each time, update after so many batches, and fill gradients with zeros
    rather than drop them, as PyTorch did before 2.0.
    """

    batches: str = "device"
    reads_loss: bool = False
    accumulate: int = 1
    zeros: bool = False

    @classmethod
    def of(cls, p: Parameters) -> Program:
        """That of a row."""
        known = {name: name for name in ("device", "pageable", "pinned")}
        batches = p.choice("batches", known, "device")
        reads_loss, accumulate = p.flag("reads_loss", False), p.integer("accumulate", 1)
        return cls(batches, reads_loss, accumulate, p.flag("zeros", False))

    def feed(self, inputs: Images | Words) -> Callable[[], Batch]:
        """A function that has the next batch on the device."""
        kept = inputs.make()
        if self.batches == "device":
            return lambda: kept
        pinned = self.batches == "pinned"
        x, y = (torch.empty_like(part, device="cpu", pin_memory=pinned) for part in kept)
        device = kept[0].device
        return lambda: (x.to(device, non_blocking=pinned), y.to(device, non_blocking=pinned))


PLAIN = Program()


def training_step(
    net: nn.Module,
    inputs: Images | Words,
    optimizer: torch.optim.Optimizer | None,
    precision: Precision = nullcontext,
    program: Program = PLAIN,
) -> TrainingStep:
    """One step as a function; without an optimizer gradients are added up."""
    feed = program.feed(inputs)

    def step() -> None:
        for _ in range(program.accumulate):
            x, y = feed()
            with precision():
                value = inputs.loss(net(x), y)
            value.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=not program.zeros)
        if program.reads_loss:
            value.item()

    return step


def optimizer_step(p: Parameters, machine: Machine) -> SimulatedRun:
    """An update of `layers` matrices of `hidden` × `hidden` numbers, whose gradients are there."""
    layers, hidden = p.integer("layers"), p.integer("hidden")
    update = p.choice("optimizer", UPDATES)
    with gpus(machine) as (gpu,):
        empty = (torch.empty(hidden, hidden, device=gpu) for _ in range(layers))
        weights = [nn.Parameter(filled(weight)) for weight in empty]
        for weight in weights:
            weight.grad = filled(torch.empty_like(weight))
        optimizer = update(weights)
        moved = 7 * 4 * layers * hidden**2  # Adam reads four numbers and writes three
        naive = Naive(moved / machine.accelerators[0].memory_bytes_per_s)
        return SimulatedRun(mean_s(optimizer.step), bytes=moved, naive=naive)


class Images:
    """Images and their classes. Inception's second output counts 0.4, as its authors have it."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        nhwc: bool = False,
    ) -> None:
        self._shape, self._dtype, self._device = shape, dtype, device
        self._format = torch.channels_last if nhwc else torch.contiguous_format

    def make(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch and its labels, on the device."""
        x = filled(torch.empty(self._shape, dtype=self._dtype, device=self._device))
        y = filled(torch.empty(self._shape[0], dtype=torch.long, device=self._device))
        return x.contiguous(memory_format=self._format), y

    @staticmethod
    def loss(
        scores: torch.Tensor | tuple[torch.Tensor, torch.Tensor], y: torch.Tensor
    ) -> torch.Tensor:
        """The cross-entropy of the classes."""
        if isinstance(scores, tuple):
            return F.cross_entropy(scores[0], y) + 0.4 * F.cross_entropy(scores[1], y)
        return F.cross_entropy(scores, y)


class Fields(Images):
    """Physical fields, and what they are some hours later."""

    def make(self) -> Batch:
        """A batch and what is to be predicted, on the device."""
        x, _ = super().make()
        return x, filled(torch.empty_like(x))

    @staticmethod
    def loss(
        scores: torch.Tensor | tuple[torch.Tensor, torch.Tensor], y: torch.Tensor
    ) -> torch.Tensor:
        """The error relative to what is to be predicted, by the 2-norm of each sample."""
        assert isinstance(scores, torch.Tensor)  # no such network has two outputs
        error = (scores - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)
        return error.mean()


class Words:
    """Texts, every word of which is to be predicted, or so many `masked` ones."""

    def __init__(
        self, batch: int, sequence: int, device: torch.device, masked: int | None = None
    ) -> None:
        self._batch, self._device = batch, device
        self._sequence, self._masked = sequence, sequence if masked is None else masked

    def make(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch, and the words that are to be predicted, on the device."""
        words, labels = (
            filled(torch.empty(self._batch, count, dtype=torch.long, device=self._device))
            for count in (self._sequence, self._masked)
        )
        return words, labels

    @staticmethod
    def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of all words that are predicted, unless the network has made it."""
        if not scores.dim():
            return scores
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())


@dataclass(frozen=True)
class Job:
    """What one GPU computes: a network by its name, and its batch.

    `images` is the shape of a batch of images, None for one of texts.
    """

    model: str
    batch: int
    dtype: str
    compiled: bool
    images: tuple[int, int, int, int] | None = None
    nhwc: bool = False
    sequence: int = 0
    masked: int | None = None

    @classmethod
    def of(cls, p: Parameters, batch: int) -> Job:
        """That of a row. Raises ValueError for what no row may say."""
        p.choice("dtype", DTYPES)
        common = (p.text("model"), batch, p.text("dtype"), p.flag("compiled", False))
        if common[0].startswith(READ_WORDS):
            return cls(*common, sequence=p.integer("sequence"), masked=p.integer("masked", None))
        nhwc = p.choice("layout", {"nchw": False, "nhwc": True}, "nchw")
        return cls(*common, images=images_of(p, batch), nhwc=nhwc)


def on_gpu(
    job: Job, machine: Machine, stack: ExitStack
) -> tuple[nn.Module, Images | Words, Precision]:
    """The network and its batch on one GPU, and the context in which it computes."""
    dtype, precision = DTYPES[job.dtype]
    stack.enter_context(rounding(job.dtype))
    (device,) = stack.enter_context(gpus(machine))
    net = network(job.model, device, dtype, masked=job.masked)
    if job.nhwc:
        net = net.to(memory_format=torch.channels_last)
    if job.compiled:
        net.compile()
    if job.images is None:
        return net, Words(job.batch, job.sequence, device, job.masked), precision
    kind = Fields if job.model.startswith(PREDICT_FIELDS) else Images
    return net, kind(job.images, dtype, device, job.nhwc), precision


def rounding(dtype: str) -> AbstractContextManager:
    """Lets products of fp32 round to TF32, forward and backward, if a row's data type says so."""
    return matmul_precision("high" if dtype in TF32 else "highest")


def images_of(p: Parameters, batch: int) -> tuple[int, int, int, int]:
    """The shape of a batch of images, square and of three colours unless the row says otherwise."""
    side = p.integer("image")
    return batch, p.integer("channels", 3), side, p.integer("width", side)
