"""Copies through the host's memory: in pieces, so that two engines work at once.

Between pageable memory and a device the host fills (or empties) the driver's buffer while the link
carries another piece (NVIDIA, CUDA Runtime API, "API synchronization behavior", speaks of that
staging memory); between two devices that are no peers one link carries a piece up while the other
carries the last one down. What takes longer sets the time, and what is quicker adds its first or
last piece. Six RTX 4090 that are no peers copy at 22.2 GB/s over PCIe 4.0 (NVIDIA/nccl issue 814),
which is all of one link, not half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ...machines.hardware import Host, Link, Machine
from .constants import PAGE_LOCK_BYTES_PER_S, PAGEABLE_BYTES_PER_S, STAGED_PIECE_BYTES

Port = TypeVar("Port")
EMBEDDED_BYTES = 64 * 1024  # of one copy from the host, at most, in the command itself


def copied_bytes_per_s(host: Host) -> float:
    """What one core copies from memory to memory."""
    return host.copy_bytes_per_s or PAGEABLE_BYTES_PER_S


def host_copy_s(host: Host, nbytes: int, *, fresh: bool = False) -> float:
    """Seconds in which one core copies so many bytes, perhaps into memory that it must obtain."""
    copying_s = nbytes / copied_bytes_per_s(host)
    return copying_s + (nbytes / PAGE_LOCK_BYTES_PER_S if fresh else 0.0)


def through_buffer_s(machine: Machine, nbytes: int, *, fresh: bool = False) -> float:
    """Seconds of the host's own for a copy between pageable memory, perhaps fresh, and a device.

    What it does while the link carries other pieces takes none; of a copy that goes with its
    command the host copies all before.
    """
    seconds = host_copy_s(machine.host, nbytes, fresh=fresh)
    if nbytes <= EMBEDDED_BYTES:
        return seconds
    return beside_link_s(seconds, machine.host_link.seconds(nbytes), nbytes)


def beside_link_s(host_s: float, link_s: float, nbytes: int) -> float:
    """What of `host_s` is left before or after the link's time, if pieces overlap."""
    return max(host_s - link_s, 0.0) + first_share(nbytes) * min(host_s, link_s)


def first_share(nbytes: int) -> float:
    """The share of a copy that is one piece, 0 to 1."""
    return min(STAGED_PIECE_BYTES / nbytes, 1.0) if nbytes else 1.0


class CopyPart(NamedTuple, Generic[Port]):
    """A part of a copy that occupies all `ports` for `seconds`, to `target` (None: the host)."""

    ports: tuple[Port, ...]
    seconds: float
    target: int | None
    bytes: int


def transfers(
    way: Sequence[tuple[tuple[Port, ...], Link, int | None]], nbytes: int
) -> list[CopyPart[Port]]:
    """The transfers of a copy, one after the other, over its hops: their ports, link and target.

    Two hops, to the host and from it, take both of their ways while there are pieces for both.
    """
    if len(way) != 2 or nbytes <= STAGED_PIECE_BYTES:
        return [CopyPart(ports, link.seconds(nbytes), at, nbytes) for ports, link, at in way]
    (up, first, host), (down, second, target) = way
    piece, others = STAGED_PIECE_BYTES, nbytes - STAGED_PIECE_BYTES
    slower = min(first.payload_bytes_per_s, second.payload_bytes_per_s)
    return [
        CopyPart(up, first.seconds(piece), host, piece),
        CopyPart((*up, *down), others / slower, target, others),
        CopyPart(down, second.seconds(piece), target, piece),
    ]
