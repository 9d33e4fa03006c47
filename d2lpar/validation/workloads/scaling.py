"""Data parallelism on many GPUs, from one GPU's step and the cost of exchanging gradients."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch

from ... import collective_cost as cost
from ... import scaling
from ...machines.hardware import GIGA, Machine
from ..parameters import Parameters, Run
from .training import OPTIMIZERS, on_gpu, training_step

HOST_BYTES_PER_S = 76.8 * GIGA  # a Xeon E5 v4: four channels of DDR4-2400


def data_parallel(p: Parameters, machine: Machine) -> Run:
    """Training on `gpus` GPUs with `batch` samples each.

    `single_gpu_images_per_s` is what one was published to do; otherwise it is simulated. An
    efficiency compares a GPU of many with one alone, or with one of `relative_to_gpus`.
    """
    batch, gpus = p.integer("batch"), p.integer("gpus")
    step = _step_of_one(p, machine)
    alone = p.number("single_gpu_images_per_s", None)
    if alone is not None:
        step = step.scaled_to(batch / alone)
    exchange = p.choice("exchange", EXCHANGES, "all_reduce")
    nodes, bucket_bytes = p.integer("nodes", 1), p.number("bucket_bytes", scaling.BUCKET_BYTES)

    def seconds(count: int) -> float:
        if count == 1:
            return step.end_s
        on_all = partial(exchange, machine, count)
        return scaling.step_s(step, on_all, bucket_bytes=bucket_bytes)

    if (needed := machine.node_of(gpus - 1) + 1) != nodes:
        raise ValueError(f"{gpus} GPUs of {machine.name} are on {needed} nodes, not {nodes}")
    step_s = seconds(gpus)
    ratio = seconds(p.integer("relative_to_gpus", 1)) / step_s
    return Run(step_s, samples=batch * gpus, gpus=gpus, ratio=ratio)


def _step_of_one(p: Parameters, machine: Machine) -> scaling.Step:
    """Simulate a step of one GPU, with an event behind every gradient."""
    with ExitStack() as stack:
        net, inputs, precision = on_gpu(p, machine, p.integer("batch"), stack)
        optimizer = OPTIMIZERS["sgd"](list(net.parameters()))
        module = torch.get_device_module("vgpu")
        ready: dict[torch.Tensor, object] = {}
        events = [module.Event(enable_timing=True) for _ in range(3)]

        def note(parameter: torch.Tensor) -> None:
            ready[parameter] = module.Event(enable_timing=True)
            ready[parameter].record()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(note)
        optimizer.register_step_pre_hook(lambda *_: events[1].record())
        step = training_step(net, inputs.make, inputs.loss, optimizer, precision)
        step()
        module.synchronize()
        events[0].record()
        step()
        events[2].record()
        module.synchronize()
        gradients = tuple(
            scaling.Gradient(g.numel() * g.element_size(), _since(events[0], event))
            for g, event in ready.items()
        )
        return scaling.Step(_since(events[0], events[1]), _since(events[0], events[2]), gradients)


def _since(start: object, event: object) -> float:
    return start.elapsed_time(event) / 1000


# --- exchanges ------------------------------------------------------------------------------------


def _all_reduce(machine: Machine, gpus: int, nbytes: float) -> float:
    return cost.all_reduce_s(nbytes, cost.fabric_of(machine, gpus))


def _server_on_host(machine: Machine, gpus: int, nbytes: float) -> float:
    """Every GPU sends its gradients to the host, which adds them, and gets parameters back."""
    way = machine.host_link.payload_bytes_per_s / machine.uplink_shared_by
    return 2 * nbytes / way + (gpus + 1) * nbytes / HOST_BYTES_PER_S


def _servers_on_gpus(machine: Machine, gpus: int, nbytes: float) -> float:
    """Every GPU keeps a share of the parameters: it sends the other gradients and its own share to
    the others, as many bytes as in a ring."""
    way = (machine.peer or machine.host_link).payload_bytes_per_s
    return 2 * (gpus - 1) / gpus * nbytes / way


def _servers_on_nodes(machine: Machine, gpus: int, nbytes: float) -> float:
    """Summed within each node first; then every node keeps a share, and the network carries the
    others' as above."""
    nodes = machine.node_of(gpus - 1) + 1
    within = _servers_on_gpus(machine, gpus // nodes, nbytes)
    if nodes == 1:
        return within
    between = 2 * (nodes - 1) / nodes * nbytes / cost.node_network_bytes_per_s(machine)
    return within + between


EXCHANGES = {
    "all_reduce": _all_reduce,
    "parameter_server_cpu": _server_on_host,
    "parameter_server_gpu": _servers_on_gpus,
    "parameter_server": _servers_on_nodes,
    "kvstore": _servers_on_nodes,
}
