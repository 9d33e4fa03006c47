"""Pipelines: schedules as data, their checks, what they cost on a machine; and run for real.

    orders = pipeline.orders(pipeline.one_f_one_b(ranks=4, micro_batches=8))
    pipeline.require(orders, stages=4, micro_batches=8)       # a ScheduleError says what is wrong
    costs = pipeline.stage_costs(stages, x)                   # or [StageCost(1e-3, 2e-3)] * 4
    timeline = pipeline.simulate(orders, costs, "8x-a100-nvswitch")
    pipeline.Pipeline(stages, par.devices(4)).step(X, y, loss, micro_batches=8)

Schedules, their checks and their simulation are plain Python without tensors.
"""

from __future__ import annotations

from .conformance import check, in_flight, require
from .costs import StageCost
from .executor import Pipeline
from .findings import Finding, ScheduleError
from .operations import BACKWARD, FORWARD, INPUTS, WEIGHTS, Operation, Orders, Slot, orders
from .schedules import SCHEDULES, gpipe, in_slots, interleaved_1f1b, one_f_one_b, zero_bubble_h1
from .simulation import Simulation, simulate
from .stage_timing import stage_costs
from .torch_pipelining import performed, recorded

__all__ = [
    "BACKWARD",
    "FORWARD",
    "INPUTS",
    "SCHEDULES",
    "WEIGHTS",
    "Finding",
    "Operation",
    "Orders",
    "Pipeline",
    "ScheduleError",
    "Simulation",
    "Slot",
    "StageCost",
    "check",
    "gpipe",
    "in_flight",
    "in_slots",
    "interleaved_1f1b",
    "one_f_one_b",
    "orders",
    "performed",
    "recorded",
    "require",
    "simulate",
    "stage_costs",
    "zero_bubble_h1",
]
