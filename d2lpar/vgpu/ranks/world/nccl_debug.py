"""What variables of NCCL and of its process group do on virtual ranks.

* NCCL_DEBUG=VERSION or INFO: a line about the version; INFO: one for each communicator and rank
  when its first collective makes it, and with NCCL_DEBUG_SUBSYS=COLL (or ALL) one for each call.
  The form is NCCL's, for those who look for "nranks" or "opCount"; what there is not, such as
  addresses, channels and transports, is left out.
* TORCH_NCCL_BLOCKING_WAIT=1: `wait()` lets the host wait for the collective, and raises an error
  when that takes longer than the group's timeout. Else the watchdog ends the ranks then, but not
  with TORCH_NCCL_ASYNC_ERROR_HANDLING=0.
* TORCH_NCCL_NAN_CHECK=1: a rank that gives NaN to a collective, or sends it, fails there.
* TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE: see `flight_recorder`.

All others are accepted. What they ask for is so here (TORCH_DISTRIBUTED_DEBUG=DETAIL checks that
ranks agree, and they are always checked), has no meaning (heartbeats, as a hang is noticed at
once), or is a choice that the times do not depend on: NCCL_ALGO, NCCL_PROTO and their like, for
NCCL's own choices are modelled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ....timeline import printing
from ...torch_backend.tensors.tensor import VirtualTensor, backing
from ..calls.collective_calls import CollectiveCall
from ..calls.flight_recorder import Flight
from .rendezvous import Rendezvous

_SPOKEN = ("VERSION", "INFO", "TRACE")
_ON = ("1", "true", "y", "yes", "on")
NAN_CHECK = ("TORCH_NCCL_NAN_CHECK",)
HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


def is_blocking() -> bool:
    """Whether this rank's host waits in `wait()`."""
    return is_on(BLOCKING)


def has_watchdog() -> bool:
    """Whether a call of this rank that takes too long ends it; else whoever waits gets an error, or
    nobody does."""
    return not is_blocking() and os.environ.get(HANDLING) != "0"


def check_numbers(rank: int, call: CollectiveCall) -> None:
    """RuntimeError for a call that gives NaN to others, if this rank wants to know."""
    if not is_on(NAN_CHECK):
        return
    for tensor in call.reads:
        values = backing(tensor) if isinstance(tensor, VirtualTensor) else tensor
        if values is not None and not values.is_meta and bool(values.isnan().any()):
            raise RuntimeError(
                f"CUDA error: device-side assert triggered: rank {rank} gives NaN to {call} "
                "(TORCH_NCCL_NAN_CHECK=1). Look for what has computed it before this call: "
                "torch.autograd.set_detect_anomaly(True) names it in a backward pass"
            )


def is_on(variables: Sequence[str]) -> bool:
    """Whether this rank has one of these variables set to yes."""
    return any(os.environ.get(name, "").lower() in _ON for name in variables)


def say(rank: int, device: int, group: Rendezvous, flight: Flight) -> None:
    """Print what NCCL would have logged for a call."""
    level = os.environ.get("NCCL_DEBUG", "").upper()
    if level not in _SPOKEN:
        return
    if flight.record == 0 and rank == group.ranks[0]:
        version = ".".join(map(str, _version()))
        printing.write(f"NCCL version {version} (simulated)")
    if level == "VERSION":
        return
    size, mine = len(group.ranks), group.ranks.index(rank)
    who = f"d2lpar:{os.getpid()}:{rank} [{device}] NCCL INFO"
    comm = f"comm {group.number}"
    if flight.operation == 1:
        printing.write(
            f"{who} {comm} rank {mine} nranks {size} cudaDev {device} of {group} - Init COMPLETE"
        )
    parts = os.environ.get("NCCL_DEBUG_SUBSYS", "").upper().split(",")
    if {"COLL", "ALL"} & set(parts):
        printing.write(
            f"{who} {flight.text}: opCount {flight.operation - 1:x} {comm} [nranks={size}]"
        )


def _version() -> tuple[int, ...]:
    try:
        return tuple(torch.cuda.nccl.version())
    except (AttributeError, NotImplementedError):  # a build without NCCL
        return (0, 0, 0)
