"""Single kernels: matrix products, convolutions, streams through memory, norms, launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from ...machines.hardware import Machine
from ...machines.measuring.microbenchmarks import matmul_precision
from ...vgpu.patching import Patches
from ...vgpu.torch_backend.cost import row_cost
from ...vgpu.torch_backend.private import torch_operators
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import DTYPES, filled, gpus, mean_s, seconds, synchronized_s

Precision = Callable[[], AbstractContextManager]
_tf32 = partial(matmul_precision, "high")

Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _copy(arrays: Arrays) -> None:
    arrays[2].copy_(arrays[0])


def _scale(arrays: Arrays) -> None:
    torch.mul(arrays[0], 1.2, out=arrays[2])


def _triad(arrays: Arrays) -> None:
    torch.add(arrays[0], arrays[1], alpha=0.4, out=arrays[2])


def _add(arrays: Arrays) -> None:
    torch.add(arrays[0], arrays[1], out=arrays[2])


def _read(arrays: Arrays) -> None:
    arrays[0].sum()


# McCalpin's STREAM, as BabelStream and torch have it: the kernel, and how many arrays it moves.
STREAMS = {
    "copy": (_copy, 2),
    "scale": (_scale, 2),
    "triad": (_triad, 3),
    "add": (_add, 3),
    "read": (_read, 1),
    "sum": (_read, 1),
}


def matmul(p: Parameters, machine: Machine) -> SimulatedRun:
    """`count` products (m × k) (k × n) on each of `devices` GPUs, queued by one host; `batch`
    matrices in each, if the row says so."""
    m, n, k = (p.integer(name) for name in "mnk")
    batch = p.integer("batch", 1)
    count, devices = p.integer("count", 1), p.integer("devices", 1)
    dtype, precision = _precision(p)
    with gpus(machine, devices) as gs, precision():
        calls = [_product(m, n, k, dtype, g, batch) for g in gs]

        def products() -> None:
            for product in calls:
                for _ in range(count):
                    product()

        flops = 2 * batch * m * n * k * count * devices
        peak = machine.accelerators[0].rate(p.text("precision", p.text("dtype"))) * devices
        return SimulatedRun(
            (mean_s if count == 1 else seconds)(products),
            flops=flops,
            gpus=devices,
            naive=Naive(flops / peak),
        )


def stream(p: Parameters, machine: Machine) -> SimulatedRun:
    """One kernel over arrays of `bytes` each (or of so many `elements`)."""
    kernel, arrays = p.choice("kind", STREAMS)
    dtype = p.choice("dtype", DTYPES)
    elements = p.integer("elements", None)
    elements = p.integer("bytes") // dtype.itemsize if elements is None else elements
    with gpus(machine) as (gpu,):
        a, b, c = (filled(torch.empty(elements, dtype=dtype, device=gpu)) for _ in range(3))
        moved = arrays * elements * dtype.itemsize
        naive = Naive(moved / machine.accelerators[0].memory_bytes_per_s)
        return SimulatedRun(mean_s(lambda: kernel((a, b, c))), bytes=moved, naive=naive)


def _product(
    m: int, n: int, k: int, dtype: torch.dtype, device: torch.device, batch: int = 1
) -> Callable[[], torch.Tensor]:
    """A product of two matrices that are there, or of a batch of them; of fp8 numbers, whose scales
    are there as well, it is summed up in bf16."""
    if batch > 1:
        shapes = ((batch, m, k), (batch, k, n))
        a, b = (filled(torch.empty(s, dtype=dtype, device=device)) for s in shapes)
        return partial(torch.bmm, a, b)
    a = torch.empty(m, k, dtype=dtype, device=device)
    b = torch.empty(n, k, dtype=dtype, device=device).t()
    if dtype.itemsize > 1:
        return partial(torch.mm, filled(a), filled(b))
    scale = torch.ones((), device=device)
    return partial(torch_operators.scaled_product, a, b, scale, scale, out_dtype=torch.bfloat16)


def _precision(p: Parameters) -> tuple[torch.dtype, Precision]:
    """The data type, and how products of fp32 are rounded: `precision=tfloat32`."""
    tf32 = p.choice("precision", {"tfloat32": True, "float32": False}, "float32")
    return p.choice("dtype", DTYPES), _tf32 if tf32 else nullcontext


def convolution(p: Parameters, machine: Machine) -> SimulatedRun:
    """A convolution of square kernels, or one of its gradients, in NCHW or NHWC; fp32 is not
    rounded to TF32."""
    batch, inputs, outputs = (p.integer(n) for n in ("batch", "in_channels", "out_channels"))
    height, width, side = (p.integer(n) for n in ("height", "width", "kernel"))
    stride, padding, dtype = p.integer("stride"), p.integer("padding"), p.choice("dtype", DTYPES)
    nhwc = p.choice("layout", {"nchw": False, "nhwc": True}, "nchw")
    wanted = p.choice(
        "direction",
        {"forward": None, "backward_input": (True, False), "backward_weight": (False, True)},
    )
    with gpus(machine) as (gpu,), torch.backends.cudnn.flags(allow_tf32=False):
        form = torch.channels_last if nhwc else torch.contiguous_format
        x = torch.empty(batch, inputs, height, width, dtype=dtype, device=gpu)
        weight = torch.empty(outputs, inputs, side, side, dtype=dtype, device=gpu)
        x, weight = (tensor.contiguous(memory_format=form) for tensor in (x, weight))
        y = F.conv2d(x, weight, stride=stride, padding=padding)

        def run() -> None:
            if wanted is None:
                F.conv2d(x, weight, stride=stride, padding=padding)
            else:
                both = [1, 1]
                torch.ops.aten.convolution_backward(
                    *(y, x, weight, None, [stride] * 2, [padding] * 2),
                    *(both, False, [0, 0], 1, [*wanted, False]),
                )

        flops = 2 * y.numel() * inputs * side * side
        naive = Naive(flops / machine.accelerators[0].rate(p.text("dtype")))
        return SimulatedRun(mean_s(run), flops=flops, naive=naive)


def batch_norm(p: Parameters, machine: Machine) -> SimulatedRun:
    """Batch norm of `images` with `channels` of `places` each, forward or backward; or a `kind` of
    PyTorch's own kernels, which `SyncBatchNorm` calls: `stats`, `backward_reduce`.

    Backward includes the sum with the gradient that the images have already, as `backward` forms.
    """
    shape = (*(p.integer(n) for n in ("images", "channels", "places")), 1)
    dtype = p.choice("dtype", DTYPES)
    last = p.choice("layout", {"nchw": False, "nhwc": True}, "nchw")
    form = torch.channels_last if last else torch.contiguous_format
    kinds = ("forward", "backward", "stats", "backward_reduce")
    kind = p.choice("kind", {name: name for name in kinds})
    with gpus(machine) as (gpu,):
        x = torch.empty(shape, dtype=dtype, device=gpu).contiguous(memory_format=form)
        of_channels = torch.ones(shape[1], device=gpu)
        weights = of_channels.clone().requires_grad_(), of_channels.clone().requires_grad_()
        x.requires_grad_(kind == "backward")
        y = F.batch_norm(x, None, None, *weights, training=True)
        gradient = torch.empty_like(x)
        calls: dict[str, Callable[[], object]] = {
            "forward": lambda: F.batch_norm(x, None, None, *weights, training=True),
            "backward": lambda: y.backward(gradient, retain_graph=True),
            "stats": lambda: torch.batch_norm_stats(x, 1e-5),
            "backward_reduce": lambda: torch.batch_norm_backward_reduce(
                gradient, x, of_channels, of_channels, of_channels, True, True, True
            ),
        }
        passes = {"forward": 2, "backward": 3, "stats": 1, "backward_reduce": 2}[kind]
        moved = passes * x.numel() * dtype.itemsize
        naive = Naive(moved / machine.accelerators[0].memory_bytes_per_s)
        return SimulatedRun(mean_s(calls[kind]), bytes=moved, naive=naive)


RowKernel = Callable[..., torch.Tensor]


def _layer_norm(x: torch.Tensor, *learned: torch.Tensor) -> torch.Tensor:
    weight, bias = learned or (None, None)
    return F.layer_norm(x, x.shape[1:], weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    return F.rms_norm(x, x.shape[1:], weight)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def _cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, labels)


ROW_KERNELS: dict[str, RowKernel] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
}
_LEARNED = {"layer_norm": 2, "rms_norm": 1}  # tensors: a scale, and of layer norm a shift


def _without_cache(machine: Machine) -> Machine:
    """The machine as a kernel finds it whose operands were flushed from the cache."""
    flushed = tuple(replace(a, l2_bytes=None) for a in machine.accelerators)
    return replace(machine, accelerators=flushed)


@contextmanager
def _losses_of(threads: int) -> Iterator[None]:
    """Let the losses of a batch be added up by so many threads at most."""
    patches = Patches()
    patches.set(row_cost, "LOSS_THREADS", threads)
    try:
        yield
    finally:
        patches.undo()


def recurrent(p: Parameters, machine: Machine) -> SimulatedRun:
    """A layer of `kind` (lstm, gru, rnn) with `hidden` units over `steps` of `batch`, forward or
    forward and backward. Inputs have one feature: rows leave out the product of the inputs."""
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
    kind, dtype = p.choice("kind", kinds), p.choice("dtype", DTYPES)
    backward = p.choice("direction", {"forward": False, "forward_backward": True})
    hidden, batch, steps = p.integer("hidden"), p.integer("batch"), p.integer("steps")
    with gpus(machine) as (gpu,), torch.set_grad_enabled(backward):
        layer = kind(1, hidden, device=gpu, dtype=dtype)
        x = filled(torch.empty(steps, batch, 1, device=gpu, dtype=dtype))
        learned = [*layer.parameters()]

        def run() -> None:
            y, _ = layer(x)
            if backward:
                torch.autograd.grad(y, learned, torch.empty_like(y))

        gates = layer.weight_hh_l0.shape[0]
        flops = 2 * steps * batch * gates * hidden * (3 if backward else 1)
        naive = Naive(flops / machine.accelerators[0].rate(p.text("dtype")))
        return SimulatedRun(mean_s(run), flops=flops, naive=naive)


def rows(p: Parameters, machine: Machine) -> SimulatedRun:
    """One of `ROW_KERNELS` over `rows` × `columns`: forward, backward or both; what it has learned
    with it if the row says `affine`.

    Bytes are those of the tensor read and written once each (twice as many with the gradient).
    `loss_threads` is for rows of an older PyTorch, whose losses are summed by fewer.
    """
    kernel, dtype = p.choice("kind", ROW_KERNELS), p.choice("dtype", DTYPES)
    compiled = p.flag("compiled", False)
    directions = {"forward": (1, 0), "backward": (0, 1), "forward_backward": (1, 1)}
    forward, backward = (bool(part) for part in p.choice("direction", directions))
    if p.choice("cache", {"cold": True, "warm": False}, "warm"):
        machine = _without_cache(machine)
    threads = p.integer("loss_threads", row_cost.LOSS_THREADS)
    with gpus(machine) as (gpu,), _losses_of(threads):
        shape = (p.integer("rows"), p.integer("columns"))
        x = filled(torch.empty(shape, dtype=dtype, device=gpu, requires_grad=backward))
        learned = [
            filled(torch.empty(shape[1:], dtype=dtype, device=gpu, requires_grad=backward))
            for _ in range(_LEARNED[p.text("kind")] if p.flag("affine", False) else 0)
        ]

        others = learned
        if kernel is _cross_entropy:
            others = [filled(torch.empty(shape[0], dtype=torch.long, device=gpu))]
        call: RowKernel = torch.compile(kernel) if compiled else kernel

        def run() -> None:
            y = call(x, *others)
            if backward:
                torch.autograd.grad(y, (x, *learned), torch.empty_like(y))

        duration_s = mean_s(run)
        if not forward:
            duration_s -= mean_s(lambda: call(x, *others))
        moved = 2 * x.numel() * dtype.itemsize * (forward + 1.5 * backward)
        naive = Naive(moved / machine.accelerators[0].memory_bytes_per_s)
        return SimulatedRun(duration_s, bytes=2 * x.numel() * dtype.itemsize, naive=naive)


def launch(p: Parameters, machine: Machine) -> SimulatedRun:
    """An addition of `elements`: its time in a queue, or with a wait after each."""
    elements, dtype = p.integer("elements"), p.choice("dtype", DTYPES)
    waits = p.flag("synchronize", False)
    with gpus(machine) as (gpu,):
        a, b = (filled(torch.empty(elements, dtype=dtype, device=gpu)) for _ in range(2))

        def run() -> None:
            torch.add(a, b)
            if waits:
                synchronized_s()

        moved = 3 * elements * dtype.itemsize
        naive = Naive(moved / machine.accelerators[0].memory_bytes_per_s)
        return SimulatedRun(mean_s(run), bytes=moved, naive=naive)
