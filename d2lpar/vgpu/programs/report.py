"""What a run took: a summary to read, and a report for other programs.

The report is one JSON object. Its keys, in version 1 (times are simulated seconds unless the name
says otherwise, sizes are bytes):

- `version`: 1
- `program`: what was started, as a text; `arguments`: a list of texts
- `machine`: the simulated machine's name; `ranks`, `nodes`: numbers; `gpus`: how many
- `status`: the exit status (see `limits`); `error`: null, or the message of what failed
- `restarts`: how often all ranks have started again (torchrun's `--max-restarts`)
- `simulated_s`: until the last work of hosts and devices; `wall_s`: what it took really, and
  `values_s`: how much of that went into computing values (next to nothing with `--shapes-only`)
- `steps`: updates of the optimizer that makes most; `ms_per_step`: null, or simulated milliseconds
  (the median between two of its updates)
- `devices`: a list; each has `device` ("cuda:0"), `busy_s` (computing), `communicating_s`,
  `exposed_communication_s` (of that, while nothing was computed), `waiting_for_host_s`,
  `waiting_for_others_s` (for other ranks, streams, links), `idle_s` (after its last work),
  `peak_memory_bytes` and `memory_bytes` (what it has)
- `hazards`: null if they were not looked for, else a list of texts
- `syncs`: a list of what made hosts wait for devices; each has `call`, `place`, `count`, `seconds`
- `broken_limits`: a list of texts, empty if none was broken
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...timeline.formatting import bytes_text, seconds_text, table
from .shapes_advice import advice

VERSION = 1
SHOWN = 3  # places that made the host wait
NO_GPU = "no GPU was used: what the CPU computes, and sends over gloo, takes no simulated time"


@dataclass(frozen=True)
class DeviceReport:
    """What one device did: see the schema above."""

    device: str
    busy_s: float
    communicating_s: float
    exposed_communication_s: float
    waiting_for_host_s: float
    waiting_for_others_s: float
    idle_s: float
    peak_memory_bytes: int
    memory_bytes: int

    @property
    def was_used(self) -> bool:
        """Whether it had anything to do, or to hold."""
        return bool(self.peak_memory_bytes or self.busy_s or self.communicating_s)


@dataclass(frozen=True)
class SyncReport:
    """What made hosts wait at one place."""

    call: str
    place: str
    count: int
    seconds: float


@dataclass
class RunReport:
    """A run: see the schema above."""

    program: str
    arguments: list[str]
    machine: str
    ranks: int
    nodes: int
    gpus: int
    status: int = 0
    error: str | None = None
    simulated_s: float = 0.0
    wall_s: float = 0.0
    values_s: float = 0.0
    steps: int = 0
    ms_per_step: float | None = None
    devices: list[DeviceReport] = field(default_factory=list)
    hazards: list[str] | None = None
    syncs: list[SyncReport] = field(default_factory=list)
    broken_limits: list[str] = field(default_factory=list)
    restarts: int = 0
    version: int = VERSION

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. Raises OSError."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        lines = [
            f"simulated on {self.machine}: {seconds_text(self.simulated_s)}, in {self.wall_s:.1f} s"
            " of this machine's time"
        ]
        advised = advice(self.values_s, self.wall_s)
        if advised:
            lines[0] += f", {advised}"
        if self.ms_per_step is not None:
            lines.append(f"{self.steps} steps, {self.ms_per_step:.3f} ms per step (simulated)")
        if self.restarts:
            lines.append(f"all ranks started again {self.restarts} times after a failure")
        lines += self._table() if any(d.was_used for d in self.devices) else [NO_GPU]
        lines += self._findings()
        return "\n".join(lines)

    def _table(self) -> list[str]:
        rows: list[tuple[str, ...]] = [
            ("GPU", "busy", "communicating", "waits for host", "for others", "peak memory")
        ]
        for device in self.devices:
            times = (
                device.busy_s,
                device.communicating_s,
                device.waiting_for_host_s,
                device.waiting_for_others_s,
            )
            shares = [f"{seconds / (self.simulated_s or 1.0):.1%}" for seconds in times]
            rows.append((device.device, *shares, bytes_text(device.peak_memory_bytes)))
        return table(rows, first=str.rjust)

    def _findings(self) -> list[str]:
        lines = []
        if self.hazards is not None:
            lines.append(f"hazards: {len(self.hazards) or 'none'}")
            lines += [f"  {hazard}" for hazard in self.hazards]
        if self.syncs:
            count = sum(sync.count for sync in self.syncs)
            lines.append(f"calls that made a host wait for a device: {count}, most at")
            lines += [
                f"  {sync.place}: {sync.call}, {sync.count} times, {seconds_text(sync.seconds)}"
                for sync in self.syncs[:SHOWN]
            ]
        return lines
