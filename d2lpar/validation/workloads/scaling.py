"""Data parallelism on many GPUs: from one GPU's step and an exchange, or by nn.DataParallel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial

from torch import nn

from ...machines.hardware import GIGA, Machine
from ...machines.variability import SPREAD
from ...parallelism import scaling
from ...parallelism.planner.costs.layers import GpuAndHost
from ...parallelism.scaling.steps import chain_s, gathered_in
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import gpus, mean_s
from .measuring import seconds as measured_s
from .nets.networks import network
from .training import (
    DTYPES,
    UPDATES,
    Images,
    Job,
    Program,
    Update,
    images_of,
    in_epochs,
    on_gpu,
    rounding,
    training_step,
)

HOST_BYTES_PER_S = 76.8 * GIGA  # a Xeon E5 v4: four channels of DDR4-2400
_HALVINGS = 60  # of an interval: as fine as a float


def data_parallel(p: Parameters, machine: Machine) -> SimulatedRun:
    """Training on `gpus` GPUs with `batch` samples each, `accumulate` times for each update.

    How fast one GPU is may be known: `single_gpu_images_per_s` is what one was published to do, and
    `relative_samples_per_s` what `relative_to_gpus` of them did, with `relative_accumulate`.
    Otherwise it is simulated. An efficiency compares a GPU of many with one of `relative_to_gpus`.
    """
    batch, count, accumulate = p.integer("batch"), p.integer("gpus"), p.integer("accumulate", 1)
    _check_nodes(machine, count, p.integer("nodes", 1))
    few, few_accumulate = p.integer("relative_to_gpus", 1), p.integer("relative_accumulate", 1)
    exchange = _exchange(p, machine)

    def seconds(step: scaling.DeviceStep, gpus: int, times: int) -> float:
        """Of a step whose gradients are in buckets."""
        beside = overhead if gpus > 1 else scaling.NO_OVERHEAD
        exchanges_s = [exchange(bucket.bytes, gpus) for bucket in step.gradients]
        return chain_s(step.accumulated(times).of_slowest(gpus, beside), exchanges_s, beside)

    step, overhead = _step_of_one(p, machine)
    step = step.with_buckets(gathered_in(step.gradients, _bucket_bytes(p)))
    alone, together = (
        p.number(f"{whose}_per_s", None) for whose in ("single_gpu_images", "relative_samples")
    )
    if alone is not None:
        step = step.scaled_to(batch / alone)
    if together is not None:
        known_s = few * batch * few_accumulate / together
        step = _scaled_so_that(lambda one: seconds(one, few, few_accumulate), known_s, step)
    step_s = seconds(step, count, accumulate)
    few_s = seconds(step, few, few_accumulate)
    all_of_them = SimulatedRun(
        step_s,
        samples=batch * count * accumulate,
        gpus=count,
        ratio=few_s / few_accumulate / (step_s / accumulate),
        naive=Naive(few_s / few_accumulate * accumulate, ratio=1.0),
    )
    return in_epochs(p, all_of_them)


def data_parallel_module(p: Parameters, machine: Machine) -> SimulatedRun:
    """torch.nn.DataParallel on `gpus` GPUs, `batch` images on each; as a speedup over one GPU, or
    the seconds of an `epoch` of so many images."""
    count, batch = p.integer("gpus"), p.integer("batch")
    alone, together = (_module_s(p, machine, gpus, batch) for gpus in (1, count))
    step = SimulatedRun(
        together,
        samples=count * batch,
        gpus=count,
        ratio=count * alone / together,
        naive=Naive(alone, ratio=float(count)),
    )
    return in_epochs(p, step)


def replicate(p: Parameters, machine: Machine) -> SimulatedRun:
    """What `nn.DataParallel` does first in each step, for the GPU that has the network already: it
    makes a replica, in Python, and copies nothing."""
    dtype, _ = p.choice("dtype", DTYPES)
    with gpus(machine) as (gpu,):
        net = network(p.text("model"), gpu, dtype)
        return SimulatedRun(mean_s(lambda: nn.parallel.replicate(net, [gpu])))


def _module_s(p: Parameters, machine: Machine, count: int, batch: int) -> float:
    """A step with momentum on so many GPUs, its batch on the first of them."""
    dtype, precision = p.choice("dtype", DTYPES)
    with rounding(p.text("dtype")), gpus(machine, count) as devices:
        net = network(p.text("model"), devices[0], dtype)
        images = Images(images_of(p, count * batch), dtype, devices[0])
        module = nn.DataParallel(net, devices) if count > 1 else net
        optimizer = p.choice("optimizer", UPDATES, "sgd")(list(net.parameters()))
        program = Program.of(p)
        return measured_s(training_step(module, images, optimizer, precision, program))


def _check_nodes(machine: Machine, gpus: int, nodes: int) -> None:
    if (needed := machine.node_of(gpus - 1) + 1) != nodes:
        raise ValueError(f"{gpus} GPUs of {machine.name} are on {needed} nodes, not {nodes}")


def _step_of_one(p: Parameters, machine: Machine) -> tuple[scaling.DeviceStep, scaling.Overhead]:
    """A step of one GPU, simulated; and what one of many costs besides.

    Gradients are copied into buffers that are summed, and back, in Horovod, apex and PyTorch alike;
    PyTorch's broadcast of buffers is its own, and most rows are not of it. A key-value store takes
    gradients as they are.
    """
    job, update = Job.of(p, p.integer("batch")), p.choice("optimizer", UPDATES, "sgd")
    step = simulated(job, update, GpuAndHost.of(machine.accelerators[0], machine.host))
    if p.text("exchange", "all_reduce") != "all_reduce":
        return step, scaling.Overhead(spread=SPREAD)
    no_buffers = nn.Identity()
    return step, scaling.Overhead.of(machine, no_buffers, broadcast_buffers=False)


@cache  # sources publish the same job on few GPUs and on many
def simulated(job: Job, update: Update, gpu: GpuAndHost) -> scaling.DeviceStep:
    """A step of training on one GPU, when it is warm."""
    with ExitStack() as stack:
        net, inputs, precision = on_gpu(job, gpu.machine, stack)
        optimizer = update(list(net.parameters()))
        step = training_step(net, inputs, optimizer, precision)
        return scaling.timed_step(step, net, optimizer)


def _scaled_so_that(
    seconds: Callable[[scaling.DeviceStep], float], known_s: float, step: scaling.DeviceStep
) -> scaling.DeviceStep:
    """The step, as long as it must be for `seconds(step)` to be what is known."""
    low_s, high_s = 0.0, known_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if seconds(step.scaled_to(middle_s)) < known_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return step.scaled_to(high_s)


# --- exchanges ------------------------------------------------------------------------------------


def _bucket_bytes(p: Parameters) -> float | None:
    """Without overlap everything is exchanged at once, when backward has ended."""
    return None if p.flag("overlap", True) else scaling.ONE_BUCKET


def _exchange(p: Parameters, machine: Machine) -> scaling.Exchange:
    exchange = p.choice("exchange", EXCHANGES, "all_reduce")(machine)
    if p.choice("compress", {"none": False, "float16": True}, "none"):
        rate = machine.accelerators[0].memory_bytes_per_s
        return scaling.half_precision(exchange, rate)
    return exchange


def _all_reduce(machine: Machine) -> scaling.Exchange:
    return scaling.library(scaling.Network.of(machine))


def _servers_on_gpus(machine: Machine) -> scaling.Exchange:
    """Every GPU, or every node after adding up, keeps a share of the parameters."""
    return scaling.key_value_store(scaling.Network.of(machine))


def _server_on_host(machine: Machine) -> scaling.Exchange:
    """Every GPU sends its gradients to the host, which adds them, and gets parameters back."""
    return partial(_host_s, machine)


def _host_s(machine: Machine, nbytes: float, gpus: int) -> float:
    if gpus == 1:
        return 0.0
    way = machine.host_link.payload_bytes_per_s / machine.uplink_shared_by
    return 2 * nbytes / way + (gpus + 1) * nbytes / HOST_BYTES_PER_S


EXCHANGES = {
    "all_reduce": _all_reduce,
    "parameter_server_cpu": _server_on_host,
    "parameter_server_gpu": _servers_on_gpus,
    "parameter_server": _servers_on_gpus,
    "kvstore": _servers_on_gpus,
}
