"""Copies: between host and device, within a device, between devices."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...machines.hardware import Link, Machine
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import DTYPES, filled, gpus, mean_s, seconds


def copy(p: Parameters, machine: Machine) -> SimulatedRun:
    """A copy of `bytes`: host_to_device, device_to_host, device_to_device or peer.

    A single one is the mean of many, to memory that was used before. If `count` says that there are
    several, they are results for each of which the host takes fresh memory.
    """
    nbytes, count = p.integer("bytes"), p.integer("count", 1)
    direction = p.text("direction")
    if direction == "peer":
        return send(p, machine)
    naive = Naive(count * nbytes / machine.host_link.bytes_per_s)
    with gpus(machine) as (gpu,):
        there = filled(torch.empty(nbytes // 4, device=gpu))
        if direction == "device_to_device":
            other = torch.empty_like(there)
            naive = Naive(2 * nbytes / machine.accelerators[0].memory_bytes_per_s)
            copy_s = mean_s(lambda: other.copy_(there))
            return SimulatedRun(copy_s, bytes=2 * nbytes, naive=naive)
        pinned = p.choice("memory", {"pinned": True, "pageable": False})
        if count > 1:
            fresh_s = seconds(lambda: [there.to("cpu") for _ in range(count)])
            return SimulatedRun(fresh_s, bytes=count * nbytes, naive=naive)
        here = filled(torch.empty(nbytes // 4, pin_memory=pinned))
        ends = {"host_to_device": (there, here), "device_to_host": (here, there)}
        target, source = p.choice("direction", ends)
        copy_s = mean_s(lambda: target.copy_(source, non_blocking=pinned))
        return SimulatedRun(copy_s, bytes=nbytes, naive=naive)


def send(p: Parameters, machine: Machine) -> SimulatedRun:
    """A copy between two GPUs, over so many NVLink `links`; with peer=false through the host."""
    nbytes = p.integer("bytes")
    if not p.flag("peer", True):
        machine = machine.with_peer(None)
    machine = _with_links(machine, p.integer("links", 1))
    naive = Naive(nbytes / (machine.peer or machine.host_link).bytes_per_s)
    return SimulatedRun(_peer_s(machine, nbytes), bytes=nbytes, naive=naive)


def matmul_and_copy(p: Parameters, machine: Machine) -> SimulatedRun:
    """`count` products, then the copies of all results to the CPU, one host and one stream.

    Only the product is warm, and no page-locked memory is left from an earlier run, unless it is
    the second `call` of the program, which finds what the first one left.
    """
    m, n, k, count = (p.integer(name) for name in ("m", "n", "k", "count"))
    dtype, blocking = p.choice("dtype", DTYPES), p.flag("blocking", True)
    first = p.choice("call", {"first": True, "second": False}, "first")
    with gpus(machine) as (gpu,):
        a = filled(torch.empty(m, k, dtype=dtype, device=gpu))
        b = filled(torch.empty(k, n, dtype=dtype, device=gpu))

        def program() -> None:
            results = [torch.mm(a, b) for _ in range(count)]
            [result.to("cpu", non_blocking=not blocking) for result in results]

        flops = 2 * m * n * k * count
        naive_s = flops / machine.accelerators[0].rate(p.text("dtype"))
        naive_s += count * m * n * dtype.itemsize / machine.host_link.bytes_per_s
        warm_up = (lambda: torch.mm(a, b)) if first else program
        program_s = seconds(program, warm_up=warm_up, cold=first)
        return SimulatedRun(program_s, flops=flops, naive=Naive(naive_s))


def _with_links(machine: Machine, links: int) -> Machine:
    """The machine with so many NVLinks between two of its GPUs."""
    if links == 1 or machine.peer is None:
        return machine
    one = machine.peer.bytes_per_s / _links(machine.peer)
    return machine.with_peer(replace(machine.peer, bytes_per_s=one * links))


def _peer_s(machine: Machine, nbytes: int) -> float:
    with gpus(machine, 2) as (source, target):
        data = torch.empty(nbytes // 4, device=source)
        received = torch.empty(nbytes // 4, device=target)
        return mean_s(lambda: received.copy_(data))


def _links(peer: Link) -> int:
    """How many NVLinks a link of the catalogue stands for."""
    return {"one": 1, "two": 2, "four": 4, "six": 6}.get(peer.name.split()[-2], 1)
